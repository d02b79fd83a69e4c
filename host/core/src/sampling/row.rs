//! One row of logits with its candidate set: the operations that sampler policies are made of.
use super::draws::Draws;
use super::penalties::{History, Penalties};
use super::select::{self, Candidate, best_first};
use super::values::{Values, exp_sum};
use crate::ids::Token;

/// Bytes of generated text kept for policies that work on text.
const TEXT_TAIL_BYTES: usize = 4096;
/// First guess at how many candidates hold the mass that top-p asks for.
const TOP_P_FIRST_GUESS: usize = 256;

/// Sampling state of one sequence, loaded with fresh logits at every step.
///
/// The row has a value for every token, and a set of candidates that is the whole vocabulary until something narrows it.
/// Once narrowed, the candidates' own values count; the row's remain as they were, so that a token can still be chosen
/// when every candidate has been banned.
#[derive(Debug, Default)]
pub struct Row {
    workspace: Workspace,
    narrowed: bool,
    settled: bool,
    history: History,
    text: Vec<u8>,
    draws: Draws,
}

/// What a row needs while a token is drawn and not afterwards. A worker lends the same one to all its rows in turn, so
/// that it stays in the nearest cache.
#[derive(Debug, Default)]
pub struct Workspace {
    values: Values,
    candidates: Vec<Candidate>,
}

/// The model gave a logit that is not a number, or none that is finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("logits hold NaN, +infinity or no finite value")]
pub struct InvalidLogits;

/// An operation was asked for with an argument it does not allow.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RowError {
    #[error("token {token} is outside the vocabulary of {size}")]
    UnknownToken { token: u32, size: usize },
    #[error("{ids} ids but {values} values")]
    UnequalLengths { ids: usize, values: usize },
    #[error("{name} = {value} is out of range")]
    OutOfRange { name: &'static str, value: f32 },
    #[error("logits {start}..{end} are outside the vocabulary of {size}")]
    OutOfBounds { start: u64, end: u64, size: usize },
}

fn check(name: &'static str, value: f32, ok: bool) -> Result<(), RowError> {
    if ok { Ok(()) } else { Err(RowError::OutOfRange { name, value }) }
}

impl Row {
    /// A row for a request whose prompt is `prompt` (tokens), drawing with `seed`.
    pub fn new(prompt: &[Token], seed: u64) -> Self {
        Self { history: History::new(prompt), draws: Draws::new(seed), ..Self::default() }
    }

    /// Makes room for so many tokens more and the text that they usually come to.
    #[must_use]
    pub fn with_room(mut self, tokens: usize) -> Self {
        self.history.reserve(tokens);
        self.text.reserve((4 * tokens).min(2 * TEXT_TAIL_BYTES + 64));
        self
    }

    /// Takes the logits of a step; all tokens are candidates again.
    ///
    /// # Errors
    /// NaN, +infinity, or nothing finite.
    pub fn load(&mut self, logits: &[f32]) -> Result<(), InvalidLogits> {
        (self.narrowed, self.settled) = (false, false);
        self.workspace.candidates.clear();
        if self.workspace.values.load(logits) { Ok(()) } else { Err(InvalidLogits) }
    }

    /// Exchanges the workspace: to lend them before `load`, to take them back once the token is drawn.
    pub fn exchange(&mut self, workspace: &mut Workspace) {
        std::mem::swap(&mut self.workspace, workspace);
    }

    /// Notes the token that was drawn, and the bytes it stands for.
    pub fn accept(&mut self, token: Token, bytes: &[u8]) {
        self.history.push(token);
        self.text.extend_from_slice(bytes);
        if self.text.len() > 2 * TEXT_TAIL_BYTES {
            self.text.drain(..self.text.len() - TEXT_TAIL_BYTES);
        }
    }

    /// Number of tokens in the vocabulary.
    pub fn size(&self) -> usize {
        self.workspace.values.len()
    }

    /// Number of candidates left.
    pub fn candidates(&self) -> usize {
        if self.narrowed { self.workspace.candidates.len() } else { self.workspace.values.len() }
    }

    /// Whether a temperature was set (1 counts) or the best candidate kept since the logits came: the row is then a
    /// distribution to draw from as it is.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Tokens drawn so far.
    pub fn position(&self) -> usize {
        self.history.output_len()
    }

    /// The last `max` tokens of prompt and output, oldest first.
    pub fn history(&self, max: usize) -> &[Token] {
        self.history.last(max)
    }

    /// The last `max` bytes (at most 4096) of the generated text.
    pub fn text_tail(&self, max: usize) -> &[u8] {
        &self.text[self.text.len().saturating_sub(max.min(TEXT_TAIL_BYTES))..]
    }

    fn index(&self, token: u32) -> Result<usize, RowError> {
        let size = self.workspace.values.len();
        if (token as usize) < size { Ok(token as usize) } else { Err(RowError::UnknownToken { token, size }) }
    }

    /// Adds `values[i]` to the logit of `ids[i]`.
    pub fn bias(&mut self, ids: &[u32], values: &[f32]) -> Result<(), RowError> {
        if ids.len() != values.len() {
            return Err(RowError::UnequalLengths { ids: ids.len(), values: values.len() });
        }
        for (&token, &value) in ids.iter().zip(values) {
            self.index(token)?;
            check("bias", value, !value.is_nan())?;
        }
        for (&token, &value) in ids.iter().zip(values) {
            let plus = |logit: f32| if logit == f32::NEG_INFINITY { logit } else { (logit + value).min(f32::MAX) };
            self.workspace.values.set(token, plus(self.workspace.values.get(token)));
            for c in self.workspace.candidates.iter_mut().filter(|c| c.token == token) {
                c.logit = plus(c.logit);
            }
        }
        self.drop_banned();
        Ok(())
    }

    /// Repetition penalty over the last `last_n` tokens of prompt and output (Keskar et al. 2019), frequency and presence
    /// penalties over the output (as OpenAI documents them).
    pub fn penalize(&mut self, last_n: u32, repeat: f32, frequency: f32, presence: f32) -> Result<(), RowError> {
        check("repeat", repeat, repeat.is_finite() && repeat > 0.0)?;
        check("frequency", frequency, frequency.is_finite())?;
        check("presence", presence, presence.is_finite())?;
        let penalties = Penalties { last_n: last_n as usize, repeat, frequency, presence };
        let (Workspace { values, candidates }, narrowed) = (&mut self.workspace, self.narrowed);
        self.history.apply(penalties, |token, change| {
            if narrowed {
                for c in candidates.iter_mut().filter(|c| c.token == token.0) {
                    c.logit = change(c.logit);
                }
            } else if (token.0 as usize) < values.len() {
                values.set(token.0, change(values.get(token.0)));
            }
        });
        Ok(())
    }

    /// Divides the candidates' logits by `t` > 0.
    pub fn temperature(&mut self, t: f32) -> Result<(), RowError> {
        check("temperature", t, t.is_finite() && t > 0.0)?;
        let scale = 1.0 / t;
        check("temperature", t, scale.is_finite())?;
        self.settled = true;
        if t == 1.0 {
            return Ok(());
        }
        if self.narrowed {
            self.workspace.candidates.iter_mut().for_each(|c| c.logit *= scale);
        } else {
            self.workspace.values.scale(scale);
        }
        Ok(())
    }

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
            select::shrink(&mut self.workspace.candidates, k as usize);
            self.workspace.candidates.sort_unstable_by(best_first);
        } else if (k as usize) < self.size() {
            self.workspace.values.top_k(k as usize, &mut self.workspace.candidates);
            self.narrowed = true;
        }
    }

    /// Keeps the smallest set of most probable candidates with mass of at least `p` (Holtzman et al. 2020).
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
        let mut guess = TOP_P_FIRST_GUESS.max(min_keep as usize);
        loop {
            values.top_k(guess, candidates);
            let exhausted = candidates.len() < guess;
            if exhausted || mass(candidates) >= wanted {
                break;
            }
            guess = guess.saturating_mul(8);
        }
        let keep = count_for_mass(candidates, wanted).max(min_keep as usize).max(1);
        candidates.truncate(keep);
        self.narrowed = true;
        Ok(())
    }

    /// Keeps candidates at least `p` times as probable as the best (Nguyen et al. 2024).
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
        let floor = maximum(candidates) + p.ln();
        let above = candidates.iter().filter(|c| c.logit >= floor).count();
        if above >= min_keep as usize {
            candidates.retain(|c| c.logit >= floor);
        } else {
            select::shrink(candidates, (min_keep as usize).max(1));
        }
        Ok(())
    }

    /// Locally typical sampling (Meister et al. 2023): keeps the candidates whose surprise is nearest to the entropy,
    /// until they hold mass `p`.
    pub fn keep_typical(&mut self, p: f32, min_keep: u32) -> Result<(), RowError> {
        check("typical-p", p, p > 0.0 && p <= 1.0)?;
        if p == 1.0 {
            return Ok(());
        }
        self.narrow_all();
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

    /// Sets the logits of `ids` to minus infinity.
    pub fn ban(&mut self, ids: &[u32]) -> Result<(), RowError> {
        for &token in ids {
            self.index(token)?;
        }
        for &token in ids {
            self.workspace.values.set(token, f32::NEG_INFINITY);
        }
        self.drop_banned();
        Ok(())
    }

    /// Sets the logits of all tokens but `ids` to minus infinity.
    pub fn allow_only(&mut self, ids: &[u32]) -> Result<(), RowError> {
        for &token in ids {
            self.index(token)?;
        }
        self.workspace.values.allow_only(ids);
        self.drop_banned();
        Ok(())
    }

    /// The `n` best candidates, best first.
    pub fn top(&mut self, n: usize) -> Vec<(Token, f32)> {
        let mut out = Vec::new();
        if self.narrowed {
            out.extend_from_slice(&self.workspace.candidates);
            out.sort_unstable_by(best_first);
            out.truncate(n);
        } else {
            self.workspace.values.top_k(n, &mut out);
        }
        out.into_iter().map(|c| (Token(c.token), c.logit)).collect()
    }

    /// Logits of tokens `start..start + len`.
    pub fn read(&self, start: u32, len: u32) -> Result<&[f32], RowError> {
        let range = self.range(start, len as usize)?;
        Ok(&self.workspace.values.as_slice()[range])
    }

    /// Overwrites logits from token `start` on.
    pub fn write(&mut self, start: u32, values: &[f32]) -> Result<(), RowError> {
        let range = self.range(start, values.len())?;
        for &value in values {
            check("logit", value, value < f32::INFINITY)?;
        }
        let Workspace { values: row, candidates } = &mut self.workspace;
        row.write(range.start, values);
        for c in candidates.iter_mut().filter(|c| range.contains(&(c.token as usize))) {
            c.logit = row.get(c.token);
        }
        self.drop_banned();
        Ok(())
    }

    /// Draws from the candidates in proportion to their probabilities; the best token left in the row if every
    /// candidate was banned; `None` if the whole row was.
    pub fn draw(&mut self) -> Option<Token> {
        let Workspace { values, candidates } = &mut self.workspace;
        match candidates.as_slice() {
            _ if !self.narrowed => return values.draw(self.draws.next_unit()).map(Token),
            [] => return values.argmax().map(Token),
            // A certain token needs no number: greedy requests draw none.
            [only] => return Some(Token(only.token)),
            _ => {}
        }
        let best = maximum(candidates);
        let weight = |c: &Candidate| f64::from((c.logit - best).exp());
        let total: f64 = candidates.iter().map(weight).sum();
        let mut left = self.draws.next_unit() * total;
        for c in candidates.iter() {
            left -= weight(c);
            if left < 0.0 {
                return Some(Token(c.token));
            }
        }
        // Rounding can leave a crumb past the last one.
        candidates.last().map(|c| Token(c.token))
    }

    /// The next random bits of the request's generator, for policies that draw by their own rules.
    pub fn random_bits(&mut self) -> u64 {
        self.draws.next_bits()
    }

    fn range(&self, start: u32, len: usize) -> Result<std::ops::Range<usize>, RowError> {
        let end = u64::from(start) + len as u64;
        let size = self.workspace.values.len();
        if end > size as u64 {
            return Err(RowError::OutOfBounds { start: u64::from(start), end, size });
        }
        Ok(start as usize..start as usize + len)
    }

    /// Makes the candidate set explicit without leaving anything out that could be drawn.
    fn narrow_all(&mut self) {
        if !self.narrowed {
            self.workspace.values.at_least(f32::NEG_INFINITY, &mut self.workspace.candidates);
            self.narrowed = true;
        }
    }

    fn drop_banned(&mut self) {
        if self.narrowed {
            let Workspace { values, candidates } = &mut self.workspace;
            candidates.retain(|c| c.logit > f32::NEG_INFINITY && values.get(c.token) > f32::NEG_INFINITY);
        }
    }
}

/// Log-probabilities of a row of raw logits.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    log_total: f64,
}

impl<'a> LogSoftmax<'a> {
    pub fn new(logits: &'a [f32]) -> Self {
        let best = select::maximum(logits);
        Self { logits, log_total: f64::from(best) + exp_sum(logits, best).ln() }
    }

    /// Natural logarithm of the token's probability; minus infinity outside the vocabulary.
    pub fn of(&self, token: Token) -> f32 {
        self.logits.get(token.0 as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - self.log_total) as f32)
    }

    /// The `n` most probable tokens with their log-probabilities, best first.
    pub fn top(&self, n: usize) -> Vec<(Token, f32)> {
        let mut out = Vec::new();
        select::top_k(self.logits, n, &mut out);
        out.iter().map(|c| (Token(c.token), (f64::from(c.logit) - self.log_total) as f32)).collect()
    }
}

fn maximum(candidates: &[Candidate]) -> f32 {
    candidates.iter().fold(f32::NEG_INFINITY, |best, c| if c.logit > best { c.logit } else { best })
}

/// Sum of exp(logit - best) over candidates sorted best first.
fn mass(sorted: &[Candidate]) -> f64 {
    let best = sorted.first().map_or(0.0, |c| c.logit);
    sorted.iter().map(|c| f64::from((c.logit - best).exp())).sum()
}

/// How many of the candidates (sorted best first) it takes to reach `wanted`, in units of [`mass`].
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
    let best = maximum(candidates);
    let weights: Vec<f64> = candidates.iter().map(|c| f64::from((c.logit - best).exp())).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
