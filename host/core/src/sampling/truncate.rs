//! The row operations that keep some candidates and drop the rest: greedy, top-k, top-p, min-p and typical.
use super::checks::{RowError, check_mass, check_min_p};
use super::row::{Row, Workspace};
use super::select::{Candidate, best_first, keep_mass, max_logit, shrink};
use crate::vectors::exp;

/// Numbers of candidates that top-p selects, one after the other until they reach the mass. Past the last, it divides all.
const TOP_P_COUNTS: [usize; 2] = [256, 2048];
/// More candidates are left in no particular order: sorting a whole vocabulary takes ten times as long as all the rest.
const SORTED: usize = 2048;

impl Row {
    /// Keeps the candidate with the largest logit.
    pub fn keep_best(&mut self) {
        self.settled = true;
        if self.narrowed {
            self.workspace.candidates.sort_unstable_by(best_first);
            self.workspace.candidates.truncate(1);
        } else if let Some(token) = self.workspace.values.argmax() {
            let logit = self.workspace.values.get(token);
            self.workspace.candidates.push(Candidate { token, logit });
            self.narrowed = true;
        }
    }

    /// Keeps the `k` candidates with the largest logits, best first unless they are very many; 0 keeps all.
    pub fn keep_top_k(&mut self, k: u32) {
        if k == 0 {
            return;
        }
        if self.narrowed {
            shrink(&mut self.workspace.candidates, k as usize);
            self.sort_few();
        } else if (k as usize) < self.size() {
            self.workspace.values.select_k(k as usize, &mut self.workspace.candidates);
            self.narrowed = true;
            self.sort_few();
        }
    }

    fn sort_few(&mut self) {
        if self.workspace.candidates.len() <= SORTED {
            self.workspace.candidates.sort_unstable_by(best_first);
        }
    }

    /// Keeps the smallest set of most probable candidates whose mass is at least `p` (Holtzman et al. 2020).
    pub fn keep_top_p(&mut self, p: f32, min_keep: u32) -> Result<(), RowError> {
        check_mass("top-p", p)?;
        if p == 1.0 {
            return Ok(());
        }
        if !self.narrowed {
            let Workspace { values, candidates, .. } = &mut self.workspace;
            let wanted = f64::from(p) * values.total();
            for count in TOP_P_COUNTS {
                values.top_k(count, candidates);
                let exhausted = candidates.len() < count;
                if exhausted || mass(candidates) >= wanted {
                    let keep = count_for_mass(candidates, wanted).max(min_keep as usize).max(1);
                    if exhausted || keep <= count {
                        candidates.truncate(keep);
                        self.narrowed = true;
                        return Ok(());
                    }
                }
            }
            self.narrow_to_all();
        }
        let candidates = &mut self.workspace.candidates;
        let best = max_logit(candidates);
        let weight = |c: &Candidate| f64::from(exp(c.logit - best));
        let wanted = f64::from(p) * candidates.iter().map(weight).sum::<f64>();
        keep_mass(candidates, |c| -c.logit, weight, wanted, min_keep as usize);
        self.sort_few();
        Ok(())
    }

    /// Keeps the candidates that are at least `p` times as probable as the best one (Nguyen et al. 2024).
    pub fn keep_min_p(&mut self, p: f32, min_keep: u32) -> Result<(), RowError> {
        check_min_p(p)?;
        if p == 0.0 {
            return Ok(());
        }
        let Workspace { values, candidates, .. } = &mut self.workspace;
        if !self.narrowed {
            values.at_least(values.maximum() + p.ln(), candidates);
            if candidates.len() < min_keep as usize {
                values.top_k(min_keep as usize, candidates);
            }
            self.narrowed = true;
            return Ok(());
        }
        let floor = max_logit(candidates) + p.ln();
        let above = candidates.iter().filter(|c| c.logit >= floor).count();
        if above >= min_keep as usize {
            candidates.retain(|c| c.logit >= floor);
        } else {
            shrink(candidates, (min_keep as usize).max(1));
        }
        Ok(())
    }

    /// Locally typical sampling (Meister et al. 2023): keeps the candidates whose surprise is nearest to the entropy of
    /// the distribution, as many as it takes to reach the mass `p`.
    pub fn keep_typical(&mut self, p: f32, min_keep: u32) -> Result<(), RowError> {
        check_mass("typical-p", p)?;
        if p == 1.0 {
            return Ok(());
        }
        let (best, (total, weighted)) = (self.best(), self.moments());
        self.narrow_to_all();
        // The surprise of a token is the logarithm of the total less x, and the entropy is the mean of that. So the two are
        // as far apart as x is from its mean.
        let mean = weighted / total;
        let surprise = |c: &Candidate| (f64::from(c.logit - best) - mean).abs() as f32;
        let weight = |c: &Candidate| f64::from(exp(c.logit - best));
        keep_mass(&mut self.workspace.candidates, surprise, weight, f64::from(p) * total, min_keep as usize);
        self.sort_few();
        Ok(())
    }

    /// Makes the candidate set explicit: all tokens that are not banned.
    pub(super) fn narrow_to_all(&mut self) {
        if !self.narrowed {
            self.workspace.values.at_least(f32::NEG_INFINITY, &mut self.workspace.candidates);
            self.narrowed = true;
        }
    }
}

/// The sum of exp(logit - best) over candidates sorted best first.
fn mass(sorted: &[Candidate]) -> f64 {
    let best = sorted.first().map_or(0.0, |c| c.logit);
    sorted.iter().map(|c| f64::from((c.logit - best).exp())).sum()
}

/// Number of candidates, from the best on, whose [`mass`] reaches `wanted`.
fn count_for_mass(sorted: &[Candidate], wanted: f64) -> usize {
    let best = sorted.first().map_or(0.0, |c| c.logit);
    let mut sum = 0.0;
    let reached = sorted.iter().position(|c| {
        sum += f64::from((c.logit - best).exp());
        sum >= wanted
    });
    reached.map_or(sorted.len(), |i| i + 1)
}
