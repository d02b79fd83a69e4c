//! The settings of a model in an order: read and checked as those of the configuration are.
use camshaft_api::ModelRefusal;
use camshaft_core::engine::ModelKind;
use serde_json::{Map, Value};

use crate::bounds;
use crate::config::{self, ModelConfig};

/// Keys that say which file a model has: another one takes the place of all of them.
const OF_FILE: [&str; 3] = ["path", "source", "sha256"];

/// What an order says a model is.
///
/// # Errors
/// An unknown key, or a value of the wrong type or out of bounds.
pub(super) fn read(settings: Map<String, Value>) -> Result<ModelConfig, ModelRefusal> {
    // Left out, it is the file's name.
    if settings.get("id").and_then(Value::as_str) == Some("") {
        return Err(ModelRefusal::Invalid("id must have at least one character, got \"\"".to_owned()));
    }
    config::model_of(settings).map_err(|error| ModelRefusal::Invalid(error.to_string()))
}

/// A model's settings with those of an order over them. `null` takes a setting back.
///
/// # Errors
/// As [`read`].
pub(super) fn over(before: &ModelConfig, settings: Map<String, Value>) -> Result<ModelConfig, ModelRefusal> {
    let written = serde_json::to_value(before).map_err(|error| ModelRefusal::Invalid(error.to_string()))?;
    let Value::Object(mut all) = written else { return read(settings) };
    if settings.contains_key("path") || settings.contains_key("source") {
        OF_FILE.iter().for_each(|key| drop(all.remove(*key)));
    }
    all.extend(settings);
    read(all)
}

/// The settings that bound what a model of this kind runs at once, `null` where there is no bound.
pub(super) fn limits(config: &ModelConfig, kind: Option<ModelKind>) -> Map<String, Value> {
    // It is written into requests for settings in the same way.
    let written = serde_json::to_value(config).unwrap_or_default();
    let limit = |key: &str| (key.to_owned(), written.get(key).cloned().unwrap_or_default());
    bounds::keys(kind).map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn order(settings: Value) -> Result<ModelConfig, ModelRefusal> {
        let Value::Object(settings) = settings else { panic!("no object") };
        read(settings)
    }

    #[test]
    fn regression_an_empty_id_is_refused() {
        assert_eq!(order(json!({"path": "a.gguf"})).unwrap().id, "a");
        let refusal = order(json!({"path": "a.gguf", "id": ""})).unwrap_err();
        assert!(refusal.to_string().starts_with("id must have"), "{refusal}");
    }

    #[test]
    fn regression_what_nobody_has_set_is_no_setting() {
        let shown = |settings: Value| Value::Object(order(settings).unwrap().settings());
        assert_eq!(shown(json!({"id": "m", "path": "a.gguf"})), json!({"id": "m", "path": "a.gguf"}));
        let drafts = json!({"id": "m", "path": "a.gguf", "draft-tokens": 3});
        assert_eq!(shown(drafts.clone()), drafts);
    }

    #[test]
    fn regression_limits_are_those_of_the_models_kind() {
        let config = order(json!({"path": "a.gguf", "max-sequences": 3})).unwrap();
        let names = |kind: Option<ModelKind>| limits(&config, kind).keys().cloned().collect::<Vec<String>>();
        let generates = ["max-sequences", "max-tenant-sequences", "max-step-tokens"];
        assert_eq!(names(Some(ModelKind::Generate)), generates);
        assert_eq!(names(None), generates, "a file whose kind is not known yet");
        assert_eq!(names(Some(ModelKind::Embed)), ["max-step-tokens"]);
        assert_eq!(names(Some(ModelKind::Predict)), ["batch-size", "batch-window"]);
        assert_eq!(limits(&config, None)["max-sequences"], json!(3));
    }
}
