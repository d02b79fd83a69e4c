//! Rendering.
use jiff::Timestamp;
use minijinja::Environment;
use serde_json::{Map, Value, json};

use super::{ChatTemplate, FALLBACK, RenderError, Source, rewrite, strftime};
use crate::message::{Conversation, Message, Role};

pub(super) fn compiled(template: &str, bos: &str, eos: &str) -> ChatTemplate {
    ChatTemplate::compile(Source { template: Some(template), with_tools: None, bos, eos }).unwrap()
}

pub(super) fn message(role: Role, content: &str) -> Message {
    Message::new(role, content)
}

/// The prompt of a conversation without tools.
pub(super) fn render(
    template: &ChatTemplate,
    messages: &[Message],
    variables: &Map<String, Value>,
) -> Result<String, RenderError> {
    template.render(false, Conversation { messages, tools: &[], variables })
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
fn a_macro_that_calls_itself_without_end_is_an_error() {
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(rendered(recursive, &["hi"], &json!({})).unwrap_err().contains("recursion"));
}

#[test]
fn formats_the_dates_that_templates_print() {
    let check = |seconds, format, expected: &str| {
        assert_eq!(strftime(format, Timestamp::from_second(seconds).unwrap()), expected, "{format}");
    };
    check(0, "%d %b %Y", "01 Jan 1970");
    check(0, "%A, %-d %B %Y %I:%M %p", "Thursday, 1 January 1970 12:00 AM");
    check(951_827_696, "%Y-%m-%d %H:%M:%S %j", "2000-02-29 12:34:56 060");
    check(1_735_689_599, "%F %T %a %y", "2024-12-31 23:59:59 Tue 24");
    check(
        1_735_689_599,
        "%e|%-m|%_H|%u|%w|%V|%G|%C|%D|%R|%s|%z|%Z",
        "31|12|23|2|2|01|2025|20|12/31/24|23:59|1735689599|+0000|UTC",
    );
    check(1_735_689_599, "%c|%x|%X|%U|%W", "Tue Dec 31 23:59:59 2024|12/31/24|23:59:59|52|53");
    check(4_102_444_800, "%F", "2100-01-01");
    check(0, "100%% %é %-", "100% %é %-");
}

#[test]
fn rewrites_formats_and_what_marks_a_text_for_training() {
    let check = |source: &str, expected: &str| {
        assert_eq!(rewrite(source, &Environment::new()).unwrap(), expected, "{source}");
    };
    check("'100' % ({{ a }}) {# 'b' % (c) #}", "'100' % ({{ a }}) {# 'b' % (c) #}");
    check("{{ '%s-%s' % (a, b % c) ~ d }}", "{{ '%s-%s' |format (a, b % c) ~ d }}");
    check("{{ a % (b) == 0 }}", "{{ a % (b) == 0 }}");
    check("{%- generation -%}x{% endgeneration %}", "{%- with -%}x{% endwith %}");
    check("{{ generation }}", "{{ generation }}");
    assert!(rewrite("{{ '", &Environment::new()).is_err());
    assert_eq!(
        rendered(r"{{ '%s	%02d' % ('a', 7,) }}{{ '%s' % (eos_token) }}", &["hi"], &json!({})).as_deref(),
        Ok("a	07</s>")
    );
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
    assert!(ChatTemplate::compile(Source { template: Some("{% if %}"), ..Source::default() }).is_err());
}
