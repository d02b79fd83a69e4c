//! Items that wait under keys, such as the requests of tenants. The keys take turns: whoever has many items delays itself alone.
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Clone)]
pub struct FairQueue<K, T> {
    /// The first one is next. None has an empty list.
    keys: VecDeque<(K, VecDeque<T>)>,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { keys: VecDeque::new() }
    }
}

impl<K: PartialEq, T> FairQueue<K, T> {
    /// Items of all keys.
    pub fn len(&self) -> usize {
        self.keys.iter().map(|(_, items)| items.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether an item of this key waits.
    pub fn contains(&self, key: &K) -> bool {
        self.keys.iter().any(|(known, _)| known == key)
    }

    /// Adds an item behind those of its key; a key that has none waits behind all others.
    pub fn push(&mut self, key: K, item: T) {
        match self.keys.iter_mut().find(|(known, _)| *known == key) {
            Some((_, items)) => items.push_back(item),
            None => self.keys.push_back((key, VecDeque::from([item]))),
        }
    }

    /// The item whose turn it is.
    pub fn peek(&self) -> Option<&T> {
        self.keys.front().and_then(|(_, items)| items.front())
    }

    /// Takes the item whose turn it is. Its key goes behind all others.
    pub fn pop(&mut self) -> Option<T> {
        let (key, mut items) = self.keys.pop_front()?;
        let item = items.pop_front();
        if !items.is_empty() {
            self.keys.push_back((key, items));
        }
        item
    }

    /// Removes the items for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.keys.iter_mut().for_each(|(_, items)| items.retain(&mut keep));
        self.keys.retain(|(_, items)| !items.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> FairQueue<&'static str, u32> {
        let mut queue = FairQueue::default();
        [("greedy", 1), ("greedy", 2), ("greedy", 3), ("polite", 4), ("late", 5), ("polite", 6)]
            .into_iter()
            .for_each(|(key, item)| queue.push(key, item));
        queue
    }

    fn drained(mut queue: FairQueue<&'static str, u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn keys_take_turns_and_items_of_a_key_keep_their_order() {
        assert_eq!(drained(filled()), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn a_key_that_comes_back_waits_behind_the_others() {
        let mut queue = filled();
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(4), Some(5)));
        queue.push("late", 7);
        assert_eq!(drained(queue), [2, 6, 7, 3]);
    }

    #[test]
    fn what_is_removed_takes_no_turn() {
        let mut queue = filled();
        queue.retain(|item| item % 2 == 0);
        assert_eq!((queue.len(), queue.contains(&"late"), queue.peek()), (3, false, Some(&2)));
        assert_eq!(drained(queue), [2, 4, 6]);
        assert!(FairQueue::<(), ()>::default().is_empty());
    }
}
