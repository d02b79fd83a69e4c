//! Entry point of a fuzz target: data files of the disk cache.
use std::io::Write;

use super::directory;
use super::record::{self, ChecksumKey, Entry, Header};

const KEY: ChecksumKey = [7; 32];

/// Reads a data file. The first byte says whether the rest is the file, or descriptions and states, each after its
/// length, for records with correct checksums. What was read is within the file, and can be written again.
///
/// # Panics
/// If it is not.
pub fn segments(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let signed = first % 2 == 1;
    let data = if signed { records(rest) } else { rest.to_vec() };
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    let Ok(scan) = file.write_all(&data).and_then(|()| directory::scan(&KEY, file.path())) else { return };
    assert_eq!(scan.bytes, data.len() as u64);
    let mut end = 0;
    for (at, header) in &scan.records {
        assert_eq!(*at, end, "records follow each other");
        end = at + header.record_len();
        assert!(end <= scan.bytes, "a record ends after its file");
        check(header, &directory::read(file.path(), at + header.state_at, header.state_len).unwrap_or_default());
    }
    assert_eq!(end, scan.end);
}

fn check(header: &Header, state: &[u8]) {
    assert_eq!(state.len() as u64, header.state_len);
    if !record::is_intact(&KEY, state, &header.state_sum) {
        return;
    }
    let head = match &header.entry {
        Entry::Segment(info) => record::head(&KEY, info, state),
        Entry::Damage(state) => Some(record::damage(&KEY, *state)),
    };
    let Some((head, _)) = head else { panic!("{header:?} cannot be written") };
    let again = record::parse(&KEY, &head);
    assert!(again.as_ref().is_some_and(|again| again.entry == header.entry), "{again:?}");
}

/// Records of the described contents. What is left over follows as it is.
fn records(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((lengths, after)) = rest.split_at_checked(2)
        && let Some((description, after)) = after.split_at_checked(lengths[0].into())
        && let Some((state, after)) = after.split_at_checked(lengths[1].into())
    {
        let (head, _) = record::signed(&KEY, description, state);
        out.extend(head);
        out.extend(state);
        rest = after;
    }
    out.extend(rest);
    out
}
