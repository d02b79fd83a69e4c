//! A segment as it lies in a data file.
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
//! Nothing of a record is believed before its checksum fits.
use blake3::Hash;
use camshaft_core::ids::{TenantId, Token};
use camshaft_core::segments::{Namespace, SegmentInfo};

const MAGIC: &[u8; 8] = b"CAMSKV01";
const FIXED: usize = 8 + 4 + 8;
const SUM: usize = 32;
/// No segment is described in more, none has more state; both bound what a damaged length can ask for.
const DESCRIPTION_MAX: usize = 64 << 20;
const STATE_MAX: u64 = 1 << 40;

/// What the checksums are keyed with.
pub(super) type Key = [u8; 32];

/// A record's header, which fits its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) info: SegmentInfo,
    /// Bytes before the state.
    pub(super) state_at: u64,
    pub(super) state_len: u64,
    pub(super) state_sum: [u8; 32],
}

impl Header {
    /// Bytes of the whole record.
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

/// What goes before the state; `None` for a segment that cannot be described.
pub(super) fn head(key: &Key, info: &SegmentInfo, state: &[u8]) -> Option<Vec<u8>> {
    let description = describe(info).filter(|description| description.len() <= DESCRIPTION_MAX)?;
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

/// Takes numbers off the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
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

/// Reads the header at the front of `bytes`, which end where the file ends; `None` for anything that is not a whole
/// record with a header that fits its checksum.
pub(super) fn parse(key: &Key, bytes: &[u8]) -> Option<Header> {
    let mut reader = Reader(bytes);
    if reader.bytes(8)? != MAGIC {
        return None;
    }
    let description_len = reader.u32()? as usize;
    let state_len = u64::from_le_bytes(reader.array()?);
    if description_len > DESCRIPTION_MAX || state_len > STATE_MAX {
        return None;
    }
    let mut description = Reader(reader.bytes(description_len)?);
    let summed = bytes.get(..FIXED + description_len)?;
    let sum: [u8; 32] = reader.array()?;
    // Comparison in constant time, as blake3's Hash does it.
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

/// Whether the state is what was written.
pub(super) fn is_intact(key: &Key, state: &[u8], sum: &[u8; 32]) -> bool {
    blake3::keyed_hash(key, state) == Hash::from(*sum)
}
