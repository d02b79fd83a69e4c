//! Reads from a file's metadata which kinds a model can be served as.
use camshaft_core::engine::ModelKind;

use crate::model::Model;

/// Architectures that attend in both directions: they encode a whole text and cannot continue it.
const ENCODERS: [&str; 10] = [
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "t5encoder",
];
/// Its attention has a bias, which llama.cpp's flash attention does not take.
const WITHOUT_FLASH: &str = "t5encoder";
/// Values of `pooling_type` that make one vector per text: mean, first token, last token.
const POOLED: [&str; 3] = ["1", "2", "3"];
/// Value of `pooling_type` for models that score pairs of texts.
const RANK: &str = "4";

/// Why a model cannot be served as the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongKind {
    #[error("holds an encoder ({architecture}): it embeds texts and cannot generate any")]
    Encoder { architecture: String },
    #[error("ranks pairs of texts: it neither generates texts nor embeds them")]
    Ranker,
    #[error("holds a model ({architecture}) that neither continues texts, token by token, nor embeds them")]
    Neither { architecture: String },
}

/// The facts in the metadata that decide a model's kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Traits {
    pub(crate) architecture: String,
    /// The model attends in both directions.
    pub(crate) encodes: bool,
    /// The model was trained to make one vector per text.
    pub(crate) pools: bool,
    /// The model was trained to score pairs of texts.
    ranks: bool,
    /// It works in a way of its own: it translates what an encoder has read, or fills in all of a text at once.
    is_other: bool,
}

impl Traits {
    pub(crate) fn of(model: &Model) -> Self {
        let architecture = model.metadata("general.architecture").unwrap_or_default();
        let key = |name: &str| model.metadata(&format!("{architecture}.{name}"));
        let traits = Self::read(&architecture, key("attention.causal").as_deref(), key("pooling_type").as_deref());
        Self { is_other: model.translates() || model.diffuses(), ..traits }
    }

    fn read(architecture: &str, causal: Option<&str>, pooling: Option<&str>) -> Self {
        Self {
            architecture: architecture.to_owned(),
            encodes: ENCODERS.contains(&architecture) || causal == Some("false"),
            pools: pooling.is_some_and(|kind| POOLED.contains(&kind)),
            ranks: pooling == Some(RANK),
            is_other: false,
        }
    }

    /// Whether flash attention can compute it.
    pub(crate) fn takes_flash(&self) -> bool {
        self.architecture != WITHOUT_FLASH
    }

    /// The kind to serve: `wanted`, if the model can do that; without it, the kind that the model was trained for. A
    /// decoder that was not trained to embed does so only if wanted.
    pub(crate) fn serve_as(&self, wanted: Option<ModelKind>) -> Result<ModelKind, WrongKind> {
        if self.ranks {
            return Err(WrongKind::Ranker);
        }
        if self.is_other {
            return Err(WrongKind::Neither { architecture: self.architecture.clone() });
        }
        match wanted {
            Some(ModelKind::Generate) if self.encodes => {
                Err(WrongKind::Encoder { architecture: self.architecture.clone() })
            }
            Some(kind) => Ok(kind),
            None if self.encodes || self.pools => Ok(ModelKind::Embed),
            None => Ok(ModelKind::Generate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_the_kind_comes_from_the_file_and_a_wrong_wish_is_refused() {
        use ModelKind::{Embed, Generate};
        let check = |file: (&str, Option<&str>, Option<&str>), wanted, expected: Option<ModelKind>| {
            let served = Traits::read(file.0, file.1, file.2).serve_as(wanted);
            assert_eq!(served.ok(), expected, "{file:?} as {wanted:?}");
        };
        let (bert, decoder) = (("bert", None, Some("1")), ("llama", None, None));
        check(bert, None, Some(Embed));
        check(bert, Some(Embed), Some(Embed));
        check(bert, Some(Generate), None);
        check(("nomic-bert", None, None), None, Some(Embed));
        check(("llama", Some("false"), None), None, Some(Embed));
        check(("llama", Some("false"), None), Some(Generate), None);
        check(decoder, None, Some(Generate));
        check(decoder, Some(Generate), Some(Generate));
        check(decoder, Some(Embed), Some(Embed));
        check(("llama", None, Some("0")), None, Some(Generate));
        // A decoder that was fine-tuned to embed still generates if wanted.
        check(("qwen3", None, Some("3")), None, Some(Embed));
        check(("qwen3", None, Some("3")), Some(Generate), Some(Generate));
        for wanted in [None, Some(Embed), Some(Generate)] {
            check(("bert", None, Some("4")), wanted, None);
            let other = Traits { is_other: true, ..Traits::read("t5", None, None) };
            assert_eq!(other.serve_as(wanted), Err(WrongKind::Neither { architecture: "t5".to_owned() }));
        }
    }

    #[test]
    fn says_why_in_a_sentence_about_the_file() {
        let why = Traits::read("bert", None, None).serve_as(Some(ModelKind::Generate)).unwrap_err();
        assert_eq!(why.to_string(), "holds an encoder (bert): it embeds texts and cannot generate any");
    }
}
