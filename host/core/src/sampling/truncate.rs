//! The row operations that keep some candidates and drop the rest: greedy, top-k, top-p, min-p and typical.
use super::row::{Row, RowError, Workspace, check};
use super::select::{Candidate, best_first, max_logit, shrink};

/// Number of candidates that top-p selects first. It selects more until they reach the mass.
const TOP_P_INITIAL_COUNT: usize = 256;

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

    /// Keeps the `k` candidates with the largest logits, best first; 0 keeps all.
    pub fn keep_top_k(&mut self, k: u32) {
        if k == 0 {
            return;
        }
        if self.narrowed {
            shrink(&mut self.workspace.candidates, k as usize);
            self.workspace.candidates.sort_unstable_by(best_first);
        } else if (k as usize) < self.size() {
            self.workspace.values.top_k(k as usize, &mut self.workspace.candidates);
            self.narrowed = true;
        }
    }

    /// Keeps the smallest set of most probable candidates whose mass is at least `p` (Holtzman et al. 2020).
    pub fn keep_top_p(&mut self, p: f32, min_keep: u32) -> Result<(), RowError> {
        check("top-p", p, p > 0.0 && p <= 1.0)?;
        if p == 1.0 {
            return Ok(());
        }
        if self.narrowed {
            self.workspace.candidates.sort_unstable_by(best_first);
            let total: f64 = mass(&self.workspace.candidates);
            let keep = count_for_mass(&self.workspace.candidates, f64::from(p) * total).max(min_keep as usize).max(1);
            self.workspace.candidates.truncate(keep);
            return Ok(());
        }
        let Workspace { values, candidates } = &mut self.workspace;
        let wanted = f64::from(p) * values.total();
        let mut count = TOP_P_INITIAL_COUNT.max(min_keep as usize);
        loop {
            values.top_k(count, candidates);
            let exhausted = candidates.len() < count;
            if exhausted || mass(candidates) >= wanted {
                break;
            }
            count = count.saturating_mul(8);
        }
        let keep = count_for_mass(candidates, wanted).max(min_keep as usize).max(1);
        candidates.truncate(keep);
        self.narrowed = true;
        Ok(())
    }

    /// Keeps the candidates that are at least `p` times as probable as the best one (Nguyen et al. 2024).
    pub fn keep_min_p(&mut self, p: f32, min_keep: u32) -> Result<(), RowError> {
        check("min-p", p, (0.0..=1.0).contains(&p))?;
        if p == 0.0 {
            return Ok(());
        }
        let Workspace { values, candidates } = &mut self.workspace;
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
        check("typical-p", p, p > 0.0 && p <= 1.0)?;
        if p == 1.0 {
            return Ok(());
        }
        self.narrow_to_all();
        let probabilities = probabilities(&self.workspace.candidates);
        let entropy: f64 = probabilities.iter().filter(|&&q| q > 0.0).map(|&q| -q * q.ln()).sum();
        let mut order: Vec<(f64, f64, Candidate)> = probabilities
            .iter()
            .zip(&self.workspace.candidates)
            .map(|(&q, &c)| (if q > 0.0 { (-q.ln() - entropy).abs() } else { f64::INFINITY }, q, c))
            .collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then_with(|| best_first(&a.2, &b.2)));
        let mut sum = 0.0;
        let reached = order.iter().position(|(_, q, _)| {
            sum += q;
            sum >= f64::from(p)
        });
        let keep = reached.map_or(order.len(), |i| i + 1).max(min_keep as usize).max(1);
        self.workspace.candidates.clear();
        self.workspace.candidates.extend(order.into_iter().take(keep).map(|(_, _, c)| c));
        self.workspace.candidates.sort_unstable_by(best_first);
        Ok(())
    }

    /// Makes the candidate set explicit: all tokens that are not banned.
    fn narrow_to_all(&mut self) {
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

fn probabilities(candidates: &[Candidate]) -> Vec<f64> {
    let best = max_logit(candidates);
    let weights: Vec<f64> = candidates.iter().map(|c| f64::from((c.logit - best).exp())).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}
