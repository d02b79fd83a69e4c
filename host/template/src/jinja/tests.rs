//! Rendering, and its bounds.
use serde_json::{Map, Value, json};

use super::{FALLBACK, Jinja, RenderError, SHORT_FUEL, STACKS, Stack};
use crate::message::{Conversation, Message, Role};

pub(super) fn compiled(template: &str, bos: &str, eos: &str) -> Jinja {
    Jinja::compile(template, bos, eos).unwrap()
}

pub(super) fn message(role: Role, content: &str) -> Message {
    Message::new(role, content)
}

/// The prompt of a conversation without tools.
pub(super) fn render(
    template: &Jinja,
    messages: &[Message],
    variables: &Map<String, Value>,
) -> Result<String, RenderError> {
    template.render(Conversation { messages, tools: &[], variables })
}

fn user(contents: &[&str]) -> Vec<Message> {
    contents.iter().map(|content| message(Role::User, content)).collect()
}

fn kwargs(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn rendered(template: &str, contents: &[&str], variables: &Value) -> Result<String, String> {
    let compiled = compiled(template, "<s>", "</s>");
    render(&compiled, &user(contents), &kwargs(variables)).map_err(|error| error.to_string())
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
        let mut compiled = compiled(nested, "", "");
        // No other stack is to be had.
        compiled.stacks = [Stack { bytes: 1 << 60, fuel: 1 }; 2];
        let error = render(&compiled, &user(&["x"]), &Map::new()).unwrap_err();
        assert!(matches!(error, RenderError::Stack(_)), "{error}");
    });
    rendering.unwrap().join().unwrap();
}

#[test]
fn templates_know_that_there_are_no_tools() {
    for asks in ["tools is not none", "tools", "tools is defined and tools"] {
        let template = format!("{{% if {asks} %}}some{{% else %}}none{{% endif %}}");
        assert_eq!(rendered(&template, &["hi"], &json!({})).as_deref(), Ok("none"), "{asks}");
    }
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
    assert!(rendered(writing, &[&long], &json!({})).is_err());
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(rendered(recursive, &["hi"], &json!({})).is_err());
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
    assert!(Jinja::compile("{% if %}", "", "").is_err());
}

#[test]
fn regression_a_stack_that_the_system_does_not_give_is_replaced_by_a_smaller_one_or_refused() {
    // More than any address space.
    let never = Stack { bytes: 1 << 60, fuel: 1 };
    let less = Stack { bytes: 1 << 20, fuel: 10 * SHORT_FUEL };
    let rendered = |stacks, turns: u32| {
        let source = format!("{{% for i in range({turns}) %}}a{{% endfor %}}");
        let mut compiled = compiled(&source, "", "");
        compiled.stacks = stacks;
        render(&compiled, &user(&["hi"]), &Map::new())
    };
    assert_eq!(rendered([never, less], 1000).unwrap(), "a".repeat(1000));
    assert!(rendered([never, less], 10_000).unwrap_err().to_string().contains("fuel"), "fewer instructions fit on it");
    assert_eq!(rendered([less, never], 1000).unwrap(), "a".repeat(1000));
    assert_eq!(rendered([never, never], 10).unwrap(), "a".repeat(10), "it needs no stack of its own");
    assert!(matches!(rendered([never, never], 1000), Err(RenderError::Stack(_))));
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
    let mut compiled = compiled(nested, "", "");
    compiled.stacks = [STACKS[1]; 2];
    let error = render(&compiled, &user(&["x"]), &Map::new()).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
}
