//! `/v1/rerank` and `/v1/score`: the texts that are compared, and the answers.
use camshaft_core::limits::{RANKED, Range};
use serde::Serialize;
use serde_json::Value;

use crate::wire::error::RequestError;
use crate::wire::fields::{Fields, wrong_type};
use crate::wire::stamp;

/// A text, with its path in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankedText {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What is compared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    /// Those that are ranked, or scored in turn.
    pub(crate) documents: Vec<RankedText>,
    /// One for all documents, or one for each.
    pub(crate) queries: Vec<RankedText>,
    /// Results returned, best first.
    pub(crate) top_n: usize,
    pub(crate) return_documents: bool,
}

/// What the answer to a request to rank needs of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ranking {
    /// Their texts, if the answer has them.
    pub(crate) documents: Option<Vec<String>>,
    /// Results returned, best first.
    top_n: usize,
}

/// Fields that would change the answer.
const UNSUPPORTED: [&str; 4] = ["rank_fields", "max_tokens_per_doc", "max_chunks_per_doc", "truncate_prompt_tokens"];
/// What the texts of a score are called.
const PAIRS: [(&str, &str); 3] = [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")];

impl Compared {
    /// A query and documents, as Cohere and Jina have them.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn ranks(fields: &Fields<'_>) -> Result<Self, RequestError> {
        refuse(fields)?;
        fields.require("query")?;
        let query = fields.text("query")?.unwrap_or_default().to_owned();
        let documents = texts(fields, "documents")?;
        let most = Range { min: 1.0, max: f64::from(u32::MAX) };
        let top_n = fields.integer("top_n", most)?.map_or(documents.len(), |top| top as usize);
        Ok(Self {
            queries: vec![RankedText { path: "query".to_owned(), text: query }],
            top_n: top_n.min(documents.len()),
            documents,
            return_documents: fields.flag("return_documents")?.unwrap_or(false),
        })
    }

    /// What is left of a request to rank once its texts are tokens.
    pub(crate) fn ranking(self) -> Ranking {
        let texts = || self.documents.into_iter().map(|document| document.text).collect();
        Ranking { documents: self.return_documents.then(texts), top_n: self.top_n }
    }

    /// Pairs of texts, as vLLM has them: one with each of the others, or as many with as many.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn scores(fields: &Fields<'_>) -> Result<Self, RequestError> {
        refuse(fields)?;
        let (first, second) = PAIRS.into_iter().find(|(first, _)| fields.get(first).is_some()).unwrap_or(PAIRS[0]);
        fields.require(first)?;
        let others =
            PAIRS.into_iter().flat_map(|(one, other)| [one, other]).filter(|name| ![first, second].contains(name));
        if let Some(other) = others.into_iter().find(|name| fields.get(name).is_some()) {
            return Err(RequestError::field(other, format!("{first} and {other} may not come together")));
        }
        let (queries, documents) = (texts(fields, first)?, texts(fields, second)?);
        if queries.len() != 1 && queries.len() != documents.len() {
            let (ones, others) = (queries.len(), documents.len());
            let message = format!("{first} must be one text, or as many as {second}, got {ones} and {others}");
            return Err(RequestError::field(first, message));
        }
        Ok(Self { queries, top_n: documents.len(), documents, return_documents: false })
    }
}

fn refuse(fields: &Fields<'_>) -> Result<(), RequestError> {
    match UNSUPPORTED.into_iter().find(|name| fields.get(name).is_some()) {
        None => Ok(()),
        Some(name) => Err(RequestError::field(name, format!("{name} is not supported"))),
    }
}

/// A text, or a list of texts or of objects with `text`.
fn texts(fields: &Fields<'_>, name: &str) -> Result<Vec<RankedText>, RequestError> {
    let one = |value: &Value, path: String| {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Object(_) => {
                let document = Fields::of(value, &path)?;
                document.require("text")?;
                document.text("text")?.unwrap_or_default().to_owned()
            }
            other => return Err(wrong_type(&path, "a string or an object with text", other)),
        };
        Ok(RankedText { path, text })
    };
    match fields.require(name)? {
        Value::Array(list) if list.is_empty() => {
            Err(RequestError::field(name, format!("{name} must hold at least one text")))
        }
        Value::Array(list) if list.len() > RANKED => {
            Err(RequestError::field(name, format!("{name} may hold at most {RANKED} texts, got {}", list.len())))
        }
        Value::Array(list) => list.iter().enumerate().map(|(i, value)| one(value, format!("{name}[{i}]"))).collect(),
        value => Ok(vec![one(value, name.to_owned())?]),
    }
}

/// The answer to a request to rank.
#[derive(Debug, Serialize)]
pub(crate) struct Ranks {
    id: String,
    object: &'static str,
    model: String,
    results: Vec<Rank>,
    usage: RankUsage,
}

#[derive(Debug, Serialize)]
struct Rank {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Debug, Serialize)]
struct Document {
    text: String,
}

#[derive(Debug, Serialize)]
struct RankUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// The answer to a request to score.
#[derive(Debug, Serialize)]
pub(crate) struct Scores {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Score>,
    usage: RankUsage,
}

#[derive(Debug, Serialize)]
struct Score {
    index: usize,
    object: &'static str,
    score: f32,
}

impl RankUsage {
    fn of(tokens: u64) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

impl Ranks {
    /// The best first; of equal ones, the first in the request. `tokens`: of all texts.
    pub(crate) fn new(model: String, Ranking { documents, top_n }: Ranking, scores: &[f32], tokens: u64) -> Self {
        let mut documents = documents.map(Vec::into_iter);
        let rank = |(index, &relevance_score): (usize, &f32)| {
            let document = documents.as_mut().and_then(Iterator::next).map(|text| Document { text });
            Rank { index, relevance_score, document }
        };
        let mut results: Vec<Rank> = scores.iter().enumerate().map(rank).collect();
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(top_n);
        Self { id: stamp::id("rerank-"), object: "list", model, results, usage: RankUsage::of(tokens) }
    }
}

impl Scores {
    /// `tokens`: of all texts.
    pub(crate) fn new(model: String, scores: &[f32], tokens: u64) -> Self {
        let data = scores.iter().enumerate().map(|(index, &score)| Score { index, object: "score", score }).collect();
        Self {
            id: stamp::id("score-"),
            object: "list",
            created: stamp::now(),
            model,
            data,
            usage: RankUsage::of(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    type Reader = fn(&Fields<'_>) -> Result<Compared, RequestError>;

    fn read(reader: Reader, body: &Value) -> Result<Compared, String> {
        reader(&Fields::of_body(body.as_object().unwrap())).map_err(|error| error.to_string())
    }

    fn check(reader: Reader, body: &Value, expected: &str) {
        assert_eq!(read(reader, body).unwrap_err(), expected, "{body}");
    }

    #[test]
    fn reads_a_query_and_documents() {
        let body = json!({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 9, "return_documents": true});
        let compared = read(Compared::ranks, &body).unwrap();
        let text = |path: &str, text: &str| RankedText { path: path.to_owned(), text: text.to_owned() };
        assert_eq!(compared.queries, [text("query", "q")]);
        assert_eq!(compared.documents, [text("documents[0]", "a"), text("documents[1]", "b")]);
        assert_eq!((compared.top_n, compared.return_documents), (2, true));
        check(Compared::ranks, &json!({"documents": ["a"]}), "query is required");
        check(Compared::ranks, &json!({"query": "q"}), "documents is required");
        check(Compared::ranks, &json!({"query": "q", "documents": []}), "documents must hold at least one text");
        let number = "documents[1] must be a string or an object with text, got 3";
        check(Compared::ranks, &json!({"query": "q", "documents": ["a", 3]}), number);
        check(Compared::ranks, &json!({"query": "q", "documents": [{}]}), "documents[0].text is required");
        let none = "top_n must be between 1 and 4294967295, got 0";
        check(Compared::ranks, &json!({"query": "q", "documents": ["a"], "top_n": 0}), none);
        let fields = json!({"query": "q", "documents": ["a"], "rank_fields": ["title"]});
        check(Compared::ranks, &fields, "rank_fields is not supported");
    }

    #[test]
    fn ranks_as_many_documents_as_the_bound_and_not_one_more() {
        let body = |count: usize| json!({"query": "q", "documents": vec!["a"; count]});
        assert_eq!(read(Compared::ranks, &body(RANKED)).unwrap().documents.len(), RANKED);
        check(Compared::ranks, &body(RANKED + 1), "documents may hold at most 1000 texts, got 1001");
    }

    #[test]
    fn scores_one_text_with_each_or_as_many_with_as_many() {
        for (first, second) in PAIRS {
            let one = read(Compared::scores, &json!({first: "q", second: ["a", "b"]})).unwrap();
            assert_eq!((one.queries.len(), one.documents.len()), (1, 2));
        }
        let two = read(Compared::scores, &json!({"text_1": ["p", "q"], "text_2": ["a", "b"]})).unwrap();
        assert_eq!((two.queries.len(), two.documents.len()), (2, 2));
        let uneven = "text_1 must be one text, or as many as text_2, got 2 and 3";
        check(Compared::scores, &json!({"text_1": ["p", "q"], "text_2": ["a", "b", "c"]}), uneven);
        check(Compared::scores, &json!({}), "text_1 is required");
        check(Compared::scores, &json!({"queries": "q"}), "documents is required");
        let both = json!({"text_1": "p", "text_2": "a", "queries": 3});
        check(Compared::scores, &both, "text_1 and queries may not come together");
    }

    #[test]
    fn only_texts_that_the_answer_has_are_kept() {
        let ranking = |asked: bool| {
            let body = json!({"query": "q", "documents": ["a", "b"], "return_documents": asked});
            read(Compared::ranks, &body).unwrap().ranking().documents
        };
        assert_eq!((ranking(false), ranking(true)), (None, Some(vec!["a".to_owned(), "b".to_owned()])));
    }

    #[test]
    fn the_best_documents_come_first_and_equal_ones_in_their_order() {
        let body = json!({"query": "q", "documents": ["a", "b", "c", "d"], "top_n": 3, "return_documents": true});
        let ranking = read(Compared::ranks, &body).unwrap().ranking();
        let ranks = serde_json::to_value(Ranks::new("m".into(), ranking, &[0.5, 1.0, 0.5, -1.0], 7)).unwrap();
        let expected = json!([
            {"index": 1, "relevance_score": 1.0, "document": {"text": "b"}},
            {"index": 0, "relevance_score": 0.5, "document": {"text": "a"}},
            {"index": 2, "relevance_score": 0.5, "document": {"text": "c"}},
        ]);
        assert_eq!(ranks["results"], expected);
        assert_eq!(ranks["usage"], json!({"prompt_tokens": 7, "total_tokens": 7}));
    }
}
