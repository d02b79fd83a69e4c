//! Which family a model is of: by its chat template, or by the name that the configuration gives.
use std::str::FromStr;

use crate::family::description::Family;
use crate::family::known::{FAMILIES, GENERIC};
use crate::shown::{cut, did_you_mean};

/// A family by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyName(pub &'static Family);

/// There is no family of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no family {name:?}{hint}")]
pub struct UnknownFamily {
    name: String,
    hint: String,
}

/// The family of a model.
#[derive(Debug, Clone, Copy)]
pub struct Chosen {
    /// The one that its operator names, else the one that its chat template shows.
    pub family: &'static Family,
    /// The one that the template shows, where the operator names another one.
    pub contradicted: Option<&'static Family>,
}

impl Chosen {
    pub fn new(named: Option<&'static Family>, template: Option<&str>) -> Self {
        let shown = detect(template.unwrap_or_default());
        let family = named.unwrap_or(shown);
        Self { family, contradicted: (*family != *shown && *shown != GENERIC).then_some(shown) }
    }
}

/// The family of a model with this chat template: the generic one if it shows the markers of none.
pub fn detect(template: &str) -> &'static Family {
    let shows = |markers: &&[&str]| markers.iter().all(|marker| template.contains(marker));
    FAMILIES.iter().find(|family| family.detected_by.iter().any(&shows)).copied().unwrap_or(&GENERIC)
}

/// The names of all families.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

impl FromStr for FamilyName {
    type Err = UnknownFamily;

    fn from_str(name: &str) -> Result<Self, UnknownFamily> {
        let family = FAMILIES.iter().find(|family| family.name == name);
        family.map(|family| Self(family)).ok_or_else(|| {
            let name = cut(name);
            let hint = did_you_mean(&name, "", names());
            UnknownFamily { name, hint }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_names_goes_before_what_the_template_shows() {
        let hermes = Some("<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}");
        let name = |name: &str| name.parse().ok().map(|FamilyName(family)| family);
        let check = |named: Option<&'static Family>, template, expected: (&str, Option<&str>)| {
            let Chosen { family, contradicted } = Chosen::new(named, template);
            assert_eq!((family.name, contradicted.map(|family| family.name)), expected);
        };
        check(None, hermes, ("hermes", None));
        check(None, None, ("generic", None));
        check(name("hermes"), hermes, ("hermes", None));
        check(name("granite"), hermes, ("granite", Some("hermes")));
        check(name("granite"), Some("{{ messages }}"), ("granite", None));
        check(name("generic"), hermes, ("generic", Some("hermes")));
    }

    /// Excerpts of what templates are recognised by.
    #[test]
    fn detects_a_family_by_the_markers_in_its_template() {
        let check = |template: &str, expected: &str| assert_eq!(detect(template).name, expected, "{template}");
        check("{{- '<|start|>assistant<|channel|>analysis<|message|>' }}", "harmony");
        check("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma4");
        check("<start_of_turn>model {{ '<start_function_call>call:' }}", "functiongemma");
        check("'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '\\n' + '```json'", "deepseek-r1");
        check("'<｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>' + arguments", "deepseek-v3.1");
        check("\"[TOOL_CALLS]\" + name + \"[ARGS]\" + arguments", "mistral-v11");
        check("{{- \"[TOOL_CALLS] [\" }}", "mistral");
        check("<tool_call>\\n<function=name>\\n<parameter=key>", "qwen3-coder");
        check("<|start_of_role|>assistant {{- '<|tool_call|>' }}", "granite");
        check("<tool_call>\\n{\"name\": <function-name>, \"arguments\": <args-json-object>}", "hermes");
        check("<tool_call>{function-name}\\n<arg_key> {% set _args = tc.arguments or {} %}", "generic");
        check("<|start_header_id|> {\"name\": function name, \"parameters\": dictionary", "llama3");
        check("<start_of_turn>user", "gemma");
        check("{% for message in messages %}<|im_start|>{{ message.role }}", "generic");
        check("", "generic");
    }

    #[test]
    fn a_name_is_a_familys_or_the_error_names_those_that_there_are() {
        for name in names() {
            assert_eq!(name.parse::<FamilyName>().unwrap().0.name, name);
        }
        let error = |name: &str| name.parse::<FamilyName>().unwrap_err().to_string();
        assert_eq!(error("qwen3-codr"), "there is no family \"qwen3-codr\"; did you mean `qwen3-coder`?");
        assert!(error("x").ends_with("`llama3`, `gemma`, `generic`"), "{}", error("x"));
        assert!(error(&"x".repeat(2 << 20)).len() < 1000);
    }
}
