//! Models whose layers lie on devices, and what they leave to each other.
use super::*;
use crate::promised::Promised;

#[test]
fn regression_long_inputs_leave_room_for_layers_on_the_device() {
    let needs = DeviceNeeds { devices: vec![0], layers: 29, wished: None, most: None, holds_kv: true };
    for host in [8, 64, 96, 1000] {
        let sizes = divide(on(host), PROCESS, &[24 * GIB], &[embeds(Some(needs.clone()))], None).models.remove(0);
        assert_eq!(sizes.offloaded.layers, 29, "{host} GiB: {sizes:?}");
    }
    // Nor does a length that is asked for take the room of the layers.
    let wishes = Wishes { kv_tokens: Some(32_768), ..Wishes::default() };
    let asked = ModelNeeds { wishes, ..embeds(Some(needs.clone())) };
    assert_eq!(divide(on(64), PROCESS, &[24 * GIB], &[asked], None).models[0].offloaded.layers, 29);
    // Where there is no device, the host decides.
    let none = DeviceNeeds { devices: vec![], wished: Some(29), ..needs };
    let alone = |devices| divide(on(64), PROCESS, &[], &[embeds(devices)], None).models.remove(0).input_tokens;
    assert_eq!(alone(Some(none)), alone(None));
    assert_eq!(alone(None), (64 * GIB - 64 * GIB / 10 - PROCESS - (600 << 20)).div_euclid(4 * 1_600_000) as u32);
}

#[test]
fn regression_long_inputs_take_of_what_generating_models_leave_on_a_device() {
    let needs = DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true };
    let generator = ModelNeeds { devices: Some(needs.clone()), weights: 8 * GIB, ..large() };
    let embeds = embeds(Some(DeviceNeeds { layers: 29, ..needs }));
    let budget = divide(on(64), PROCESS, &[12 * GIB], &[embeds, generator], None);
    let layers: Vec<_> = budget.models.iter().map(|sizes| sizes.offloaded.layers).collect();
    assert_eq!(layers, [29, 17], "{budget:?}");
    assert!(budget.models[0].input_tokens < 1000 && budget.models[1].offloaded.kv > GIB, "{budget:?}");
}

#[test]
fn regression_models_on_one_device_leave_each_other_the_entries_of_a_chat() {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true });
    let model = |workers| ModelNeeds { devices: devices.clone(), workers, weights: GIB, ..large() };
    for (workers, mib) in [(1, 3 << 10), (4, 5 << 10)] {
        let budget = divide(on(64), PROCESS, &[mib << 20], &[model(workers), model(1), model(1)], None);
        let first = &budget.models[0];
        assert_eq!(first.offloaded.layers, 17, "{budget:?}");
        assert!(first.sequence_tokens() >= PART_TOKENS, "{budget:?}");
        assert!(budget.models[2].offloaded.layers < 17, "{budget:?}");
        let taken: u64 = budget.models.iter().map(|sizes| sizes.offloaded.bytes()).sum();
        assert!(taken <= (mib << 20) * 9 / 10, "{taken} {budget:?}");
    }
}

#[test]
fn regression_models_divide_only_what_both_want() {
    let on_device = |device| {
        let devices = DeviceNeeds { devices: vec![device], layers: 17, wished: None, most: None, holds_kv: true };
        ModelNeeds { devices: Some(devices), trained_tokens: 1 << 20, ..large() }
    };
    let host = ModelNeeds { trained_tokens: 1 << 20, ..large() };
    let of = |models: &[ModelNeeds]| divide(on(24), PROCESS, &[16 * GIB, 16 * GIB], models, None);
    let [alone, here] = [on_device(0), host.clone()].map(|model| of(&[model]).models.remove(0));
    for models in [[on_device(0), host.clone()], [host.clone(), on_device(0)]] {
        for (model, sizes) in models.iter().zip(of(&models).models) {
            let expected = if model.devices.is_some() { &alone } else { &here };
            // Its batches count in the host's memory, too.
            assert!(sizes.kv_tokens >= expected.kv_tokens / 20 * 19, "{sizes:?} beside {expected:?}");
        }
    }
    let two = of(&[on_device(0), on_device(1)]);
    assert!(two.models.iter().all(|sizes| sizes.kv_tokens == alone.kv_tokens), "{two:?} beside {alone:?}");
    let shared = of(&[on_device(0), on_device(0)]);
    assert!(shared.models.iter().all(|sizes| sizes.kv_tokens < alone.kv_tokens / 2), "{shared:?}");
    assert!(shared.models.iter().map(|sizes| sizes.offloaded.bytes()).sum::<u64>() <= 16 * GIB * 9 / 10);
}

/// A device of so much, and a model of 17 layers with the last one, of which `wished` were asked for.
fn offloaded(mib: u64, wished: Option<u32>, holds_kv: bool) -> Sizes {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished, most: None, holds_kv });
    divide(on(24), PROCESS, &[mib << 20], &[ModelNeeds { devices, ..large() }], None).models.remove(0)
}

#[test]
fn all_layers_go_to_a_device_with_room_and_its_memory_bounds_the_context() {
    let whole = offloaded(8192, None, true);
    assert_eq!((whole.offloaded.layers, whole.offloaded.weights, whole.kv), (17, 1_300 << 20, 0));
    assert!(whole.offloaded.kv > 4 * GIB && whole.offloaded.bytes() <= (8192 * 9 / 10) << 20, "{whole:?}");
    // The KV entries stay in the host's memory if they are told to.
    let apart = offloaded(8192, None, false);
    assert!(apart.offloaded.layers == 17 && apart.offloaded.kv == 0 && apart.kv > 0, "{apart:?}");
    assert_eq!(offloaded(1 << 20, Some(4), true).offloaded.layers, 4);
    assert_eq!(offloaded(1 << 20, Some(0), true).offloaded, Offloaded { kv_layers: (0, 16), ..Offloaded::default() });
}

#[test]
fn regression_embeddings_of_tokens_stay_with_the_host() {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true });
    let model = ModelNeeds { devices, input_weights: 270 << 20, ..large() };
    let sizes = divide(on(24), PROCESS, &[80 * GIB], &[model], None).models.remove(0);
    assert_eq!((sizes.offloaded.layers, sizes.weights), (17, 270 << 20));
}

#[test]
fn layers_that_do_not_fit_stay_with_the_host_and_it_is_said() {
    for wished in [None, Some(17), Some(99)] {
        let some = offloaded(1024, wished, true);
        let granted = some.offloaded.layers;
        assert!((2..16).contains(&granted), "{some:?}");
        assert!(some.cuts.contains(&Cut::Layers { wished, layers: 17, granted }), "{some:?}");
        // Entries of a token are divided as the layers are.
        let (there, all) = some.offloaded.kv_layers;
        assert_eq!((there, all), (granted - 1, 16));
        assert_eq!(some.kv * u64::from(there), some.offloaded.kv * u64::from(all - there));
    }
    let none = offloaded(100, None, true);
    assert_eq!((none.offloaded.layers, none.offloaded.bytes()), (0, 0));
    assert!(none.cuts.contains(&Cut::Layers { wished: None, layers: 17, granted: 0 }), "{none:?}");
    assert_eq!(shape(&none), shape(&alone(on(24), large())));
    // What was asked for is no cut.
    assert!(!offloaded(8192, Some(3), true).cuts.iter().any(|cut| matches!(cut, Cut::Layers { .. })));
}

#[test]
fn what_lies_on_devices_is_a_part_of_all_layers_also_where_more_did_not_work() {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: Some(8), holds_kv: true });
    let some = divide(on(24), PROCESS, &[64 * GIB], &[ModelNeeds { devices, ..large() }], None).models.remove(0);
    let wished = offloaded(64 << 10, Some(8), true);
    assert_eq!(
        (some.offloaded.layers, some.offloaded.kv_layers, some.offloaded.weights),
        (8, (7, 16), wished.offloaded.weights)
    );
    assert!(some.kv > 0 && !some.cuts.iter().any(|cut| matches!(cut, Cut::Layers { .. })), "{some:?}");
}

#[test]
fn models_share_devices() {
    let devices = Some(DeviceNeeds { devices: vec![1, 0], layers: 17, wished: None, most: None, holds_kv: true });
    let model = ModelNeeds { devices, ..large() };
    let budget = divide(on(24), PROCESS, &[2 * GIB, GIB], &[model.clone(), model], None);
    let layers = |index: usize| budget.models[index].offloaded.layers;
    assert_eq!(layers(0), 17);
    assert!((1..17).contains(&layers(1)), "{budget:?}");
    assert!(budget.models.iter().map(|sizes| sizes.offloaded.bytes()).sum::<u64>() <= 3 * GIB * 9 / 10, "{budget:?}");
}

#[test]
fn regression_what_embedding_models_leave_with_the_host_counts_before_inputs_do() {
    let needs = DeviceNeeds { devices: vec![0], layers: 29, wished: None, most: None, holds_kv: true };
    let wishes = Wishes { kv_tokens: Some(32_768), ..Wishes::default() };
    let model = |input_weights, weights| ModelNeeds { input_weights, weights, wishes, ..embeds(Some(needs.clone())) };
    // Embeddings of tokens; and a model of which nothing fits the device.
    for (input_weights, weights, free) in [(6 * GIB, 8 * GIB, 80 * GIB), (0, 8 * GIB, 100 << 20)] {
        let budget = divide(on(16), PROCESS, &[free], &[model(input_weights, weights)], None);
        assert!(budget.cuts.is_empty() && budget.models[0].bytes() <= budget.planned, "{budget:?}");
        assert!(matches!(budget.models[0].cuts[0], Cut::KvTokens { wished: 32_768, .. }), "{budget:?}");
    }
}

#[test]
fn an_input_that_is_cut_says_whose_memory_is_short() {
    let needs = DeviceNeeds { devices: vec![0], layers: 29, wished: None, most: None, holds_kv: true };
    for (host, device, devices) in [(96, 24, true), (8, 24, false), (64, 0, false)] {
        let free = [device * GIB];
        let sizes = divide(on(host), PROCESS, &free, &[embeds(Some(needs.clone()))], None).models.remove(0);
        assert!(matches!(sizes.cuts[0], Cut::Input { devices: of, .. } if of == devices), "{host} {device}: {sizes:?}");
    }
}

#[test]
fn regression_no_more_is_kept_of_a_device_than_was_asked_for() {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true });
    let model = |tokens| ModelNeeds {
        devices: devices.clone(),
        workers: 4,
        weights: GIB,
        wishes: Wishes { kv_tokens: tokens, ..Wishes::default() },
        ..large()
    };
    let free = [5 * GIB * 10 / 9];
    let second = |first| divide(on(64), PROCESS, &free, &[first, model(Some(512))], None).models[1].offloaded.layers;
    assert_eq!((second(model(Some(2048))), second(model(None)) < 17), (17, true));
}

#[test]
fn regression_a_batch_that_the_host_cuts_takes_no_more_of_a_device() {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true });
    let wishes = Wishes { batch_tokens: Some(16_384), ..Wishes::default() };
    let model = ModelNeeds { devices, wishes, batch_token: 1 << 20, ..large() };
    // The whole batch would take 16 GiB.
    let sizes = divide(on(8), PROCESS, &[12 * GIB], &[model], None).models.remove(0);
    assert_eq!((sizes.batch_tokens, sizes.offloaded.layers), (2048, 17), "{sizes:?}");
    assert_eq!(sizes.offloaded.batches, 2048 << 20);
}

#[test]
fn regression_two_models_that_lose_one_device_are_not_promised_the_same_memory() {
    let devices = Some(DeviceNeeds { devices: vec![0], layers: 17, wished: None, most: None, holds_kv: true });
    let model = ModelNeeds { devices, weights: 8 * GIB, ..large() };
    let budget = divide(on(16), PROCESS, &[80 * GIB], &[model.clone(), model.clone()], None);
    assert!(budget.cuts.is_empty(), "{budget:?}");
    let mut promised = Promised::of(&budget);
    let on_host = ModelNeeds { devices: None, ..model };
    let kept = 100 << 20;
    let first = promised.divide(0, kept, &on_host);
    assert!(first.cuts.is_empty() && first.models[0].sequence_tokens() >= PART_TOKENS, "{first:?}");
    promised.set_rest(PROCESS, 10 * GIB);
    let beside_more = promised.divide(0, kept, &on_host);
    assert!(
        matches!(beside_more.cuts[..], [Cut::Memory { .. }]),
        "what the cache was given later counts: {beside_more:?}"
    );
    promised.set_rest(PROCESS, budget.cache);
    let had = promised.promise(0, kept + first.models[0].bytes());
    assert_eq!(had, budget.models[0].bytes());
    let second = promised.divide(1, kept, &on_host);
    assert!(matches!(second.cuts[..], [Cut::Memory { .. }]), "{second:?}");
    // A worker that comes later takes what the model was promised, not more.
    assert_eq!(promised.divide(0, kept, &on_host).models, first.models);
}
