//! Lends the matchers of a step's sequences to the thread that computes masks, while the engine decodes.
use crate::grammar::{MaskJob, MaskThread};
use crate::sequence::Sequence;
use crate::step::StepPlan;

/// Begins to compute the masks of all rows that tokens are drawn from. Returns whether there are any.
pub(super) fn begin(thread: &mut MaskThread, plan: &StepPlan, running: &mut [Sequence]) -> bool {
    let mut jobs = Vec::new();
    for entry in plan.entries.iter().filter(|entry| entry.row.is_some()) {
        let Some(sequence) = running.get_mut(entry.index) else { continue };
        let draft = if entry.drafted > 0 { sequence.draft.clone() } else { Vec::new() };
        if let Some(matcher) = sequence.constraint.as_mut().and_then(|constraint| constraint.lend()) {
            jobs.push(MaskJob { place: entry.index, matcher, draft });
        }
    }
    if jobs.is_empty() {
        return false;
    }
    match thread.begin(jobs) {
        Ok(()) => true,
        Err(jobs) => {
            give_back(jobs, running);
            false
        }
    }
}

/// Waits for the masks.
pub(super) fn finish(thread: &mut MaskThread, running: &mut [Sequence]) {
    give_back(thread.finish().unwrap_or_default(), running);
}

fn give_back(jobs: Vec<MaskJob>, running: &mut [Sequence]) {
    for MaskJob { place, matcher, .. } in jobs {
        if let Some(constraint) = running.get_mut(place).and_then(|sequence| sequence.constraint.as_mut()) {
            constraint.give_back(matcher);
        }
    }
}
