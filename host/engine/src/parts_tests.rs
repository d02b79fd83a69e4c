//! Tests of models that are split into several files, and of files that change while they are loaded.
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::load::{LoadOptions, LoadProgress, LoadedModel};

fn demo() -> Vec<u8> {
    fs::read("../../config/models/demo.gguf").unwrap()
}

/// The demo model in two parts, of which the second has only the last tensor.
fn split_demo(dir: &Path) -> [PathBuf; 2] {
    const LAST: &[u8] = b"blk.5.ffn_down.weight";
    // Length and text of the name, number of dimensions, two dimensions, type, offset.
    const INFO_BYTES: usize = 8 + LAST.len() + 4 + 16 + 4 + 8;
    let demo = demo();
    let begin = demo.windows(LAST.len()).rposition(|bytes| bytes == LAST).unwrap() - 8;
    let (end, number) = (begin + INFO_BYTES, |at: usize| u64::from_le_bytes(demo[at..at + 8].try_into().unwrap()));
    let (data, offset) = (&demo[end.next_multiple_of(32)..], number(end - 8) as usize);
    let (tensors, keys) = (number(8), number(16));
    let write = |name: &str, part: u16, [tensors, keys]: [u64; 2], header: &[u8], data: &[u8]| {
        let mut bytes = [&demo[..8], &tensors.to_le_bytes(), &(keys + 3).to_le_bytes()].concat();
        let count = (number(8) as i32).to_le_bytes();
        let (part, parts) = (part.to_le_bytes(), 2u16.to_le_bytes());
        for (key, kind, value) in
            [("split.no", 2u32, &part[..]), ("split.count", 2, &parts), ("split.tensors.count", 5, &count)]
        {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend([key.as_bytes(), &kind.to_le_bytes(), value].concat());
        }
        bytes.extend(header);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        fs::write(dir.join(name), bytes).unwrap();
        dir.join(name)
    };
    let last = [&demo[begin..end - 8], &[0; 8]].concat();
    [
        write("m-00001-of-00002.gguf", 0, [tensors - 1, keys], &demo[24..begin], &data[..offset]),
        write("m-00002-of-00002.gguf", 1, [1, 0], &last, &data[offset..]),
    ]
}

fn load(path: &Path) -> Result<Arc<LoadedModel>, EngineLoadError> {
    LoadedModel::from_file(path, &LoadOptions { digest: true, ..LoadOptions::default() })
}

fn flip_last_byte(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (at, mut byte) = (file.metadata().unwrap().len() - 1, [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

#[test]
fn lists_parts_as_llama_cpp_names_them() {
    let parts = |path: &str| parts_of(Path::new(path));
    let three = ["/a/m-00001-of-00003.gguf", "/a/m-00002-of-00003.gguf", "/a/m-00003-of-00003.gguf"];
    assert_eq!(parts(three[0]), three.map(PathBuf::from));
    assert_eq!(parts("m-00001-of-65535.gguf").len(), 65_535);
    for alone in [
        "m.gguf",
        "m-00001-of-00001.gguf",
        "m-00002-of-00003.gguf",
        "m-00001-of-3.gguf",
        "m-00001-of-+0003.gguf",
        "m-00001-of-00000.gguf",
        "m-00001-of-65536.gguf",
        "m-00001-of-00003.bin",
        "x.gguf",
        "é.gguf",
        "/",
    ] {
        assert_eq!(parts(alone), [PathBuf::from(alone)]);
    }
}

#[test]
fn regression_the_digest_of_a_split_model_is_of_all_parts() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = split_demo(dir.path());
    let model = load(&first).unwrap();
    let whole = LoadedModel::from_bytes("demo", &demo(), &LoadOptions::default()).unwrap();
    assert_eq!(model.info().weight_bytes, whole.info().weight_bytes, "nothing is missing");
    let command = "sha256sum m-*-of-00002.gguf | cut -d' ' -f1 | sha256sum | cut -d' ' -f1";
    let told = std::process::Command::new("sh").args(["-c", command]).current_dir(dir.path()).output().unwrap();
    let digest = String::from_utf8(told.stdout).unwrap().trim().to_owned();
    assert_eq!(model.info().sha256.as_ref(), Some(&digest));
    assert_eq!(model.identity(), Some(digest.as_str()));
    let pinned = LoadOptions { verify_sha256: Some(digest.to_uppercase()), ..LoadOptions::default() };
    LoadedModel::from_file(&first, &pinned).unwrap();
    flip_last_byte(&second);
    assert_ne!(load(&first).unwrap().identity(), Some(digest.as_str()));
    let refused = LoadedModel::from_file(&first, &pinned).unwrap_err();
    assert!(matches!(&refused, EngineLoadError::WrongDigest { .. }), "{refused}");
}

#[test]
fn regression_a_later_part_is_checked_like_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = split_demo(dir.path());
    let refused = || {
        // A pipe must not hold up the load.
        let (say, said) = crossbeam_channel::bounded(1);
        let first = first.clone();
        std::thread::spawn(move || say.send(load(&first).unwrap_err()));
        said.recv_timeout(Duration::from_secs(60)).expect("it waits for nobody")
    };
    File::options().write(true).open(&second).unwrap().set_len(1000).unwrap();
    let cut = refused();
    assert!(matches!(&cut, EngineLoadError::BadFile { path, .. } if *path == first), "{cut}");
    assert!(cut.to_string().contains("00002-of-00002.gguf: truncated"), "{cut}");
    fs::remove_file(&second).unwrap();
    let missing = refused();
    assert!(missing.is_missing_input() && missing.to_string().contains("m-00002-of-00002.gguf"), "{missing}");
    assert!(std::process::Command::new("mkfifo").arg(&second).status().unwrap().success());
    let pipe = refused();
    assert!(pipe.to_string().contains("not a regular file"), "{pipe}");
    fs::rename(&first, dir.path().join("m.gguf")).unwrap();
    let renamed = load(&dir.path().join("m.gguf")).unwrap_err();
    assert!(renamed.to_string().contains("its name does not end in -00001-of-00002.gguf"), "{renamed}");
}

/// Loads the split demo model, and does something to its second part meanwhile.
fn load_while(act: impl Fn(&Path) + Send + Sync + 'static) -> Result<Arc<LoadedModel>, EngineLoadError> {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = split_demo(dir.path());
    let done = AtomicBool::new(false);
    let act = move |_| {
        if !done.swap(true, Ordering::Relaxed) {
            act(&second);
        }
        ControlFlow::Continue(())
    };
    LoadedModel::from_file(
        &first,
        &LoadOptions { progress: Some(LoadProgress(Arc::new(act))), ..LoadOptions::default() },
    )
}

#[test]
fn regression_a_file_that_is_replaced_while_it_is_loaded_is_refused() {
    load_while(|_| {}).unwrap();
    let replace = |part: &Path| {
        fs::copy(part, part.with_extension("new")).unwrap();
        fs::rename(part.with_extension("new"), part).unwrap();
    };
    let away_and_back = |part: &Path| {
        let before = Stamp::of(&fs::metadata(part).unwrap());
        // The system's clock for files advances in steps.
        for _ in 0..1_000_000 {
            fs::rename(part, part.with_extension("away")).unwrap();
            fs::rename(part.with_extension("away"), part).unwrap();
            if Stamp::of(&fs::metadata(part).unwrap()) != before {
                return;
            }
        }
    };
    for refused in [load_while(replace), load_while(flip_last_byte), load_while(away_and_back)] {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, EngineLoadError::Replaced { .. }), "{refused}");
    }
}
