//! Memory of copies that are read and dropped, kept for the next one: the system fills new memory with zeros, which takes longer
//! than the copy.

/// Bytes that are kept. A larger copy gets its memory anew each time.
const MOST: usize = 16 << 20;

/// At most one vector, of at most [`MOST`] bytes.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<u8>);

impl Spare {
    /// An empty vector with room for `bytes`: what was kept if that suffices, else a new one.
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        if self.0.capacity() < bytes { Vec::with_capacity(bytes) } else { std::mem::take(&mut self.0) }
    }

    /// Keeps a vector that nobody reads any more, instead of a smaller one.
    pub(super) fn keep(&mut self, mut copy: Vec<u8>) {
        if (self.0.capacity()..=MOST).contains(&copy.capacity()) {
            copy.clear();
            self.0 = copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_as_much_as_is_allowed_and_no_more() {
        let mut spare = Spare::default();
        spare.keep(Vec::with_capacity(MOST + 1));
        assert_eq!(spare.0.capacity(), 0);
        spare.keep(Vec::with_capacity(MOST));
        assert_eq!(spare.0.capacity(), MOST);
    }

    #[test]
    fn gives_what_it_kept_where_that_suffices() {
        let mut spare = Spare::default();
        let copy = vec![1; 100];
        let place = copy.as_ptr();
        spare.keep(copy);
        assert!(spare.take(101).capacity() >= 101);
        assert_eq!(spare.0.capacity(), 100, "a larger copy leaves it");
        spare.keep(Vec::with_capacity(99));
        let taken = spare.take(100);
        assert_eq!((taken.as_ptr(), taken.len()), (place, 0), "a smaller one does not take its place");
    }
}
