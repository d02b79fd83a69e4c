//! What is known of a family of models: the markers and the order in which it writes thinking, text and tool calls.

/// How a family writes thinking and tool calls. Markers are text: where a vocabulary has
/// them as control tokens, those tokens have to be shown as their text ([`Family::special`]).
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// The name in configuration files.
    pub name: &'static str,
    /// A chat template that contains all strings of one of these lists is of this family.
    pub detected_by: &'static [&'static [&'static str]],
    pub thinking: Option<Thinking>,
    pub calls: Calls,
    /// Set where every part of an answer is a message with a header.
    pub channels: Option<Channels>,
    /// Markers around text that are neither text nor calls. The parser drops them.
    pub framing: &'static [&'static str],
    /// Parts of markers that are usually control tokens. Their text must reach the parser.
    pub special: &'static [&'static str],
    /// Control tokens that end a turn with calls, besides the model's end of text.
    pub stops: &'static [&'static str],
    /// Nothing is known of how models of it write calls: the prompt says how, whatever their chat templates show.
    pub notation_in_prompt: bool,
}

/// How a family thinks before it answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Thinking {
    pub begin: &'static str,
    pub end: &'static str,
    /// A family may think again after its first thoughts. Otherwise only an answer's beginning is thinking.
    pub repeats: bool,
}

/// How a family writes its calls: `open`, then calls with `separator` between them, then `close`.
#[derive(Debug, PartialEq, Eq)]
pub struct Calls {
    /// Begins the calls of an answer. Empty where each call has its own beginning only.
    pub open: &'static str,
    /// Begins each call. The first spelling is generated, all are read.
    pub begins: &'static [&'static str],
    pub form: Form,
    /// Ends each call.
    pub end: &'static str,
    /// Between two calls.
    pub separator: &'static str,
    /// Ends the calls of an answer.
    pub close: &'static str,
    /// An object at an answer's beginning is a call, too, without any marker. Text then begins otherwise.
    pub unmarked: bool,
    /// An answer may have several calls. Otherwise the model's turn ends with its first.
    pub parallel: bool,
}

/// How a call says its name and its arguments.
#[derive(Debug, PartialEq, Eq)]
pub enum Form {
    /// A JSON object with two members.
    Object(Keys),
    /// A JSON list of such objects.
    List(Keys),
    /// A name, a marker, and a JSON object. Of several markers the first is generated, and all are read.
    Named {
        between: &'static [&'static str],
        /// Begins an optional identifier after the name.
        id: Option<&'static str>,
    },
    /// A name and an element for each argument: `<function=NAME>`, `<parameter=KEY>` … `</parameter>`, `</function>`.
    Elements,
    /// A name and an object whose keys have no quotes and whose strings stand between two markers: `NAME{key:<|"|>text<|"|>}`.
    Braces { quote: &'static str },
}

/// The names of the members of a call that is a JSON object.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    pub name: &'static str,
    pub arguments: &'static str,
}

/// The headers of a family whose answers are several messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Channels {
    /// Begins the message that is the answer.
    pub answer: &'static str,
    /// Begins a message to the user before a call.
    pub preamble: &'static str,
    /// Ends a message that is not the last.
    pub end: &'static str,
    /// Begins the next message, before its header.
    pub next: &'static str,
}

/// Where an answer stands with respect to thinking when generation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingState {
    /// The answer has no thinking. What looks like its beginning is text.
    Off,
    /// The answer may begin with thinking.
    Possible,
    /// The prompt ended within thinking.
    Open,
}

/// What an answer's content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    Text,
    /// JSON, in which what looks like a marker is none.
    Json,
}

impl Calls {
    /// The markers that begin the calls of an answer, without the whitespace around them. The first is generated, all are read.
    pub fn triggers(&self) -> impl Iterator<Item = &'static str> {
        let one = (!self.open.is_empty()).then_some(self.open);
        let each = if one.is_some() { &[] } else { self.begins };
        one.into_iter().chain(each.iter().copied()).map(str::trim_ascii)
    }
}

impl Family {
    /// Where the answer to a rendered prompt stands: a prompt that ends within thinking has opened it.
    pub fn thinking_after(&self, prompt: &str) -> ThinkingState {
        let Some(thinking) = &self.thinking else { return ThinkingState::Off };
        if prompt.trim_end().ends_with(thinking.begin.trim_end()) {
            ThinkingState::Open
        } else {
            ThinkingState::Possible
        }
    }
}
