//! The embedder interface, and the queue that batches inputs.
//!
//! An idle embedder takes the first input at once. A busy one waits until a batch is full or the oldest input has
//! waited for the window. Higher classes go first, and inputs of a class in order of arrival.
pub mod fake;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::EngineError;
use crate::ids::Token;
use crate::policy::Priority;

/// Computes one vector per input, several inputs at a time, on the embedder's thread.
///
/// `camshaft-engine` implements it on llama.cpp, and [`fake`] without a model, for tests.
pub trait Embedder {
    fn limits(&self) -> EmbedderLimits;
    /// Computes a batch. Returns one vector per input, pooled as the model does, and not normalised.
    ///
    /// # Errors
    /// An input is empty, too long or has tokens outside the vocabulary, the batch exceeds its bounds, or the engine
    /// fails.
    fn embed(&mut self, inputs: &[Arc<[Token]>]) -> Result<Vec<Vec<f32>>, EngineError>;
}

/// Limits of an embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedderLimits {
    /// Maximum tokens of a batch.
    pub batch_tokens: u32,
    /// Maximum inputs of a batch.
    pub batch_inputs: usize,
    /// Maximum tokens of one input.
    pub input_tokens: u32,
    /// Length of a vector.
    pub dimensions: u32,
}

/// Bounds of a queue and its batches.
#[derive(Debug, Clone, Copy)]
pub struct EmbedLimits {
    /// Maximum tokens of a batch.
    pub batch_tokens: u32,
    /// Maximum inputs of a batch.
    pub batch_inputs: usize,
    /// Maximum number of waiting inputs.
    pub waiting: usize,
    /// How long the oldest input waits for others to join its batch, unless the embedder is idle.
    pub window: Duration,
}

#[derive(Debug)]
struct Item<T> {
    arrived: Duration,
    tokens: u32,
    input: T,
}

/// Waiting inputs by class. The caller passes the time in.
#[derive(Debug)]
pub struct EmbedQueue<T> {
    limits: EmbedLimits,
    classes: [VecDeque<Item<T>>; 3],
    waiting: usize,
    waiting_tokens: u64,
    /// When the embedder was last busy.
    busy_until: Option<Duration>,
}

impl<T> EmbedQueue<T> {
    pub fn new(limits: EmbedLimits) -> Self {
        Self { limits, classes: Default::default(), waiting: 0, waiting_tokens: 0, busy_until: None }
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Sets how many inputs may wait. Inputs that already wait stay.
    pub fn set_waiting(&mut self, bound: usize) {
        self.limits.waiting = bound;
    }

    /// Whether `count` more inputs may wait.
    pub fn has_capacity(&self, count: usize) -> bool {
        self.waiting + count <= self.limits.waiting
    }

    /// Adds an input of `tokens` tokens, at most a batch's.
    pub fn push(&mut self, now: Duration, priority: Priority, tokens: u32, input: T) {
        self.classes[priority as usize].push_back(Item { arrived: now, tokens, input });
        self.waiting += 1;
        self.waiting_tokens += u64::from(tokens);
    }

    /// Drops the inputs for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for class in &mut self.classes {
            class.retain(|item| keep(&item.input));
        }
        let items = || self.classes.iter().flatten();
        self.waiting = items().count();
        self.waiting_tokens = items().map(|item| u64::from(item.tokens)).sum();
    }

    /// When the next batch is due; `None` while no input waits.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let oldest = self.classes.iter().filter_map(|class| class.front()).map(|item| item.arrived).min()?;
        let full =
            self.waiting_tokens >= u64::from(self.limits.batch_tokens) || self.waiting >= self.limits.batch_inputs;
        let was_idle = self.busy_until.is_none_or(|until| oldest >= until + self.limits.window);
        if full || was_idle { Some(now) } else { Some(oldest + self.limits.window) }
    }

    /// Takes the next batch: at least one input if any waits, and no more than the bounds allow.
    pub fn take(&mut self) -> Vec<T> {
        let (mut batch, mut tokens) = (Vec::new(), 0);
        for class in &mut self.classes {
            while let Some(item) = class.front() {
                let over = tokens + item.tokens > self.limits.batch_tokens || batch.len() >= self.limits.batch_inputs;
                if over && !batch.is_empty() {
                    break;
                }
                let Some(item) = class.pop_front() else { break };
                tokens += item.tokens;
                self.waiting -= 1;
                self.waiting_tokens -= u64::from(item.tokens);
                batch.push(item.input);
            }
        }
        batch
    }

    /// Records that a batch was computed.
    pub fn computed(&mut self, now: Duration) {
        self.busy_until = Some(now);
    }
}

/// Scales a vector to length 1. A vector of length 0 stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_millis(4);
    const LIMITS: EmbedLimits = EmbedLimits { batch_tokens: 100, batch_inputs: 5, waiting: 8, window: WINDOW };

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_batch_is_due_at_once_when_idle_and_after_the_window_when_busy() {
        let mut queue = EmbedQueue::new(LIMITS);
        assert_eq!(queue.due(ms(0)), None);
        queue.push(ms(10), Priority::Normal, 7, 'a');
        assert_eq!(queue.due(ms(10)), Some(ms(10)));
        assert_eq!(queue.take(), ['a']);
        queue.computed(ms(12));
        queue.push(ms(13), Priority::Normal, 7, 'b');
        queue.push(ms(15), Priority::Normal, 7, 'c');
        assert_eq!(queue.due(ms(15)), Some(ms(17)));
        queue.push(ms(16), Priority::Normal, 86, 'd');
        assert_eq!(queue.due(ms(16)), Some(ms(16)), "a full batch does not wait");
        assert_eq!(queue.take(), ['b', 'c', 'd']);
        queue.computed(ms(17));
        queue.push(ms(21), Priority::Normal, 7, 'e');
        assert_eq!(queue.due(ms(21)), Some(ms(21)), "idle again");
    }

    #[test]
    fn higher_classes_go_first_and_a_batch_keeps_its_bounds() {
        let mut queue = EmbedQueue::new(LIMITS);
        for (name, priority, tokens) in [
            ('a', Priority::Low, 10),
            ('b', Priority::Normal, 60),
            ('c', Priority::High, 30),
            ('d', Priority::Normal, 20),
        ] {
            queue.push(ms(0), priority, tokens, name);
        }
        assert_eq!(queue.take(), ['c', 'b', 'a']);
        assert_eq!((queue.take(), queue.waiting()), (vec!['d'], 0));
        assert!(queue.has_capacity(8) && !queue.has_capacity(9));
    }

    proptest! {
        #[test]
        fn every_input_comes_out_once_within_the_bounds(
            inputs in prop::collection::vec((0u8..3, 1u32..100), 0..60)
        ) {
            let mut queue = EmbedQueue::new(EmbedLimits { waiting: 100, ..LIMITS });
            for (i, &(class, tokens)) in inputs.iter().enumerate() {
                let priority = [Priority::High, Priority::Normal, Priority::Low][class as usize];
                queue.push(ms(i as u64), priority, tokens, i);
            }
            let mut seen = Vec::new();
            while queue.waiting() > 0 {
                prop_assert!(queue.due(ms(100)).is_some());
                let batch = queue.take();
                prop_assert!(!batch.is_empty() && batch.len() <= 5);
                prop_assert!(batch.iter().map(|&i| inputs[i].1).sum::<u32>() <= 100);
                seen.extend(batch);
            }
            let mut sorted = seen.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..inputs.len()).collect::<Vec<_>>());
            prop_assert_eq!(queue.due(ms(100)), None);
            for class in 0..3 {
                let order: Vec<usize> = seen.iter().copied().filter(|&i| inputs[i].0 == class).collect();
                prop_assert!(order.is_sorted());
            }
        }
    }

    #[test]
    fn scales_vectors_to_length_one_except_zero() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = [0.0; 3];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0; 3]);
    }
}
