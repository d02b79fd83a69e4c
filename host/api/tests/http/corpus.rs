//! The fuzz targets' corpora, and what a small change makes of each entry.
use std::path::Path;

use camshaft_api::fuzz::{self, Parsers};
use proptest::prelude::*;

fn entries(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    let entries: Vec<Vec<u8>> = files.collect();
    assert!(entries.len() >= 3, "{target} has a corpus");
    entries
}

/// Cuts, repeats and overwrites, as a fuzzer would begin.
fn mutated(mut bytes: Vec<u8>, changes: &[(u16, u8, u8)]) -> Vec<u8> {
    for &(at, kind, byte) in changes {
        let at = usize::from(at) % (bytes.len() + 1);
        match kind % 4 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            2 if at < bytes.len() => bytes[at] = byte,
            _ => bytes.extend_from_within(at..),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn no_request_is_accepted_beyond_its_bounds_or_refused_but_as_the_clients_fault(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<u16>(), any::<u8>(), any::<u8>()), 0..6),
    ) {
        let (entries, parsers) = (entries("request"), Parsers::new().unwrap());
        parsers.request(&mutated(which.get(&entries).clone(), &changes));
    }

    #[test]
    fn every_text_is_one_event(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<u16>(), any::<u8>(), any::<u8>()), 0..6),
    ) {
        fuzz::event(&mutated(which.get(&entries("event")).clone(), &changes));
    }
}

#[test]
fn the_corpora_themselves_pass() {
    let parsers = Parsers::new().unwrap();
    entries("request").iter().for_each(|entry| parsers.request(entry));
    entries("event").iter().for_each(|entry| fuzz::event(entry));
}
