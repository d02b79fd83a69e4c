use proptest::prelude::*;

use super::needs::PART_TOKENS;
use super::*;

#[path = "sizes_tests/asked.rs"]
mod asked;
#[path = "sizes_tests/devices.rs"]
mod devices;

const GIB: u64 = 1 << 30;
const PROCESS: u64 = GIB / 2;

/// 30 million parameters, trained to 8192 tokens.
fn small() -> ModelNeeds {
    ModelNeeds {
        generates: true,
        workers: 1,
        weights: 40 << 20,
        input_weights: 0,
        trained_tokens: 8192,
        kv_token: 9216,
        kv_token_q8: 4896,
        sequence: 0,
        batch_token: 150_000,
        devices: None,
        draft: DraftNeeds::default(),
        wishes: Wishes::default(),
    }
}

/// Tokens of a sequence as they were chosen. llama.cpp rounds parts up.
fn before_rounding(sizes: &Sizes) -> u32 {
    if sizes.layout == KvLayout::Pooled { sizes.kv_tokens } else { sizes.kv_tokens / sizes.sequences }
}

/// A billion parameters, trained to 131,072 tokens.
fn large() -> ModelNeeds {
    ModelNeeds {
        weights: 1_300 << 20,
        trained_tokens: 131_072,
        kv_token: 32 << 10,
        kv_token_q8: 17 << 10,
        batch_token: 600_000,
        ..small()
    }
}

fn on(gib: u64) -> Machine {
    Machine { memory: gib * GIB, cores: 2 }
}

fn alone(machine: Machine, model: ModelNeeds) -> Sizes {
    divide(machine, PROCESS, &[], &[model], None).models.remove(0)
}

fn shape(sizes: &Sizes) -> (u32, u32, KvLayout) {
    (sizes.sequences, sizes.kv_tokens, sizes.layout)
}

#[test]
fn each_sequence_has_a_part_that_holds_the_whole_context() {
    let sizes = alone(on(24), small());
    assert_eq!(shape(&sizes), (32, 32 * 8192, KvLayout::PerSequence));
    assert_eq!((sizes.batch_tokens, sizes.threads, sizes.kv), (512, 2, 32 * 8192 * 9216));
    assert!(sizes.cuts.is_empty() && !sizes.quantized);
    // A model with a short context gets no more than it can use, in whole steps.
    let short = ModelNeeds { trained_tokens: 500, ..small() };
    assert_eq!(shape(&alone(on(24), short)), (32, 32 * 512, KvLayout::PerSequence));
}

#[test]
fn fewer_or_shorter_parts_when_memory_is_short_and_a_pool_below_that() {
    // What is left of 24 GiB after a tenth, the process, the weights and the cache, halved: 7 GiB.
    let sizes = alone(on(24), large());
    assert_eq!(sizes.layout, KvLayout::PerSequence);
    assert!((8..=32).contains(&sizes.sequences) && sizes.sequence_tokens() >= PART_TOKENS, "{sizes:?}");
    let parts = sizes.sequences;
    assert_eq!(sizes.cuts, [Cut::Context { trained: 131_072, granted: sizes.sequence_tokens(), parts }]);
    let one = alone(on(4), ModelNeeds { wishes: Wishes { sequences: Some(1), ..Wishes::default() }, ..large() });
    assert!(matches!(one.cuts[..], [Cut::Context { parts: 1, .. }]), "{one:?}");
    // With more memory the parts are longer.
    let roomy = alone(on(200), large());
    assert!(roomy.sequences == 32 && roomy.sequence_tokens() > PART_TOKENS, "{roomy:?}");
    let tight = alone(on(4), large());
    assert_eq!((tight.layout, tight.sequences), (KvLayout::Pooled, 32));
    assert!(tight.kv_tokens >= PART_TOKENS, "{tight:?}");
}

#[test]
fn entries_are_packed_only_where_that_makes_room_and_nobody_forbids_it() {
    let needs = |may_quantize| ModelNeeds { wishes: Wishes { may_quantize, ..Wishes::default() }, ..large() };
    assert!(!alone(on(24), needs(true)).quantized);
    // One long request may take all that is left, before entries are packed for it.
    let roomy = alone(on(3), needs(true));
    assert!(!roomy.quantized && roomy.kv_tokens == PART_TOKENS, "{roomy:?}");
    let short =
        |model| divide(Machine { memory: 9 * GIB / 4, cores: 2 }, PROCESS, &[], &[model], None).models.remove(0);
    let (packed, plain) = (short(needs(true)), short(needs(false)));
    assert!(packed.quantized && packed.cuts.contains(&Cut::Quantized), "{packed:?}");
    assert!(!plain.quantized && plain.kv_tokens < packed.kv_tokens, "{plain:?}");
}

/// A model of 1.26 GiB had 512 tokens in 2 GiB, and half of the memory was never used.
#[test]
fn regression_a_model_that_barely_fits_has_room_for_a_chat() {
    let wishes = Wishes { may_quantize: true, ..Wishes::default() };
    let model = ModelNeeds { weights: 1_255 << 20, trained_tokens: 8192, batch_token: 730_000, wishes, ..large() };
    let machine = Machine { memory: 2031 << 20, cores: 2 };
    let budget = divide(machine, process(bodies(machine.memory, 64 << 20)), &[], &[model], None);
    assert!(budget.cuts.is_empty() && budget.models[0].sequence_tokens() >= 7168, "{budget:?}");
}

#[test]
fn requests_take_a_part_of_the_memory_and_never_more_than_a_bound() {
    assert_eq!([0, 31, 32, 8 * GIB - 1].map(|memory| bodies(memory, 0)), [0, 0, 1, (256 << 20) - 1]);
    assert_eq!([8 * GIB, 8 * GIB + 32, u64::MAX].map(|memory| bodies(memory, 0)), [256 << 20; 3]);
    // For the largest ones it is more, up to a quarter.
    assert_eq!([GIB, 256 << 20, 64 << 20].map(|memory| bodies(memory, 64 << 20)), [64 << 20, 64 << 20, 16 << 20]);
    assert_eq!(bodies(24 * GIB, 32 * GIB), 6 * GIB);
}

#[test]
fn models_share_the_memory_and_embedding_models_take_no_kv() {
    let embeds = ModelNeeds { generates: false, ..small() };
    let budget = divide(on(8), PROCESS, &[], &[large(), embeds, small()], None);
    assert_eq!(budget.models[1].kv, 0);
    assert!(budget.models[1].cuts.is_empty());
    assert!(budget.models[0].kv > 0 && budget.models[2].kv > 0);
    // Without a model that generates there is nothing to cache.
    assert_eq!(divide(on(8), PROCESS, &[], &[ModelNeeds { generates: false, ..small() }], None).cache, 0);
    // Workers compute at the same time.
    let workers = ModelNeeds { workers: 2, ..small() };
    assert_eq!(alone(Machine { memory: 8 * GIB, cores: 8 }, workers).threads, 4);
}

#[test]
fn states_of_recurrent_layers_take_their_room_and_decide_how_many_sequences_there_are() {
    // As a recurrent model of 7 billion parameters: 268 MB a sequence, and no KV at all.
    let state = 268 << 20;
    let recurrent = |sequences| {
        let wishes = Wishes { sequences, ..Wishes::default() };
        ModelNeeds { weights: 4 * GIB, kv_token: 0, kv_token_q8: 0, sequence: state, wishes, ..small() }
    };
    let sizes = alone(on(24), recurrent(None));
    assert!((16..32).contains(&sizes.sequences) && sizes.kv == state * u64::from(sizes.sequences), "{sizes:?}");
    assert!(sizes.cuts.is_empty(), "nobody asked for more: {sizes:?}");
    let sizes = alone(on(8), recurrent(Some(40)));
    assert_eq!(sizes.cuts[0], Cut::Sequences { wished: 40, granted: sizes.sequences });
    assert!(sizes.sequences < 10 && sizes.kv <= 4 * GIB, "{sizes:?}");
    assert_eq!(alone(on(1), recurrent(None)).sequences, 1);
    // Beside KV they take half of its room at most.
    let hybrid = alone(on(24), ModelNeeds { sequence: state, ..large() });
    let states = state * u64::from(hybrid.sequences);
    // Parts are rounded down, so that the KV can take a little less.
    assert!(hybrid.sequences < 32 && 15 * states <= 8 * hybrid.kv && hybrid.kv <= 12 * GIB, "{hybrid:?}");
}

#[test]
fn the_longest_input_of_an_embedding_model_fits() {
    // A decoder of 600 million parameters that embeds, trained to 32,768 tokens: 1.6 MB a token.
    let embeds = |gib: u64, kv_tokens, trained_tokens| {
        let wishes = Wishes { kv_tokens, ..Wishes::default() };
        let needs =
            ModelNeeds { generates: false, weights: GIB, trained_tokens, batch_token: 1_600_000, wishes, ..large() };
        let sizes = alone(on(gib), needs);
        let most = if kv_tokens.is_some() { gib * GIB } else { gib * GIB / 4 };
        assert!(sizes.batches <= most.max(u64::from(LEAST_TOKENS) * 1_600_000), "{sizes:?}");
        assert!(sizes.batch_tokens >= sizes.input_tokens && (sizes.kv, sizes.kv_tokens) == (0, 0));
        (sizes.input_tokens, sizes.cuts)
    };
    // A quarter of what the weights leave.
    let room = |gib: u64| (gib * GIB - gib * GIB / 10 - PROCESS - GIB) / 4;
    assert_eq!(embeds(24, None, 512), (512, vec![]));
    let granted = (room(24) / 1_600_000) as u32;
    assert_eq!(embeds(24, None, 32_768), (granted, vec![Cut::Input { trained: 32_768, granted, devices: false }]));
    // What is asked for may take all of it.
    let granted = (4 * room(24) / 1_600_000) as u32;
    assert_eq!(embeds(24, Some(granted), 32_768), (granted, vec![]));
    assert_eq!(embeds(24, Some(granted + 1), 32_768).1, [Cut::KvTokens { wished: granted + 1, granted }]);
    let unused = |wished| Cut::Unused { wished, sequences: 1, trained: 512 };
    assert_eq!(embeds(24, Some(512), 512).1, []);
    assert_eq!(embeds(24, Some(513), 512).1, [unused(513)]);
    assert_eq!(embeds(8, None, 32_768).0, (room(8) / 1_600_000) as u32);
    assert_eq!(embeds(3, None, 32_768).0, LEAST_TOKENS, "however little there is");
}

/// A decoder of 600 million parameters that embeds, trained to 32,768 tokens.
fn embeds(devices: Option<DeviceNeeds>) -> ModelNeeds {
    let weights = 600 << 20;
    ModelNeeds { generates: false, weights, trained_tokens: 32_768, batch_token: 1_600_000, devices, ..large() }
}

#[test]
fn regression_long_inputs_leave_room_for_other_models() {
    let generator = ModelNeeds { weights: 8 * GIB, ..large() };
    let budget = divide(on(16), PROCESS, &[], &[generator, embeds(None)], None);
    assert!(budget.models[0].kv >= GIB && budget.cuts.is_empty(), "{budget:?}");
    let several = vec![embeds(None); 4];
    let budget = divide(on(16), PROCESS, &[], &several, None);
    assert!(budget.cuts.is_empty() && budget.models.iter().all(|sizes| sizes.input_tokens < 2200), "{budget:?}");
    assert_eq!(budget.models[0].input_tokens, budget.models[3].input_tokens);
}

#[test]
fn regression_the_prefix_cache_is_never_set_to_more_than_is_left() {
    // One chat takes nearly all that weights leave.
    for (memory, wished) in [(9 * GIB / 4, None), (8 * GIB, Some(1 << 24))] {
        let wishes = Wishes { kv_tokens: wished, ..Wishes::default() };
        let model = ModelNeeds { wishes, ..large() };
        let budget = divide(Machine { memory, cores: 2 }, PROCESS, &[], &[model], None);
        let sizes = &budget.models[0];
        let taken = sizes.weights + sizes.batches + sizes.kv + budget.most_cache;
        assert!(budget.cache <= budget.most_cache && taken <= budget.planned, "{budget:?}");
    }
}

#[test]
fn regression_what_the_least_takes_is_said_where_it_does_not_fit() {
    // Recurrent states alone, and a few entries.
    for model in [ModelNeeds { kv_token: 0, kv_token_q8: 0, sequence: 268 << 20, ..large() }, large()] {
        let memory = (PROCESS + model.weights + (100 << 20)) * 10 / 9;
        let budget = divide(
            Machine { memory, cores: 2 },
            PROCESS,
            &[],
            &[ModelNeeds { kv_token: model.kv_token * 8, ..model }],
            None,
        );
        assert!(matches!(budget.cuts[..], [Cut::Memory { wanted, available }] if wanted > available), "{budget:?}");
    }
}

#[test]
fn regression_batches_make_room_for_weights_that_a_device_has_no_room_for() {
    let devices = DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true };
    let model = |draft| ModelNeeds { devices: Some(devices.clone()), weights: 4 * GIB, draft, ..large() };
    let budget =
        |model: ModelNeeds, free| divide(Machine { memory: 4800 << 20, cores: 2 }, 128 << 20, &[free], &[model], None);
    let none = budget(model(DraftNeeds::default()), 300 << 20);
    assert_eq!((none.models[0].offloaded.layers, none.models[0].batch_tokens), (0, 64), "{none:?}");
    assert!(none.cuts.is_empty(), "{none:?}");
    // A draft model is in the host's memory wherever the model is.
    let draft = DraftNeeds { weights: 4 * GIB, batch_token: 600_000, ..DraftNeeds::default() };
    let with_draft = budget(model(draft), 16 * GIB);
    assert_eq!(with_draft.models[0].offloaded.layers, 17);
    assert!(with_draft.models[0].batch_tokens < 512 && with_draft.cuts.is_empty(), "{with_draft:?}");
}

#[test]
fn regression_batches_are_smaller_where_weights_leave_little() {
    let tokens = |memory_mib: u64| {
        let model = ModelNeeds { weights: 4 * GIB, ..large() };
        let budget = divide(Machine { memory: memory_mib << 20, cores: 2 }, 128 << 20, &[], &[model], None);
        (budget.models[0].batch_tokens, budget.cuts.is_empty())
    };
    assert_eq!(tokens(8 << 10), (512, true));
    assert_eq!(tokens(5 << 10), (256, true));
    assert_eq!(tokens(4800), (64, true));
    assert_eq!(tokens(4700), (64, false), "it does not fit at all");
}

#[test]
fn regression_a_draft_model_takes_the_hosts_memory_wherever_the_model_is() {
    let needs = DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true };
    let draft =
        DraftNeeds { weights: GIB, kv_token: 28 << 10, kv_token_q8: 15 << 10, sequence: 0, batch_token: 100_000 };
    let model = ModelNeeds { devices: Some(needs), draft, ..large() };
    let budget = divide(on(24), PROCESS, &[80 * GIB], &[model], None);
    let sizes = &budget.models[0];
    assert_eq!((sizes.offloaded.layers, sizes.weights), (17, GIB));
    assert_eq!(sizes.kv, u64::from(sizes.kv_tokens) * (28 << 10));
    assert!(sizes.kv <= 10 * GIB && sizes.offloaded.kv > sizes.kv, "{sizes:?}");
}

#[test]
fn regression_states_on_a_device_leave_half_of_its_room_to_entries() {
    let needs = DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true };
    let model = ModelNeeds { devices: Some(needs), sequence: 134 << 20, kv_token: 24 << 10, kv_token_q8: 0, ..large() };
    let sizes = divide(on(64), PROCESS, &[6 * GIB], &[model], None).models.remove(0);
    assert!(sizes.sequences < 16 && sizes.kv_tokens > 50_000, "{sizes:?}");
}

#[test]
fn regression_a_pool_has_a_state_more_than_sequences() {
    let state = 268 << 20;
    let states = |layout, sequences| {
        let wishes = Wishes { sequences: Some(sequences), layout, ..Wishes::default() };
        let model = ModelNeeds { kv_token: 0, kv_token_q8: 0, sequence: state, wishes, ..small() };
        let sizes = alone(on(8), model);
        (sizes.sequences, sizes.kv / state)
    };
    assert_eq!(states(Some(KvLayout::Pooled), 1), (1, 2));
    assert_eq!(states(Some(KvLayout::PerSequence), 1), (1, 1));
    // As many fit, with and without the one more.
    let (most, _) = states(Some(KvLayout::PerSequence), 255);
    assert_eq!(states(Some(KvLayout::Pooled), 255), (most - 1, u64::from(most)));
}

#[test]
fn parts_that_are_smaller_than_a_context_are_told() {
    let cuts = |kv_tokens, layout| {
        let wishes =
            Wishes { kv_tokens: Some(kv_tokens), layout: Some(layout), sequences: Some(32), ..Wishes::default() };
        let model = ModelNeeds { wishes, trained_tokens: 8192, ..small() };
        alone(Machine { memory: 24 * GIB, cores: 4 }, model).cuts
    };
    let parts = |wished, granted| Cut::Parts { wished, trained: 8192, granted, sequences: 32 };
    assert_eq!(cuts(8192, KvLayout::PerSequence), [parts(8192, 256)]);
    // llama.cpp rounds parts up: these are 7,937 and 7,936 tokens.
    assert_eq!(cuts(7937 * 32, KvLayout::PerSequence), []);
    assert_eq!(cuts(7936 * 32, KvLayout::PerSequence), [parts(7936 * 32, 7936)]);
    // A request has as many as were asked for.
    assert_eq!(cuts(4096, KvLayout::Pooled), []);
    // What memory cuts is not put down to how it is divided.
    let wishes = Wishes {
        kv_tokens: Some(8192 * 32),
        layout: Some(KvLayout::PerSequence),
        sequences: Some(32),
        ..Wishes::default()
    };
    let short = alone(on(4), ModelNeeds { wishes, trained_tokens: 8192, ..large() });
    assert!(matches!(short.cuts[..], [Cut::KvTokens { wished: 262_144, granted }] if granted < 262_144), "{short:?}");
}

#[test]
fn more_threads_than_cores_are_told() {
    let cuts = |threads, workers| {
        let wishes = Wishes { threads, ..Wishes::default() };
        alone(Machine { memory: 24 * GIB, cores: 4 }, ModelNeeds { workers, wishes, ..small() }).cuts
    };
    assert_eq!(cuts(Some(4), 1), []);
    assert_eq!(cuts(Some(2), 2), []);
    assert_eq!(cuts(Some(5), 1), [Cut::Threads { threads: 5, workers: 1, cores: 4 }]);
    assert_eq!(cuts(Some(3), 2), [Cut::Threads { threads: 3, workers: 2, cores: 4 }]);
    assert_eq!(cuts(None, 4), []);
    assert_eq!(cuts(None, 5), [Cut::Threads { threads: 1, workers: 5, cores: 4 }]);
}

#[test]
fn regression_parts_are_counted_as_llama_cpp_makes_them() {
    let wish = |sequences, kv_tokens| {
        let layout = Some(KvLayout::PerSequence);
        ModelNeeds { wishes: Wishes { sequences, kv_tokens, layout, ..Wishes::default() }, ..large() }
    };
    // 16 tokens each become 256.
    let small = alone(on(24), wish(Some(4), Some(64)));
    assert_eq!((shape(&small), small.kv), ((4, 64, KvLayout::PerSequence), 4 * 256 * (32 << 10)));
    // Where memory is short, there are fewer parts rather than more memory.
    for (sequences, kv_tokens) in [(None, None), (Some(255), None), (Some(255), Some(255 * 256))] {
        let sizes = alone(on(2), wish(sequences, kv_tokens));
        assert!(before_rounding(&sizes) >= 256 && sizes.kv <= 512 * (32 << 10), "{sizes:?}");
        let cut = Cut::Sequences { wished: 255, granted: sizes.sequences };
        assert_eq!(sizes.cuts.contains(&cut), sequences.is_some(), "{sizes:?}");
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let budget = divide(on(1), PROCESS, &[], &[large()], Some(4 * GIB));
    assert!(matches!(budget.cuts[..], [Cut::Memory { .. }, Cut::Cache { wished, granted: 0 }] if wished == 4 * GIB));
    assert_eq!(shape(&budget.models[0]), (32, LEAST_TOKENS, KvLayout::Pooled));
    let budget = divide(on(24), PROCESS, &[], &[small()], Some(GIB));
    assert_eq!((budget.cache, budget.cuts.len()), (GIB, 0));
    assert_eq!(divide(on(1000), PROCESS, &[], &[small()], None).cache, MOST_CACHE_BYTES);
}

#[test]
fn regression_sizes_too_large_to_add_do_not_wrap() {
    let huge = u64::MAX / 2 + 1;
    let of = |model: ModelNeeds| divide(on(24), PROCESS, &[], &[model.clone(), model], None);
    let too_large = [Cut::Memory { wanted: u64::MAX, available: of(small()).planned }];
    assert_eq!(of(ModelNeeds { weights: huge, ..small() }).cuts, too_large);
    assert_eq!(of(ModelNeeds { batch_token: huge, ..small() }).cuts, too_large);
    for kv_token in [huge, u64::MAX] {
        let budget = of(ModelNeeds { kv_token, kv_token_q8: kv_token, ..small() });
        assert_eq!(budget.models.iter().map(|sizes| sizes.kv).collect::<Vec<_>>(), [u64::MAX; 2]);
        assert_eq!(budget.models[0].kv_tokens, LEAST_TOKENS);
    }
}

fn needs() -> impl Strategy<Value = ModelNeeds> {
    let wishes = (
        proptest::option::of(1u32..=255),
        proptest::option::of(16u32..=1 << 24),
        proptest::option::of(prop_oneof![Just(KvLayout::Pooled), Just(KvLayout::PerSequence)]),
        any::<bool>(),
    );
    let sequence = prop_oneof![Just(0u64), 0u64..1 << 30];
    let model = (any::<bool>(), 1u32..4, 0u64..1 << 34, 0u32..1 << 18, 0u64..1 << 18, 0u64..1 << 20, sequence);
    let devices =
        (prop::sample::subsequence(vec![0, 1], 1..=2), 0u32..100, proptest::option::of(0u32..120), any::<bool>());
    let devices = devices.prop_map(|(devices, layers, wished, holds_kv)| DeviceNeeds {
        devices,
        layers,
        wished,
        most: wished.map(|wished| wished / 2),
        holds_kv,
    });
    let draft = (0u64..1 << 32, 0u64..1 << 16, 0u64..1 << 28, 0u64..1 << 18);
    let draft = draft.prop_map(|(weights, kv_token, sequence, batch_token)| DraftNeeds {
        weights,
        kv_token,
        kv_token_q8: kv_token / 2,
        sequence,
        batch_token,
    });
    let draft = prop_oneof![Just(DraftNeeds::default()), draft];
    (model, wishes, proptest::option::of(devices), draft).prop_map(|(model, wish, devices, draft)| {
        let (generates, workers, weights, trained_tokens, kv_token, batch_token, sequence) = model;
        let (sequences, kv_tokens, layout, may_quantize) = wish;
        let wishes = Wishes { sequences, kv_tokens, layout, may_quantize, ..Wishes::default() };
        let kv_token_q8 = kv_token * 17 / 32;
        ModelNeeds {
            generates,
            workers,
            weights,
            input_weights: weights / 10,
            trained_tokens,
            kv_token,
            kv_token_q8,
            sequence,
            batch_token,
            devices,
            draft,
            wishes,
        }
    })
}

proptest! {
    #[test]
    fn what_is_chosen_fits_and_can_be_served(models in prop::collection::vec(needs(), 1..4), gib in 0u64..64,
                                             devices in prop::array::uniform2(0u64..1 << 36),
                                             cache in proptest::option::of(0u64..1 << 36)) {
        let budget = divide(on(gib), PROCESS, &devices, &models, cache);
        // With the state of a pool's scratch.
        let least_of = |m: &ModelNeeds| {
            let (token, state) = (m.kv_token + m.draft.kv_token, m.sequence + m.draft.sequence);
            (token * u64::from(LEAST_TOKENS) + 2 * state) * u64::from(m.workers)
        };
        let least: u64 = models.iter().map(least_of).sum();
        let taken: u64 = budget.models.iter().map(|s| s.weights + s.kv + s.batches).sum();
        if !budget.cuts.iter().any(|cut| matches!(cut, Cut::Memory { .. })) {
            prop_assert!(taken + budget.cache.max(budget.most_cache) <= budget.planned, "{budget:?}");
        }
        let there: u64 = budget.models.iter().map(|sizes| sizes.offloaded.bytes()).sum();
        prop_assert!(there <= devices.iter().sum::<u64>() + least, "{budget:?}");
        for (model, sizes) in models.iter().zip(&budget.models) {
            let layers = model.devices.as_ref().map_or(0, |needs| needs.layers.min(needs.wished.unwrap_or(u32::MAX)));
            prop_assert!(sizes.offloaded.layers <= layers && sizes.offloaded.weights <= model.weights);
            prop_assert!(sizes.sequences >= 1 && sizes.threads >= 1);
            // Parts of whole steps, unless a number of them is asked for.
            let small = before_rounding(sizes) < PART_STEP && sizes.sequences > 1;
            prop_assert!(!small || sizes.layout == KvLayout::Pooled || model.wishes.sequences.is_some(), "{sizes:?}");
            prop_assert_eq!((sizes.kv_tokens >= 1, sizes.input_tokens >= 1), (model.generates, !model.generates));
            prop_assert!(sizes.input_tokens <= sizes.batch_tokens);
            prop_assert!(sizes.sequences <= sizes.batch_tokens);
            prop_assert!(!model.generates || before_rounding(sizes) >= 1 || model.wishes.layout.is_some(), "{sizes:?}");
            let is_cut = sizes.cuts.iter().any(|cut| matches!(cut, Cut::Sequences { .. }));
            let wished = model.wishes.sequences.unwrap_or(sizes.sequences);
            prop_assert!(wished == sizes.sequences || !model.generates || is_cut && wished > sizes.sequences, "{sizes:?}");
            if let Some(wished) = model.wishes.kv_tokens {
                prop_assert!(sizes.kv_tokens <= wished.max(LEAST_TOKENS));
            }
        }
    }
}

#[test]
fn regression_the_least_that_models_get_goes_before_the_prefix_cache() {
    let model = ModelNeeds { kv_token: 128 << 10, ..large() };
    let taken = model.weights + 64 * model.batch_token + 512 * model.kv_token;
    for (over, cache) in [(16 << 20, None), (16 << 20, Some(GIB)), (0, None), (-(1 << 20), None)] {
        let memory = (PROCESS + taken).saturating_add_signed(over) * 10 / 9 + 9;
        let budget = divide(Machine { memory, cores: 2 }, PROCESS, &[], std::slice::from_ref(&model), cache);
        let fits = over >= 0;
        assert_eq!(budget.cuts.iter().any(|cut| matches!(cut, Cut::Memory { .. })), !fits, "{budget:?}");
        assert!(budget.models[0].bytes() + budget.cache <= budget.planned || !fits, "{budget:?}");
        let told = budget.cuts.contains(&Cut::Cache { wished: GIB, granted: budget.cache });
        assert_eq!(told, cache.is_some(), "{budget:?}");
    }
}
