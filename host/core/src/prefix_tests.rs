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
    tree.set_page(leaf, PageId(1));
    assert_eq!(tree.probe(&ns("b"), &run("secret")), Probe { held: 0, cached: 0 });
    assert_eq!(tree.probe(&Namespace::Shared, &run("secret")), Probe { held: 0, cached: 0 });
    assert_eq!(tree.probe(&ns("a"), &run("secret")), Probe { held: 6, cached: 6 });
}

#[test]
fn a_split_keeps_cells_pages_and_holders_of_both_parts() {
    let mut tree = PrefixTree::default();
    let a = tree.enter(&ns("t"), &run("abcdef"));
    tree.set_cells(a, Cells::Pending(A));
    tree.set_page(a, PageId(7));
    let b = tree.enter(&ns("t"), &run("abc"));
    let (upper, lower) = (tree.at(a, 0).unwrap(), tree.at(a, 3).unwrap());
    assert_eq!((upper.node, upper.end, lower.node, lower.start), (b, 3, a, 3));
    assert_eq!((upper.cells, lower.cells), (Cells::Pending(A), Cells::Pending(A)));
    assert_eq!((upper.page, lower.page), (Some(PageId(7)), Some(PageId(7))));
    tree.mark_computed(a, A, 4);
    assert_eq!((tree.at(a, 0).unwrap().cells, tree.at(a, 3).unwrap().cells), (Cells::Live, Cells::Pending(A)));
    assert_eq!(tree.tokens(a), run("abcdef"));
    tree.leave(a, A);
    tree.leave(b, B);
    assert_eq!((tree.held(), tree.paged(), tree.check()), (0, 6, true));
    tree.drop_page(PageId(7));
    assert_eq!((tree.paged(), tree.nodes.iter().flatten().count()), (0, 1));
}

#[test]
fn the_coldest_page_is_the_one_used_longest_ago_and_never_a_held_one() {
    let mut tree = PrefixTree::default();
    for (page, text) in [(1, "one"), (2, "two"), (3, "six")] {
        let leaf = tree.enter(&ns("t"), &run(text));
        tree.set_page(leaf, PageId(page));
        tree.leave(leaf, A);
    }
    let again = tree.enter(&ns("t"), &run("one"));
    assert_eq!(tree.coldest().first(), Some(&PageId(2)));
    tree.leave(again, A);
    assert_eq!(tree.coldest(), [PageId(2), PageId(3), PageId(1)]);
    let held = tree.enter(&ns("t"), &run("two"));
    assert_eq!(tree.coldest(), [PageId(3), PageId(1)]);
    tree.leave(held, A);
}

#[test]
fn a_parked_holder_keeps_its_runs_but_no_cells() {
    let mut tree = PrefixTree::default();
    let leaf = tree.enter(&ns("t"), &run("parked"));
    tree.set_cells(leaf, Cells::Live);
    tree.set_page(leaf, PageId(1));
    tree.park(leaf, A);
    assert_eq!((tree.held(), tree.coldest().len(), tree.check()), (0, 0, true));
    tree.unpark(leaf);
    assert_eq!((tree.held(), tree.at(leaf, 0).unwrap().cells), (6, Cells::Absent));
    tree.park(leaf, A);
    tree.forget_parked(leaf);
    assert_eq!(tree.coldest(), [PageId(1)]);
}

/// What a test does to the tree.
#[derive(Debug, Clone)]
enum Act {
    Enter(Vec<u8>),
    Leave(usize),
    Park(usize),
    Unpark(usize),
    Page(usize),
    Drop(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => prop::collection::vec(0..3u8, 1..10).prop_map(Act::Enter),
        2 => any::<usize>().prop_map(Act::Leave),
        1 => any::<usize>().prop_map(Act::Park),
        1 => any::<usize>().prop_map(Act::Unpark),
        2 => any::<usize>().prop_map(Act::Page),
        1 => (0..12u64).prop_map(Act::Drop),
    ]
}

proptest! {
    #[test]
    fn holds_each_run_once_whatever_comes_and_goes(acts in prop::collection::vec(act(), 1..60)) {
        let mut tree = PrefixTree::default();
        let mut running: Vec<(NodeId, Vec<Token>)> = Vec::new();
        let mut parked: Vec<(NodeId, Vec<Token>)> = Vec::new();
        let mut pages = 0;
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
                Act::Page(i) if !running.is_empty() => {
                    let leaf = running[i % running.len()].0;
                    let bare: Vec<NodeId> = tree.path(leaf).filter(|p| p.page.is_none()).map(|p| p.node).collect();
                    for node in bare {
                        tree.set_page(node, PageId(pages));
                        pages += 1;
                    }
                }
                Act::Drop(page) => tree.drop_page(PageId(page)),
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
        for page in 0..pages { tree.drop_page(PageId(page)); }
        prop_assert!(tree.nodes.iter().flatten().all(|node| node.parent.is_none()), "something was left behind");
    }
}
