//! Lists of token ids in a body, as numbers: in a JSON tree each id would take many times its bytes.
use serde::Serialize;
use serde_json::Value;

/// Fields whose lists are kept this way.
pub(crate) const FIELDS: [&str; 3] = ["prompt", "input", "tokens"];

/// The value of such a field, if it holds nothing but ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum IdLists {
    One(Vec<u32>),
    Several(Vec<Vec<u32>>),
}

/// The lists of a body, by field. The body's own map holds an empty list in the place of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lists(Vec<(String, IdLists)>);

impl Lists {
    pub(crate) fn get(&self, field: &str) -> Option<&IdLists> {
        self.0.iter().find(|(name, _)| name == field).map(|(_, list)| list)
    }

    /// Takes a field's lists.
    pub(crate) fn take(&mut self, field: &str) -> Option<IdLists> {
        let at = self.0.iter().position(|(name, _)| name == field)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Sets a field's lists. `None`: its value is not kept here.
    pub(crate) fn set(&mut self, field: &str, lists: Option<IdLists>) {
        self.0.retain(|(name, _)| name != field);
        self.0.extend(lists.map(|lists| (field.to_owned(), lists)));
    }
}

/// A list of ids as a tree.
pub(crate) fn tree(ids: Vec<u32>) -> Value {
    Value::Array(ids.into_iter().map(Value::from).collect())
}
