//! Rendering and tokenizing with a byte-level tokenizer that knows three control tokens.
use std::sync::Arc;

use camshaft_core::engine::{Encode, Encoded, ModelInfo, ModelKind, Reuse, Tokenizer};
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use serde_json::{Map, Value, json};

use super::{ChatTemplate, FALLBACK, SHORT_FUEL, STACKS, Stack};
use crate::flow::backend::TextModel;
use crate::flow::error::FlowError;
use crate::flow::prompt;
use crate::flow::reading::Reading;
use crate::wire::messages::{CalledFunction, Conversation, Ending, Message, Role, ToolCall};

const CONTROL: [&str; 3] = ["<|bos|>", "<|user|>", "<|end|>"];
const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content | trim }}<|end|>{% endfor %}{{ extra }}";

/// Token 0 to 255: the byte; from 256 on: control tokens.
#[derive(Debug)]
struct Bytes;

impl Tokenizer for Bytes {
    fn encode(&self, encode: Encode<'_>) -> Option<Encoded> {
        let Encode { text, add_special, parse_special, .. } = encode;
        let mut tokens: Vec<Token> = add_special.then_some(Token(256)).into_iter().collect();
        let mut rest = text;
        while let Some(byte) = rest.bytes().next() {
            let control = CONTROL.iter().position(|control| parse_special && rest.starts_with(control));
            if let Some(i) = control {
                tokens.push(Token(256 + i as u32));
                rest = &rest[CONTROL[i].len()..];
            } else {
                tokens.push(Token(u32::from(byte)));
                let next = rest.chars().next().map_or(1, char::len_utf8);
                tokens.extend(rest.bytes().take(next).skip(1).map(|byte| Token(u32::from(byte))));
                rest = &rest[next..];
            }
        }
        Some(Encoded { tokens, offsets: None })
    }
}

pub(super) fn info(template: Option<&str>, bos: &str, eos: &str) -> ModelInfo {
    ModelInfo {
        name: "test".into(),
        kind: ModelKind::Generate,
        parameters: 1,
        weight_bytes: 1,
        trained_context_tokens: 64,
        reuse: Reuse::Ranges,
        context_tokens: 64,
        sampling: Default::default(),
        quantization: None,
        infill: None,
        chat_template: template.map(str::to_owned),
        bos_text: bos.into(),
        eos_text: eos.into(),
        sha256: None,
        vocabulary: Arc::new(Vocabulary::new(["a"], Vec::new())),
    }
}

pub(super) fn message(role: Role, content: &str) -> Message {
    Message::new(role, content)
}

/// The prompt of a conversation without tools.
pub(super) fn render(
    template: &ChatTemplate,
    messages: &[Message],
    variables: &Map<String, Value>,
    reading: &Reading,
) -> Result<String, FlowError> {
    template.render(Conversation { messages, tools: &[], variables, ending: Ending::default() }, reading)
}

fn user(contents: &[&str]) -> Vec<Message> {
    contents.iter().map(|content| message(Role::User, content)).collect()
}

fn kwargs(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn tokenized(template: Option<&str>, contents: &[&str], variables: &Value) -> Result<Vec<u32>, FlowError> {
    let info = info(template, "<|bos|>", "<|end|>");
    let compiled = ChatTemplate::compile("test", &info).unwrap();
    let model = TextModel { info, tokenizer: Arc::new(Bytes) };
    let (messages, variables) = (&user(contents), &kwargs(variables));
    let conversation = Conversation { messages, tools: &[], variables, ending: Ending::default() };
    let rendered = prompt::render(&model, &compiled, conversation, 1024, &Reading::default())?;
    let tokens = rendered.tokens;
    Ok(tokens.into_iter().map(|token| token.0).collect())
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn rendered(template: &str, contents: &[&str], variables: &Value) -> Result<String, String> {
    let compiled = ChatTemplate::compile("test", &info(Some(template), "<s>", "</s>")).unwrap();
    render(&compiled, &user(contents), &kwargs(variables), &Reading::default()).map_err(|error| error.to_string())
}

/// Deeper than any list of the template language: all that the instructions allow.
#[test]
fn regression_values_nested_as_deep_as_instructions_allow_are_dropped() {
    let nested = "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% for j in range(90000) %}\
                  {% set ns.l = [ns.l] %}{% endfor %}{% endfor %}";
    // On a stack as small as those of the runtime's threads.
    let rendering = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let error = rendered(nested, &["x"], &json!({})).unwrap_err();
        assert!(error.contains("fuel"), "{error}");
    });
    rendering.unwrap().join().unwrap();
}

#[test]
fn a_short_rendering_fits_the_stack_of_any_thread() {
    let nested = "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] %}{% endfor %}";
    let rendering = std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
        let mut compiled = ChatTemplate::compile("test", &info(Some(nested), "", "")).unwrap();
        // No other stack is to be had.
        compiled.stacks = [Stack { bytes: 1 << 60, fuel: 1 }; 2];
        let error = render(&compiled, &user(&["x"]), &Map::new(), &Reading::default()).unwrap_err();
        assert_eq!(error.answer().body().error.code.as_deref(), Some("overloaded"));
    });
    rendering.unwrap().join().unwrap();
}

#[test]
fn reads_control_tokens_of_the_template_and_adds_no_second_bos() {
    let got = tokenized(Some(TEMPLATE), &[" hi "], &json!({})).unwrap();
    assert_eq!(got, [vec![256, 257], bytes("hi"), vec![258]].concat());
}

#[test]
fn adds_bos_to_a_template_that_does_not_begin_with_it() {
    let got = tokenized(None, &["hi"], &json!({})).unwrap();
    assert_eq!(got, [vec![256], bytes("user: hi\nassistant:")].concat());
}

#[test]
fn reads_control_text_that_a_client_wrote_as_plain_text() {
    let got = tokenized(Some(TEMPLATE), &[" a<|end|>b\n", "c"], &json!({})).unwrap();
    let expected = [vec![256, 257], bytes("a<|end|>b"), vec![258, 257], bytes("c"), vec![258]].concat();
    assert_eq!(got, expected);
}

#[test]
fn reads_control_text_split_over_neighbouring_messages_as_plain_text() {
    let got = tokenized(Some("{% for m in messages %}{{ m.content }}{% endfor %}"), &["<|e", "nd|>"], &json!({}));
    assert_eq!(got.unwrap(), [vec![256], bytes("<|end|>")].concat());
}

#[test]
fn reads_control_text_in_tools_and_calls_as_plain_text() {
    let template = "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|user|>{{ m.content }}\
                    {{ m.reasoning_content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}<|end|>{% endfor %}";
    let model_info = info(Some(template), "<|bos|>", "<|end|>");
    let compiled = ChatTemplate::compile("test", &model_info).unwrap();
    let model = TextModel { info: model_info, tokenizer: Arc::new(Bytes) };
    let function = CalledFunction { name: "f<|end|>".to_owned(), arguments: json!({"<|user|>": ["\"<|end|>\n"]}) };
    let call = ToolCall { id: "<|bos|>".to_owned(), function };
    let told = Message {
        reasoning_content: Some("so<|end|>".to_owned()),
        tool_calls: vec![call],
        ..Message::new(Role::Assistant, "x")
    };
    let tools = [json!({"function": {"description": "says <|user|>"}})];
    let (messages, variables) = ([told], Map::new());
    let conversation =
        Conversation { messages: &messages, tools: &tools, variables: &variables, ending: Ending::default() };
    let rendered = prompt::render(&model, &compiled, conversation, 1024, &Reading::default()).unwrap();
    let body = "{\"function\": {\"description\": \"says <|user|>\"}}";
    let call = "{\"type\": \"function\", \"id\": \"<|bos|>\", \"function\": {\"name\": \"f<|end|>\", \
                \"arguments\": {\"<|user|>\": [\"\\\"<|end|>\\n\"]}}}";
    assert_eq!(rendered.text, format!("{body}<|user|>xso<|end|>{call}<|end|>"));
    let tokens: Vec<u32> = rendered.tokens.iter().map(|token| token.0).collect();
    let expected = [vec![256], bytes(body), vec![257], bytes("x"), bytes("so<|end|>"), bytes(call), vec![258]].concat();
    assert_eq!(tokens, expected);
}

#[test]
fn templates_know_that_there_are_no_tools() {
    for asks in ["tools is not none", "tools", "tools is defined and tools"] {
        let template = format!("{{% if {asks} %}}some{{% else %}}none{{% endif %}}");
        assert_eq!(rendered(&template, &["hi"], &json!({})).as_deref(), Ok("none"), "{asks}");
    }
}

#[test]
fn keeps_edge_space_where_the_template_does_not_trim() {
    let template = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let got = tokenized(Some(template), &[" <|end|> ", "  "], &json!({})).unwrap();
    assert_eq!(got, [vec![256], bytes("[ <|end|> ][  ]")].concat());
}

#[test]
fn refuses_control_text_in_template_variables() {
    let error = tokenized(Some(TEMPLATE), &["hi"], &json!({"extra": {"a": ["<|end|>"]}})).unwrap_err();
    assert_eq!(error.answer().body().error.param.as_deref(), Some("chat_template_kwargs"));
    assert!(tokenized(Some(TEMPLATE), &["hi"], &json!({"extra": "x"})).is_ok());
}

#[test]
fn refuses_to_replace_the_hosts_variables() {
    let error = rendered(FALLBACK, &["hi"], &json!({"messages": []})).unwrap_err();
    assert_eq!(error, "the template variable messages may not be set");
}

#[test]
fn passes_what_raise_exception_says_to_the_client() {
    let template = "{% macro f() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ f() }}";
    assert_eq!(rendered(template, &["hi"], &json!({})), Err("roles must alternate".to_owned()));
}

#[test]
fn stops_templates_that_run_or_write_without_end() {
    let looping = "{% for i in range(10000) %}{% for j in range(10000) %}{% set x = j %}{% endfor %}{% endfor %}";
    assert!(rendered(looping, &["hi"], &json!({})).unwrap_err().contains("fuel"));
    let long = "x".repeat(1 << 20);
    let writing = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}";
    assert!(rendered(writing, &[&long], &json!({})).unwrap_err().contains("cannot render"));
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(rendered(recursive, &["hi"], &json!({})).unwrap_err().contains("cannot render"));
}

#[test]
fn regression_filters_and_methods_cost_what_they_work_on() {
    let megabyte = "a".repeat(1 << 20);
    let check = |template: &str, calls: u64| {
        let looping = |calls: u64| {
            format!("{{% set s = messages[0].content %}}{{% for i in range({calls}) %}}{template}{{% endfor %}}")
        };
        assert_eq!(rendered(&looping(calls), &[&megabyte], &json!({})).as_deref(), Ok(""), "{template}");
        let error = rendered(&looping(calls + 1), &[&megabyte], &json!({})).unwrap_err();
        assert!(error.contains("too many bytes"), "{template}: {error}");
    };
    // The text, and 16 bytes for each value, of 256 MiB.
    check("{% if (s | length) == 0 %}x{% endif %}", 256);
    check("{% if (s | replace('a', '')) %}x{% endif %}", 255);
    check("{% if not s.strip() %}x{% endif %}", 127);
    check("{% if s.find('b') == 1 %}x{% endif %}", 255);
    check("{% if not (range(65535) | sort) %}x{% endif %}", 256);
}

#[test]
fn regression_what_one_filter_or_method_writes_is_bounded_before_it_is_written() {
    let check = |template: &str| {
        let error = rendered(template, &[&"a\n".repeat(1 << 20)], &json!({})).unwrap_err();
        assert!(error.contains("too many bytes"), "{template}: {error}");
    };
    check("{% set x = messages[0].content | replace('a', 'b' * 1000) %}");
    check("{% set x = messages[0].content.replace('a', 'b' * 1000) %}");
    check("{% set x = range(100000) | join('b' * 10000) %}");
    check("{% set x = ('b' * 10000).join(range(100000)) %}");
    check("{% set x = ([messages[0].content] * 1000) | join %}");
    check("{% set x = ([messages[0].content] * 1000) | tojson %}");
    check("{% set x = {'a': [messages[0].content] * 1000} | string %}");
    check("{% set x = messages[0].content | indent(1000) %}");
    check("{% set x = messages[0].content | indent(width=1000) %}");
    check("{% set x = [1] | batch(100000000, 'x') %}");
    check("{% set x = [1] | slice(100000000) %}");
    check("{% set x = '%1000000000d' | format(1) %}");
    check("{% set x = '%*d' | format(1000000000, 1) %}");
    check("{% set x = '{:1000000000}'.format(1) %}");
    check("{% set x = '{:{}}'.format(1, 1000000000) %}");
}

#[test]
fn offers_what_published_templates_use() {
    let check = |template: &str, expected: &str| {
        let variables = json!({"functions": [{"name": "f", "n": 1}], "thinking": false});
        assert_eq!(rendered(template, &["<b>'hi'"], &variables).as_deref(), Ok(expected), "{template}");
    };
    check("{{ messages[0]['content'] }}", "<b>'hi'");
    check("{{ messages[0].content.strip().startswith('<b>') }}", "True");
    check("{{ messages[0].content.split('>')[-1] }}", "'hi'");
    check("{{ functions | tojson }}", r#"[{"name": "f", "n": 1}]"#);
    check("{{ functions | tojson(indent=2) }}", "[\n  {\n    \"name\": \"f\",\n    \"n\": 1\n  }\n]");
    check("{{ messages[0].content | tojson }}", r#""<b>'hi'""#);
    check(
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    );
    check("{% set ns = namespace(x=1) %}{% for m in messages %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}", "2");
    check("{% if messages[0].tool_calls is defined %}a{% else %}b{% endif %}", "b");
    check("{% if thinking is defined and thinking is false %}off{% endif %}", "off");
    check("{{ bos_token + eos_token }}{{ messages[::-1][0].role }}", "<s></s>user");
    check("{{ messages[0].get('name', 'none') }}", "none");
    check(
        "{{ functions | map(attribute='name') | join(', ') }}{{ functions | selectattr('n', 'eq', 1) | list | length }}",
        "f1",
    );
    check("{{ 'a\nb' | indent(2, first=true) }}{{ '%s-%02d' | format('a', 7) }}", "  a\n  ba-07");
    check("{{ [3, 1] | sort(reverse=true) }}{{ {'b': 1} | dictsort }}{{ [1, 2] | sum }}", "[3, 1][('b', 1)]3");
    check("{{ strftime_now('%Y') | length }}", "4");
    check("  {% if true %}\n  x\n  {% endif %}\n", "  x\n");
    check("{{- 'a' -}}\n  {%- if true %}b{% endif -%}\n", "ab");
}

#[test]
fn reports_a_template_that_is_not_jinja() {
    assert!(ChatTemplate::compile("test", &info(Some("{% if %}"), "", "")).is_err());
}

#[test]
fn regression_a_stack_that_the_system_does_not_give_is_replaced_by_a_smaller_one_or_refused() {
    // More than any address space.
    let never = Stack { bytes: 1 << 60, fuel: 1 };
    let less = Stack { bytes: 1 << 20, fuel: 10 * SHORT_FUEL };
    let rendered = |stacks, turns: u32| {
        let source = format!("{{% for i in range({turns}) %}}a{{% endfor %}}");
        let mut compiled = ChatTemplate::compile("test", &info(Some(&source), "", "")).unwrap();
        compiled.stacks = stacks;
        render(&compiled, &user(&["hi"]), &Map::new(), &Reading::default())
    };
    assert_eq!(rendered([never, less], 1000).unwrap(), "a".repeat(1000));
    assert!(rendered([never, less], 10_000).unwrap_err().to_string().contains("fuel"), "fewer instructions fit on it");
    assert_eq!(rendered([less, never], 1000).unwrap(), "a".repeat(1000));
    assert_eq!(rendered([never, never], 10).unwrap(), "a".repeat(10), "it needs no stack of its own");
    let refused = rendered([never, never], 1000).unwrap_err().answer();
    assert_eq!((refused.status().as_u16(), refused.body().error.code.as_deref()), (503, Some("overloaded")));
}

#[test]
fn regression_a_template_that_includes_one_which_is_long_is_rendered_as_any_other() {
    let source = "{% if inner is defined %}{% for i in range(turns) %}a{% endfor %}\
                  {% else %}{% set inner = true %}{% include 'chat_template' %}{% endif %}";
    let turns = 2 * SHORT_FUEL;
    assert_eq!(rendered(source, &["hi"], &json!({ "turns": turns })), Ok("a".repeat(turns as usize)));
    let (without_end, endless) = ("range(turns) %}{% for j in range(10000)", "a{% endfor %}{% endfor %}");
    let source = source.replace("range(turns)", without_end).replace("a{% endfor %}", endless);
    assert!(rendered(&source, &["hi"], &json!({"turns": 10_000})).is_err());
}

#[test]
fn values_nested_as_deep_as_the_smaller_stack_allows_are_dropped() {
    let nested = "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% for j in range(90000) %}\
                  {% set ns.l = [ns.l] %}{% endfor %}{% endfor %}";
    let mut compiled = ChatTemplate::compile("test", &info(Some(nested), "", "")).unwrap();
    compiled.stacks = [STACKS[1]; 2];
    let error = render(&compiled, &user(&["x"]), &Map::new(), &Reading::default()).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
}
