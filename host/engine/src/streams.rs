//! Assigns llama.cpp's KV cache streams to sequences, when each sequence has a stream of its own.
//!
//! llama.cpp decodes sequences together only if their streams are neighbours. A gap between them costs one more pass
//! over the weights in every step. So a new sequence gets a stream beside the used ones, and when a sequence ends,
//! another one moves into the gap.
use camshaft_core::ids::SeqId;

/// The sequence of each stream, by stream number.
#[derive(Debug, Clone)]
pub(crate) struct StreamTable {
    streams: Vec<Option<SeqId>>,
}

impl StreamTable {
    pub(crate) fn new(count: u32) -> Self {
        Self { streams: vec![None; count as usize] }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<u32> {
        self.streams.iter().position(|owner| *owner == Some(seq)).map(|stream| stream as u32)
    }

    /// The sequence's stream. Assigns a free one beside the used ones if it has none; there is one, because there are
    /// as many streams as sequence ids.
    pub(crate) fn get_or_assign(&mut self, seq: SeqId) -> u32 {
        if let Some(stream) = self.get(seq) {
            return stream;
        }
        let first = self.streams.iter().position(Option::is_some).unwrap_or(0);
        let above = (first..self.streams.len()).find(|&stream| self.streams[stream].is_none());
        let below = (0..first).rev().find(|&stream| self.streams[stream].is_none());
        let stream = above.or(below).unwrap_or_default();
        self.streams[stream] = Some(seq);
        stream as u32
    }

    pub(crate) fn free(&mut self, seq: SeqId) {
        self.streams.iter_mut().filter(|owner| **owner == Some(seq)).for_each(|owner| *owner = None);
    }

    /// The next move that closes a gap, as source and target stream; `None` if the used streams are neighbours.
    pub(crate) fn next_move(&self) -> Option<(u32, u32)> {
        let first = self.streams.iter().position(Option::is_some)?;
        let last = self.streams.iter().rposition(Option::is_some)?;
        let gap = (first..last).find(|&stream| self.streams[stream].is_none())?;
        Some((last as u32, gap as u32))
    }

    /// Records that the sequence of stream `from` has moved to stream `to`.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        self.streams.swap(from as usize, to as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(table: &StreamTable) -> Vec<Option<u32>> {
        table.streams.iter().map(|owner| owner.map(|seq| seq.0)).collect()
    }

    #[test]
    fn used_streams_stay_neighbours() {
        let mut table = StreamTable::new(5);
        for seq in [7, 8, 9, 6] {
            table.get_or_assign(SeqId(seq));
        }
        assert_eq!(table.get_or_assign(SeqId(8)), 1);
        assert_eq!((table.next_move(), owners(&table)), (None, vec![Some(7), Some(8), Some(9), Some(6), None]));
        // The end of the first sequence leaves no gap; the end of one in the middle does.
        table.free(SeqId(7));
        assert_eq!(table.next_move(), None);
        table.free(SeqId(9));
        assert_eq!(table.next_move(), Some((3, 2)));
        table.moved(3, 2);
        assert_eq!((table.next_move(), owners(&table)), (None, vec![None, Some(8), Some(6), None, None]));
        // New sequences get streams above the used ones while there are any, then below.
        assert_eq!([1, 2, 3].map(|seq| table.get_or_assign(SeqId(seq))), [3, 4, 0]);
        assert_eq!((table.get(SeqId(6)), table.get(SeqId(9))), (Some(2), None));
    }
}
