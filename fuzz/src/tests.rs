//! Runs the corpora: what was found once is not found again.
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{TARGETS, Target};

fn corpora() -> PathBuf {
    "corpus".into()
}

/// Runs a target on its corpus, and on every entry cut at some places.
fn run_corpus(name: &str) {
    let Target { run, .. } = TARGETS.iter().find(|target| target.name == name).unwrap();
    let entries = std::fs::read_dir(corpora().join(name)).unwrap();
    let entries: Vec<Vec<u8>> = entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(entries.len() >= 3, "{name} has {} entries", entries.len());
    for entry in entries {
        run(&entry);
        (0..entry.len()).step_by(1 + entry.len() / 16).for_each(|at| run(&entry[..at]));
    }
}

macro_rules! corpora {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run_corpus(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_corpus_and_every_corpus_a_test() {
            let folders = std::fs::read_dir(corpora()).unwrap();
            let folders: BTreeSet<String> = folders.map(|dir| dir.unwrap().file_name().into_string().unwrap()).collect();
            let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
            let tests: BTreeSet<String> = [$(stringify!($name).to_owned()),*].into();
            assert_eq!(folders, targets);
            assert_eq!(tests, targets);
        }
    };
}

corpora! { answer configuration connection event gbnf gguf request schema segments sidecar tokenizer }
