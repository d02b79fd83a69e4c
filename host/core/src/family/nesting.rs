//! Which objects and lists are open at a place in a value.

/// Open objects and lists. It is as deep as the text, at a bit for each level: a grammar has no bound of depth.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nesting {
    /// 1 for an object, 0 for a list, the outermost first.
    bits: Vec<u64>,
    depth: usize,
}

impl Nesting {
    pub(crate) fn open(&mut self, object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
    }

    /// Closes the innermost.
    pub(crate) fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.depth == 0
    }

    /// Whether the innermost is an object.
    pub(crate) fn in_object(&self) -> bool {
        self.depth.checked_sub(1).is_some_and(|at| self.bits[at / 64] >> (at % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_objects_from_lists_at_any_depth() {
        let mut nesting = Nesting::default();
        for _ in 0..2 {
            assert!(nesting.is_empty() && !nesting.in_object());
            for level in 0..1000 {
                nesting.open(level % 3 == 0);
            }
            for level in (0..1000).rev() {
                assert_eq!(nesting.in_object(), level % 3 == 0, "{level}");
                nesting.close();
            }
        }
    }
}
