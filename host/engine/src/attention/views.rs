//! Where the numbers of attention are.

/// The dimensions of attention: `q` has `width` numbers for each of `rows` rows, `heads` heads and `streams` streams, `k` as many and
/// `v` `value_width` for each of `entries` entries, `kv_heads` heads and as many streams. The result has `value_width` numbers for
/// each head, row and stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shape {
    pub(super) width: usize,
    pub(super) value_width: usize,
    pub(super) rows: usize,
    pub(super) entries: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) streams: usize,
    /// 1, or as many as streams.
    pub(super) masks: usize,
    /// Of a score.
    pub(super) scale: f32,
    /// Of the mask, by ALiBi, or 0 (Press et al., "Train Short, Test Long", 2022).
    pub(super) max_bias: f32,
}

/// Where numbers lie: the first one, and the bytes from one row, head and stream to the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) data: *const u8,
    pub(super) steps: [usize; 3],
}

impl View {
    /// # Safety
    /// There is such a row.
    pub(super) unsafe fn at<T>(&self, [row, head, stream]: [usize; 3]) -> *const T {
        let [of_row, of_head, of_stream] = self.steps;
        // SAFETY: by the caller's word.
        unsafe { self.data.add(row * of_row + head * of_head + stream * of_stream).cast() }
    }
}

/// What entries are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    F16,
    F32,
}

/// Attention of one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attention {
    pub(super) shape: Shape,
    pub(super) q: View,
    /// Of `k` and `v`.
    pub(super) numbers: Numbers,
    pub(super) k: View,
    pub(super) v: View,
    /// Numbers of 16 bits, the same for all heads. `None`: rows attend to all entries.
    pub(super) mask: Option<View>,
    pub(super) to: View,
}
