//! The format of a segment in a data file.
//!
//! All numbers are little-endian. A record is, in this order:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `CAMSKV01`: magic and version of the format |
//! | 4 | length of the description |
//! | 8 | length of the state |
//! | … | description: kind of namespace (u8: 0 tenant, 1 shared), length of the tenant (u16), tenant, start (u32), number of tokens (u32), tokens (u32 each) |
//! | 32 | keyed BLAKE3 of everything before |
//! | 32 | keyed BLAKE3 of the state |
//! | … | state |
//!
//! No field of a record is used before its checksum is verified, except the lengths, which are bounded.
use blake3::Hash;
use camshaft_core::ids::{TenantId, Token};
use camshaft_core::segments::{Namespace, SegmentInfo};

const MAGIC: &[u8; 8] = b"CAMSKV01";
/// Bytes before the description.
const FIXED: usize = 8 + 4 + 8;
/// Bytes of a checksum.
const SUM: usize = 32;
/// Bounds of the lengths, so that a damaged one cannot cause a huge read.
const MAX_DESCRIPTION_BYTES: usize = 64 << 20;
const MAX_STATE_BYTES: u64 = 1 << 40;

/// The key of the checksums.
pub(super) type ChecksumKey = [u8; 32];

/// The header of a record, verified against its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) info: SegmentInfo,
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
    let tenant = match &info.namespace {
        Namespace::Tenant(tenant) => tenant.as_str(),
        Namespace::Shared => "",
    };
    let mut out = vec![u8::from(info.namespace == Namespace::Shared)];
    out.extend(u16::try_from(tenant.len()).ok()?.to_le_bytes());
    out.extend(tenant.as_bytes());
    out.extend(info.start.to_le_bytes());
    out.extend(u32::try_from(info.tokens.len()).ok()?.to_le_bytes());
    out.extend(info.tokens.iter().flat_map(|token| token.0.to_le_bytes()));
    Some(out)
}

/// The bytes of a record before its state; `None` if a length is out of bounds.
pub(super) fn head(key: &ChecksumKey, info: &SegmentInfo, state: &[u8]) -> Option<Vec<u8>> {
    let description = describe(info).filter(|description| description.len() <= MAX_DESCRIPTION_BYTES)?;
    let mut out = Vec::with_capacity(FIXED + description.len() + 2 * SUM);
    out.extend(MAGIC);
    out.extend((description.len() as u32).to_le_bytes());
    out.extend((state.len() as u64).to_le_bytes());
    out.extend(description);
    let sum = blake3::keyed_hash(key, &out);
    out.extend(sum.as_bytes());
    out.extend(blake3::keyed_hash(key, state).as_bytes());
    Some(out)
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
}

/// Reads the header of the record at the front of `bytes`, which extend to the end of the file. `None` unless the
/// header matches its checksum and the whole record is there.
pub(super) fn parse(key: &ChecksumKey, bytes: &[u8]) -> Option<Header> {
    let mut reader = FieldReader(bytes);
    if reader.bytes(8)? != MAGIC {
        return None;
    }
    let description_len = reader.u32()? as usize;
    let state_len = u64::from_le_bytes(reader.array()?);
    if description_len > MAX_DESCRIPTION_BYTES || state_len > MAX_STATE_BYTES {
        return None;
    }
    let mut description = FieldReader(reader.bytes(description_len)?);
    let summed = bytes.get(..FIXED + description_len)?;
    let sum: [u8; 32] = reader.array()?;
    // blake3's `Hash` compares in constant time.
    if blake3::keyed_hash(key, summed) != Hash::from(sum) {
        return None;
    }
    let state_sum = reader.array()?;
    if (reader.0.len() as u64) < state_len {
        return None;
    }
    let shared = description.bytes(1)? == [1];
    let tenant_len = u16::from_le_bytes(description.array()?);
    let tenant = std::str::from_utf8(description.bytes(tenant_len.into())?).ok()?;
    let (start, count) = (description.u32()?, description.u32()? as usize);
    let tokens = description.bytes(count.checked_mul(4)?)?;
    let tokens = tokens.chunks_exact(4).map(|b| Token(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
    let namespace = if shared { Namespace::Shared } else { Namespace::Tenant(TenantId::from(tenant)) };
    let state_at = (FIXED + description_len + 2 * SUM) as u64;
    Some(Header { info: SegmentInfo { namespace, tokens, start }, state_at, state_len, state_sum })
}

/// Whether a state matches the checksum of its record.
pub(super) fn is_intact(key: &ChecksumKey, state: &[u8], sum: &[u8; 32]) -> bool {
    blake3::keyed_hash(key, state) == Hash::from(*sum)
}
