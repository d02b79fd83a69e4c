//! Makes pickles and files of PyTorch, whole and damaged, for tests.
use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

pub(crate) fn text(text: &str) -> Vec<u8> {
    [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

pub(crate) fn integer(integer: i64) -> Vec<u8> {
    [b"\x8a\x08".as_slice(), &integer.to_le_bytes()].concat()
}

pub(crate) fn tuple(parts: &[&[u8]]) -> Vec<u8> {
    [b"(".as_slice(), &parts.concat(), b"t"].concat()
}

pub(crate) fn integers(all: &[i64]) -> Vec<u8> {
    tuple(&all.iter().map(|&one| integer(one)).collect::<Vec<_>>().iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// A dictionary with these entries, without an end.
pub(crate) fn dictionary(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries: Vec<u8> = entries.iter().flat_map(|(key, value)| [text(key), value.to_vec()].concat()).collect();
    [b"}(".as_slice(), &entries, b"u"].concat()
}

pub(crate) fn pickle(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02", value, b"."].concat()
}

/// A tensor as `torch.save` describes it.
#[derive(Clone)]
pub(crate) struct Made<'a> {
    pub(crate) storage: &'a str,
    pub(crate) key: &'a str,
    pub(crate) len: i64,
    pub(crate) offset: i64,
    pub(crate) shape: &'a [i64],
    pub(crate) strides: &'a [i64],
}

/// Twelve numbers in three rows.
pub(crate) const ROWS: Made<'static> =
    Made { storage: "FloatStorage", key: "0", len: 12, offset: 0, shape: &[3, 4], strides: &[4, 1] };

pub(crate) fn tensor(made: &Made<'_>) -> Vec<u8> {
    let storage = format!("ctorch\n{}\n", made.storage);
    let storage = [text("storage"), storage.into_bytes(), text(made.key), text("cpu"), integer(made.len)].concat();
    let (shape, strides) = (integers(made.shape), integers(made.strides));
    let hooks = b"ccollections\nOrderedDict\n)R";
    let arguments = tuple(&[&tuple(&[&storage]), b"Q", &integer(made.offset), &shape, &strides, b"\x89", hooks]);
    [b"ctorch._utils\n_rebuild_tensor_v2\n".as_slice(), &arguments, b"R"].concat()
}

/// A file of PyTorch whose files are in the folder `net`.
pub(crate) fn file(pickle: &[u8], files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("data.pkl", pickle)].iter().chain(files) {
        archive.start_file(format!("net/{name}"), stored).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}
