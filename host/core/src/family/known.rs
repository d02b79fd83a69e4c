//! The families, as their models' chat templates and model cards describe them.
use crate::family::description::{Calls, Channels, Family, Form, Keys, Thinking};

/// All families. More specific families come first.
pub(crate) const FAMILIES: &[&Family] = &[
    &HARMONY,
    &GEMMA_4,
    &FUNCTION_GEMMA,
    &DEEPSEEK_R1,
    &DEEPSEEK_V3_1,
    &MISTRAL_V11,
    &MISTRAL,
    &QWEN3_CODER,
    &GRANITE,
    &HERMES,
    &LLAMA3,
    &GEMMA,
    &GENERIC,
];

const THINK: Thinking = Thinking { begin: "<think>", end: "</think>", repeats: false };
const ARGUMENTS: Keys = Keys { name: "name", arguments: "arguments" };
const PARAMETERS: Keys = Keys { name: "name", arguments: "parameters" };

/// What most families have in common.
const FAMILY: Family = Family {
    name: "",
    detected_by: &[],
    thinking: None,
    calls: CALLS,
    channels: None,
    framing: &[],
    special: &[],
    stops: &[],
    notation_in_prompt: false,
};
const CALLS: Calls = Calls {
    open: "",
    begins: &[""],
    form: Form::Object(ARGUMENTS),
    end: "",
    separator: "",
    close: "",
    unmarked: false,
    parallel: true,
};

/// gpt-oss: each part of an answer is a message with a channel.
pub(crate) static HARMONY: Family = Family {
    name: "harmony",
    detected_by: &[&["<|channel|>", "<|message|>"]],
    thinking: Some(Thinking { begin: "<|channel|>analysis<|message|>", end: "<|end|>", repeats: true }),
    calls: Calls {
        begins: &["<|channel|>commentary to=functions.", "<|channel|>analysis to=functions."],
        form: Form::Named { between: &[" <|constrain|>json<|message|>", "json<|message|>", "<|message|>"], id: None },
        end: "<|call|>",
        separator: "<|start|>assistant",
        parallel: false,
        ..CALLS
    },
    channels: Some(Channels {
        answer: "<|channel|>final<|message|>",
        preamble: "<|channel|>commentary<|message|>",
        end: "<|end|>",
        next: "<|start|>assistant",
    }),
    framing: &["<|channel|>final <|constrain|>json<|message|>", "<|return|>"],
    special: &["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"],
    stops: &["<|call|>"],
    ..FAMILY
};

static GEMMA_4: Family = Family {
    name: "gemma4",
    detected_by: &[&["<|tool_call>call:"]],
    thinking: Some(Thinking { begin: "<|channel>thought", end: "<channel|>", repeats: false }),
    calls: Calls {
        begins: &["<|tool_call>call:"],
        form: Form::Braces { quote: "<|\"|>" },
        end: "<tool_call|>",
        ..CALLS
    },
    special: &["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"],
    stops: &["<|tool_response>"],
    ..FAMILY
};

static FUNCTION_GEMMA: Family = Family {
    name: "functiongemma",
    detected_by: &[&["<start_function_call>"]],
    calls: Calls {
        begins: &["<start_function_call>call:"],
        form: Form::Braces { quote: "<escape>" },
        end: "<end_function_call>",
        ..CALLS
    },
    special: &["<start_function_call>", "<end_function_call>", "<escape>"],
    stops: &["<start_function_response>"],
    ..FAMILY
};

/// DeepSeek V3 and R1, and what was distilled of R1.
static DEEPSEEK_R1: Family = Family {
    name: "deepseek-r1",
    detected_by: &[&["<｜tool▁call▁begin｜>", "```json"]],
    thinking: Some(THINK),
    calls: Calls {
        open: "<｜tool▁calls▁begin｜>",
        begins: &["<｜tool▁call▁begin｜>function<｜tool▁sep｜>"],
        form: Form::Named { between: &["\n```json\n"], id: None },
        end: "\n```<｜tool▁call▁end｜>",
        separator: "\n",
        close: "<｜tool▁calls▁end｜>",
        ..CALLS
    },
    special: DEEPSEEK_TOKENS,
    ..FAMILY
};

static DEEPSEEK_V3_1: Family = Family {
    name: "deepseek-v3.1",
    detected_by: &[&["<｜tool▁call▁begin｜>"]],
    thinking: Some(THINK),
    calls: Calls {
        open: "<｜tool▁calls▁begin｜>",
        begins: &["<｜tool▁call▁begin｜>"],
        form: Form::Named { between: &["<｜tool▁sep｜>"], id: None },
        end: "<｜tool▁call▁end｜>",
        close: "<｜tool▁calls▁end｜>",
        ..CALLS
    },
    special: DEEPSEEK_TOKENS,
    ..FAMILY
};

const DEEPSEEK_TOKENS: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<think>",
    "</think>",
];

/// Mistral's tokenizers from version 11 on: a name instead of a list.
static MISTRAL_V11: Family = Family {
    name: "mistral-v11",
    detected_by: &[&["[TOOL_CALLS]", "[ARGS]"]],
    thinking: Some(Thinking { begin: "[THINK]", end: "[/THINK]", repeats: false }),
    calls: Calls {
        begins: &["[TOOL_CALLS]"],
        form: Form::Named { between: &["[ARGS]"], id: Some("[CALL_ID]") },
        ..CALLS
    },
    special: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
    ..FAMILY
};

static MISTRAL: Family = Family {
    name: "mistral",
    detected_by: &[&["[TOOL_CALLS]"]],
    thinking: Some(Thinking { begin: "[THINK]", end: "[/THINK]", repeats: false }),
    calls: Calls { open: "[TOOL_CALLS]", begins: &[""], form: Form::List(ARGUMENTS), separator: ", ", ..CALLS },
    special: &["[TOOL_CALLS]", "[THINK]", "[/THINK]"],
    ..FAMILY
};

static QWEN3_CODER: Family = Family {
    name: "qwen3-coder",
    detected_by: &[&["<tool_call>", "<function=", "<parameter="]],
    thinking: Some(THINK),
    calls: Calls { begins: &["<tool_call>\n"], form: Form::Elements, end: "\n</tool_call>", separator: "\n", ..CALLS },
    special: HERMES_TOKENS,
    ..FAMILY
};

/// Granite 3. (Granite 4 writes calls as Hermes does.)
static GRANITE: Family = Family {
    name: "granite",
    detected_by: &[&["<|tool_call|>"]],
    thinking: Some(THINK),
    calls: Calls { open: "<|tool_call|>", begins: &[""], form: Form::List(ARGUMENTS), separator: ", ", ..CALLS },
    framing: &["<response>", "</response>"],
    special: &["<|tool_call|>", "<think>", "</think>"],
    ..FAMILY
};

/// Hermes 2 Pro, Qwen 2.5 and 3, Granite 4 and many others.
pub(crate) static HERMES: Family = Family {
    name: "hermes",
    // Others have the tag, too, but no JSON in it.
    detected_by: &[&["<tool_call>", "\"arguments"]],
    thinking: Some(THINK),
    calls: TAGGED,
    special: HERMES_TOKENS,
    ..FAMILY
};

const TAGGED: Calls = Calls {
    begins: &["<tool_call>\n"],
    form: Form::Object(ARGUMENTS),
    end: "\n</tool_call>",
    separator: "\n",
    ..CALLS
};
const HERMES_TOKENS: &[&str] = &["<tool_call>", "</tool_call>", "<think>", "</think>"];

/// Llama 3.1 to 3.3. Not the calls of built-in tools, which are no JSON.
static LLAMA3: Family = Family {
    name: "llama3",
    detected_by: &[&["<|python_tag|>"], &["<|start_header_id|>", "\"parameters\""]],
    calls: Calls {
        begins: &["<|python_tag|>"],
        form: Form::Object(PARAMETERS),
        separator: "; ",
        unmarked: true,
        ..CALLS
    },
    special: &["<|python_tag|>"],
    stops: &["<|eom_id|>"],
    ..FAMILY
};

/// Gemma up to 3, whose templates know no tools.
static GEMMA: Family = Family {
    name: "gemma",
    detected_by: &[&["<start_of_turn>"]],
    calls: Calls {
        begins: &["```tool_code\n"],
        form: Form::Object(PARAMETERS),
        end: "\n```",
        separator: "\n",
        ..CALLS
    },
    ..FAMILY
};

/// Any other model. It learns from its prompt how to write a call.
pub(crate) static GENERIC: Family = Family {
    name: "generic",
    thinking: Some(THINK),
    calls: TAGGED,
    special: HERMES_TOKENS,
    notation_in_prompt: true,
    ..FAMILY
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
    }

    /// The grammar writes these as tokens, and the server shows exactly these: a forgotten one would vanish from the text.
    #[test]
    fn markers_that_look_like_control_tokens_are_named_as_such() {
        for family in FAMILIES {
            let calls = &family.calls;
            let mut markers = vec![calls.open, calls.begins[0], calls.end, calls.separator, calls.close];
            match &calls.form {
                Form::Named { between, id } => markers.extend(between.iter().copied().chain(*id)),
                Form::Braces { quote } => markers.push(quote),
                _ => {}
            }
            markers.extend(family.thinking.iter().flat_map(|thinking| [thinking.begin, thinking.end]));
            for marker in markers {
                let rest = family.special.iter().fold(marker.to_owned(), |rest, token| rest.replace(token, ""));
                assert!(!rest.contains(['<', '[']), "{}: {marker:?} has a token that is not named", family.name);
            }
        }
    }
}
