//! Which part of the KV cache each sequence has, where each has one of its own.
//!
//! llama.cpp decodes sequences together only where their parts lie side by side; a gap costs another pass over the
//! weights in every step. So new sequences go beside the others, and when one ends another one is moved into its place.
use camshaft_core::ids::SeqId;

/// Parts by number, with the sequence that has it.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    parts: Vec<Option<SeqId>>,
}

impl Streams {
    pub(crate) fn new(count: u32) -> Self {
        Self { parts: vec![None; count as usize] }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<u32> {
        self.parts.iter().position(|of| *of == Some(seq)).map(|part| part as u32)
    }

    /// The sequence's part; a free one beside the others if it has none. There are as many parts as sequences.
    pub(crate) fn get_or_take(&mut self, seq: SeqId) -> u32 {
        if let Some(part) = self.get(seq) {
            return part;
        }
        let first = self.parts.iter().position(Option::is_some).unwrap_or(0);
        let above = (first..self.parts.len()).find(|&part| self.parts[part].is_none());
        let below = (0..first).rev().find(|&part| self.parts[part].is_none());
        let part = above.or(below).unwrap_or_default();
        self.parts[part] = Some(seq);
        part as u32
    }

    pub(crate) fn free(&mut self, seq: SeqId) {
        self.parts.iter_mut().filter(|of| **of == Some(seq)).for_each(|of| *of = None);
    }

    /// A move, from part to part, that brings the sequences closer together; none if they lie side by side.
    pub(crate) fn closer(&self) -> Option<(u32, u32)> {
        let first = self.parts.iter().position(Option::is_some)?;
        let last = self.parts.iter().rposition(Option::is_some)?;
        let gap = (first..last).find(|&part| self.parts[part].is_none())?;
        Some((last as u32, gap as u32))
    }

    /// Notes that a move was made.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        self.parts.swap(from as usize, to as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(streams: &Streams) -> Vec<Option<u32>> {
        streams.parts.iter().map(|of| of.map(|seq| seq.0)).collect()
    }

    #[test]
    fn sequences_stay_side_by_side() {
        let mut streams = Streams::new(5);
        for seq in [7, 8, 9, 6] {
            streams.get_or_take(SeqId(seq));
        }
        assert_eq!(streams.get_or_take(SeqId(8)), 1);
        assert_eq!((streams.closer(), taken(&streams)), (None, vec![Some(7), Some(8), Some(9), Some(6), None]));
        // The first one ends: no gap. Then one in the middle.
        streams.free(SeqId(7));
        assert_eq!(streams.closer(), None);
        streams.free(SeqId(9));
        assert_eq!(streams.closer(), Some((3, 2)));
        streams.moved(3, 2);
        assert_eq!((streams.closer(), taken(&streams)), (None, vec![None, Some(8), Some(6), None, None]));
        // New ones: above while there is room, then below.
        assert_eq!([1, 2, 3].map(|seq| streams.get_or_take(SeqId(seq))), [3, 4, 0]);
        assert_eq!((streams.get(SeqId(6)), streams.get(SeqId(9))), (Some(2), None));
    }
}
