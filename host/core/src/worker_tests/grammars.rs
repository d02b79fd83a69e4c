//! Grammars under a worker: what ends is what the grammar asks for, and how it was computed changes nothing.
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fake::{END, ScriptedFilter};
use crate::filter::{FilterHook, FilterVerdict, FilteringRequest, Piece, TextFilter};
use crate::grammar::{Grammar, GrammarSpec};
use crate::message::ShownToken;
use crate::speculate::{DraftRequest, Drafter};
use crate::threads::Spawner;
use crate::vocabulary::Vocabulary;

const LARGE: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 8192, batch_tokens: 64, context_tokens: 2048 };

/// Pieces of several characters, in the place of the bytes that JSON of ASCII has no use for.
const PIECES: [&str; 24] = [
    "{\"", "\":", "\",", "\",\"", " \"", "\"}", "}}", "],", "[\"", "[[", "true", "false", "null", "tr", "ue", ", ",
    ": ", "na", "name", "me\"", "12", "-1", "0.", "ab",
];

fn vocabulary() -> Arc<Vocabulary> {
    let piece = |token: u32| match token.checked_sub(128).and_then(|at| PIECES.get(at as usize)) {
        Some(piece) => piece.as_bytes().to_vec(),
        None if token < 128 => vec![token as u8],
        None => Vec::new(),
    };
    Arc::new(Vocabulary::new((0..257).map(piece), vec![END]))
}

/// Any token may come; what ends strings, lists and numbers is likely, so that texts end.
pub(super) fn uniform(hash: u64, token: u32) -> f32 {
    let noise = hash.rotate_left(token % 61).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ u64::from(token)) >> 40;
    let closes = [b'"', b'}', b']', b','].contains(&(token as u8)) && token < 128;
    (noise % 1000) as f32 / 300.0 + if closes || token == END.0 { 3.0 } else { 0.0 }
}

pub(super) fn bench() -> Bench {
    let mut bench = Bench::new(LARGE, Arc::new(Native));
    let grammars = Arc::new(GrammarStore::new(vocabulary()));
    (bench.worker.intake.vocabulary, bench.worker.intake.grammars) = (vocabulary(), grammars);
    bench.engine.logit = Some(uniform);
    bench
}

pub(super) fn schema(schema: &Value) -> Arc<Grammar> {
    Arc::new(Grammar::new(GrammarSpec::JsonSchema { schema: schema.to_string() }))
}

/// Draws everything at temperature 1, with nothing cut off.
pub(super) fn constrained(id: u64, grammar: &Arc<Grammar>) -> Start {
    let params =
        SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: id, ..SamplingParams::default() };
    Start { params, max_tokens: 1500, grammar: Some(grammar.clone()), ..start(id, "write JSON") }
}

/// Schemas of all supported kinds, as many as there are numbers.
pub(super) struct Schemas(pub(super) u64);

impl Schemas {
    fn pick(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn schema(&mut self, depth: u64) -> Value {
        let kinds = if depth == 0 { 11 } else { 16 };
        match self.pick(kinds) {
            0 => json!({ "type": "boolean" }),
            1 => json!({ "type": ["null", "boolean"] }),
            2 => json!({ "type": "integer", "minimum": -(self.pick(50) as i64), "maximum": self.pick(2000) }),
            3 => json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 + self.pick(9) }),
            4 => json!({ "type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 1 + self.pick(9) }),
            5 => json!({ "type": "string", "minLength": self.pick(4), "maxLength": 4 + self.pick(9) }),
            6 => json!({ "type": "string", "pattern": "^[a-c]{2,5}(-[0-9]+)?$" }),
            7 => json!({ "type": "string", "format": (["uuid", "ipv4"][self.pick(2) as usize]) }),
            8 => json!({ "enum": ["red", "green", 3, null, { "a": [1, "b"] }] }),
            9 => json!({ "const": (["only", "x y", "\"quoted\""][self.pick(3) as usize]) }),
            10 => json!({ "anyOf": [{ "type": "string", "maxLength": 5 }, { "type": "null" }] }),
            11 | 12 => self.object(depth),
            13 => {
                let most = 2 + self.pick(3);
                json!({ "type": "array", "items": self.schema(depth - 1), "minItems": self.pick(2), "maxItems": most })
            }
            14 => json!({
                "type": "array", "prefixItems": [self.schema(depth - 1), self.schema(0)], "items": false, "minItems": 1,
            }),
            _ => {
                let tagged = |tag: &str, value: Value| {
                    json!({
                        "type": "object", "required": ["kind", "value"], "additionalProperties": false,
                        "properties": { "kind": { "const": tag }, "value": value },
                    })
                };
                json!({ "oneOf": [tagged("a", self.schema(depth - 1)), tagged("b", self.schema(0))] })
            }
        }
    }

    pub(super) fn object(&mut self, depth: u64) -> Value {
        let count = 1 + self.pick(4);
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|at| (format!("name{at}"), self.schema(depth - 1))).collect();
        let required: Vec<&String> = properties.keys().filter(|_| self.pick(2) == 0).collect();
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }
}

fn validates(schema: &Value, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}\n{schema}"));
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    if let Err(error) = validator.validate(&value) {
        panic!("{error}: {text}\n{schema}");
    }
}

#[test]
fn finished_texts_of_300_schemas_parse_and_validate_and_leave_others_alone() {
    let (mut schemas, mut stopped) = (Schemas(1), 0);
    for round in 0..75u64 {
        let mut bench = bench();
        let wanted: Vec<Value> = (0..4).map(|_| schemas.schema(3)).collect();
        let others: Vec<Start> = (10..12)
            .map(|id| Start { grammar: None, max_tokens: 60, ..constrained(round * 100 + id, &schema(&json!({}))) })
            .collect();
        others.iter().for_each(|other| bench.begin(other.clone()));
        for (at, wanted) in wanted.iter().enumerate() {
            bench.begin(constrained(round * 100 + at as u64, &schema(wanted)));
            bench.step();
        }
        bench.run();
        let results = bench.results();
        for (at, wanted) in wanted.iter().enumerate() {
            let (text, end) = &results[&(round * 100 + at as u64)];
            match end {
                Some(Event::Finished { reason: FinishReason::Stop, .. }) => {
                    validates(wanted, text);
                    stopped += 1;
                }
                Some(Event::Finished { reason: FinishReason::Length, usage, .. }) => {
                    assert_eq!(usage.generated_tokens, 1500, "{text}");
                }
                other => panic!("{other:?} of {wanted}"),
            }
        }
        for other in others {
            let mut alone = self::bench();
            alone.begin(other.clone());
            alone.run();
            assert_eq!(
                ignore_cached(alone.results()[&other.id.0].clone()),
                ignore_cached(results[&other.id.0].clone())
            );
        }
    }
    assert!(stopped > 290, "{stopped} of 300 came to their end");
}

#[test]
fn control_tokens_that_are_shown_are_part_of_the_text_and_others_are_not() {
    let lark = GrammarSpec::Lark { text: "start: <[200]> \"ab\" <[201]> \"12\"".to_owned() };
    let shown = [ShownToken { token: Token(200), text: "[CALL]".to_owned() }];
    // A stop string may be in what is shown, too.
    for (stop, expected) in [(vec![], "[CALL]ab12"), (vec!["L]a".to_owned()], "[CAL")] {
        let mut bench = bench();
        let grammar = Arc::new(Grammar::new(lark.clone()));
        bench.begin(Start { shown: shown.clone().into(), stop, ..constrained(1, &grammar) });
        bench.run();
        let (text, end) = bench.results()[&1].clone();
        assert_eq!(text, expected, "{end:?} {:?}", bench.events);
        let ended = |reason| matches!(reason, FinishReason::Stop | FinishReason::StopString(_));
        assert!(matches!(end, Some(Event::Finished { reason, .. }) if ended(reason)), "{end:?}");
    }
}

/// Takes back every piece that ends with a vowel or a `7`, sometimes several tokens of them.
#[derive(Debug)]
struct Fussy;

impl FilterHook for Fussy {
    fn open(&self, _: PolicyDigest, _: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
        let script = |piece: Piece, text: &str| {
            let bad = |c: char| matches!(c, 'a' | 'e' | 'i' | 'o' | 'u' | '7');
            match text.find(bad).filter(|_| piece.rewinds < 100) {
                Some(at) => FilterVerdict::Rewind(piece.start + at),
                // Some is held, so that several tokens are taken back at once.
                None if !piece.last && text.len() < 4 => FilterVerdict::Pass(piece.start),
                None => FilterVerdict::Pass(piece.start + text.len()),
            }
        };
        Ok(vec![Box::new(ScriptedFilter { denies: true, script })])
    }
}

#[test]
fn what_filters_take_back_leaves_a_valid_text() {
    let wanted = json!({
        "type": "object", "additionalProperties": false, "required": ["x", "y", "z"],
        "properties": {
            "x": { "type": "string", "maxLength": 20 }, "y": { "type": "integer", "minimum": 0, "maximum": 100_000 },
            "z": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
        },
    });
    // `true` and `false` have vowels: those lists are empty.
    let mut rewinds = 0;
    for id in 0..40u64 {
        for speculate in [false, true] {
            let mut bench = bench();
            bench.worker.intake.filters = Arc::new(Fussy);
            if speculate {
                bench.draft_by_lookup(4);
            }
            bench.begin(Start { filter_chain: PolicyDigest::new([7; 32]), ..constrained(id, &schema(&wanted)) });
            bench.run();
            rewinds += bench.worker.take_counters().rewinds;
            let (text, end) = bench.results().remove(&id).unwrap();
            match end {
                Some(Event::Finished { reason: FinishReason::Stop, .. }) => validates(&wanted, &text),
                Some(Event::Failed {
                    error: WorkerError::GrammarExhausted { .. } | WorkerError::FilterFault { .. },
                    ..
                })
                | Some(Event::Finished { reason: FinishReason::Length, .. }) => {}
                other => panic!("{other:?}: {text}"),
            }
        }
    }
    assert!(rewinds > 40, "{rewinds}");
}

/// Bans what a request's `top_k` says; writes over all logits first, if `top_p` is below 1.
#[derive(Debug)]
struct Banning;

struct Bans(SamplingParams);

impl SamplerHook for Banning {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(Bans(request.params.clone())))
    }
}

impl TokenSampler for Bans {
    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
        let fault = |error: crate::sampling::RowError| Fault {
            plugin: "banning".into(),
            kind: FaultKind::InvalidOutput,
            detail: error.to_string(),
        };
        match self.0.top_k {
            1 => row.ban(&(0..257).collect::<Vec<_>>()).map_err(fault)?,
            2 => row.write(0, &[1.0; 257]).map_err(fault)?,
            3 => return Ok(Some(Token(u32::from(b'!')))),
            4 => row.force(&[u32::from(b'#'), u32::from(b'"')]).map_err(fault)?,
            _ => {}
        }
        Ok(None)
    }
}

#[test]
fn the_mask_has_the_last_word_and_a_policy_that_leaves_nothing_fails_its_request_alone() {
    let wanted = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let mut bench = bench();
    bench.worker.intake.samplers = Arc::new(Banning);
    for (id, top_k) in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)] {
        let mut request = constrained(id, &schema(&wanted));
        request.params.top_k = top_k;
        bench.begin(request);
    }
    bench.run();
    let results = bench.results();
    for id in [1, 3, 4, 5] {
        let (text, end) = &results[&id];
        assert!(matches!(end, Some(Event::Finished { reason: FinishReason::Stop, .. })), "{id}: {end:?} {text}");
        validates(&wanted, text);
    }
    let (text, end) = &results[&2];
    let Some(Event::Failed { error: WorkerError::GrammarExhausted { detail }, .. }) = end else { panic!("{end:?}") };
    assert_eq!((text.as_str(), detail.as_str()), ("", "the samplers ban all others"));
}

/// The text and the error of an answer that may only be `a`, with these logits and changes of the request.
fn one_letter(logit: fn(u64, u32) -> f32, change: fn(&mut Start)) -> (String, Option<WorkerError>) {
    let mut bench = bench();
    bench.engine.logit = Some(logit);
    let mut request = constrained(1, &Arc::new(Grammar::new(GrammarSpec::Choice { texts: vec!["a".to_owned()] })));
    change(&mut request);
    bench.begin(request);
    bench.run();
    let (text, end) = bench.results().remove(&1).unwrap();
    let error = if let Some(Event::Failed { error, .. }) = end { Some(error) } else { None };
    (text, error)
}

#[test]
fn min_tokens_that_a_grammar_has_no_room_for_are_named() {
    let letter = |request: &mut Start| request.ends.tokens = vec![Token(b'a'.into())];
    assert_eq!(one_letter(uniform, letter), (String::new(), None), "a token that ends the text adds none");
    let (text, error) = one_letter(uniform, |request| {
        request.ends.tokens = vec![Token(b'a'.into())];
        request.ends.min_tokens = 8;
    });
    let error = error.unwrap().to_string();
    assert!(text.is_empty() && error.contains("`min_tokens` keeps the text from ending"), "{error}");
}

#[test]
fn logits_that_are_no_numbers_fail_where_they_are_read() {
    let infinite = |_: u64, token: u32| if token == 1 { f32::INFINITY } else { 0.0 };
    assert_eq!(one_letter(infinite, |_| ()), ("a".to_owned(), None), "what a grammar bans is not read");
    let told = |request: &mut Start| request.logprobs = Some(1);
    assert_eq!(one_letter(infinite, told), (String::new(), Some(WorkerError::InvalidLogits)));
    let none = |_: u64, _: u32| f32::NEG_INFINITY;
    assert_eq!(one_letter(none, |_| ()), (String::new(), Some(WorkerError::InvalidLogits)));
    let allowed = |_: u64, token: u32| if token == u32::from(b'a') { f32::NAN } else { 0.0 };
    assert_eq!(one_letter(allowed, |_| ()), (String::new(), Some(WorkerError::InvalidLogits)));
}

#[test]
fn truncation_never_leaves_a_grammar_without_a_token() {
    let grammar = schema(&json!({ "type": "integer", "minimum": 1000, "maximum": 9999 }));
    let mut bench = bench();
    // The likeliest tokens are none that the grammar allows.
    bench.engine.logit = Some(|_, token| if (48..58).contains(&token) { 0.0 } else { 30.0 });
    for (id, params) in [
        (1, SamplingParams { temperature: 1.0, top_k: 1, ..SamplingParams::default() }),
        (2, SamplingParams { temperature: 1.0, top_k: 0, top_p: 0.1, ..SamplingParams::default() }),
        (3, SamplingParams { temperature: 1.0, top_k: 0, min_p: 0.9, ..SamplingParams::default() }),
        (4, SamplingParams::greedy()),
    ] {
        bench.begin(Start { params, ..constrained(id, &grammar) });
    }
    bench.run();
    for (_, (text, end)) in bench.results() {
        assert!(matches!(end, Some(Event::Finished { reason: FinishReason::Stop, .. })), "{end:?}");
        assert!((1000..=9999).contains(&text.parse::<u32>().unwrap()), "{text}");
    }
}

#[test]
fn a_text_ends_where_nothing_can_follow_without_an_end_token_and_elsewhere_only_where_the_grammar_accepts() {
    let choice = |texts: &[&str]| {
        Arc::new(Grammar::new(GrammarSpec::Choice { texts: texts.iter().map(|text| (*text).to_owned()).collect() }))
    };
    let run = |request: Start, end_logit: f32| {
        let mut bench = bench();
        bench.engine.logit = Some(if end_logit > 0.0 {
            |_, token| if token == END.0 { 40.0 } else { 0.0 }
        } else {
            |_, token| if token == END.0 { -40.0 } else { 0.0 }
        });
        let id = request.id.0;
        bench.begin(request);
        bench.run();
        bench.results().remove(&id).unwrap()
    };
    // Complete: no step for an end token, also where end tokens are ignored.
    for ignore_eos in [false, true] {
        let (text, end) = run(Start { ignore_eos, ..constrained(1, &choice(&["abc"])) }, -1.0);
        let Some(Event::Finished { reason: FinishReason::Stop, usage, .. }) = end else { panic!("{end:?}") };
        assert_eq!(text, "abc");
        assert!(usage.generated_tokens <= 3, "{usage:?}");
    }
    // The model always wants to end. It may once a choice is complete.
    let (text, end) = run(constrained(2, &choice(&["xy", "xyz"])), 1.0);
    assert_eq!(text, "xy");
    assert!(matches!(end, Some(Event::Finished { reason: FinishReason::Stop, .. })));
    // It may not where end tokens are ignored: then it goes on as long as it can.
    let (text, _) = run(Start { ignore_eos: true, ..constrained(3, &choice(&["xy", "xyz"])) }, 1.0);
    assert_eq!(text, "xyz");
}

#[test]
fn max_tokens_inside_of_a_grammar_is_length_and_a_stop_string_stops_there() {
    let grammar = Arc::new(Grammar::new(GrammarSpec::Regex { pattern: "[x-z]{50}".to_owned() }));
    let mut bench = bench();
    bench.begin(Start { max_tokens: 20, ..constrained(1, &grammar) });
    bench.begin(Start { stop: vec!["z".to_owned()], ..constrained(2, &grammar) });
    bench.begin(Start { max_tokens: 50, ..constrained(3, &grammar) });
    bench.run();
    let results = bench.results();
    let reason = |id: u64| match &results[&id] {
        (text, Some(Event::Finished { reason, .. })) => (text.len(), *reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(1), (20, FinishReason::Length));
    assert_eq!(reason(3), (50, FinishReason::Stop), "complete with its last token");
    assert_eq!(reason(2).1, FinishReason::StopString(0));
    assert!(reason(2).0 < 50 && !results[&2].0.contains('z'), "{:?}", results[&2]);
}

#[test]
fn a_preempted_request_goes_on_in_its_grammar() {
    let wanted = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 99 }, "minItems": 20, "maxItems": 30 });
    let request = constrained(1, &schema(&wanted));
    let mut quiet = bench();
    quiet.begin(request.clone());
    quiet.run();
    let mut bench = bench();
    bench.begin(request);
    for _ in 0..6 {
        bench.steps(4);
        bench.command(Command::Preempt { id: RequestId(1) });
    }
    bench.run();
    assert!(bench.events.iter().any(|event| matches!(event, Event::Preempted { .. })));
    let (text, end) = &bench.results()[&1];
    assert!(matches!(end, Some(Event::Finished { reason: FinishReason::Stop, .. })), "{end:?}");
    validates(&wanted, text);
    assert_eq!(*text, quiet.results()[&1].0);
}

#[test]
fn a_worker_refuses_a_grammar_that_does_not_compile() {
    let mut bench = bench();
    bench.begin(constrained(1, &schema(&json!({ "type": "array", "uniqueItems": true }))));
    let (_, end) = &bench.results()[&1];
    let Some(Event::Failed { error: WorkerError::Refused(why), .. }) = end else { panic!("{end:?}") };
    assert_eq!(why, "the grammar cannot be used: uniqueItems: keyword not supported");
}

/// Proposes tokens of which few are allowed.
#[derive(Debug)]
struct Wild(u32);

impl Drafter for Wild {
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        for request in requests {
            for at in 0..request.max_tokens as u32 {
                self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223 + at);
                request.draft.push(Token((self.0 >> 16) % 257));
            }
        }
    }

    fn forget(&mut self, _: crate::ids::SeqId) {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn wild_drafts_and_rewinds_leave_valid_texts(seed in 0u64..1_000_000, masks in any::<bool>(), filters in any::<bool>()) {
        let wanted = Schemas(seed).object(3);
        let mut bench = bench();
        bench.worker.speculation = Some(Speculation { drafter: Box::new(Wild(seed as u32)), draft_tokens: 6 });
        if masks {
            bench.worker.masks = Some(MaskThreads::new(Spawner::detached(), Spawner::detached(), Box::new(|| true)));
        }
        let mut request = constrained(seed, &schema(&wanted));
        if filters {
            bench.worker.intake.filters = Arc::new(Fussy);
            request.filter_chain = PolicyDigest::new([7; 32]);
        }
        bench.begin(request);
        bench.run();
        let (text, end) = bench.results().remove(&seed).unwrap();
        if let Some(Event::Finished { reason: FinishReason::Stop, .. }) = end {
            validates(&wanted, &text);
        } else if !filters {
            let length = matches!(end, Some(Event::Finished { reason: FinishReason::Length, .. }));
            prop_assert!(length, "{end:?}");
        }
    }
}
