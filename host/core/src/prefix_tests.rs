use proptest::prelude::*;

use super::*;
use crate::ids::TenantId;

fn ns(name: &str) -> Namespace {
    Namespace::Tenant(TenantId::from(name))
}

fn run(text: &str) -> Vec<Token> {
    text.bytes().map(|b| Token(u32::from(b))).collect()
}

const A: RequestId = RequestId(1);
const B: RequestId = RequestId(2);

#[test]
fn shares_what_two_runs_begin_with() {
    let mut tree = PrefixTree::default();
    let a = tree.enter(&ns("t"), &run("hello world"));
    assert_eq!(tree.held(), 11);
    assert_eq!(tree.probe(&ns("t"), &run("hello there")), Probe { held: 6, cached: 0 });
    let b = tree.enter(&ns("t"), &run("hello there"));
    assert_eq!(tree.held(), 16);
    let shared = tree.at(a, 5).unwrap();
    assert_eq!((shared.start, shared.end, Some(shared)), (0, 6, tree.at(b, 0)));
    assert!(tree.is_on_path(a, shared.node) && tree.is_on_path(b, shared.node) && !tree.is_on_path(a, b));
    tree.leave(a, A);
    assert!(tree.check());
    assert_eq!(tree.held(), 11);
    tree.leave(b, B);
    assert_eq!((tree.held(), tree.check(), tree.nodes.iter().flatten().count()), (0, true, 1));
}

#[test]
fn namespaces_share_nothing() {
    let mut tree = PrefixTree::default();
    let leaf = tree.enter(&ns("a"), &run("secret"));
    tree.set_segment(leaf, SegmentId(1));
    assert_eq!(tree.probe(&ns("b"), &run("secret")), Probe { held: 0, cached: 0 });
    assert_eq!(tree.probe(&Namespace::Shared, &run("secret")), Probe { held: 0, cached: 0 });
    assert_eq!(tree.probe(&ns("a"), &run("secret")), Probe { held: 6, cached: 6 });
}

#[test]
fn a_split_keeps_kv_segments_and_holders_of_both_parts() {
    let mut tree = PrefixTree::default();
    let a = tree.enter(&ns("t"), &run("abcdef"));
    tree.set_kv(a, KvState::Pending(A));
    tree.set_segment(a, SegmentId(7));
    let b = tree.enter(&ns("t"), &run("abc"));
    let (upper, lower) = (tree.at(a, 0).unwrap(), tree.at(a, 3).unwrap());
    assert_eq!((upper.node, upper.end, lower.node, lower.start), (b, 3, a, 3));
    assert_eq!((upper.kv, lower.kv), (KvState::Pending(A), KvState::Pending(A)));
    assert_eq!((upper.segment, lower.segment), (Some(SegmentId(7)), Some(SegmentId(7))));
    tree.mark_computed(a, A, 4);
    assert_eq!((tree.at(a, 0).unwrap().kv, tree.at(a, 3).unwrap().kv), (KvState::Live, KvState::Pending(A)));
    assert_eq!(tree.tokens(a), run("abcdef"));
    tree.leave(a, A);
    tree.leave(b, B);
    assert_eq!((tree.held(), tree.kept_tokens(), tree.check()), (0, 6, true));
    tree.drop_segment(SegmentId(7));
    assert_eq!((tree.kept_tokens(), tree.nodes.iter().flatten().count()), (0, 1));
}

#[test]
fn the_coldest_page_is_the_one_used_longest_ago_and_never_a_held_one() {
    let mut tree = PrefixTree::default();
    for (segment, text) in [(1, "one"), (2, "two"), (3, "six")] {
        let leaf = tree.enter(&ns("t"), &run(text));
        tree.set_segment(leaf, SegmentId(segment));
        tree.leave(leaf, A);
    }
    let again = tree.enter(&ns("t"), &run("one"));
    assert_eq!(tree.coldest().first(), Some(&SegmentId(2)));
    tree.leave(again, A);
    assert_eq!(tree.coldest(), [SegmentId(2), SegmentId(3), SegmentId(1)]);
    let held = tree.enter(&ns("t"), &run("two"));
    assert_eq!(tree.coldest(), [SegmentId(3), SegmentId(1)]);
    tree.leave(held, A);
}

#[test]
fn a_parked_holder_keeps_its_runs_but_no_cells() {
    let mut tree = PrefixTree::default();
    let leaf = tree.enter(&ns("t"), &run("parked"));
    tree.set_kv(leaf, KvState::Live);
    tree.set_segment(leaf, SegmentId(1));
    tree.park(leaf, A);
    assert_eq!((tree.held(), tree.coldest().len(), tree.check()), (0, 0, true));
    tree.unpark(leaf);
    assert_eq!((tree.held(), tree.at(leaf, 0).unwrap().kv), (6, KvState::Absent));
    tree.park(leaf, A);
    tree.forget_parked(leaf);
    assert_eq!(tree.coldest(), [SegmentId(1)]);
}

/// What a test does to the tree.
#[derive(Debug, Clone)]
enum Act {
    Enter(Vec<u8>),
    Leave(usize),
    Park(usize),
    Unpark(usize),
    Segment(usize),
    Drop(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => prop::collection::vec(0..3u8, 1..10).prop_map(Act::Enter),
        2 => any::<usize>().prop_map(Act::Leave),
        1 => any::<usize>().prop_map(Act::Park),
        1 => any::<usize>().prop_map(Act::Unpark),
        2 => any::<usize>().prop_map(Act::Segment),
        1 => (0..12u64).prop_map(Act::Drop),
    ]
}

proptest! {
    #[test]
    fn holds_each_run_once_whatever_comes_and_goes(acts in prop::collection::vec(act(), 1..60)) {
        let mut tree = PrefixTree::default();
        let mut running: Vec<(NodeId, Vec<Token>)> = Vec::new();
        let mut parked: Vec<(NodeId, Vec<Token>)> = Vec::new();
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
                Act::Park(i) if !running.is_empty() => {
                    let entry = running.swap_remove(i % running.len());
                    tree.park(entry.0, A);
                    parked.push(entry);
                }
                Act::Unpark(i) if !parked.is_empty() => {
                    let entry = parked.swap_remove(i % parked.len());
                    tree.unpark(entry.0);
                    running.push(entry);
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
            for (leaf, tokens) in running.iter().chain(&parked) {
                prop_assert_eq!(&tree.tokens(*leaf), tokens);
            }
            // The runs of running sequences, each distinct prefix counted once.
            let mut prefixes = std::collections::HashSet::new();
            for (_, tokens) in &running {
                (1..=tokens.len()).for_each(|n| { prefixes.insert(tokens[..n].to_vec()); });
            }
            prop_assert_eq!(tree.held() as usize, prefixes.len());
        }
        for (leaf, _) in running { tree.leave(leaf, A); }
        for (leaf, _) in parked { tree.forget_parked(leaf); }
        for segment in 0..segments { tree.drop_segment(SegmentId(segment)); }
        prop_assert!(tree.nodes.iter().flatten().all(|node| node.parent.is_none()), "something was left behind");
    }
}
