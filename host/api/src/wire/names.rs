//! What a client calls the fields of its request, where another endpoint reads them under its own names.

/// Paths of the endpoint that reads a request, each with the client's. `[]` stands for any index: the client's path has the same ones, in
/// their order. The first path that begins a field's counts; what follows it is the same in both.
pub(crate) type Paths = [(&'static str, &'static str)];

/// Indices in a path that begins so are those of messages, and of calls in them. The client has them elsewhere.
const MESSAGE: &str = "messages[]";
/// The same of a tool, of which some of the client's may be left out.
const TOOL: &str = "tools[]";

/// The names of the fields of one request.
#[derive(Debug, Default)]
pub(crate) struct Names {
    paths: &'static Paths,
    messages: Vec<Origin>,
    /// The client's path of each tool.
    tools: Vec<String>,
}

/// Where in the client's body something is: the index of an item, and of a part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) item: Option<usize>,
    pub(crate) part: Option<usize>,
}

/// Where a message of a chat comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) at: Place,
    pub(crate) calls: Vec<Place>,
}

impl Place {
    pub(crate) fn item(item: usize) -> Self {
        Self { item: Some(item), part: None }
    }

    pub(crate) fn part(self, part: usize) -> Self {
        Self { part: Some(part), ..self }
    }

    fn indices(self) -> Vec<usize> {
        [self.item, self.part].into_iter().flatten().collect()
    }
}

impl Names {
    pub(crate) fn new(paths: &'static Paths, messages: Vec<Origin>, tools: Vec<String>) -> Self {
        Self { paths, messages, tools }
    }

    /// The same without what it knows of single messages.
    pub(crate) fn of_fields(&self) -> Self {
        Self { paths: self.paths, ..Self::default() }
    }

    /// The client's path of a field. `None`: it has no other.
    pub(crate) fn own(&self, path: &str) -> Option<String> {
        let mut fitting = self.paths.iter().filter_map(|(served, own)| Some((served, own, fit(path, served)?)));
        let (served, own, (indices, rest)) = fitting.next()?;
        if let (true, Some(within)) = (served.starts_with(TOOL), own.strip_prefix(TOOL)) {
            let tool = indices.first().and_then(|tool| self.tools.get(*tool));
            return Some(format!("{}{within}{rest}", tool.map_or("tools", String::as_str)));
        }
        let indices = if served.starts_with(MESSAGE) { self.of_message(&indices) } else { indices };
        Some(filled(own, &indices, rest))
    }

    /// Puts the client's path in the place of a field's, also where a message begins with it.
    pub(crate) fn rename(&self, path: &mut String, message: &mut String) {
        let Some(own) = self.own(path) else { return };
        if let Some(rest) = message.strip_prefix(path.as_str()) {
            *message = format!("{own}{rest}");
        }
        *path = own;
    }

    /// The client's indices of a message, or of a call in it.
    fn of_message(&self, indices: &[usize]) -> Vec<usize> {
        let origin = indices.first().and_then(|message| self.messages.get(*message));
        let place = origin.and_then(|origin| match indices.get(1) {
            None => Some(origin.at),
            Some(call) => origin.calls.get(*call).copied(),
        });
        place.unwrap_or_default().indices()
    }
}

/// The indices in a path that begins like the pattern, and what follows.
fn fit<'a>(path: &'a str, pattern: &str) -> Option<(Vec<usize>, &'a str)> {
    let mut pieces = pattern.split("[]");
    let mut rest = path.strip_prefix(pieces.next()?)?;
    let mut indices = Vec::new();
    for piece in pieces {
        let (index, after) = rest.strip_prefix('[')?.split_once(']')?;
        indices.push(index.parse().ok()?);
        rest = after.strip_prefix(piece)?;
    }
    // Not a field whose name only begins like it.
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some((indices, rest))
}

/// A path with these indices. Where one is missing, the path ends: it is somewhere in there.
fn filled(pattern: &str, indices: &[usize], rest: &str) -> String {
    let mut pieces = pattern.split("[]");
    let mut path = pieces.next().unwrap_or_default().to_owned();
    let mut indices = indices.iter();
    for piece in pieces {
        let Some(index) = indices.next() else { return path };
        path += &format!("[{index}]{piece}");
    }
    path + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: &Paths = &[
        ("messages[].tool_calls[].function", "input[]"),
        ("messages[].tool_call_id", "input[].parts[].call_id"),
        ("messages[]", "input[]"),
        ("messages", "input"),
        ("tools[].function.parameters", "tools[].schema"),
        ("tools[].function", "tools[]"),
        ("stop", "stop_sequences"),
    ];

    fn names() -> Names {
        let from = |item: usize| Origin { at: Place::item(item), calls: Vec::new() };
        let caller = Origin { calls: vec![Place::item(4), Place::item(5)], ..from(3) };
        let result = Origin { at: Place::item(6).part(2), calls: Vec::new() };
        Names::new(PATHS, vec![Origin::default(), caller, result], (0..20).map(|i| format!("tools[{i}]")).collect())
    }

    fn check(path: &str, expected: Option<&str>) {
        assert_eq!(names().own(path).as_deref(), expected, "{path}");
    }

    #[test]
    fn the_rest_of_a_path_is_kept() {
        check("stop", Some("stop_sequences"));
        check("stop[3]", Some("stop_sequences[3]"));
        check("tools[12].function.parameters.properties.a[0].not", Some("tools[12].schema.properties.a[0].not"));
        check("tools[0].function.name", Some("tools[0].name"));
    }

    #[test]
    fn other_fields_keep_their_names() {
        for path in ["", "stop_token_ids", "tools", "tools[0]", "tools[x].function", "tools[0].functions", "messages2"]
        {
            check(path, None);
        }
    }

    #[test]
    fn messages_and_calls_are_where_the_client_has_them() {
        check("messages", Some("input"));
        check("messages[1].content", Some("input[3].content"));
        check("messages[1].tool_calls[1].function.arguments", Some("input[5].arguments"));
        check("messages[2].tool_call_id", Some("input[6].parts[2].call_id"));
    }

    #[test]
    fn a_place_that_is_not_known_is_somewhere_in_the_field() {
        check("messages[0].content", Some("input"));
        check("messages[9].content", Some("input"));
        check("messages[1].tool_calls[7].function.name", Some("input"));
        check("messages[1].tool_call_id", Some("input[3].parts"));
        assert_eq!(names().of_fields().own("messages[1].content").as_deref(), Some("input"));
    }
}
