//! Repetition, frequency and presence penalties over a request's tokens.
use std::collections::HashMap;

use crate::ids::Token;

/// The tokens of a request and how often each occurs in its output.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    tokens: Vec<Token>,
    prompt_len: usize,
    output_counts: HashMap<Token, u32>,
    /// Scratch for the distinct tokens of the repetition window.
    window: Vec<Token>,
}

/// The arguments of `Row::penalize`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Penalties {
    pub(super) last_n: usize,
    pub(super) repeat: f32,
    pub(super) frequency: f32,
    pub(super) presence: f32,
}

impl History {
    pub(super) fn new(prompt: &[Token]) -> Self {
        Self { tokens: prompt.to_vec(), prompt_len: prompt.len(), ..Self::default() }
    }

    pub(super) fn reserve(&mut self, tokens: usize) {
        self.tokens.reserve(tokens);
    }

    pub(super) fn push(&mut self, token: Token) {
        self.tokens.push(token);
        *self.output_counts.entry(token).or_default() += 1;
    }

    /// Forgets all tokens of the output but the first `kept`.
    pub(super) fn truncate(&mut self, kept: usize) {
        for token in self.tokens.drain((self.prompt_len + kept).min(self.tokens.len())..) {
            if let Some(count) = self.output_counts.get_mut(&token) {
                *count = count.saturating_sub(1);
            }
        }
        // A count of 0 would still be penalized as present.
        self.output_counts.retain(|_, count| *count > 0);
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn output_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// The last `max` tokens, oldest first.
    pub(super) fn last(&self, max: usize) -> &[Token] {
        &self.tokens[self.tokens.len().saturating_sub(max)..]
    }

    /// Calls `adjust(token, change)` for each token and penalty, where `change` maps the token's logit.
    pub(super) fn apply(&mut self, penalties: Penalties, mut adjust: impl FnMut(Token, &dyn Fn(f32) -> f32)) {
        if penalties.repeat != 1.0 && penalties.last_n > 0 {
            let start = self.tokens.len().saturating_sub(penalties.last_n);
            self.window.clear();
            self.window.extend_from_slice(&self.tokens[start..]);
            self.window.sort_unstable();
            self.window.dedup();
            for &token in &self.window {
                // Divide positive logits and multiply negative ones: both make the token less likely.
                let change = |logit| if logit > 0.0 { logit / penalties.repeat } else { logit * penalties.repeat };
                adjust(token, &|logit| change(logit).min(f32::MAX));
            }
        }
        if penalties.frequency != 0.0 || penalties.presence != 0.0 {
            for (&token, &count) in &self.output_counts {
                let minus = penalties.frequency * count as f32 + penalties.presence;
                // Policies may ask for any finite penalties. What is banned stays so, and nothing becomes infinite.
                let minus = minus.clamp(f32::MIN, f32::MAX);
                adjust(token, &|logit| (logit - minus).min(f32::MAX));
            }
        }
    }
}
