//! Chooses what the configuration leaves open, from the models, the memory and the cores: how many sequences share how
//! much KV cache and in which layout, the batch, the threads, and the RAM of the prefix cache.
//!
//! All sizes are bytes unless their name says tokens.

mod needs;

use self::needs::spared;
pub use self::needs::{
    Budget, Cut, DraftNeeds, KvLayout, Machine, ModelNeeds, PART_STEP, Sizes, Wishes, bodies, process,
};
use crate::offload::{self, Free, Taken};
pub use crate::offload::{DeviceNeeds, Offloaded};

/// Generations that one worker runs at once, unless memory or the configuration says otherwise.
pub const SEQUENCES: u32 = 32;
/// With fewer parts than this, one pool serves better.
const LEAST_PARTS: u32 = 8;
/// A pool is never smaller, whatever the memory.
const LEAST_TOKENS: u32 = 512;
/// Tokens of one step: wider ones are no faster on a CPU, and take memory.
const BATCH_TOKENS: u32 = 512;
const LEAST_BATCH_TOKENS: u32 = 64;
/// The largest part of what weights leave that the buffers of all models' batches take, unless inputs are long.
const BATCH_SHARE: u64 = 2;
/// The part of what is left that the longest input of an embedding model, which is computed in one piece, takes: of what weights
/// and the batches of generating models leave of the host's memory, unless its length is asked for, and of what weights,
/// and the entries of a chat of generating models, leave of devices.
const INPUT_SHARE: u64 = 4;
/// The prefix cache takes a quarter of what models leave, and never more than this unless told to.
const CACHE_SHARE: u64 = 4;
const MOST_CACHE_BYTES: u64 = 8 << 30;
/// KV caches that nobody asked for take half of what models leave: what they do not use serves the page cache.
const KV_SHARE: u64 = 2;

/// Divides the memory. `process`: what the process takes beside models. `devices`: what is free on each device. `cache`: what
/// the configuration asks for the prefix cache.
pub fn divide(machine: Machine, process: u64, devices: &[u64], models: &[ModelNeeds], cache: Option<u64>) -> Budget {
    let planned = (machine.memory - spared(machine.memory)).saturating_sub(process);
    // Drivers and other programs need some, too.
    let mut free = Free::new(devices.iter().map(|&free| free - spared(free)));
    let placed = place_all(models, planned, &mut free);
    let taken = models.iter().zip(&placed).map(|(model, placed)| placed.host(model)).fold(0, u64::saturating_add);
    let left = planned.saturating_sub(taken);
    let generates = models.iter().any(|model| model.generates);
    // So that there is something whose prefixes can be kept.
    let half = left / 2;
    let mut granted = match cache {
        None if generates => (left / CACHE_SHARE).min(MOST_CACHE_BYTES),
        None => 0,
        Some(wished) => wished.min(half),
    };
    // Models take of what is left in turn, each as if those after it that want some, too, wanted as much.
    let mut left = left.saturating_sub(granted);
    let mut chosen: Vec<Sizes> = Vec::with_capacity(models.len());
    for (index, (model, at)) in models.iter().zip(&placed).enumerate() {
        let on = model.on_devices();
        let others = || models.iter().zip(&placed).skip(index + 1);
        let on_host = others().filter(|(other, placed)| placed.places(other).host > 0).count();
        let on_same = others().filter(|(other, placed)| {
            placed.places(other).devices > 0 && other.on_devices().iter().any(|device| on.contains(device))
        });
        let host = if model.generates { left / (1 + on_host as u64) } else { 0 };
        let devices = (free.of(on) / (1 + on_same.count() as u64)).saturating_add(at.reserved);
        let room = Room { host, devices, offloaded: at.offloaded };
        let sizes = choose(model, machine, room, at.batches);
        free.take(on, sizes.offloaded.kv.saturating_sub(at.reserved));
        left = left.saturating_sub(sizes.kv);
        chosen.push(sizes);
    }
    let mut cuts = Vec::new();
    let of_models = chosen.iter().map(Sizes::bytes).fold(0, u64::saturating_add);
    // The least that models get goes before the cache.
    granted = granted.min(planned.saturating_sub(of_models));
    if of_models > planned {
        cuts.push(Cut::Memory { wanted: of_models, available: planned });
    }
    if let Some(wished) = cache.filter(|&wished| wished > granted && generates) {
        cuts.push(Cut::Cache { wished, granted });
    }
    let most_cache = half.min(granted.saturating_add(left));
    Budget { machine, process, planned, models: chosen, cache: granted, most_cache, cuts }
}

/// Where a model and its batches are, before KV caches divide what is left.
#[derive(Clone, Copy, Default)]
struct Placed {
    batches: Batches,
    offloaded: Offloaded,
    /// Kept on its devices for the KV entries of one chat of each worker.
    reserved: u64,
}

impl Placed {
    /// KV entries and state of a token, by where they lie. Embedding models have none.
    fn places(&self, model: &ModelNeeds) -> Places {
        let all = |kv_token: u64, state: u64| if model.generates { kv_token.saturating_add(state) } else { 0 };
        let draft = all(model.draft.kv_token, model.draft.sequence);
        places(&self.offloaded, all(model.kv_token, model.sequence), draft)
    }

    /// What it takes of the host's memory. Batches count there even if layers are on devices: these may fail.
    fn host(&self, model: &ModelNeeds) -> u64 {
        host_weights(model, &self.offloaded).saturating_add(all_buffers(model, self.batches.tokens))
    }
}

/// Gives layers to devices and sizes to batches, in the order of `models`, except that long inputs of embedding models take
/// of what generating models leave.
fn place_all(models: &[ModelNeeds], planned: u64, free: &mut Free) -> Vec<Placed> {
    let mut placed = vec![Placed::default(); models.len()];
    let place_those = |placed: &mut [Placed], free: &mut Free, generate: bool, batches: &dyn Fn(usize) -> Batches| {
        for (index, model) in models.iter().enumerate().filter(|(_, model)| model.generates == generate) {
            placed[index] = place(model, free, batches(index));
        }
    };
    // What this many tokens take on devices is known before it is known what stays with the host.
    let widest = |index: usize| Batches { tokens: batch_tokens(&models[index], u64::MAX), ..Batches::default() };
    // How long their inputs may be follows from what their weights leave.
    let shortest = |_| Batches { tokens: LEAST_TOKENS, ..Batches::default() };
    let left_by = |placed: &[Placed]| {
        let weights = models.iter().zip(placed).map(|(model, placed)| host_weights(model, &placed.offloaded));
        planned.saturating_sub(weights.fold(0, u64::saturating_add))
    };
    let mut trial = free.clone();
    place_those(&mut placed, &mut trial, true, &widest);
    place_those(&mut placed, &mut trial, false, &shortest);
    let buffers = left_by(&placed) / BATCH_SHARE / models.len().max(1) as u64;
    // Devices keep no room for what the host then has none for: they may get layers instead.
    let granted = |index: usize| Batches { tokens: batch_tokens(&models[index], buffers), ..Batches::default() };
    place_those(&mut placed, free, true, &granted);
    let mut beside = free.clone();
    place_those(&mut placed, &mut beside, false, &shortest);
    let left = left_by(&placed);
    let generating = || models.iter().zip(&placed).filter(|(model, _)| model.generates);
    let taken = generating().map(|(model, placed)| all_buffers(model, placed.batches.tokens));
    let host = left.saturating_sub(taken.fold(0, u64::saturating_add));
    // Tensor models have no batches of tokens.
    let embedders = models.iter().filter(|model| !model.generates && model.batch_token > 0).count() as u64;
    let inputs = InputRoom { host, free: beside, embedders };
    let inputs: Vec<Input> =
        models.iter().zip(&placed).map(|(model, placed)| inputs.longest(model, &placed.offloaded)).collect();
    let longest = |index: usize| {
        let input = inputs[index];
        Batches { tokens: batch_tokens(&models[index], buffers).max(input.tokens), input }
    };
    place_those(&mut placed, free, false, &longest);
    placed
}

/// Tokens of a step: as many as are efficient, or fewer, so that buffers take no more than this.
fn batch_tokens(model: &ModelNeeds, most: u64) -> u32 {
    let least = model.wishes.sequences.unwrap_or(1).max(LEAST_BATCH_TOKENS);
    let mut tokens = model.wishes.batch_tokens.unwrap_or(BATCH_TOKENS.max(least));
    while tokens > least && all_buffers(model, tokens) > most {
        tokens = (tokens / 2).max(least);
    }
    tokens
}

/// Gives layers to devices, as far as there is room, and keeps what one chat of each worker needs there.
fn place(model: &ModelNeeds, free: &mut Free, batches: Batches) -> Placed {
    let Some(needs) = &model.devices else {
        return Placed { batches, offloaded: Offloaded::default(), reserved: 0 };
    };
    let least_kv = match model.generates {
        true => {
            let tokens = model.chat_tokens().min(model.wishes.kv_tokens.unwrap_or(u32::MAX));
            let tokens = model.kv_token.saturating_mul(u64::from(tokens));
            tokens.saturating_add(model.sequence).saturating_mul(u64::from(model.workers))
        }
        false => 0,
    };
    let buffers = buffers(model, model.batch_token, batches.tokens);
    let offloaded =
        offload::place(needs, Taken { weights: model.weights, batches: buffers, least_kv }, free.of(&needs.devices));
    free.take(&needs.devices, offloaded.bytes());
    let reserved = offloaded.divide(least_kv).1.min(free.of(&needs.devices));
    free.take(&needs.devices, reserved);
    Placed { batches, offloaded, reserved }
}

/// What the KV caches of a model may take.
#[derive(Clone, Copy)]
struct Room {
    host: u64,
    devices: u64,
    /// Where its layers are.
    offloaded: Offloaded,
}

impl Room {
    fn places(&self, model: u64, draft: u64) -> Places {
        places(&self.offloaded, model, draft)
    }

    /// How many things of one size fit for each worker, beside what is taken.
    fn fits(&self, size: Places, taken: Places, workers: u64) -> u32 {
        let count = |room: u64, taken: u64, size: u64| {
            (room / workers).saturating_sub(taken).checked_div(size).unwrap_or(u64::MAX)
        };
        let most = count(self.host, taken.host, size.host).min(count(self.devices, taken.devices, size.devices));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// One part of it, as far as the host's memory is concerned.
    fn part(self, parts: u64) -> Self {
        Self { host: self.host / parts, ..self }
    }

    /// One part of it all.
    fn part_of_all(self, parts: u64) -> Self {
        Self { devices: self.devices / parts, ..self.part(parts) }
    }
}

/// KV entries or states of a model and of its draft model: those in the host's memory, and those on devices.
fn places(offloaded: &Offloaded, model: u64, draft: u64) -> Places {
    let (host, devices) = offloaded.divide(model);
    Places { host: host.saturating_add(draft), devices }
}

/// Bytes in the host's memory and on devices.
#[derive(Clone, Copy)]
struct Places {
    host: u64,
    devices: u64,
}

impl Places {
    const NONE: Self = Self { host: 0, devices: 0 };

    fn times(self, count: u64) -> Self {
        Self { host: self.host.saturating_mul(count), devices: self.devices.saturating_mul(count) }
    }
}

/// Buffers of the batches of so many workers, by what each token needs.
fn buffers(model: &ModelNeeds, batch_token: u64, batch_tokens: u32) -> u64 {
    batch_token.saturating_mul(u64::from(batch_tokens)).saturating_mul(u64::from(model.workers))
}

/// The same, with those of the draft model.
fn all_buffers(model: &ModelNeeds, batch_tokens: u32) -> u64 {
    buffers(model, model.batch_token.saturating_add(model.draft.batch_token), batch_tokens)
}

fn host_weights(model: &ModelNeeds, offloaded: &Offloaded) -> u64 {
    let own = model.weights - offloaded.weights.min(model.weights);
    own.max(model.input_weights).saturating_add(model.draft.weights)
}

/// What the batches of each embedding model may take for the sake of long inputs.
struct InputRoom {
    host: u64,
    free: Free,
    embedders: u64,
}

impl InputRoom {
    /// The longest input of an embedding model: what it was trained for, unless less is asked for or memory is short. Batches
    /// lie on devices, if any layer is there, and in the host's memory once these fail.
    fn longest(&self, model: &ModelNeeds, offloaded: &Offloaded) -> Input {
        // What was asked for may take all of the host's memory, but not the room of the layers on devices.
        let host = self.host / if model.wishes.kv_tokens.is_some() { 1 } else { INPUT_SHARE };
        let devices = (offloaded.layers > 0).then(|| self.free.of(model.on_devices()) / INPUT_SHARE);
        let room = devices.map_or(host, |devices| devices.min(host)) / self.embedders.max(1);
        let longest = model.trained_tokens.min(model.wishes.kv_tokens.unwrap_or(u32::MAX)).max(1);
        let fits = room.checked_div(model.batch_token.saturating_mul(u64::from(model.workers.max(1))));
        let fits = fits.map_or(u32::MAX, |fits| u32::try_from(fits).unwrap_or(u32::MAX)).max(LEAST_TOKENS);
        Input { tokens: longest.min(fits), devices: devices.is_some_and(|devices| devices < host) }
    }
}

/// The longest input of an embedding model, which is in one batch.
#[derive(Clone, Copy, Default)]
struct Input {
    /// 0: it generates.
    tokens: u32,
    /// Whether the room on devices bounds it, rather than that of the host.
    devices: bool,
}

#[derive(Clone, Copy, Default)]
struct Batches {
    tokens: u32,
    input: Input,
}

/// Chooses for one model.
fn choose(model: &ModelNeeds, machine: Machine, room: Room, Batches { tokens: batch_tokens, input }: Batches) -> Sizes {
    let workers = u64::from(model.workers.max(1));
    let threads = model.wishes.threads.unwrap_or((machine.cores / model.workers.max(1)).max(1));
    let batches = all_buffers(model, batch_tokens);
    // A batch holds a row of each sequence.
    let most = model.wishes.sequences.unwrap_or(SEQUENCES.min(batch_tokens));
    let few_rows = model.wishes.sequences.is_none() && most < SEQUENCES && model.wishes.batch_tokens.is_some();
    let of_rows = most;
    let state = room.places(model.sequence, model.draft.sequence);
    let most = most.min(states(model, room, state, workers)).max(1);
    let taken = state.times(u64::from(most + scratch(model)));
    let plan = |token: Places| match model.wishes.kv_tokens {
        // What was asked for may take all, as far as it can be used.
        Some(wished) => {
            let room = whole(room.fits(token, taken, workers).max(LEAST_TOKENS));
            let is_short = room < wished.min(useful(model, most));
            Plan { is_short, ..layout(model, most, wished.min(room), room) }
        }
        None => {
            // One long request may take all, too.
            let one = room.fits(token, taken, workers).min(model.chat_tokens());
            let room = whole(room.part(KV_SHARE).fits(token, taken, workers).max(one).max(LEAST_TOKENS));
            layout(model, most, room, room)
        }
    };
    let token = room.places(model.kv_token, model.draft.kv_token);
    let mut plans = (plan(token), token, false);
    if model.wishes.may_quantize && plans.0.sequence_tokens() < model.chat_tokens() {
        let token = room.places(model.kv_token_q8, model.draft.kv_token_q8);
        let packed = plan(token);
        if packed.sequence_tokens() > plans.0.sequence_tokens() {
            plans = (packed, token, true);
        }
    }
    let (plan, token, quantized) = plans;
    let mut sizes = Sizes {
        sequences: plan.sequences,
        kv_tokens: plan.tokens,
        input_tokens: input.tokens,
        layout: plan.layout,
        batch_tokens,
        threads,
        quantized,
        weights: host_weights(model, &room.offloaded),
        kv: 0,
        batches,
        offloaded: room.offloaded,
        cuts: Vec::new(),
    };
    if model.generates {
        let (tokens, states) = (token.times(plan.real_tokens()), state.times(plan.states()));
        let all = |tokens: u64, states: u64| tokens.saturating_add(states).saturating_mul(workers);
        sizes.kv = all(tokens.host, states.host);
        sizes.offloaded.kv = all(tokens.devices, states.devices);
        sizes.cuts = cuts(model, &sizes, plan.is_short);
        if few_rows && sizes.sequences == of_rows {
            sizes.cuts.push(Cut::Rows { batch_tokens, granted: of_rows });
        }
    } else {
        (sizes.kv_tokens, sizes.layout) = (0, KvLayout::Pooled);
        sizes.cuts.extend(input_cuts(model, &sizes, input.devices));
    }
    if let Some(wished) = model.wishes.batch_tokens.filter(|&wished| wished != batch_tokens) {
        sizes.cuts.push(Cut::Batch { wished, granted: batch_tokens });
    }
    if threads.saturating_mul(model.workers) > machine.cores {
        sizes.cuts.push(Cut::Threads { threads, workers: model.workers, cores: machine.cores });
    }
    if let Some(needs) = &model.devices {
        let (wished, layers, granted) = (needs.wished, needs.layers, room.offloaded.layers);
        // What did not work is told where it was tried.
        if granted < wished.unwrap_or(u32::MAX).min(needs.most.unwrap_or(u32::MAX)).min(layers) {
            sizes.cuts.push(Cut::Layers { wished, layers, granted });
        }
    }
    sizes
}

/// Sequences whose states fit. Beside a KV cache they take half of its room at most, and all of it if there is nothing else.
fn states(model: &ModelNeeds, room: Room, state: Places, workers: u64) -> u32 {
    let room = if model.wishes.sequences.is_some() { room } else { room.part(KV_SHARE) };
    let room = if model.kv_token > 0 { room.part_of_all(2) } else { room };
    room.fits(state, Places::NONE, workers).saturating_sub(scratch(model))
}

/// A pool has a sequence more, through which prefixes are copied. Whether it will be one is not known yet.
fn scratch(model: &ModelNeeds) -> u32 {
    u32::from(model.wishes.layout != Some(KvLayout::PerSequence))
}

fn input_cuts(model: &ModelNeeds, sizes: &Sizes, devices: bool) -> Vec<Cut> {
    let (trained, granted) = (model.trained_tokens, sizes.input_tokens);
    let asked = model.wishes.kv_tokens;
    let unused = asked.filter(|&wished| wished > trained);
    let unused = unused.map(|wished| Cut::Unused { wished, sequences: 1, trained });
    let length = match asked {
        Some(wished) => (granted < wished.min(trained)).then_some(Cut::KvTokens { wished, granted }),
        None => (granted < trained).then_some(Cut::Input { trained, granted, devices }),
    };
    unused.into_iter().chain(length).collect()
}

/// `is_short`: see [`Plan`].
fn cuts(model: &ModelNeeds, sizes: &Sizes, is_short: bool) -> Vec<Cut> {
    let mut cuts = Vec::new();
    if let Some(wished) = model.wishes.sequences.filter(|&wished| wished > sizes.sequences) {
        cuts.push(Cut::Sequences { wished, granted: sizes.sequences });
    }
    let (trained, useful) = (model.trained_tokens, useful(model, sizes.sequences));
    let (granted, sequences) = (sizes.sequence_tokens(), sizes.sequences);
    match model.wishes.kv_tokens {
        Some(wished) if is_short || wished.min(useful) > sizes.kv_tokens => {
            cuts.push(Cut::KvTokens { wished, granted: sizes.kv_tokens });
        }
        Some(wished) if granted < trained.min(wished) && sizes.layout == KvLayout::PerSequence => {
            cuts.push(Cut::Parts { wished, trained, granted, sequences });
        }
        Some(wished) if wished > useful => cuts.push(Cut::Unused { wished, sequences, trained }),
        // Whoever sets both knows what they share.
        Some(wished) if wished > trained && model.wishes.sequences.is_none() => {
            cuts.push(Cut::Shared { wished, sequences, trained });
        }
        None if granted < trained => {
            let parts = if sizes.layout == KvLayout::PerSequence { sequences } else { 1 };
            cuts.push(Cut::Context { trained, granted, parts });
        }
        _ => {}
    }
    if sizes.quantized {
        cuts.push(Cut::Quantized);
    }
    cuts
}

/// The most that sequences can use: none has more tokens than the model was trained for.
fn useful(model: &ModelNeeds, sequences: u32) -> u32 {
    model.trained_tokens.max(1).next_multiple_of(PART_STEP).saturating_mul(sequences.max(1))
}

/// What remains whole when llama.cpp rounds it up.
fn whole(tokens: u32) -> u32 {
    tokens - tokens % PART_STEP
}

struct Plan {
    sequences: u32,
    tokens: u32,
    layout: KvLayout,
    /// Memory has no room for the tokens that were asked for and could be used.
    is_short: bool,
}

impl Plan {
    fn sequence_tokens(&self) -> u32 {
        if self.layout == KvLayout::Pooled { self.tokens } else { self.tokens / self.sequences }
    }

    /// Sequences that have a state, with the one through which prefixes are copied.
    fn states(&self) -> u64 {
        u64::from(self.sequences) + u64::from(self.layout == KvLayout::Pooled)
    }

    /// What llama.cpp makes of it.
    fn real_tokens(&self) -> u64 {
        match self.layout {
            KvLayout::Pooled => u64::from(self.tokens).next_multiple_of(u64::from(PART_STEP)),
            KvLayout::PerSequence => {
                let each = u64::from(self.sequence_tokens()).next_multiple_of(u64::from(PART_STEP));
                each * u64::from(self.sequences)
            }
        }
    }
}

/// Divides `tokens` among at most `most` sequences. Parts, if enough of them hold what a request may need: the model's
/// whole context, or [`PART_TOKENS`]. Otherwise a pool. `room`: tokens that memory has room for.
fn layout(model: &ModelNeeds, most: u32, tokens: u32, room: u32) -> Plan {
    let part = model.chat_tokens().max(1).next_multiple_of(PART_STEP);
    // A number that was asked for is kept.
    let count = if model.wishes.sequences.is_some() { most } else { most.min(tokens / part) };
    let enough = tokens / part >= count && count >= LEAST_PARTS.min(most);
    let parts = match model.wishes.layout {
        None => enough,
        Some(layout) => layout == KvLayout::PerSequence,
    };
    if !parts {
        let tokens = tokens.min(useful(model, most));
        return Plan { sequences: most, tokens, layout: KvLayout::Pooled, is_short: false };
    }
    // No part is smaller than a step, whatever is asked for: fewer of them, if memory is short.
    let whole_parts = if model.wishes.sequences.is_some() { u32::MAX } else { tokens / PART_STEP };
    let count = if enough { count } else { most.min(room / PART_STEP).min(whole_parts) }.max(1);
    let each = (tokens / count).min(useful(model, 1));
    // Whole steps, since llama.cpp rounds up. Parts smaller than one are only made if they were asked for.
    let each = if each > PART_STEP { whole(each) } else { each };
    let most = whole(room / count).max(PART_STEP).min(useful(model, 1));
    let tokens = if model.wishes.kv_tokens.is_some() { tokens.min(most * count) } else { each * count };
    Plan { sequences: count, tokens, layout: KvLayout::PerSequence, is_short: false }
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;
