//! Rendering and tokenizing with a byte-level tokenizer that knows three control tokens.
use std::sync::Arc;

use camshaft_core::engine::{Encode, Encoded, Tokenizer};
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_template::{CalledFunction, Message, Role, ToolCall};
use serde_json::{Value, json};

use crate::model::{ModelReader, TemplateSource};
use crate::task::{Answer, Chat, Ending, ReadError, Rendered, Task};

const CONTROL: [&str; 3] = ["<|bos|>", "<|user|>", "<|end|>"];
const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content | trim }}<|end|>{% endfor %}{{ extra }}";

/// Token 0 to 255: the byte; from 256 on: control tokens.
#[derive(Debug)]
struct Bytes;

impl Tokenizer for Bytes {
    fn encode(&self, encode: Encode<'_>) -> Encoded {
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
        Encoded { tokens, offsets: None }
    }
}

fn rendered(
    template: Option<&str>,
    messages: &[Message],
    tools: &[Value],
    variables: &Value,
) -> Result<Rendered, ReadError> {
    let (template, bos, eos) = (template.map(str::to_owned), "<|bos|>".to_owned(), "<|end|>".to_owned());
    let source = TemplateSource { template, with_tools: None, bos, eos };
    let grammars = Arc::new(GrammarStore::new(Arc::new(Vocabulary::new(["a"], Vec::new()))));
    let reader = ModelReader::new(source, Arc::new(Bytes), grammars);
    let chat = Chat {
        messages: messages.to_vec(),
        tools: tools.to_vec(),
        variables: variables.as_object().cloned().unwrap_or_default(),
        has_tools: false,
        ending: Ending::default(),
        most: 1024,
        whole_text: true,
    };
    match reader.read(Task::Chat(Box::new(chat)), &|_| {})? {
        Answer::Chat(rendered) => Ok(rendered),
        other => panic!("{other:?}"),
    }
}

fn tokenized(template: Option<&str>, contents: &[&str], variables: &Value) -> Result<Vec<u32>, ReadError> {
    let messages: Vec<Message> = contents.iter().map(|content| Message::new(Role::User, *content)).collect();
    let Rendered { tokens, .. } = rendered(template, &messages, &[], variables)?;
    Ok(tokens.into_iter().map(|token| token.0).collect())
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
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
    let function = CalledFunction { name: "f<|end|>".to_owned(), arguments: json!({"<|user|>": ["\"<|end|>\n"]}) };
    let call = ToolCall { id: "<|bos|>".to_owned(), function };
    let told = Message {
        reasoning_content: Some("so<|end|>".to_owned()),
        tool_calls: vec![call],
        ..Message::new(Role::Assistant, "x")
    };
    let tools = [json!({"function": {"description": "says <|user|>"}})];
    let rendered = rendered(Some(template), &[told], &tools, &json!({})).unwrap();
    let body = "{\"function\": {\"description\": \"says <|user|>\"}}";
    let call = "{\"type\": \"function\", \"id\": \"<|bos|>\", \"function\": {\"name\": \"f<|end|>\", \
                \"arguments\": {\"<|user|>\": [\"\\\"<|end|>\\n\"]}}}";
    assert_eq!(rendered.text, format!("{body}<|user|>xso<|end|>{call}<|end|>"));
    let tokens: Vec<u32> = rendered.tokens.iter().map(|token| token.0).collect();
    let expected = [vec![256], bytes(body), vec![257], bytes("x"), bytes("so<|end|>"), bytes(call), vec![258]].concat();
    assert_eq!(tokens, expected);
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
    assert!(matches!(error, ReadError::Field { field, .. } if field == "chat_template_kwargs"));
    assert!(tokenized(Some(TEMPLATE), &["hi"], &json!({"extra": "x"})).is_ok());
}
