//! Plays the host's part in unit tests of schedulers. Native only.
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What the host answers about a request in a unit test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    pub need: u32,
    /// One number for each worker of the point.
    pub cached: Vec<u32>,
    pub prefix_blocks: Vec<u64>,
    pub group: u64,
    pub turns: u32,
    pub first_token_target_ms: u64,
    pub per_token_target_ms: u64,
    pub hints: BTreeMap<String, String>,
    pub attributes: BTreeMap<String, String>,
}

/// A rejection that a policy asked for with [`Point::reject`](super::Point::reject).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub id: u64,
    pub code: String,
    pub retry_after_ms: u64,
    pub message: String,
}

/// The host's answers at a point of a unit test, and what the policy asked for. As the host, it takes an unknown request for a
/// fault: it panics.
#[derive(Debug, Default)]
pub struct Rehearsal {
    pub(crate) tenants: Vec<String>,
    /// Requests that may be asked about.
    pub requests: BTreeMap<u64, Known>,
    pub resumed: Vec<u64>,
    pub finish_reasons: Vec<String>,
    pub failed: Vec<u64>,
    pub cancel_reasons: Vec<String>,
    wake_ms: RefCell<Option<u64>>,
    rejected: RefCell<Vec<Rejected>>,
}

impl Rehearsal {
    /// When the policy wants to be called.
    pub fn wake_ms(&self) -> Option<u64> {
        *self.wake_ms.borrow()
    }

    /// What the policy rejected with a code.
    pub fn rejected(&self) -> Vec<Rejected> {
        self.rejected.borrow().clone()
    }

    fn known(&self, id: u64) -> &Known {
        self.requests.get(&id).unwrap_or_else(|| panic!("request {id} is unknown: see `Point::rehearsal`"))
    }

    fn each<R>(&self, ids: &[u64], answer: impl Fn(&Known) -> R) -> Vec<R> {
        assert!(ids.len() <= self.requests.len(), "{} ids, over the {} requests", ids.len(), self.requests.len());
        ids.iter().map(|&id| answer(self.known(id))).collect()
    }

    pub(crate) fn model(&self) -> String {
        "test".to_owned()
    }

    pub(crate) fn tenant(&self, number: u32) -> String {
        self.tenants.get(number as usize).cloned().unwrap_or_else(|| format!("tenant-{number}"))
    }

    pub(crate) fn wake_at(&self, now_ms: u64) {
        *self.wake_ms.borrow_mut() = Some(now_ms);
    }

    pub(crate) fn needs(&self, ids: &[u64]) -> Vec<u32> {
        self.each(ids, |known| known.need)
    }

    pub(crate) fn cached(&self, ids: &[u64]) -> Vec<u32> {
        self.each(ids, |known| known.cached.clone()).concat()
    }

    pub(crate) fn prefix_blocks(&self, id: u64) -> Vec<u64> {
        self.known(id).prefix_blocks.clone()
    }

    pub(crate) fn groups(&self, ids: &[u64]) -> Vec<u64> {
        self.each(ids, |known| known.group)
    }

    pub(crate) fn turns(&self, ids: &[u64]) -> Vec<u32> {
        self.each(ids, |known| known.turns)
    }

    pub(crate) fn targets_ms(&self, ids: &[u64], which: &str) -> Vec<u64> {
        self.each(ids, |known| match which {
            "first-token" => known.first_token_target_ms,
            _ => known.per_token_target_ms,
        })
    }

    pub(crate) fn attribute(&self, id: u64, name: &str) -> Option<String> {
        self.known(id).attributes.get(name).cloned()
    }

    pub(crate) fn hint(&self, id: u64, name: &str) -> Option<String> {
        self.known(id).hints.get(name).cloned()
    }

    pub(crate) fn reject(&self, ids: &[u64], code: &str, retry_after_ms: u64, message: &str) {
        let (code, message) = (code.to_owned(), message.to_owned());
        let rejected = |&id| Rejected { id, code: code.clone(), retry_after_ms, message: message.clone() };
        self.rejected.borrow_mut().extend(ids.iter().map(rejected));
    }

    pub(crate) fn resumed(&self) -> Vec<u64> {
        self.resumed.clone()
    }

    pub(crate) fn finish_reasons(&self) -> Vec<String> {
        self.finish_reasons.clone()
    }

    pub(crate) fn failed(&self) -> Vec<u64> {
        self.failed.clone()
    }

    pub(crate) fn cancel_reasons(&self) -> Vec<String> {
        self.cancel_reasons.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Point;

    #[test]
    fn a_point_answers_what_a_test_says_and_keeps_what_the_policy_asked_for() {
        let mut point = Point::at(5);
        let hints = BTreeMap::from([("tier".to_owned(), "batch".to_owned())]);
        let known = Known { need: 7, cached: vec![1, 2], group: 3, turns: 4, hints, ..Known::default() };
        point.rehearsal().requests.insert(1, known.clone());
        point
            .rehearsal()
            .requests
            .insert(2, Known { cached: vec![8, 9], first_token_target_ms: 50, ..Known::default() });
        assert_eq!((point.needs(&[1]), point.groups(&[1]), point.turns(&[1])), (vec![7], vec![3], vec![4]));
        assert_eq!(point.cached(&[2, 1]), [8, 9, 1, 2]);
        assert_eq!((point.first_token_targets_ms(&[1, 2]), point.per_token_targets_ms(&[2])), (vec![0, 50], vec![0]));
        assert_eq!((point.hint(1, "tier").as_deref(), point.attribute(1, "tier")), (Some("batch"), None));
        point.wake_at(9);
        point.reject(&[2], "tier_full", 1500, "later");
        assert_eq!(point.rehearsal().wake_ms(), Some(9));
        let (code, message) = ("tier_full".to_owned(), "later".to_owned());
        assert_eq!(point.rehearsal().rejected(), [Rejected { id: 2, code, retry_after_ms: 1500, message }]);
    }

    #[test]
    #[should_panic(expected = "request 9 is unknown")]
    fn an_unknown_request_is_a_fault() {
        let mut point = Point::at(5);
        point.rehearsal().requests.insert(1, Known::default());
        point.needs(&[9]);
    }
}
