//! Real-world prompt formats, rendered by templates of their published shape and compared byte for byte.
use camshaft_core::limits;
use serde_json::Map;

use super::tests::{compiled, message};
use crate::message::{Message, Role};

const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] \
                      + '<|im_end|>' + '\\n'}}{% endfor %}\
                      {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}\
    {% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim \
    + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

const MISTRAL_V1: &str = "{{ bos_token }}{% for message in messages %}\
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
    {% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
    {% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}\
    {% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}";

const MISTRAL_V3: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and tools is defined and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"#;

const GEMMA: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
    {{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}\
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
    {% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
    {{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}";

fn render(template: &str, (bos, eos): (&str, &str), messages: &[Message]) -> Result<String, String> {
    super::tests::render(&compiled(template, bos, eos), messages, &Map::new()).map_err(|error| error.to_string())
}

fn conversation(system: bool) -> Vec<Message> {
    let mut messages = vec![
        message(Role::User, "What is 3 plus 4?"),
        message(Role::Assistant, "7"),
        message(Role::User, "Thanks — and <b>5</b> & 6? "),
    ];
    if system {
        messages.insert(0, message(Role::System, "Be brief."));
    }
    messages
}

#[test]
fn renders_chatml() {
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 3 plus 4?<|im_end|>\n\
                    <|im_start|>assistant\n7<|im_end|>\n<|im_start|>user\nThanks — and <b>5</b> & 6? <|im_end|>\n\
                    <|im_start|>assistant\n";
    assert_eq!(render(CHATML, ("", "<|im_end|>"), &conversation(true)).as_deref(), Ok(expected));
}

#[test]
fn renders_llama_3() {
    let expected = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
                    <|start_header_id|>user<|end_header_id|>\n\nWhat is 3 plus 4?<|eot_id|>\
                    <|start_header_id|>assistant<|end_header_id|>\n\n7<|eot_id|>\
                    <|start_header_id|>user<|end_header_id|>\n\nThanks — and <b>5</b> & 6?<|eot_id|>\
                    <|start_header_id|>assistant<|end_header_id|>\n\n";
    let tokens = ("<|begin_of_text|>", "<|eot_id|>");
    assert_eq!(render(LLAMA3, tokens, &conversation(true)).as_deref(), Ok(expected));
}

#[test]
fn renders_mistral_v1() {
    let expected = "<s>[INST] What is 3 plus 4? [/INST]7</s>[INST] Thanks — and <b>5</b> & 6?  [/INST]";
    assert_eq!(render(MISTRAL_V1, ("<s>", "</s>"), &conversation(false)).as_deref(), Ok(expected));
    let refused = render(MISTRAL_V1, ("<s>", "</s>"), &conversation(true));
    assert_eq!(refused, Err("Conversation roles must alternate user/assistant/user/assistant/...".to_owned()));
}

#[test]
fn renders_mistral_v3() {
    let expected = "<s>[INST] What is 3 plus 4?[/INST] 7</s>[INST] Be brief.\n\nThanks — and <b>5</b> & 6? [/INST]";
    assert_eq!(render(MISTRAL_V3, ("<s>", "</s>"), &conversation(true)).as_deref(), Ok(expected));
}

#[test]
fn renders_gemma() {
    let expected = "<bos><start_of_turn>user\nWhat is 3 plus 4?<end_of_turn>\n<start_of_turn>model\n7<end_of_turn>\n\
                    <start_of_turn>user\nThanks — and <b>5</b> & 6?<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(render(GEMMA, ("<bos>", "<eos>"), &conversation(false)).as_deref(), Ok(expected));
    let refused = render(GEMMA, ("<bos>", "<eos>"), &conversation(true));
    assert_eq!(refused, Err("System role not supported".to_owned()));
}

#[test]
fn regression_the_longest_conversation_is_rendered_by_every_published_template() {
    let turns = |count: usize| -> Vec<Message> {
        let role = |turn: usize| if turn.is_multiple_of(2) { Role::User } else { Role::Assistant };
        (0..count).map(|turn| message(role(turn), "Go on.")).collect()
    };
    let all = [("chatml", CHATML), ("llama 3", LLAMA3), ("mistral v1", MISTRAL_V1), ("mistral v3", MISTRAL_V3)];
    let all = all.into_iter().chain([("gemma", GEMMA), ("none", super::FALLBACK)]);
    for (name, template) in all {
        let compiled = compiled(template, "<s>", "</s>");
        let rendered = super::tests::render(&compiled, &turns(limits::MESSAGES), &Map::new());
        assert_eq!(rendered.unwrap().matches("Go on.").count(), limits::MESSAGES, "{name}");
    }
}
