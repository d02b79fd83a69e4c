use proptest::prelude::*;

use super::*;
use crate::ids::TenantId;

fn ns(name: &str) -> Namespace {
    Namespace::Tenant(TenantId::from(name))
}

fn run(text: &str) -> Vec<Token> {
    text.bytes().map(|b| Token(u32::from(b))).collect()
}

/// The node on the path to `leaf` that covers `position`.
fn at(tree: &PrefixTree, leaf: NodeId, position: u32) -> Piece {
    tree.piece(tree.ahead(leaf, position)[0])
}

const A: RequestId = RequestId(1);
const B: RequestId = RequestId(2);

#[test]
fn shares_the_common_prefix_of_two_runs() {
    let mut tree = PrefixTree::default();
    let a = tree.enter(&ns("t"), &run("hello world"));
    assert_eq!(tree.held(), 11);
    assert_eq!(tree.probe(&ns("t"), &run("hello there")), Probe { held: 6, reclaimable: 0, cached: 0 });
    let b = tree.enter(&ns("t"), &run("hello there"));
    assert_eq!(tree.held(), 16);
    let shared = at(&tree, a, 5);
    assert_eq!((shared.start, shared.end, shared), (0, 6, at(&tree, b, 0)));
    assert_eq!((tree.ahead(a, 5)[0], tree.ahead(b, 5)[0], tree.ahead(a, 6)), (shared.node, shared.node, vec![a]));
    tree.leave(a, A);
    assert!(tree.check());
    assert_eq!(tree.held(), 11);
    tree.leave(b, B);
    assert_eq!((tree.held(), tree.check(), tree.nodes.iter().count()), (0, true, 0));
}

#[test]
fn namespaces_share_nothing() {
    let mut tree = PrefixTree::default();
    let leaf = tree.enter(&ns("a"), &run("secret"));
    tree.set_segment(leaf, SegmentId(1));
    assert_eq!(tree.probe(&ns("b"), &run("secret")), Probe { held: 0, reclaimable: 0, cached: 0 });
    assert_eq!(tree.probe(&Namespace::Shared, &run("secret")), Probe { held: 0, reclaimable: 0, cached: 0 });
    assert_eq!(tree.probe(&ns("a"), &run("secret")), Probe { held: 6, reclaimable: 0, cached: 6 });
}

#[test]
fn a_split_keeps_kv_segments_and_holders_of_both_parts() {
    let mut tree = PrefixTree::default();
    let a = tree.enter(&ns("t"), &run("abcdef"));
    tree.set_kv(a, KvState::Pending(A));
    tree.set_segment(a, SegmentId(7));
    let b = tree.enter(&ns("t"), &run("abc"));
    let (upper, lower) = (at(&tree, a, 0), at(&tree, a, 3));
    assert_eq!((upper.node, upper.end, lower.node, lower.start), (b, 3, a, 3));
    assert_eq!((upper.kv, lower.kv), (KvState::Pending(A), KvState::Pending(A)));
    assert_eq!((upper.segment, lower.segment), (Some(SegmentId(7)), Some(SegmentId(7))));
    tree.mark_computed(a, A, 4);
    assert_eq!((at(&tree, a, 0).kv, at(&tree, a, 3).kv), (KvState::Live, KvState::Pending(A)));
    assert_eq!(tree.tokens(a), run("abcdef"));
    tree.leave(a, A);
    tree.leave(b, B);
    assert_eq!((tree.held(), tree.saved_tokens(), tree.check()), (0, 6, true));
    tree.drop_segment(SegmentId(7));
    assert_eq!((tree.saved_tokens(), tree.nodes.iter().count()), (0, 0));
}

/// Enters a text, saves its nodes without a segment in a new one, and leaves.
fn save(tree: &mut PrefixTree, text: &str, segment: u64) {
    let leaf = tree.enter(&ns("t"), &run(text));
    let bare: Vec<NodeId> = tree.path(leaf).filter(|piece| piece.segment.is_none()).map(|piece| piece.node).collect();
    bare.into_iter().for_each(|node| tree.set_segment(node, SegmentId(segment)));
    tree.leave(leaf, A);
}

/// The segments in the order of eviction, with their holders.
fn eviction_order(tree: &PrefixTree) -> Vec<(SegmentId, HeldBy)> {
    let all: HashSet<SegmentId> = tree.nodes.iter().filter_map(|(_, node)| node.segment).collect();
    let mut ranked: Vec<_> = all.into_iter().map(|segment| (tree.rank(segment).unwrap(), segment)).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(rank, segment)| (segment, rank.held_by)).collect()
}

/// The segments that may be evicted without closing a session, in order.
fn evictable(tree: &PrefixTree) -> Vec<u64> {
    eviction_order(tree)
        .into_iter()
        .filter(|(_, held_by)| *held_by == HeldBy::Nobody)
        .map(|(segment, _)| segment.0)
        .collect()
}

#[test]
fn evicts_the_segment_used_longest_ago_and_never_a_held_one() {
    let mut tree = PrefixTree::default();
    for (segment, text) in [(1, "one"), (2, "two"), (3, "six")] {
        save(&mut tree, text, segment);
    }
    let again = tree.enter(&ns("t"), &run("one"));
    assert_eq!(evictable(&tree), [2, 3]);
    tree.leave(again, A);
    assert_eq!(evictable(&tree), [2, 3, 1]);
    let held = tree.enter(&ns("t"), &run("two"));
    assert_eq!(evictable(&tree), [3, 1]);
    tree.leave(held, A);
}

#[test]
fn evicts_the_end_of_a_path_before_its_beginning() {
    let mut tree = PrefixTree::default();
    let leaf = tree.enter(&ns("t"), &run("beginning, end"));
    let above = tree.enter(&ns("t"), &run("beginning"));
    tree.set_segment(above, SegmentId(1));
    tree.set_segment(leaf, SegmentId(2));
    tree.leave(above, A);
    tree.leave(leaf, B);
    assert_eq!(evictable(&tree), [2, 1]);
}

#[test]
fn a_preempted_sequence_keeps_its_runs_but_no_kv_entries() {
    let mut tree = PrefixTree::default();
    let leaf = tree.enter(&ns("t"), &run("preempted"));
    tree.set_kv(leaf, KvState::Live);
    tree.set_segment(leaf, SegmentId(1));
    tree.preempt(leaf, A);
    assert_eq!((tree.held(), evictable(&tree).len(), tree.check()), (0, 0, true));
    tree.resume(leaf);
    assert_eq!((tree.held(), at(&tree, leaf, 0).kv), (9, KvState::Absent));
    tree.preempt(leaf, A);
    tree.abandon(leaf);
    assert_eq!(evictable(&tree), [1]);
}

#[test]
fn regression_a_claim_on_any_part_of_a_segment_counts() {
    for (hold, held_by) in
        [(PrefixTree::pin as fn(&mut _, _, _), HeldBy::Session), (PrefixTree::preempt, HeldBy::Sequence)]
    {
        let mut tree = PrefixTree::default();
        save(&mut tree, "short, and a much longer end", 1);
        // Entering splits the segment. Nobody holds its longest node.
        let leaf = tree.enter(&ns("t"), &run("short"));
        hold(&mut tree, leaf, A);
        assert_eq!(eviction_order(&tree), [(SegmentId(1), held_by)]);
    }
}

/// A change that the property test makes to the tree.
#[derive(Debug, Clone)]
enum Act {
    Enter(Vec<u8>),
    Leave(usize),
    Preempt(usize),
    Resume(usize),
    Pin(usize),
    Unpin(usize),
    Segment(usize),
    Drop(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => prop::collection::vec(0..3u8, 1..10).prop_map(Act::Enter),
        2 => any::<usize>().prop_map(Act::Leave),
        1 => any::<usize>().prop_map(Act::Preempt),
        1 => any::<usize>().prop_map(Act::Resume),
        1 => any::<usize>().prop_map(Act::Pin),
        1 => any::<usize>().prop_map(Act::Unpin),
        2 => any::<usize>().prop_map(Act::Segment),
        1 => (0..12u64).prop_map(Act::Drop),
    ]
}

proptest! {
    #[test]
    fn counts_each_held_token_once_after_any_changes(acts in prop::collection::vec(act(), 1..60)) {
        let mut tree = PrefixTree::default();
        let mut running: Vec<(NodeId, Vec<Token>)> = Vec::new();
        let mut preempted: Vec<(NodeId, Vec<Token>)> = Vec::new();
        let mut pinned: Vec<(NodeId, Vec<Token>)> = Vec::new();
        let mut segments = 0;
        for act in acts {
            match act {
                Act::Enter(text) => {
                    let tokens: Vec<Token> = text.iter().map(|&b| Token(u32::from(b))).collect();
                    let probe = tree.probe(&ns("t"), &tokens);
                    let before = tree.held();
                    let leaf = tree.enter(&ns("t"), &tokens);
                    prop_assert_eq!(tree.held() - before, tokens.len() as u32 - probe.held);
                    running.push((leaf, tokens));
                }
                Act::Leave(i) if !running.is_empty() => {
                    let (leaf, _) = running.swap_remove(i % running.len());
                    tree.leave(leaf, A);
                }
                Act::Preempt(i) if !running.is_empty() => {
                    let entry = running.swap_remove(i % running.len());
                    tree.preempt(entry.0, A);
                    preempted.push(entry);
                }
                Act::Resume(i) if !preempted.is_empty() => {
                    let entry = preempted.swap_remove(i % preempted.len());
                    tree.resume(entry.0);
                    running.push(entry);
                }
                Act::Pin(i) if !running.is_empty() => {
                    let entry = running.swap_remove(i % running.len());
                    tree.pin(entry.0, A);
                    pinned.push(entry);
                }
                Act::Unpin(i) if !pinned.is_empty() => {
                    let (leaf, _) = pinned.swap_remove(i % pinned.len());
                    tree.unpin(leaf);
                }
                Act::Segment(i) if !running.is_empty() => {
                    let leaf = running[i % running.len()].0;
                    let bare: Vec<NodeId> = tree.path(leaf).filter(|p| p.segment.is_none()).map(|p| p.node).collect();
                    for node in bare {
                        tree.set_segment(node, SegmentId(segments));
                        segments += 1;
                    }
                }
                Act::Drop(segment) => tree.drop_segment(SegmentId(segment)),
                _ => {}
            }
            prop_assert!(tree.check(), "{:?}", tree);
            for (leaf, tokens) in running.iter().chain(&preempted).chain(&pinned) {
                prop_assert_eq!(&tree.tokens(*leaf), tokens);
            }
            // Each distinct prefix of a running sequence is one held token.
            let mut prefixes = std::collections::HashSet::new();
            for (_, tokens) in &running {
                (1..=tokens.len()).for_each(|n| { prefixes.insert(tokens[..n].to_vec()); });
            }
            prop_assert_eq!(tree.held() as usize, prefixes.len());
        }
        for (leaf, _) in running { tree.leave(leaf, A); }
        for (leaf, _) in preempted { tree.abandon(leaf); }
        for (leaf, _) in pinned { tree.unpin(leaf); }
        for segment in 0..segments { tree.drop_segment(SegmentId(segment)); }
        prop_assert!(tree.is_empty(), "not even the root remains");
    }
}
