//! Reads `lora`: the adapters that a request is computed under.
use camshaft_core::limits;

use crate::wire::error::RequestError;
use crate::wire::fields::Fields;

/// An entry of the list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wanted<'a> {
    pub(crate) id: &'a str,
    /// `None`: the one in the adapter's configuration.
    pub(crate) scale: Option<f32>,
}

/// The field of an entry's name.
pub(crate) fn path(index: usize) -> String {
    format!("lora[{index}].id")
}

/// # Errors
/// 400: it is not a list of objects with `id` and `scale`, is too long, names one twice, or has a scale out of range.
pub(crate) fn wanted<'a>(fields: &Fields<'a>) -> Result<Vec<Wanted<'a>>, RequestError> {
    let Some(list) = fields.list("lora")? else { return Ok(Vec::new()) };
    let max = limits::ADAPTERS_OF_REQUEST;
    if list.len() > max {
        return Err(RequestError::field("lora", format!("lora may name at most {max} adapters, got {}", list.len())));
    }
    let mut wanted: Vec<Wanted<'a>> = Vec::with_capacity(list.len());
    for (index, value) in list.iter().enumerate() {
        let entry = Fields::of(value, &format!("lora[{index}]"))?;
        entry.require("id")?;
        let id = entry.text("id")?.unwrap_or_default();
        if wanted.iter().any(|earlier| earlier.id == id) {
            let id = crate::wire::echo::Shown(id);
            return Err(RequestError::field(path(index), format!("{} names {id:?} a second time", path(index))));
        }
        let scale = entry.number("scale", limits::ADAPTER_SCALE)?.map(|scale| scale as f32);
        wanted.push(Wanted { id, scale });
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(lora: Value) -> Result<Vec<(String, Option<f32>)>, String> {
        let body = serde_json::Map::from_iter([("lora".to_owned(), lora)]);
        let wanted = wanted(&Fields::of_body(&body)).map_err(|error| error.to_string())?;
        Ok(wanted.into_iter().map(|one| (one.id.to_owned(), one.scale)).collect())
    }

    #[test]
    fn reads_names_with_scales() {
        assert_eq!(read(Value::Null), Ok(vec![]));
        assert_eq!(read(json!([])), Ok(vec![]));
        let two = read(json!([{"id": "a", "scale": 0.5}, {"id": "b", "scale": null}]));
        assert_eq!(two, Ok(vec![("a".to_owned(), Some(0.5)), ("b".to_owned(), None)]));
        assert!(read(json!([{"id": "a", "scale": 100}, {"id": "b", "scale": -100}])).is_ok());
    }

    #[test]
    fn names_what_is_wrong_with_its_bound() {
        let many = |count: usize| json!((0..count).map(|n| json!({"id": n.to_string()})).collect::<Vec<_>>());
        assert!(read(many(limits::ADAPTERS_OF_REQUEST)).is_ok());
        for (lora, expected) in [
            (many(limits::ADAPTERS_OF_REQUEST + 1), "lora may name at most 8 adapters, got 9"),
            (json!("a"), "lora must be a list, got a string"),
            (json!(["a"]), "lora[0] must be an object, got a string"),
            (json!([{"scale": 1}]), "lora[0].id is required"),
            // As llama.cpp's server names them.
            (json!([{"id": 0, "scale": 1}]), "lora[0].id must be a string, got 0"),
            (json!([{"id": "a", "scale": "1"}]), "lora[0].scale must be a number, got a string"),
            (
                json!([{"id": "b"}, {"id": "a", "scale": 100.1}]),
                "lora[1].scale must be between -100 and 100, got 100.1",
            ),
            (json!([{"id": "a", "scale": -1e300}]), "lora[0].scale must be between -100 and 100"),
            (json!([{"id": "a"}, {"id": "a"}]), "lora[1].id names \"a\" a second time"),
        ] {
            let error = read(lora).unwrap_err();
            assert!(error.starts_with(expected), "{expected}: {error}");
        }
    }
}
