//! Sizes of the loaded models: asks [`camshaft_core::sizes`] for what the configuration leaves open, and tells what was
//! chosen.
use std::fmt;

use camshaft_core::sizes::{self, Budget, Cut, KvLayout, Machine, ModelNeeds, PART_STEP, Sizes};

use crate::cache_plan::CacheShare;
use crate::config::Config;
use crate::devices::Devices;
use crate::environment;
use crate::weights::{Loaded, Weights};

/// The weights with their sizes, and where the memory goes.
pub(crate) struct Sized {
    pub(crate) weights: Vec<Weights>,
    pub(crate) budget: Budget,
    /// Why there are no devices, if there are none.
    no_devices: Option<String>,
    /// What else is otherwise than it was asked for.
    notes: Vec<String>,
}

/// What there is to divide among models.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) machine: Machine,
    /// What everything else takes.
    process: u64,
    /// What is asked for the prefix cache; `None`: what is best.
    cache: Option<u64>,
    notes: Vec<String>,
}

impl Room {
    /// What `machine` had before the models were loaded.
    pub(crate) fn at_start(config: &Config, machine: Machine, devices: &Devices) -> Self {
        Self {
            machine,
            process: sizes::process(config.live.limits.bodies_bytes(machine)),
            cache: config.live.cache.ram.set().map(|bytes| bytes.0),
            notes: notes(config, machine, devices),
        }
    }

    /// What is left by everything that takes `taken` bytes, the prefix cache among it.
    pub(crate) fn beside(machine: Machine, taken: u64) -> Self {
        Self { machine, process: taken, cache: Some(0), notes: Vec::new() }
    }
}

/// Divides it.
pub(crate) fn size(room: &Room, devices: &Devices, loaded: Vec<Loaded>) -> Sized {
    let needs: Vec<ModelNeeds> = loaded.iter().map(|loaded| loaded.needs(devices)).collect();
    let budget = sizes::divide(room.machine, room.process, &devices.free(), &needs, room.cache);
    let weights = loaded.into_iter().zip(&budget.models);
    let weights = weights.map(|(loaded, sizes)| Weights { loaded, sizes: sizes.clone() }).collect();
    Sized { weights, budget, no_devices: devices.absence(), notes: room.notes.clone() }
}

fn notes(config: &Config, machine: Machine, devices: &Devices) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(variable) = environment::lessens_threads() {
        notes.push(format!("{variable} is set: libgomp may compute with fewer threads than are planned here"));
    }
    let (limits, bodies) = (&config.live.limits, config.live.limits.bodies_bytes(machine));
    if let Some(wished) = limits.bodies.set().filter(|wished| wished.0 < bodies) {
        notes.push(format!("limits.bodies = {wished} is raised to {}: 32 times limits.body", mib(bodies)));
    }
    for model in &config.live.model {
        let missing = devices.missing(model);
        if !missing.is_empty() {
            let why = devices.absence().unwrap_or_else(|| "`camshaft devices` lists those that are there".to_owned());
            notes.push(format!("model {}: there is no device {}: {why}", model.id, missing.join(", ")));
        }
    }
    notes
}

impl Sized {
    /// Of the prefix cache.
    pub(crate) fn share(&self) -> CacheShare {
        let workers = self.weights.iter().map(|weights| weights.loaded.caching_workers()).sum();
        CacheShare { workers, chosen: self.budget.cache, most: self.budget.most_cache }
    }

    /// Says in the log what was chosen, and what was cut.
    pub(crate) fn tell(&self) {
        for weights in &self.weights {
            let Sizes { sequences, kv_tokens, batch_tokens, input_tokens, threads, kv, offloaded, .. } = weights.sizes;
            if weights.computes_tensors() {
                let (model, workers) = (&weights.config().id, weights.loaded.workers());
                tracing::info!(model, workers, threads, bytes = weights.sizes.weights, "sizes");
            } else if weights.is_generating() {
                tracing::info!(
                    model = weights.config().id,
                    sequences,
                    kv_tokens,
                    kv_layout = weights.sizes.layout.as_str(),
                    kv_type = weights.kv_type().as_str(),
                    kv_bytes = kv,
                    device_layers = offloaded.layers,
                    device_bytes = offloaded.bytes(),
                    batch_tokens,
                    threads,
                    "sizes"
                );
            } else {
                let (device_layers, device_bytes) = (offloaded.layers, offloaded.bytes());
                let model = &weights.config().id;
                tracing::info!(model, input_tokens, batch_tokens, threads, device_layers, device_bytes, "sizes");
            }
        }
        self.rows().iter().for_each(|row| tracing::info!(bytes = row.bytes, "memory: {row}"));
        self.cuts().iter().for_each(|cut| tracing::warn!("{cut}"));
    }

    /// What was cut, a sentence each.
    pub(crate) fn cuts(&self) -> Vec<String> {
        let of_models = self.weights.iter().flat_map(|weights| {
            let id = &weights.config().id;
            weights.sizes.cuts.iter().map(move |&cut| format!("model {id}: {}", self.sentence(cut)))
        });
        let of_all = self.budget.cuts.iter().map(|&cut| self.sentence(cut));
        self.notes.iter().cloned().chain(of_all).chain(of_models).collect()
    }

    fn sentence(&self, cut: Cut) -> String {
        match cut {
            Cut::KvTokens { wished, granted } => {
                format!("context-tokens = {wished} is cut to {granted}: there is no memory for more")
            }
            Cut::Sequences { wished, granted } => {
                format!("sequences = {wished} is cut to {granted}: there is no memory for more")
            }
            Cut::Input { trained, granted, devices } => {
                let place = match devices {
                    true => " on its devices (gpu-layers = 0 leaves it to the host's)".to_owned(),
                    false => format!(" by itself{}", self.more_of_what_is_left()),
                };
                format!(
                    "an input has {granted} tokens at most, though the model was trained for {trained}: an embedding model takes no \
                     more memory{place}"
                )
            }
            Cut::Context { trained, granted, parts } => {
                let way = match parts {
                    0 | 1 => format!(" that a model takes by itself{}", self.more_of_what_is_left()),
                    _ => " beside others (fewer sequences, or kv-layout = \"pooled\", leave more for one)".to_owned(),
                };
                format!(
                    "a request has {granted} tokens at most, though the model was trained for {trained}: there is no memory \
                     for more{way}"
                )
            }
            Cut::Parts { wished, trained, granted, sequences } => format!(
                "a request has {granted} tokens at most, though the model was trained for {trained}: context-tokens = {wished} is \
                 divided among {} in multiples of {PART_STEP} (a larger context-tokens, fewer sequences, or kv-layout = \"pooled\", \
                 leave more for one)",
                counted(sequences, "sequence")
            ),
            Cut::Unused { wished, sequences, trained } => {
                let whose = match sequences {
                    1 => "a request".to_owned(),
                    _ => format!("its {sequences} sequences"),
                };
                format!(
                    "context-tokens = {wished} is more than {whose} can use: the model was trained for {trained} tokens, no request \
                     gets more, and what is beyond is not taken"
                )
            }
            Cut::Shared { wished, sequences, trained } => format!(
                "a request has {trained} tokens at most, which the model was trained for: context-tokens = {wished} is for all {} \
                 together (set sequences, too, if that is meant)",
                counted(sequences, "sequence")
            ),
            Cut::Rows { batch_tokens, granted } => format!(
                "no more than {granted} sequences run at once: a batch holds a row of each, and batch-tokens = {batch_tokens}"
            ),
            Cut::Batch { wished, granted } if wished > granted => {
                format!(
                    "batch-tokens = {wished} is cut to {granted}: the buffers of all models take half of what weights leave at most"
                )
            }
            Cut::Batch { wished, granted } => format!(
                "batch-tokens = {wished} is raised to {granted}: an input is computed in one batch (context-tokens makes inputs \
                 shorter)"
            ),
            Cut::Cache { wished, granted } => {
                format!(
                    "cache.ram = {} is cut to {}: it takes half of what weights and batches leave at most, and nothing of the least \
                     that models get",
                    mib(wished),
                    mib(granted)
                )
            }
            Cut::Quantized => {
                "KV entries are stored as q8_0, since there is little memory (kv-type = \"f16\" forbids it)".to_owned()
            }
            Cut::Layers { wished: Some(wished), layers, granted } => {
                let why = self.no_devices.as_deref().unwrap_or("no device that it may use has room for more");
                format!("gpu-layers = {wished} is cut to {granted} of {layers}: {why}")
            }
            Cut::Layers { wished: None, layers, granted } => {
                format!(
                    "{granted} of {layers} layers are on devices, which have no room for more: the CPU computes the others"
                )
            }
            Cut::Threads { threads, workers, cores } => {
                let what = match (workers, threads) {
                    (0 | 1, _) => format!("threads = {threads}"),
                    (_, 1) => format!("a thread for each of {workers} workers"),
                    _ => format!("threads = {threads} for each of {workers} workers"),
                };
                format!(
                    "{what} is more than {}: threads that share a core wait for each other, and what the CPU computes takes longer",
                    counted(cores, "core")
                )
            }
            Cut::Memory { wanted, available } => format!(
                "the models take {}, and {} are left for them beside {} for policies and requests (limits.bodies, 32 times \
                 limits.body): expect reading from disk in every step, or the end of the process",
                mib(wanted),
                mib(available),
                mib(self.budget.process)
            ),
        }
    }

    /// How to get more than a model takes by itself, if there is more.
    fn more_of_what_is_left(&self) -> &'static str {
        if self.left() > 0 { " (context-tokens = N asks for more of what is left)" } else { "" }
    }

    /// Bytes that nothing is planned for.
    fn left(&self) -> u64 {
        let models: u64 = self.weights.iter().map(|weights| weights.sizes.bytes()).sum();
        self.budget.planned.saturating_sub(models).saturating_sub(self.budget.cache)
    }

    /// Whether all models compute in teams, which have as many threads together as there are cores, so that each may have its own.
    pub(crate) fn divides_cores(&self) -> bool {
        let threads: u32 = self.weights.iter().map(Weights::threads_of_all).sum();
        self.weights.iter().all(Weights::computes_in_teams) && self.cores() == threads
    }

    /// Cores among which the threads were divided.
    pub(crate) fn cores(&self) -> u32 {
        self.budget.machine.cores
    }

    /// Which sizes of each model nobody set, a sentence each.
    pub(crate) fn chosen(&self) -> Vec<String> {
        let of_model = |weights: &Weights| {
            let config = weights.config();
            if weights.computes_tensors() {
                return None;
            }
            let generating = [
                ("context-tokens", config.context_tokens.set().is_none()),
                ("sequences", config.sequences.set().is_none()),
                ("kv-layout", config.kv_layout.set().is_none()),
                ("kv-type", config.kv_type.set().is_none()),
            ];
            let of_all =
                [("batch-tokens", config.batch_tokens.set().is_none()), ("threads", config.threads.set().is_none())];
            let of_this = if weights.is_generating() { &generating[..] } else { &generating[..1] };
            let chosen: Vec<_> =
                of_this.iter().chain(&of_all).filter(|(_, is_auto)| *is_auto).map(|(key, _)| *key).collect();
            (!chosen.is_empty())
                .then(|| format!("model {}: chosen for this machine (auto): {}", config.id, chosen.join(", ")))
        };
        self.weights.iter().filter_map(of_model).collect()
    }

    /// Where the memory goes, a line each.
    pub(crate) fn table(&self) -> String {
        self.rows().iter().fold(String::new(), |table, row| table + &format!("{row}\n"))
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut row = |what: String, bytes: u64, note: String| rows.push(Row { what, bytes, note });
        row("memory available".to_owned(), self.budget.machine.memory, String::new());
        for weights in &self.weights {
            let (id, sizes) = (&weights.config().id, &weights.sizes);
            let offloaded = sizes.offloaded;
            let whose = match weights.config().workers {
                workers if workers > 1 && weights.is_generating() => format!("{workers} workers with "),
                _ => String::new(),
            };
            if weights.computes_tensors() {
                let workers = counted(weights.loaded.workers(), "worker");
                row(format!("{id}: weights, batches"), sizes.weights, format!("{workers}, a thread each"));
                continue;
            }
            row(format!("{id}: weights"), sizes.weights, String::new());
            if weights.is_generating() {
                let (layout, kind) = (sizes.layout.as_str(), weights.kv_type().as_str());
                let (sequences, tokens) = (sizes.sequences, sizes.sequence_tokens());
                let sequences = counted(sequences, "sequence");
                let held = match sizes.layout {
                    KvLayout::Pooled => format!("{} tokens shared by {sequences}", sizes.kv_tokens),
                    KvLayout::PerSequence => format!("{sequences} of {tokens} tokens"),
                };
                row(format!("{id}: KV cache"), sizes.kv, format!("{whose}{held}, {layout}, {kind}"));
            }
            let (batch, threads) = (sizes.batch_tokens, sizes.threads);
            row(
                format!("{id}: batches"),
                sizes.batches,
                format!("{whose}{batch} tokens, {}", counted(threads, "thread")),
            );
            if offloaded.layers > 0 {
                let (layers, weights, kv) = (offloaded.layers, mib(offloaded.weights), mib(offloaded.kv));
                let note =
                    format!("{layers} layers: weights {weights}, KV cache {kv}; on devices, not in the host's memory");
                row(format!("{id}: on devices"), offloaded.bytes(), note);
            }
        }
        for (what, bytes) in [
            ("prefix cache", self.budget.cache),
            ("process, policies, requests", self.budget.process),
            ("spared for the system", self.budget.spared()),
            ("left", self.left()),
        ] {
            row(what.to_owned(), bytes, String::new());
        }
        rows
    }
}

/// A line of the table of memory.
struct Row {
    what: String,
    bytes: u64,
    note: String,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = format!("{:<28} {:>10} {}", self.what, mib(self.bytes), self.note);
        f.write_str(line.trim_end())
    }
}

/// A number of things with a regular plural.
fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1u32 << 20))
}
