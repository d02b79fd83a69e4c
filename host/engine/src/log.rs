//! Passes llama.cpp's log on to `tracing`, line by line.
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

use llama_cpp_sys_2 as sys;

/// By which filters name these lines. Operators have it in their `log.level`: it stays.
const TARGET: &str = "llama-cpp-2";

/// Part of the warning that the KV cache is larger than the trained context. It is shared by many sequences, each of which is kept within
/// the trained context.
const CONTEXT_OVERFLOW: &str = "possible training context overflow";

static LLAMA: Source = Source::new("llama.cpp");
static GGML: Source = Source::new("ggml");

/// A library that logs. Each has a line of its own, so that one does not continue the other's.
#[derive(Debug)]
struct Source {
    name: &'static str,
    line: Mutex<Line>,
}

/// What was logged without an end of line: messages that continue it follow.
#[derive(Debug)]
struct Line {
    /// Of the last message that continued nothing.
    level: sys::ggml_log_level,
    text: String,
}

/// A whole line, and its level.
type Whole<'a> = (sys::ggml_log_level, Cow<'a, str>);

/// From now on all lines go to `tracing`.
pub(crate) fn forward() {
    let of = |source: &'static Source| std::ptr::from_ref(source).cast_mut().cast::<c_void>();
    // SAFETY: `take` has the type that is asked for, and the sources live as long as the process. llama.cpp's function sets that of
    // ggml, too, so it is called first. Nobody logs meanwhile: this happens before anything else is asked of llama.cpp.
    unsafe {
        sys::llama_log_set(Some(take), of(&LLAMA));
        sys::ggml_log_set(Some(take), of(&GGML));
    }
}

unsafe extern "C" fn take(level: sys::ggml_log_level, text: *const c_char, source: *mut c_void) {
    // SAFETY: it is one of the sources that `forward` gave.
    let source = unsafe { &*source.cast::<Source>() };
    // SAFETY: the text ends with a zero, and stays until this returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // Others may log while these lines are written.
    let lines = source.line.lock().unwrap_or_else(PoisonError::into_inner).add(level, &text);
    lines.iter().flatten().for_each(|(level, line)| source.write(*level, line));
}

impl Source {
    const fn new(name: &'static str) -> Self {
        Self { name, line: Mutex::new(Line { level: sys::GGML_LOG_LEVEL_NONE, text: String::new() }) }
    }

    fn write(&self, level: sys::ggml_log_level, line: &str) {
        let (function, message) = function(line);
        // Evaluated only if somebody wants the line. The level and the target of an event are constants.
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(
                    target: TARGET,
                    tracing::Level::$level,
                    message,
                    module = function.map(|function| format!("{}::{function}", self.name))
                )
            };
        }
        match level {
            sys::GGML_LOG_LEVEL_ERROR => event!(ERROR),
            sys::GGML_LOG_LEVEL_WARN => event!(WARN),
            sys::GGML_LOG_LEVEL_DEBUG => event!(DEBUG),
            _ => event!(INFO),
        }
    }
}

impl Line {
    /// The lines that are whole with this message: one that nothing continued, and its own.
    fn add<'a>(&mut self, level: sys::ggml_log_level, message: &'a str) -> [Option<Whole<'a>>; 2] {
        let mut abandoned = None;
        if level != sys::GGML_LOG_LEVEL_CONT {
            abandoned = self.take().map(|text| (self.level, Cow::Owned(text)));
            self.level = level;
        }
        let Some(end) = message.strip_suffix('\n') else {
            self.text.push_str(message);
            return [abandoned, None];
        };
        let whole = self.take().map_or(Cow::Borrowed(end), |start| Cow::Owned(start + end));
        [abandoned, Some((self.level, whole)).filter(|(_, line)| !line.contains(CONTEXT_OVERFLOW))]
    }

    fn take(&mut self) -> Option<String> {
        (!self.text.is_empty()).then(|| std::mem::take(&mut self.text))
    }
}

/// The function that a line names before its message, if any, and the message.
fn function(line: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    match line.split_once(": ") {
        Some((name, message)) if is_name(name) => (Some(name), message),
        _ => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use sys::{GGML_LOG_LEVEL_CONT as CONT, GGML_LOG_LEVEL_INFO as INFO, GGML_LOG_LEVEL_WARN as WARN};

    use super::*;

    #[test]
    fn a_line_is_passed_on_when_it_is_whole_with_the_level_of_its_beginning() {
        let check = |messages: &[(sys::ggml_log_level, &str)], expected: &[(sys::ggml_log_level, &str)]| {
            let mut line = Line { level: INFO, text: String::new() };
            let add = |&(level, text)| line.add(level, text).into_iter().flatten().collect::<Vec<_>>();
            let lines: Vec<Whole<'_>> = messages.iter().flat_map(add).collect();
            let expected: Vec<Whole<'_>> = expected.iter().map(|&(level, text)| (level, Cow::Borrowed(text))).collect();
            assert_eq!(lines, expected, "{messages:?}");
        };
        check(&[(WARN, "a\n"), (INFO, "b\n")], &[(WARN, "a"), (INFO, "b")]);
        check(&[(WARN, "a"), (CONT, "b"), (CONT, "c\n"), (INFO, "d\n")], &[(WARN, "abc"), (INFO, "d")]);
        check(&[(WARN, "a"), (INFO, "b\n")], &[(WARN, "a"), (INFO, "b")]);
        check(&[(WARN, "a"), (INFO, "b"), (CONT, "\n")], &[(WARN, "a"), (INFO, "b")]);
        // Nothing began what is continued: it has the level of the message before.
        check(&[(WARN, "a\n"), (CONT, "."), (CONT, "."), (CONT, "\n")], &[(WARN, "a"), (WARN, "..")]);
        check(&[(WARN, "a")], &[]);
        check(&[(INFO, "\n")], &[(INFO, "")]);
        check(&[(INFO, "a\nb\n")], &[(INFO, "a\nb")]);
        let overflow = "n_ctx_seq (8192) > n_ctx_train (1024) -- possible training context overflow\n";
        check(&[(WARN, overflow), (WARN, "something else\n")], &[(WARN, "something else")]);
    }

    #[test]
    fn a_function_is_told_from_the_message() {
        assert_eq!(function("load_model: 3 layers: all"), (Some("load_model"), "3 layers: all"));
        for line in ["3 layers: all", ": nothing", "Load: it", "load:it", "load", ""] {
            assert_eq!(function(line), (None, line));
        }
    }
}
