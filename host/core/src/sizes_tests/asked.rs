//! What is asked for, as far as it can be used and memory goes.
use super::*;

#[test]
fn more_than_all_sequences_can_use_is_said() {
    let cuts = |kv_tokens: u32, layout: KvLayout| {
        let wishes =
            Wishes { sequences: Some(4), kv_tokens: Some(kv_tokens), layout: Some(layout), ..Wishes::default() };
        alone(on(24), ModelNeeds { trained_tokens: 1000, wishes, ..small() }).cuts
    };
    for layout in [KvLayout::Pooled, KvLayout::PerSequence] {
        assert_eq!(cuts(4 * 1024, layout), []);
        let wished = 4 * 1024 + 1;
        assert_eq!(cuts(wished, layout), [Cut::Unused { wished, sequences: 4, trained: 1000 }]);
    }
}

#[test]
fn regression_fewer_parts_than_were_thought_of_get_no_more_than_they_can_use() {
    let wishes = Wishes { kv_tokens: Some(100_000), ..Wishes::default() };
    let sizes = alone(on(24), ModelNeeds { wishes, ..small() });
    assert_eq!(shape(&sizes), (12, 12 * 8192, KvLayout::PerSequence));
    assert_eq!(sizes.cuts, [Cut::Unused { wished: 100_000, sequences: 12, trained: 8192 }]);
}

#[test]
fn regression_a_context_beyond_what_the_model_was_trained_for_is_said() {
    let cuts = |kv_tokens: u32, sequences: Option<u32>| {
        let wishes = Wishes { sequences, kv_tokens: Some(kv_tokens), ..Wishes::default() };
        alone(on(24), ModelNeeds { wishes, ..small() }).cuts
    };
    assert_eq!(cuts(8192, None), []);
    assert_eq!(cuts(8193, None), [Cut::Shared { wished: 8193, sequences: 32, trained: 8192 }]);
    assert_eq!(cuts(16 * 8192, None), [Cut::Shared { wished: 16 * 8192, sequences: 16, trained: 8192 }]);
    assert_eq!(cuts(16 * 8192, Some(16)), []);
}

#[test]
fn regression_states_that_do_not_fit_are_not_blamed_on_rows() {
    let wishes = Wishes { batch_tokens: Some(16), ..Wishes::default() };
    let of_states = |sequence| {
        let model = ModelNeeds { sequence, kv_token: 0, kv_token_q8: 0, wishes, ..small() };
        let sizes = alone(on(3), model);
        (sizes.sequences, sizes.cuts.iter().any(|cut| matches!(cut, Cut::Rows { .. })))
    };
    assert_eq!(of_states(1 << 20), (16, true));
    let (sequences, blames_rows) = of_states(GIB / 4);
    assert!(sequences < 16 && !blames_rows, "{sequences}");
}

#[test]
fn regression_a_batch_that_is_asked_for_leaves_the_others_their_memory() {
    let wishes = Wishes { batch_tokens: Some(65_536), ..Wishes::default() };
    let sizes = alone(on(2), ModelNeeds { wishes, ..small() });
    assert!(sizes.batches <= GIB && sizes.sequence_tokens() >= 8192, "{sizes:?}");
    assert!(sizes.cuts.contains(&Cut::Batch { wished: 65_536, granted: sizes.batch_tokens }), "{sizes:?}");
    let embeds = alone(on(2), ModelNeeds { wishes, generates: false, batch_token: 1 << 20, ..small() });
    assert!(embeds.cuts.contains(&Cut::Batch { wished: 65_536, granted: embeds.batch_tokens }), "{embeds:?}");
    let wishes = Wishes { batch_tokens: Some(1024), ..Wishes::default() };
    assert_eq!(alone(on(2), ModelNeeds { wishes, ..small() }).batch_tokens, 1024, "where there is room");
}

#[test]
fn wishes_are_kept_as_far_as_memory_goes() {
    let wish = |wishes: Wishes| alone(on(24), ModelNeeds { wishes, ..small() });
    let kv = |tokens| Wishes { kv_tokens: Some(tokens), ..Wishes::default() };
    // What was the default once: too little for parts.
    assert_eq!(shape(&wish(kv(8192))), (32, 8192, KvLayout::Pooled));
    // Eight parts that hold the whole context, and one token fewer.
    assert_eq!(shape(&wish(kv(8 * 8192))), (8, 8 * 8192, KvLayout::PerSequence));
    assert_eq!(shape(&wish(kv(8 * 8192 - 1))), (32, 8 * 8192 - 1, KvLayout::Pooled));
    let layout = Some(KvLayout::PerSequence);
    assert_eq!(shape(&wish(Wishes { layout, ..kv(40960) })), (32, 40960, KvLayout::PerSequence));
    let pooled = wish(Wishes { layout: Some(KvLayout::Pooled), ..Wishes::default() });
    assert_eq!(shape(&pooled), (32, 32 * 8192, KvLayout::Pooled));
    let four = wish(Wishes { sequences: Some(4), threads: Some(1), batch_tokens: Some(64), ..Wishes::default() });
    assert_eq!(shape(&four), (4, 4 * 8192, KvLayout::PerSequence));
    assert_eq!((four.threads, four.batch_tokens), (1, 64));
    let cut = wish(kv(1 << 24));
    let unused = Cut::Unused { wished: 1 << 24, sequences: 32, trained: 8192 };
    assert_eq!((cut.cuts, cut.kv_tokens), (vec![unused], 32 * 8192), "what nobody can use is not taken");
    let short = alone(on(3), ModelNeeds { wishes: kv(1 << 24), ..small() });
    assert_eq!(short.cuts[0], Cut::KvTokens { wished: 1 << 24, granted: short.kv_tokens });
    assert_eq!(
        wish(Wishes { batch_tokens: Some(8), ..Wishes::default() }).cuts,
        [Cut::Rows { batch_tokens: 8, granted: 8 }]
    );
}
