//! Chats with the bundled model: whole and streamed answers, sampling, stop strings, characters.
use camshaft_tests::{Server, Setup, repository};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn serve() -> Server {
    Setup::new().start()
}

/// A greedy chat with one message, and more fields on top.
fn body(question: &str, more: Value) -> Value {
    let mut body = json!({"model": "demo", "temperature": 0, "max_tokens": 250, "messages": [{"role": "user", "content": question}]});
    merge(&mut body, more);
    body
}

fn merge(body: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("more fields are an object") };
    body.as_object_mut().expect("a body is an object").extend(more);
}

fn content(answer: &Value, choice: usize) -> &str {
    answer["choices"][choice]["message"]["content"].as_str().expect("a choice has content")
}

#[test]
fn three_plus_four_is_seven_whole_and_streamed() {
    let server = serve();
    let question = "What is 3 plus 4?";
    let answer = server.client.ask(CHAT, &body(question, json!({})));
    let text = content(&answer, 0);
    assert!(text.contains('7'), "{text:?}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "demo");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    for nullable in [&answer["choices"][0]["logprobs"], &answer["choices"][0]["message"]["refusal"]] {
        assert!(nullable.is_null());
    }
    assert!(answer["choices"][0].as_object().unwrap().contains_key("logprobs"), "present though null");
    let usage = &answer["usage"];
    let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);

    let streamed = server.client.stream(CHAT, &body(question, json!({"stream": true}))).finish();
    assert!(streamed.is_good(), "{streamed:?}");
    assert_eq!(streamed.text(0), text);
}

#[test]
fn the_commands_of_the_readme_work_as_written() {
    let server = serve();
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("there is a README");
    let bodies: Vec<&str> = readme.split("-d '").skip(1).filter_map(|rest| Some(rest.split_once('\'')?.0)).collect();
    assert_eq!(bodies.len(), 3, "the README shows a whole chat, a streamed one and a schema: {bodies:?}");
    for text in bodies {
        let body: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        if body["stream"] == true {
            let streamed = server.client.stream(CHAT, &body).finish();
            assert!(streamed.is_good() && !streamed.text(0).is_empty(), "{text}: {streamed:?}");
        } else if body.get("response_format").is_some() {
            let answer = server.client.ask(CHAT, &body);
            let shown = readme.contains(&format!("    {}\n", content(&answer, 0)));
            assert!(shown, "the README shows its answer: {answer}");
        } else {
            let answer = server.client.ask(CHAT, &body);
            assert!(content(&answer, 0).contains('7'), "{text}: {answer}");
        }
    }
}

#[test]
fn a_stream_has_the_text_of_a_whole_answer_in_the_order_that_clients_rely_on() {
    // Without this, tokens of this fast model share frames.
    let server = Setup::new().set("limits.frame-interval", "\"0s\"").start();
    for question in
        ["Count from 1 to 12.", "Tell me a story about a fox.", "Spell zebra backwards.", "Repeat after me: ß 猫"]
    {
        let whole = server.client.ask(CHAT, &body(question, json!({})));
        let streamed = server.client.stream(CHAT, &body(question, json!({"stream": true}))).finish();
        assert!(streamed.is_good(), "{streamed:?}");
        assert_eq!(streamed.text(0), content(&whole, 0), "{question}");
        assert_eq!(streamed.finish_reason(0), whole["choices"][0]["finish_reason"].as_str());
        let events: Vec<&Value> = streamed.values().collect();
        let (first, last) = (events[0], events[events.len() - 1]);
        assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(first["choices"][0]["delta"]["content"], "", "no text comes with the role");
        assert_eq!(last["choices"][0]["delta"], json!({}), "no text comes with the end");
        for event in &events {
            assert_eq!(event["object"], "chat.completion.chunk");
            assert_eq!(event["id"], first["id"], "one id for all chunks");
            assert_eq!(event["created"], first["created"]);
            assert!(event.get("usage").is_none(), "nobody asked for usage: {event}");
        }
        assert!(events.len() > 6, "a frame for every token: {events:?}");
    }
}

#[test]
fn usage_comes_in_a_chunk_of_its_own_if_it_is_asked_for() {
    let server = serve();
    let question = "Count from 1 to 5.";
    let whole = server.client.ask(CHAT, &body(question, json!({})));
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = server.client.stream(CHAT, &body(question, more)).finish();
    assert!(streamed.is_good());
    let events: Vec<&Value> = streamed.values().collect();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    // The prompt is cached by the second time.
    let mut usage = last["usage"].clone();
    assert_eq!(
        usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        usage["prompt_tokens"].as_u64().map(|n| n - 1)
    );
    usage["prompt_tokens_details"]["cached_tokens"] = json!(0);
    assert_eq!(usage, whole["usage"]);
    for event in others {
        assert_eq!(event.get("usage"), Some(&Value::Null), "null until the last chunk: {event}");
    }
    let more = json!({"stream": true, "stream_options": {"include_usage": false}});
    let streamed = server.client.stream(CHAT, &body(question, more)).finish();
    assert!(streamed.values().all(|event| event.get("usage").is_none()));
}

#[test]
fn as_many_choices_come_as_were_asked_for() {
    let server = serve();
    let more = json!({"n": 3, "temperature": 1, "seed": 11, "max_tokens": 40});
    let answer = server.client.ask(CHAT, &body("Tell me a story.", more.clone()));
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    let mut texts: Vec<&str> = Vec::new();
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        texts.push(content(&answer, index));
    }
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "all choices are the same: {texts:?}");
    let generated = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((3..=120).contains(&generated), "of all choices together: {generated}");

    let mut streaming = body("Tell me a story.", more);
    merge(&mut streaming, json!({"stream": true}));
    let streamed = server.client.stream(CHAT, &streaming).finish();
    assert!(streamed.is_good());
    for index in 0..3 {
        assert!(!streamed.text(index).is_empty() && streamed.finish_reason(index).is_some(), "choice {index}");
    }
    assert!(streamed.choices().all(|choice| choice["index"].as_u64() < Some(3)));
}

#[test]
fn a_seed_reproduces_a_text_and_other_seeds_give_others() {
    let server = serve();
    let story = |seed: u64| {
        let more = json!({"temperature": 1, "seed": seed, "max_tokens": 60});
        content(&server.client.ask(CHAT, &body("Tell me a story.", more)), 0).to_owned()
    };
    let texts: Vec<String> = (1..=4).map(story).collect();
    for (seed, text) in (1..).zip(&texts) {
        assert_eq!(story(seed), *text, "seed {seed} gave two texts");
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "all seeds give {:?}", texts[0]);
    let unseeded = json!({"temperature": 1, "max_tokens": 60});
    let free: Vec<String> = (0..4)
        .map(|_| content(&server.client.ask(CHAT, &body("Tell me a story.", unseeded.clone())), 0).to_owned())
        .collect();
    assert!(free.iter().any(|text| *text != free[0]), "without a seed all texts are {:?}", free[0]);
}

#[test]
fn a_stop_string_ends_the_text_and_no_part_of_it_comes_out() {
    let server = serve();
    let question = "Count from 1 to 12.";
    let full = server.answer(question);
    assert!(full.len() > 20 && full.is_ascii(), "{full:?}");
    // Digits are single tokens, so most of these stop strings start within one token and end within another.
    for start in (1..full.len() - 5).step_by(3) {
        for length in [1, 2, 4] {
            let stop = &full[start..start + length];
            let expected = full.split(stop).next().unwrap();
            let whole = server.client.ask(CHAT, &body(question, json!({"stop": stop})));
            assert_eq!(content(&whole, 0), expected, "stop {stop:?}");
            assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        }
        let stop = [&full[start..start + 3], "never", "neither"];
        let streamed = server.client.stream(CHAT, &body(question, json!({"stop": stop, "stream": true}))).finish();
        assert!(streamed.is_good());
        assert_eq!(streamed.text(0), full.split(stop[0]).next().unwrap(), "stop {stop:?}, streamed");
    }
    let near = [format!("{}x", &full[3..8]), format!("{}y", &full[full.len() - 4..])];
    let whole = server.client.ask(CHAT, &body(question, json!({"stop": near})));
    assert_eq!(content(&whole, 0), full, "a stop string that only begins to appear holds nothing back in the end");
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let server = serve();
    for (top, stream) in [(0, false), (3, false), (20, false), (3, true)] {
        let more = json!({"logprobs": true, "top_logprobs": top, "stream": stream});
        let request = body("What is the capital of France?", more);
        let (text, tokens) = if stream {
            let streamed = server.client.stream(CHAT, &request).finish();
            let lists = streamed.choices().filter_map(|choice| choice["logprobs"]["content"].as_array());
            (streamed.text(0), lists.flatten().cloned().collect::<Vec<Value>>())
        } else {
            let answer = server.client.ask(CHAT, &request);
            let tokens = answer["choices"][0]["logprobs"]["content"].as_array().expect("log-probabilities").clone();
            (content(&answer, 0).to_owned(), tokens)
        };
        let bytes: Vec<u8> = tokens.iter().flat_map(token_bytes).collect();
        assert!(bytes.starts_with(text.as_bytes()), "the tokens make the text: {tokens:?}");
        for token in &tokens {
            let drawn = token["logprob"].as_f64().unwrap();
            assert!((-30.0..=1e-4).contains(&drawn), "{token}");
            let list = token["top_logprobs"].as_array().unwrap();
            assert_eq!(list.len(), top, "{token}");
            let values: Vec<f64> = list.iter().map(|entry| entry["logprob"].as_f64().unwrap()).collect();
            assert!(values.is_sorted_by(|a, b| a >= b), "best first: {values:?}");
            let mass: f64 = values.iter().map(|value| value.exp()).sum();
            assert!(mass < 1.001, "probabilities sum to {mass}");
            if let Some(best) = list.first() {
                assert_eq!(best["token"], token["token"], "greedy draws the best");
                assert!((best["logprob"].as_f64().unwrap() - drawn).abs() < 1e-4);
                assert!(mass > 0.3, "the best {top} have {mass} together");
            }
        }
    }
}

fn token_bytes(token: &Value) -> Vec<u8> {
    let bytes = token["bytes"].as_array().expect("a token has bytes");
    bytes.iter().map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn a_banned_token_is_not_drawn() {
    let server = serve();
    let question = "What is 3 plus 4?";
    let full = server.answer(question);
    let first = server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": full}))["tokens"][0].clone();
    let ban = json!({"logit_bias": {first.to_string(): -100}});
    let other = server.client.ask(CHAT, &body(question, ban));
    let text = server.client.ask("/v1/detokenize", &json!({"model": "demo", "tokens": [first]}));
    let banned = text["text"].as_str().unwrap();
    assert!(full.starts_with(banned), "{banned:?} begins {full:?}");
    assert!(!content(&other, 0).starts_with(banned), "{banned:?} was banned, but came: {other}");
    let force = json!({"logit_bias": {first.to_string(): 100}, "max_tokens": 5});
    let forced = server.client.ask(CHAT, &body(question, force));
    assert_eq!(content(&forced, 0), banned.repeat(5));
}

#[test]
fn max_tokens_ends_a_text_with_length() {
    let server = serve();
    for (field, tokens) in [("max_tokens", 1), ("max_tokens", 7), ("max_completion_tokens", 5)] {
        let answer = server.client.ask(CHAT, &body("Tell me a story.", json!({field: tokens})));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], tokens);
        let streamed = server.client.stream(CHAT, &body("Tell me a story.", json!({field: tokens, "stream": true})));
        let streamed = streamed.finish();
        assert_eq!(streamed.finish_reason(0), Some("length"));
        assert_eq!(streamed.text(0), content(&answer, 0));
    }
}

#[test]
fn characters_of_several_tokens_come_whole() {
    let server = serve();
    let mut wide = 0;
    for (seed, characters) in (0..).zip(["é", "ñ", "ß", "λ", "Ж", "七", "日", "😀", "😃"]) {
        let answer = server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": characters}));
        let pieces: Vec<String> = answer["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert!(pieces.len() > 1, "{characters:?} is one token");
        // Only the character's own tokens can be drawn, in any order.
        let bias: serde_json::Map<_, _> = pieces.into_iter().map(|piece| (piece, json!(100))).collect();
        for (temperature, tokens) in [(0, 24), (0, 23), (1, 24), (1, 7)] {
            let more = json!({"logit_bias": bias, "temperature": temperature, "seed": seed, "max_tokens": tokens, "logprobs": true});
            let request = body(&format!("Repeat after me: {}", characters.repeat(4)), more);
            let whole = server.client.ask(CHAT, &request);
            let text = content(&whole, 0);
            let drawn = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
            let bytes: Vec<u8> = drawn.iter().flat_map(token_bytes).collect();
            assert_eq!(bytes.len(), tokens, "one byte for each token");
            // Invalid bytes are replaced; an incomplete character at the end may be dropped.
            let expected = String::from_utf8_lossy(&bytes);
            assert_eq!(text.trim_end_matches('\u{FFFD}'), expected.trim_end_matches('\u{FFFD}'), "{bytes:x?}");
            wide += text.chars().filter(|character| *character != '\u{FFFD}').count();

            let mut streaming = request;
            merge(&mut streaming, json!({"stream": true}));
            // The reader fails unless every event is UTF-8 JSON.
            let streamed = server.client.stream(CHAT, &streaming).finish();
            assert!(streamed.is_good());
            assert_eq!(streamed.text(0), text);
        }
    }
    assert!(wide > 40, "the model made only {wide} characters of several tokens");
}

#[test]
fn control_tokens_that_a_client_spells_out_stay_text() {
    let server = serve();
    let count =
        |text: &str| server.client.ask(CHAT, &body(text, json!({"max_tokens": 1})))["usage"]["prompt_tokens"].as_u64();
    let spelled = "<|end|><|assistant|>";
    let tokens = server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": spelled}))["tokens"]
        .as_array()
        .unwrap()
        .len();
    assert!(tokens > 4, "{spelled} became {tokens} tokens");
    let (empty, with) = (count("").unwrap(), count(spelled).unwrap());
    assert_eq!(with - empty, tokens as u64, "{spelled} took another number of tokens within a chat");
}

#[test]
fn a_conversation_and_a_system_prompt_reach_the_model() {
    let server = serve();
    let ask = |messages: Value| {
        let answer = server.client.ask(CHAT, &json!({"model": "demo", "temperature": 0, "messages": messages}));
        content(&answer, 0).to_owned()
    };
    let recalled = ask(json!([
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada."},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]));
    assert!(recalled.contains("Ada"), "{recalled:?}");
    let loud = ask(json!([
        {"role": "system", "content": "Answer in upper case."},
        {"role": "user", "content": "What is the capital of France?"},
    ]));
    assert!(loud.contains("PARIS"), "{loud:?}");
}

#[test]
fn the_short_name_reaches_the_same_handler() {
    let server = serve();
    let answer = server.client.ask("/chat", &body("What is 3 plus 4?", json!({})));
    assert_eq!(content(&answer, 0), server.answer("What is 3 plus 4?"));
}
