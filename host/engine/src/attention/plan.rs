//! Which blocks of rows a thread computes, and from which entries: read from a mask once for a graph, and not in each layer.
use std::ops::Range;

use super::block::{Block, mask_of};
use super::kernel::LANES;
use super::spans::{self, Span};
use super::views::{Attention, Shape};

/// Fewer rows than this, counted for each head of those that share entries, are computed one by one: most lanes would idle.
pub(super) const NARROW: usize = 12;
/// Plans of a graph that a thread keeps: models have a mask or two.
const MOST_PLANS: usize = 4;
/// Runs for which a plan keeps memory beyond those that it has. Where long sequences lie entry by entry among each other, a graph has
/// millions.
const KEPT_RUNS: usize = 1 << 16;
/// Entries that take as long as what a block costs besides them.
const OF_BLOCK: usize = 16;

/// What a plan follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Key {
    graph: Option<u64>,
    mask: usize,
    /// Rows, entries, heads, heads of entries, streams and masks.
    shape: [usize; 6],
    thread: usize,
    threads: usize,
}

/// The plans of a thread's last nodes.
#[derive(Default)]
pub(super) struct Plans {
    plans: Vec<Plan>,
    /// What all rows attend to, while a plan is made.
    runs: Vec<Range<u32>>,
}

/// What a thread computes of a node.
#[derive(Default)]
pub(super) struct Plan {
    key: Key,
    /// By mask and row.
    spans: Vec<Span>,
    /// Those of which the thread computes a part.
    blocks: Vec<Rows>,
    /// Entries, one block's behind the other's.
    runs: Vec<Range<u32>>,
}

/// Rows of a stream that are computed together.
struct Rows {
    stream: usize,
    rows: Range<usize>,
    /// What any of them attends to, among the plan's.
    runs: Range<usize>,
    /// What they take for one head of entries, in lanes and entries.
    cost: usize,
    /// The heads of entries that are this thread's.
    kv_heads: Range<usize>,
}

impl Plans {
    /// The plan of `thread`. `graph`: a number of the graph that is computed, where the mask is the same for all nodes that have it.
    ///
    /// # Safety
    /// The mask is where `attention` says.
    pub(super) unsafe fn of(
        &mut self,
        attention: &Attention,
        graph: Option<u64>,
        (thread, threads): (usize, usize),
    ) -> &Plan {
        let Shape { rows, entries, heads, kv_heads, streams, masks, .. } = attention.shape;
        let mask = attention.mask.map_or(0, |mask| mask.data.addr());
        let key = Key { graph, mask, shape: [rows, entries, heads, kv_heads, streams, masks], thread, threads };
        let at = match self.plans.iter().position(|plan| plan.key == key && graph.is_some()) {
            Some(at) => at,
            None => {
                // The room of one that nobody asks for any more, or of the oldest.
                let old = self.plans.iter().position(|plan| plan.key.graph != graph || graph.is_none());
                let full = (self.plans.len() == MOST_PLANS).then_some(0);
                let mut plan = old.or(full).map_or_else(Plan::default, |at| self.plans.remove(at));
                // SAFETY: by the caller's word.
                unsafe { plan.make(attention, key, &mut self.runs) };
                self.runs.clear();
                self.runs.shrink_to(KEPT_RUNS);
                self.plans.push(plan);
                self.plans.len() - 1
            }
        };
        &self.plans[at]
    }
}

impl Plan {
    /// `all` is empty: what all rows attend to, of which the thread keeps its part.
    ///
    /// # Safety
    /// The mask is where `attention` says.
    unsafe fn make(&mut self, attention: &Attention, key: Key, all: &mut Vec<Range<u32>>) {
        let shape = &attention.shape;
        self.key = key;
        self.spans.clear();
        self.blocks.clear();
        // SAFETY: by the caller's word.
        let mask = |row: usize, stream: usize| unsafe { mask_of(attention, row, stream) };
        for stream in 0..shape.masks.min(shape.streams) {
            self.spans.extend((0..shape.rows).map(|row| match &attention.mask {
                None => Span::all(shape.entries),
                Some(_) => Span::of(mask(row, stream)),
            }));
        }
        let group = shape.heads / shape.kv_heads;
        // No more rows together than leave something for each thread.
        let each = (shape.rows * shape.kv_heads * shape.streams).div_ceil(key.threads);
        let most = (LANES / group).min(each);
        for stream in 0..shape.streams {
            let spans = &self.spans[stream % shape.masks * shape.rows..][..shape.rows];
            let of = |row: usize| (&spans[row], mask(row, stream));
            let mut row = 0;
            while row < shape.rows {
                let rows = row..row + spans::block(&spans[row..], most, |a, b| spans::shared(of(row + a), of(row + b)));
                let first = all.len();
                let entries = spans::attended(&rows.clone().map(of), all);
                let cost = (entries + OF_BLOCK) * (rows.len() * group).min(NARROW);
                row = rows.end;
                self.blocks.push(Rows { stream, rows, runs: first..all.len(), cost, kv_heads: 0..0 });
            }
        }
        self.divide(shape.kv_heads);
        self.keep_own(all);
    }

    /// Drops what other threads compute.
    fn keep_own(&mut self, all: &[Range<u32>]) {
        self.runs.clear();
        self.blocks.retain(|block| !block.kv_heads.is_empty());
        for block in &mut self.blocks {
            let first = self.runs.len();
            self.runs.extend_from_slice(&all[block.runs.clone()]);
            block.runs = first..self.runs.len();
        }
        self.runs.shrink_to(KEPT_RUNS);
    }

    /// Gives the thread its heads of each block: threads have parts behind each other, which take as long.
    fn divide(&mut self, kv_heads: usize) {
        let Key { thread, threads, .. } = self.key;
        let all: usize = self.blocks.iter().map(|block| block.cost * kv_heads).sum();
        let mut before = 0;
        for block in &mut self.blocks {
            // A part is the thread's in whose share its middle lies.
            let thread_of = |head: usize| (2 * (before + head * block.cost) + block.cost) * threads / (2 * all).max(1);
            let first = (0..kv_heads).find(|head| thread_of(*head) == thread).unwrap_or(kv_heads);
            let count = (first..kv_heads).take_while(|head| thread_of(*head) == thread).count();
            block.kv_heads = first..first + count;
            before += kv_heads * block.cost;
        }
    }

    /// The blocks of the thread.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let [rows_of_mask, .., masks] = self.key.shape;
        self.blocks.iter().flat_map(move |Rows { stream, rows, runs, kv_heads, .. }| {
            let of_mask = stream % masks * rows_of_mask;
            let spans = &self.spans[of_mask + rows.start..of_mask + rows.end];
            let runs = &self.runs[runs.clone()];
            kv_heads.clone().map(move |kv_head| Block { stream: *stream, kv_head, rows: rows.clone(), spans, runs })
        })
    }
}
