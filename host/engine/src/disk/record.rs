//! The format of a segment in a data file.
//!
//! All numbers are little-endian. A record is, in this order:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `CAMSKV02`: magic and version of the format |
//! | 4 | length of the description |
//! | 8 | length of the state |
//! | … | description: kind of namespace (u8: 0 a tenant's, 1 shared, 2 named), length of its name (u16), name, start (u32), number of tokens (u32), tokens (u32 each); or 3, and where a damaged state begins: number of the data file (u64), offset (u64). What was computed under LoRA adapters has in front of its namespace: 4, their number (u8), and of each, in their order, SHA-256 (32 bytes) and scale (f32) |
//! | 32 | keyed BLAKE3 of everything before |
//! | 32 | keyed BLAKE3 of the state |
//! | … | state |
//!
//! No field of a record is used before its checksum is verified, except the lengths, which are bounded.
use blake3::Hash;
use camshaft_core::adapters::AdapterSet;
use camshaft_core::ids::{AdapterDigest, TenantId, Token};
use camshaft_core::limits;
use camshaft_core::segments::{Namespace, SegmentInfo};

const MAGIC: &[u8; 8] = b"CAMSKV02";
/// Bytes before the description.
pub(super) const FIXED: usize = 8 + 4 + 8;
/// Bytes of a checksum.
const SUM: usize = 32;
/// Bounds of the lengths, so that a damaged one cannot cause a huge read.
const MAX_DESCRIPTION_BYTES: usize = 64 << 20;
const MAX_STATE_BYTES: u64 = 1 << 40;

/// The key of the checksums.
pub(super) type ChecksumKey = [u8; 32];

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Segment(SegmentInfo),
    Damage(StateAt),
}

/// Where the state of a record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StateAt {
    pub(super) file: u64,
    pub(super) at: u64,
}

/// The header of a record, verified against its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) entry: Entry,
    /// Offset of the state in the record.
    pub(super) state_at: u64,
    pub(super) state_len: u64,
    pub(super) state_sum: [u8; 32],
}

impl Header {
    /// Length of the whole record, in bytes.
    pub(super) fn record_len(&self) -> u64 {
        self.state_at + self.state_len
    }
}

fn describe(info: &SegmentInfo) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let whole = info.namespace.owner();
    if let Namespace::Adapted(part) = &info.namespace {
        let uses = part.1.uses();
        out.push(ADAPTED);
        out.push(u8::try_from(uses.len()).ok().filter(|&count| usize::from(count) <= limits::ADAPTERS_OF_REQUEST)?);
        for one in uses {
            out.extend(one.adapter.bytes());
            out.extend(one.scale_bits().to_le_bytes());
        }
    }
    if let Some(key) = info.namespace.key() {
        out.push(KEYED);
        out.extend(u16::try_from(key.len()).ok()?.to_le_bytes());
        out.extend(key.as_bytes());
    }
    let (kind, name) = match whole {
        Namespace::Tenant(tenant) => (0, tenant.as_str()),
        Namespace::Named(name) => (2, &**name),
        Namespace::Shared | Namespace::Adapted(_) | Namespace::Keyed(_) => (1, ""),
    };
    out.push(kind);
    out.extend(u16::try_from(name.len()).ok()?.to_le_bytes());
    out.extend(name.as_bytes());
    out.extend(info.start.to_le_bytes());
    out.extend(u32::try_from(info.tokens.len()).ok()?.to_le_bytes());
    out.extend(info.tokens.iter().flat_map(|token| token.0.to_le_bytes()));
    Some(out)
}

/// Kind of the description of a damaged state.
const DAMAGE: u8 = 3;
/// What precedes the kind of a namespace of which a part is meant.
const ADAPTED: u8 = 4;
/// What precedes the kind of a namespace of which the part of a key is meant, behind its adapters.
const KEYED: u8 = 5;

/// A record that says that a state is damaged, and the checksum of its own, which is empty.
pub(super) fn damage(key: &ChecksumKey, state: StateAt) -> (Vec<u8>, [u8; SUM]) {
    let mut description = vec![DAMAGE];
    description.extend(state.file.to_le_bytes());
    description.extend(state.at.to_le_bytes());
    signed(key, &description, &[])
}

/// The bytes of a record before its state, and the checksum of the state; `None` if a length is out of bounds.
pub(super) fn head(key: &ChecksumKey, info: &SegmentInfo, state: &[u8]) -> Option<(Vec<u8>, [u8; SUM])> {
    let description = describe(info).filter(|description| description.len() <= MAX_DESCRIPTION_BYTES)?;
    Some(signed(key, &description, state))
}

/// The same of a description that is written.
pub(super) fn signed(key: &ChecksumKey, description: &[u8], state: &[u8]) -> (Vec<u8>, [u8; SUM]) {
    let mut out = Vec::with_capacity(FIXED + description.len() + 2 * SUM);
    out.extend(MAGIC);
    out.extend((description.len() as u32).to_le_bytes());
    out.extend((state.len() as u64).to_le_bytes());
    out.extend(description);
    let sum = hash(key, &out);
    out.extend(sum.as_bytes());
    let state_sum = *hash(key, state).as_bytes();
    out.extend(state_sum);
    (out, state_sum)
}

/// Reads fields from the front of a slice.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// How many bytes of a record come before its state, by its first [`FIXED`] bytes. `None` unless the whole record is
/// within `left` bytes.
pub(super) fn head_len(fixed: &[u8; FIXED], left: u64) -> Option<usize> {
    let (description_len, state_len) = lengths(&mut FieldReader(fixed))?;
    let head_len = FIXED + description_len + 2 * SUM;
    (head_len as u64 + state_len <= left).then_some(head_len)
}

fn lengths(reader: &mut FieldReader<'_>) -> Option<(usize, u64)> {
    if reader.bytes(8)? != MAGIC {
        return None;
    }
    let description_len = reader.u32()? as usize;
    let state_len = u64::from_le_bytes(reader.array()?);
    (description_len <= MAX_DESCRIPTION_BYTES && state_len <= MAX_STATE_BYTES).then_some((description_len, state_len))
}

/// Reads the bytes of a record before its state. `None` unless they match their checksum.
pub(super) fn parse(key: &ChecksumKey, bytes: &[u8]) -> Option<Header> {
    let mut reader = FieldReader(bytes);
    let (description_len, state_len) = lengths(&mut reader)?;
    let mut description = FieldReader(reader.bytes(description_len)?);
    let summed = bytes.get(..FIXED + description_len)?;
    let sum: [u8; 32] = reader.array()?;
    // blake3's `Hash` compares in constant time.
    if hash(key, summed) != Hash::from(sum) {
        return None;
    }
    let state_sum = reader.array()?;
    let state_at = (FIXED + description_len + 2 * SUM) as u64;
    Some(Header { entry: entry(&mut description)?, state_at, state_len, state_sum })
}

fn entry(description: &mut FieldReader<'_>) -> Option<Entry> {
    let [mut kind] = description.array()?;
    if kind == DAMAGE {
        return Some(Entry::Damage(StateAt { file: description.u64()?, at: description.u64()? }));
    }
    let mut adapters = AdapterSet::default();
    if kind == ADAPTED {
        adapters = adapters_of(description)?;
        [kind] = description.array()?;
    }
    let mut key = None;
    if kind == KEYED {
        key = Some(text(description)?);
        [kind] = description.array()?;
    }
    let name = text(description)?;
    let (start, count) = (description.u32()?, description.u32()? as usize);
    let tokens = description.bytes(count.checked_mul(4)?)?;
    let tokens = tokens.chunks_exact(4).map(|b| Token(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
    let namespace = match kind {
        0 => Namespace::Tenant(TenantId::from(name)),
        1 => Namespace::Shared,
        2 => Namespace::Named(name.into()),
        _ => return None,
    };
    let namespace = key.map_or(namespace.clone(), |key| namespace.keyed(key)).under(&adapters);
    Some(Entry::Segment(SegmentInfo { namespace, tokens, start }))
}

/// A text behind its length.
fn text<'a>(description: &mut FieldReader<'a>) -> Option<&'a str> {
    let len = u16::from_le_bytes(description.array()?);
    std::str::from_utf8(description.bytes(len.into())?).ok()
}

/// `None` unless they are a set as it is written: neither empty nor out of order.
fn adapters_of(description: &mut FieldReader<'_>) -> Option<AdapterSet> {
    let [count] = description.array()?;
    let count = Some(usize::from(count)).filter(|count| (1..=limits::ADAPTERS_OF_REQUEST).contains(count))?;
    let mut uses = Vec::with_capacity(count);
    for _ in 0..count {
        uses.push((AdapterDigest::new(description.array()?), f32::from_bits(description.u32()?)));
    }
    let set = AdapterSet::new(uses.iter().copied());
    let is_same = set.uses().iter().map(|one| (one.adapter, one.scale().to_bits()));
    is_same.eq(uses.iter().map(|(adapter, scale)| (*adapter, scale.to_bits()))).then_some(set)
}

/// Whether a state matches the checksum of its record.
pub(super) fn is_intact(key: &ChecksumKey, state: &[u8], sum: &[u8; 32]) -> bool {
    hash(key, state) == Hash::from(*sum)
}

fn hash(key: &ChecksumKey, bytes: &[u8]) -> Hash {
    #[cfg(test)]
    HASHED_BYTES.set(HASHED_BYTES.get() + bytes.len());
    blake3::keyed_hash(key, bytes)
}

#[cfg(test)]
thread_local! {
    /// What this thread has hashed.
    pub(super) static HASHED_BYTES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
