//! Reads what stands between texts and arguments: markers, names and the members of a call's object, from text that may not be
//! complete yet.
use std::borrow::Cow;

use crate::family::description::{Calls, Form, Keys};
use crate::family::tools::{Tools, of_name};
use crate::limits;

/// Why reading ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The text ended, and what there is may still become what is expected.
    More,
    /// Something else stands there.
    Fail,
}

/// Whitespace characters between two parts, at most.
pub(crate) const SPACE: usize = 32;
/// Members of a call's object up to its arguments, and after them, at most.
const MEMBERS: usize = 4;
/// Bytes of a member that is neither name nor arguments, at most.
const MEMBER_BYTES: usize = 64;

/// Reads from the beginning of a text. After [`Stop::Fail`] it stands where it failed, which is the same however much text follows.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// What a call says before its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: Option<&'a str>,
    /// Arguments follow. Otherwise the object has none.
    pub(crate) arguments: bool,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// At most so many bytes of what is left: reading looks no further, so that it takes no longer for much text.
    pub(crate) fn window(&self, bytes: usize) -> &'a str {
        let rest = self.rest();
        &rest[..rest.floor_char_boundary(bytes)]
    }

    /// Skips whitespace.
    pub(crate) fn space(&mut self) -> Result<(), Stop> {
        let rest = self.window(SPACE + 1);
        let len = rest.len() - rest.trim_ascii_start().len();
        if len > SPACE {
            return Err(Stop::Fail);
        }
        self.at += len;
        Ok(())
    }

    pub(crate) fn literal(&mut self, marker: &str) -> Result<(), Stop> {
        let rest = self.rest();
        if rest.starts_with(marker) {
            self.at += marker.len();
            return Ok(());
        }
        Err(if marker.starts_with(rest) { Stop::More } else { Stop::Fail })
    }

    /// Whitespace, and a marker without the whitespace around it. Nothing for one that is only whitespace.
    pub(crate) fn spaced(&mut self, marker: &str) -> Result<(), Stop> {
        let marker = marker.trim_ascii();
        if marker.is_empty() {
            return Ok(());
        }
        self.space()?;
        self.literal(marker)
    }

    /// One of several markers, as [`Self::spaced`].
    pub(crate) fn one_of(&mut self, markers: &[&str]) -> Result<(), Stop> {
        let start = self.at;
        let mut stop = Stop::Fail;
        for marker in markers {
            match self.spaced(marker) {
                Ok(()) => return Ok(()),
                Err(Stop::More) => stop = Stop::More,
                Err(Stop::Fail) => {}
            }
            self.at = start;
        }
        Err(stop)
    }

    /// A tool's name, up to the first character that cannot belong to one.
    pub(crate) fn name(&mut self) -> Result<&'a str, Stop> {
        let rest = self.window(limits::TOOL_NAME_BYTES + 4);
        let len = rest.find(|character| !of_name(character)).unwrap_or(rest.len());
        if len > limits::TOOL_NAME_BYTES {
            return Err(Stop::Fail);
        }
        if len == rest.len() {
            return Err(Stop::More);
        }
        if len == 0 {
            return Err(Stop::Fail);
        }
        self.at += len;
        Ok(&rest[..len])
    }

    /// A short JSON string without escapes.
    fn string(&mut self) -> Result<&'a str, Stop> {
        self.literal("\"")?;
        let rest = self.window(MEMBER_BYTES + 1);
        match rest.find(['"', '\\', '\n']) {
            Some(len) if len <= MEMBER_BYTES && rest.as_bytes()[len] == b'"' => {
                self.at += len + 1;
                Ok(&rest[..len])
            }
            None if self.rest().len() <= MEMBER_BYTES => Err(Stop::More),
            _ => Err(Stop::Fail),
        }
    }

    /// Skips bytes that were looked at.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// What stands before a character, at most so many bytes. Skips both.
    pub(crate) fn until(&mut self, end: char, bytes: usize) -> Result<&'a str, Stop> {
        self.until_marker(end.encode_utf8(&mut [0; 4]), bytes)
    }

    /// What stands before a marker, at most so many bytes. Skips both.
    pub(crate) fn until_marker(&mut self, end: &str, bytes: usize) -> Result<&'a str, Stop> {
        let window = self.window(bytes + end.len());
        match window.find(end) {
            Some(len) if len <= bytes => {
                self.at += len + end.len();
                Ok(&window[..len])
            }
            None if self.rest().len() < bytes + end.len() => Err(Stop::More),
            _ => Err(Stop::Fail),
        }
    }

    /// The next character, which it leaves there.
    pub(crate) fn peek(&self) -> Result<char, Stop> {
        self.rest().chars().next().ok_or(Stop::More)
    }

    /// What a call says before its arguments, after the markers that begin it. The name must be one of the tools'.
    pub(crate) fn head(&mut self, form: &Form, tools: &Tools) -> Result<Head<'a>, Stop> {
        match form {
            Form::Object(keys) | Form::List(keys) => self.members(keys, tools),
            Form::Named { between, id } => {
                let name = self.known(tools)?;
                let id = match id {
                    Some(marker) => self.identifier(marker)?,
                    None => None,
                };
                self.one_of(between)?;
                self.space()?;
                if self.peek()? == '{' { Ok(Head { name, id, arguments: true }) } else { Err(Stop::Fail) }
            }
            Form::Elements => {
                self.spaced("<function=")?;
                let name = self.known(tools)?;
                self.literal(">")?;
                Ok(Head { name, id: None, arguments: true })
            }
            Form::Braces { .. } => {
                let name = self.known(tools)?;
                if self.peek()? == '{' { Ok(Head { name, id: None, arguments: true }) } else { Err(Stop::Fail) }
            }
        }
    }

    fn known(&mut self, tools: &Tools) -> Result<&'a str, Stop> {
        let start = self.at;
        let name = self.name()?;
        if tools.get(name).is_none() {
            self.at = start;
            return Err(Stop::Fail);
        }
        Ok(name)
    }

    /// An identifier after its marker, if the marker is there.
    fn identifier(&mut self, marker: &str) -> Result<Option<&'a str>, Stop> {
        let start = self.at;
        match self.spaced(marker) {
            Ok(()) => self.name().map(Some),
            Err(Stop::More) => Err(Stop::More),
            Err(Stop::Fail) => {
                self.at = start;
                Ok(None)
            }
        }
    }

    /// The members of a call's object up to its arguments: the name, and what templates write beside it.
    fn members(&mut self, keys: &Keys, tools: &Tools) -> Result<Head<'a>, Stop> {
        let (mut name, mut id) = (None, None);
        self.spaced("{")?;
        for _ in 0..MEMBERS {
            self.space()?;
            let start = self.at;
            let key = self.string()?;
            self.spaced(":")?;
            self.space()?;
            if key == keys.arguments {
                let Some(name) = name else { return self.fail(start) };
                return if self.peek()? == '{' { Ok(Head { name, id, arguments: true }) } else { Err(Stop::Fail) };
            }
            let value = self.peek().and_then(|_| self.string())?;
            match key {
                _ if key == keys.name && tools.get(value).is_some() => name = Some(value),
                "id" => id = Some(value),
                "type" => {}
                _ => return self.fail(start),
            }
            self.space()?;
            match (self.peek()?, name) {
                (',', _) => self.literal(",")?,
                ('}', Some(name)) => return Ok(Head { name, id, arguments: false }),
                _ => return Err(Stop::Fail),
            }
        }
        Err(Stop::Fail)
    }

    fn fail<T>(&mut self, at: usize) -> Result<T, Stop> {
        self.at = at;
        Err(Stop::Fail)
    }

    /// The markers that begin a call. `first`: the first of an answer.
    pub(crate) fn begin(&mut self, calls: &Calls, first: bool) -> Result<(), Stop> {
        if first {
            self.spaced(calls.open)?;
            if matches!(calls.form, Form::List(_)) {
                self.spaced("[")?;
            }
        } else {
            self.spaced(calls.separator)?;
        }
        match self.one_of(calls.begins) {
            Err(_) if calls.unmarked && self.rest().trim_ascii_start().starts_with('{') => Ok(()),
            begun => begun,
        }
    }

    /// The end of a call after its arguments.
    pub(crate) fn tail(&mut self, calls: &Calls) -> Result<(), Stop> {
        if let Form::Object(_) | Form::List(_) = calls.form {
            self.space()?;
            for _ in 0..MEMBERS {
                if self.peek()? != ',' {
                    break;
                }
                self.literal(",")?;
                self.space()?;
                self.string()?;
                self.spaced(":")?;
                self.space()?;
                self.string()?;
                self.space()?;
            }
            // Models forget the last brace more often than any other.
            if self.peek()? == '}' || calls.end.is_empty() {
                self.literal("}")?;
            }
        }
        self.spaced(calls.end)
    }

    /// What follows a call: the end of all (true), or another call's beginning.
    pub(crate) fn next(&mut self, calls: &Calls) -> Result<bool, Stop> {
        let close: Cow<'_, str> = match calls.form {
            Form::List(_) => format!("]{}", calls.close).into(),
            _ => calls.close.into(),
        };
        let start = self.at;
        let closed = if close.is_empty() { Err(Stop::Fail) } else { self.spaced(&close) };
        if closed.is_ok() {
            return Ok(true);
        }
        self.at = start;
        match (self.begin(calls, false), closed) {
            (Err(Stop::Fail), Err(Stop::More)) => Err(Stop::More),
            (begun, _) => begun.map(|()| false),
        }
    }
}
