//! Cuts and joins the sequence states that llama.cpp saves.
//!
//! llama.cpp saves and restores whole sequences only. With one KV stream per sequence, a range of positions cannot be
//! copied to a scratch sequence first, so this module cuts the saved bytes themselves. Their layout is that of
//! `llama_kv_cache::state_write` in the linked llama.cpp. Bytes that do not fit this layout to the end are refused.
use std::borrow::Cow;
use std::ops::Range;

use camshaft_core::engine::SavedPart;

/// Header of the state: magic, sequence id.
const HEAD_BYTES: usize = 8;
/// Header of a cell: position, number of sequences (one), sequence id.
const CELL_BYTES: usize = 12;
/// Header of the data: whether values are transposed, number of layers, sizes of the rotation matrices.
const DATA_HEAD_BYTES: usize = 16;
/// Header of the rows of a layer: type, bytes of a row. Of transposed ones: type, bytes of a number, numbers in a row.
const ROWS_HEAD_BYTES: usize = 12;

/// A saved state, taken apart. A cell is a KV entry in llama.cpp's terms; it has one row of keys, and usually one of
/// values, per layer.
#[derive(Debug)]
struct SavedState<'a> {
    head: &'a [u8],
    streams: u32,
    /// The stream that holds the cells; the others are empty.
    stream: u32,
    cells: Vec<&'a [u8]>,
    data_head: &'a [u8],
    /// The keys of each layer, then the values of each layer.
    rows: Vec<Rows<'a>>,
}

/// The keys, or the values, of all cells in one layer.
#[derive(Debug)]
struct Rows<'a> {
    head: &'a [u8],
    /// Bytes of a row; where rows are transposed, of a number.
    unit_bytes: usize,
    /// 1; where rows are transposed, the numbers in a row. The data holds so many times a unit of each cell.
    times: usize,
    data: &'a [u8],
}

/// Splits `count` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    u32_at(take(bytes, 4)?, 0)
}

impl<'a> SavedState<'a> {
    /// `None` for the state of an empty sequence, and for bytes of another layout.
    fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let head = take(bytes, HEAD_BYTES)?;
        let streams = take_u32(bytes)?;
        // Each empty stream is one zero: those before the stream with cells stand before its data, the others after it.
        let mut stream = 0;
        let count = loop {
            match take_u32(bytes)? {
                0 => stream += 1,
                count => break count as usize,
            }
        };
        let trailing = streams.checked_sub(stream + 1)? as usize * 4;
        if count > bytes.len() / CELL_BYTES {
            return None;
        }
        let cells: Vec<&[u8]> = (0..count).map(|_| take(bytes, CELL_BYTES)).collect::<Option<_>>()?;
        if cells.iter().any(|cell| u32_at(cell, 4) != Some(1)) {
            return None;
        }
        let data_head = take(bytes, DATA_HEAD_BYTES)?;
        let (transposed, layers) = (u32_at(data_head, 0)?, u32_at(data_head, 4)?);
        let mut rows = Vec::new();
        // Some models have keys only, without values.
        while bytes.len() > trailing {
            let head = take(bytes, ROWS_HEAD_BYTES)?;
            // Only values are ever transposed: without flash attention.
            let (unit_bytes, times) = if transposed != 0 && rows.len() >= layers as usize {
                (u32_at(head, 4)? as usize, u32_at(head, 8)? as usize)
            } else {
                (usize::try_from(u64::from_le_bytes(head[4..].try_into().ok()?)).ok()?, 1)
            };
            let data = take(bytes, count.checked_mul(unit_bytes)?.checked_mul(times)?)?;
            rows.push(Rows { head, unit_bytes, times, data });
        }
        let complete = rows.len() == layers as usize || rows.len() == 2 * layers as usize;
        (complete && bytes.len() == trailing && bytes.iter().all(|&byte| byte == 0)).then_some(Self {
            head,
            streams,
            stream,
            cells,
            data_head,
            rows,
        })
    }

    fn position(&self, cell: usize) -> u32 {
        u32_at(self.cells[cell], 0).unwrap_or(u32::MAX)
    }

    /// Indices of the cells in the range, in the order of their positions. `None` unless each position has exactly one.
    fn cells_of(&self, range: &Range<u32>) -> Option<Vec<usize>> {
        let mut cells: Vec<usize> =
            (0..self.cells.len()).filter(|&cell| range.contains(&self.position(cell))).collect();
        cells.sort_unstable_by_key(|&cell| self.position(cell));
        let complete = cells.iter().map(|&cell| self.position(cell)).eq(range.clone());
        complete.then_some(cells)
    }

    fn has_layout_of(&self, other: &Self) -> bool {
        let rows = self.rows.iter().map(|rows| rows.head).eq(other.rows.iter().map(|rows| rows.head));
        self.streams == other.streams && self.data_head == other.data_head && rows
    }
}

/// The range of a state: the state itself if it holds nothing else. `None` if it lacks a position of the range, or if its
/// layout is not known.
pub(crate) fn cut<'a>(bytes: &'a [u8], range: &Range<u32>) -> Option<Cow<'a, [u8]>> {
    let state = SavedState::read(bytes)?;
    if state.cells_of(range)?.len() == state.cells.len() {
        return Some(Cow::Borrowed(bytes));
    }
    join(&[SavedPart { range: range.clone(), state: bytes }]).map(Cow::Owned)
}

/// Builds one state from ranges of several: the positions of each range, taken from the state beside it, in this order.
/// `None` if a state lacks a position of its range, or if the states have different layouts.
pub(crate) fn join(parts: &[SavedPart<'_>]) -> Option<Vec<u8>> {
    let parts: Vec<(SavedState<'_>, Vec<usize>)> = parts
        .iter()
        .map(|part| {
            let state = SavedState::read(part.state)?;
            let cells = state.cells_of(&part.range)?;
            Some((state, cells))
        })
        .collect::<Option<_>>()?;
    let (first, _) = parts.first()?;
    if parts.iter().any(|(state, _)| !state.has_layout_of(first)) {
        return None;
    }
    let count: usize = parts.iter().map(|(_, cells)| cells.len()).sum();
    let row_bytes: usize = first.rows.iter().map(|rows| rows.unit_bytes * rows.times).sum();
    // The number of streams, and of each its cells. No more is taken than is counted of a segment.
    let heads = HEAD_BYTES + 4 + 4 * first.streams as usize + DATA_HEAD_BYTES + first.rows.len() * ROWS_HEAD_BYTES;
    let size = heads + count * (CELL_BYTES + row_bytes);
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(first.head);
    out.extend_from_slice(&first.streams.to_le_bytes());
    out.extend((0..first.stream).flat_map(|_| [0; 4]));
    out.extend_from_slice(&(count as u32).to_le_bytes());
    for (state, cells) in &parts {
        cells.iter().for_each(|&cell| out.extend_from_slice(state.cells[cell]));
    }
    out.extend_from_slice(first.data_head);
    for (index, rows) in first.rows.iter().enumerate() {
        out.extend_from_slice(rows.head);
        for time in 0..rows.times {
            for (state, cells) in &parts {
                let Rows { unit_bytes, data, .. } = state.rows[index];
                let before = time * state.cells.len();
                for run in cells.chunk_by(|a, b| a + 1 == *b) {
                    let start = (before + run[0]) * unit_bytes;
                    out.extend_from_slice(&data[start..start + run.len() * unit_bytes]);
                }
            }
        }
    }
    out.extend((first.stream + 1..first.streams).flat_map(|_| [0; 4]));
    debug_assert_eq!(out.len(), size);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with cells at `positions` and one layer. Each row holds its cell's position and `mark`.
    fn state(positions: &[u32], streams: u32, stream: u32, mark: u8) -> Vec<u8> {
        let mut out = vec![1, 2, 3, 4, 9, 0, 0, 0];
        out.extend(streams.to_le_bytes());
        out.extend((0..stream).flat_map(|_| [0; 4]));
        out.extend((positions.len() as u32).to_le_bytes());
        for position in positions {
            out.extend([*position, 1, 9].map(u32::to_le_bytes).concat());
        }
        out.extend([0u32, 1, 0, 0].map(u32::to_le_bytes).concat());
        for kind in [7u8, 8] {
            out.extend(1u32.to_le_bytes());
            out.extend(3u64.to_le_bytes());
            out.extend(positions.iter().flat_map(|&position| [kind, position as u8, mark]));
        }
        out.extend((stream + 1..streams).flat_map(|_| [0; 4]));
        out
    }

    /// As [`state`], with transposed values of two numbers of three bytes.
    fn transposed(positions: &[u32]) -> Vec<u8> {
        // A stream without cells stands behind.
        let mut out = state(positions, 2, 0, 5);
        let values = 12 + 3 * positions.len() + 4;
        out.truncate(out.len() - values);
        let data_head = 8 + 4 + 4 + 12 * positions.len();
        out[data_head] = 1;
        out.extend([1u32, 3, 2].map(u32::to_le_bytes).concat());
        out.extend([70u8, 71].iter().flat_map(|&number| positions.iter().flat_map(move |&p| [number, p as u8, 5])));
        out.extend([0; 4]);
        out
    }

    #[test]
    fn cuts_and_joins_transposed_values() {
        let scattered = transposed(&[2, 0, 1, 4, 3]);
        assert_eq!(join(&[(&scattered, 0..5)]).unwrap(), transposed(&[0, 1, 2, 3, 4]));
        let (front, back) = (join(&[(&scattered, 0..2)]).unwrap(), join(&[(&scattered, 2..5)]).unwrap());
        assert_eq!((&front, &back), (&transposed(&[0, 1]), &transposed(&[2, 3, 4])));
        assert_eq!(join(&[(&front, 0..2), (&back, 2..5)]).unwrap(), transposed(&[0, 1, 2, 3, 4]));
        assert_eq!(join(&[(&front, 0..2), (&state(&[2], 2, 0, 5), 2..3)]), None);
        for len in 0..scattered.len() {
            assert_eq!(join(&[(&scattered[..len], 0..5)]), None, "{len} bytes of {}", scattered.len());
        }
    }

    fn join(parts: &[(&[u8], Range<u32>)]) -> Option<Vec<u8>> {
        let parts = parts.iter().map(|(state, range)| SavedPart { range: range.clone(), state });
        super::join(&parts.collect::<Vec<_>>())
    }

    #[test]
    fn cuts_and_joins_by_position_in_any_order_of_cells() {
        let scattered = state(&[2, 0, 1, 4, 3], 4, 2, 5);
        assert_eq!(join(&[(&scattered, 0..5)]).unwrap(), state(&[0, 1, 2, 3, 4], 4, 2, 5));
        let (front, back) = (join(&[(&scattered, 0..2)]).unwrap(), join(&[(&scattered, 2..5)]).unwrap());
        assert_eq!(front, state(&[0, 1], 4, 2, 5));
        assert_eq!(join(&[(&front, 0..2), (&back, 2..5)]).unwrap(), state(&[0, 1, 2, 3, 4], 4, 2, 5));
        assert_eq!(join(&[(&front, 0..2), (&scattered, 2..4)]).unwrap(), state(&[0, 1, 2, 3], 4, 2, 5));
    }

    #[test]
    fn cuts_only_what_holds_more_than_the_range() {
        let bytes = state(&[4, 5, 6], 1, 0, 0);
        assert!(matches!(cut(&bytes, &(4..7)), Some(Cow::Borrowed(_))));
        assert_eq!(cut(&bytes, &(5..7)).as_deref(), Some(state(&[5, 6], 1, 0, 0).as_slice()));
        assert_eq!(cut(&bytes, &(5..8)), None);
    }

    #[test]
    fn joins_states_of_different_streams_into_the_stream_of_the_first() {
        let joined = join(&[(&state(&[0], 3, 0, 1), 0..1), (&state(&[1], 3, 2, 1), 1..2)]).unwrap();
        assert_eq!(joined, state(&[0, 1], 3, 0, 1));
    }

    #[test]
    fn refuses_missing_positions_other_layouts_and_truncated_states() {
        let whole = state(&[0, 1, 2], 2, 0, 1);
        assert_eq!(join(&[(&whole, 0..4)]), None);
        assert_eq!(join(&[(&whole, 0..3), (&state(&[3], 3, 0, 1), 3..4)]), None);
        assert_eq!(join(&[]), None);
        for len in 0..whole.len() {
            assert_eq!(join(&[(&whole[..len], 0..3)]), None, "{len} bytes of {}", whole.len());
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(join(&[(&longer, 0..3)]), None);
    }
}
