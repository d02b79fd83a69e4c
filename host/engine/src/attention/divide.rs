//! Divides attention into blocks of rows, and these between threads.
use std::cell::RefCell;

use super::block::{Block, mask_of};
use super::kernel::{Kernel, LANES};
use super::spans::{self, Span};
use super::views::{Attention, Shape};
use super::{narrow, wide};

/// Fewer rows than this, counted for each head of those that share entries, are computed one by one: most lanes would idle.
const NARROW: usize = 12;

/// What a thread computes with; it keeps it for the next node.
#[derive(Default)]
struct Scratch {
    spans: Vec<Span>,
    /// What any row of a block attends to.
    entries: Vec<usize>,
    wide: wide::Scratch,
    narrow: narrow::Scratch,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Computes the part of `thread`.
///
/// # Safety
/// The kernel is one of this processor's. Numbers are where `attention` says, and nobody else writes the thread's part.
pub(super) unsafe fn attend(kernel: Kernel, attention: &Attention, thread: usize, threads: usize) {
    let shape = attention.shape;
    // No more rows together than leave something for each thread.
    let each = (shape.rows * shape.kv_heads * shape.streams).div_ceil(threads);
    let most = (LANES / (shape.heads / shape.kv_heads)).min(each);
    SCRATCH.with_borrow_mut(|scratch| {
        let mut number = 0;
        for stream in 0..shape.streams {
            if stream < shape.masks {
                // SAFETY: by the caller's word.
                unsafe { read_spans(attention, stream, &mut scratch.spans) };
            }
            let (spans, mut entries) = (std::mem::take(&mut scratch.spans), std::mem::take(&mut scratch.entries));
            // SAFETY: by the caller's word.
            let of = |row: usize| unsafe { (&spans[row], mask_of(attention, row, stream)) };
            let mut row = 0;
            while row < shape.rows {
                let rows = row..row + spans::block(&spans[row..], most, |a, b| spans::shared(of(row + a), of(row + b)));
                // Of this thread's blocks: the next ones of as many heads.
                if (number..number + shape.kv_heads).any(|number| number % threads == thread) {
                    spans::attended(&rows.clone().map(of), &mut entries);
                }
                for kv_head in 0..shape.kv_heads {
                    if number % threads == thread {
                        let (rows, spans) = (rows.clone(), &spans[rows.clone()]);
                        let lanes = rows.len() * shape.heads / shape.kv_heads;
                        let block = Block { stream, kv_head, rows, spans, entries: &entries };
                        // SAFETY: by the caller's word; the block is of this thread alone.
                        unsafe {
                            if lanes < NARROW || !scratch.wide.attend(kernel, attention, &block) {
                                scratch.narrow.attend(kernel, attention, &block);
                            }
                        }
                    }
                    number += 1;
                }
                row = rows.end;
            }
            (scratch.spans, scratch.entries) = (spans, entries);
        }
    });
}

/// # Safety
/// The mask is where `attention` says.
unsafe fn read_spans(attention: &Attention, stream: usize, spans: &mut Vec<Span>) {
    let Shape { rows, entries, .. } = attention.shape;
    spans.clear();
    spans.extend((0..rows).map(|row| match &attention.mask {
        None => Span::all(entries),
        // SAFETY: by the caller's word.
        Some(_) => Span::of(unsafe { mask_of(attention, row, stream) }),
    }));
}
