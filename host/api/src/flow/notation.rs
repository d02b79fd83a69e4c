//! How a model's answers have tool calls and thinking: the notation of its family, and which of its control tokens spell that.
use std::sync::Arc;

use camshaft_core::engine::ModelInfo;
use camshaft_core::family::description::{Family, ThinkingState};
use camshaft_core::family::detect::Chosen;
use camshaft_core::ids::Token;
use camshaft_core::message::ShownToken;
use camshaft_core::thinking::ThinkingBudget;

use crate::flow::backend::TextModel;

/// See the module.
#[derive(Debug)]
pub(crate) struct Notation {
    pub(crate) family: &'static Family,
    /// The family that the chat template shows, where another one is configured.
    contradicted: Option<&'static Family>,
    /// The control tokens among the family's markers.
    pub(crate) shown: Arc<[ShownToken]>,
    /// Tokens that end an answer with calls.
    pub(crate) stops: Vec<Token>,
    /// Whether the chat template knows of thinking.
    thinks: bool,
    /// The tokens that spell the marker at the end of thinking.
    close: Vec<u32>,
    /// Whether it takes only ids of calls that have nine letters.
    nine_letter_ids: bool,
}

/// Texts whose tokens are to be known of a model that generates. `family`: the one that the operator names.
pub fn markers(family: Option<&'static Family>, info: &ModelInfo) -> Vec<String> {
    let template = info.templates().unwrap_or_default();
    let Chosen { family, .. } = Chosen::new(family, Some(&template));
    let thinking = family.thinking.as_ref().map(|of| of.end.trim_ascii());
    family.special.iter().chain(family.stops).copied().chain(thinking).map(str::to_owned).collect()
}

impl Notation {
    /// `family`: the one that the operator names; else the one that the chat template shows.
    pub(crate) fn new(family: Option<&'static Family>, text: &TextModel, nine_letter_ids: bool) -> Self {
        let template = text.info.templates().unwrap_or_default();
        let Chosen { family, contradicted } = Chosen::new(family, Some(&template));
        let mentioned = |marker: &str| template.contains(marker.trim());
        let spelled = &text.reader.facts().markers;
        let tokens = |marker: &str| spelled.get(marker).map(Vec::as_slice).unwrap_or_default();
        let control = |marker: &str| {
            let &[token] = tokens(marker) else { return None };
            // What adds text by itself is text to a grammar, too.
            text.info.vocabulary.token_bytes(token).is_some_and(<[u8]>::is_empty).then_some(token)
        };
        let shown = |marker: &&str| Some(ShownToken { token: control(marker)?, text: (*marker).to_owned() });
        Self {
            family,
            contradicted,
            shown: family.special.iter().filter_map(shown).collect(),
            stops: family.stops.iter().filter_map(|stop| control(stop)).collect(),
            thinks: family.thinking.as_ref().is_some_and(|of| mentioned(of.begin) || mentioned(of.end)),
            close: family
                .thinking
                .as_ref()
                .map_or_else(Vec::new, |of| tokens(of.end.trim_ascii()).iter().map(|token| token.0).collect()),
            nine_letter_ids,
        }
    }

    /// Says in the log in whose notation a model writes.
    pub(crate) fn tell(&self, model: &str) {
        let family = self.family.name;
        tracing::info!(model, family, "tool calls and thinking are written as by this family");
        if let Some(shown) = self.contradicted {
            let shown = shown.name;
            tracing::warn!(model, family, shown, "the chat template shows another family than is configured");
        }
    }

    /// Whether its answers may have thinking apart from their text.
    pub(crate) fn thinks(&self) -> bool {
        self.thinks
    }

    /// Where the answer to a prompt stands. `held`: to a grammar, which would let a model that does not think begin to, and never
    /// come to its answer.
    pub(crate) fn thinking_after(&self, prompt: &str, held: bool) -> ThinkingState {
        match self.family.thinking_after(prompt) {
            ThinkingState::Possible if held && !self.thinks => ThinkingState::Off,
            state => state,
        }
    }

    /// The bound of an answer's thinking, if it may think at all.
    pub(crate) fn budget(&self, tokens: u32, state: ThinkingState) -> Option<ThinkingBudget> {
        let thinking = self.family.thinking.as_ref()?;
        let is_open = state == ThinkingState::Open;
        let thinks = is_open || (state == ThinkingState::Possible && self.thinks);
        (thinks && !self.close.is_empty()).then(|| ThinkingBudget {
            tokens,
            begin: thinking.begin.trim_ascii().to_owned(),
            end: thinking.end.trim_ascii().to_owned(),
            close: self.close.clone(),
            is_open,
            repeats: thinking.repeats,
        })
    }

    /// The control token that a marker is.
    pub(crate) fn token(&self, marker: &str) -> Option<u32> {
        self.shown.iter().find(|shown| shown.text == marker).map(|shown| shown.token.0)
    }

    /// A new id of a call.
    pub(crate) fn call_id(&self) -> String {
        camshaft_template::call_id(self.nine_letter_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camshaft_core::family::detect::FamilyName;

    fn notation(family: &str) -> Notation {
        let FamilyName(family) = family.parse().unwrap();
        Notation {
            family,
            contradicted: None,
            shown: Arc::default(),
            stops: Vec::new(),
            thinks: false,
            close: vec![1],
            nine_letter_ids: false,
        }
    }

    #[test]
    fn a_model_whose_template_knows_of_no_thinking_does_not_think_where_it_is_held_to_a_grammar() {
        let without = notation("hermes");
        let with = Notation { thinks: true, ..notation("hermes") };
        assert_eq!(without.thinking_after("assistant:", false), ThinkingState::Possible);
        assert_eq!(without.thinking_after("assistant:", true), ThinkingState::Off);
        assert_eq!(with.thinking_after("assistant:", true), ThinkingState::Possible);
        assert_eq!(without.thinking_after("assistant:<think>\n", true), ThinkingState::Open);
    }
}
