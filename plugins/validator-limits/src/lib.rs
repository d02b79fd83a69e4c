//! Validator policy: bounds on prompt and output length, temperature and the number of choices.
//!
//! A request past a bound is refused with 400 `policy_refused`, which names the field. A client that did not set
//! `max_tokens` is not refused: if the host's default exceeds `max-tokens`, the request is amended. Only
//! `max-prompt-tokens` applies to requests that generate nothing (`max-tokens` is 0), such as embeddings.
//!
//! | setting (all optional) | |
//! |---|---|
//! | `max-tokens` | maximum tokens that one choice may generate, at least 1 |
//! | `max-prompt-tokens` | maximum prompt length in tokens, at least 1 |
//! | `min-temperature`, `max-temperature` | temperature bounds, both inclusive |
//! | `max-n` | maximum number of choices of all prompts together, at least 1 |
#![forbid(unsafe_code)]

use camshaft_plugin::Setup;
use camshaft_plugin::validator::{Policy, Refusal, Request, Verdict};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// `[settings]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub max_tokens: Option<u32>,
    pub max_prompt_tokens: Option<u32>,
    pub min_temperature: Option<f32>,
    pub max_temperature: Option<f32>,
    pub max_n: Option<u32>,
}

/// The policy: validated settings.
#[derive(Debug)]
pub struct Limits(Settings);

impl Policy for Limits {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        for (name, value) in [
            ("max-tokens", settings.max_tokens),
            ("max-prompt-tokens", settings.max_prompt_tokens),
            ("max-n", settings.max_n),
        ] {
            if value == Some(0) {
                return Err(format!("settings.{name} must be at least 1, not 0"));
            }
        }
        for (name, value) in
            [("min-temperature", settings.min_temperature), ("max-temperature", settings.max_temperature)]
        {
            if value.is_some_and(|value| !(value.is_finite() && value >= 0.0)) {
                return Err(format!("settings.{name} must be a number from 0 up"));
            }
        }
        match (settings.min_temperature, settings.max_temperature) {
            (Some(min), Some(max)) if min > max => {
                Err(format!("settings.min-temperature {min} is above max-temperature {max}"))
            }
            _ => Ok(Self(settings)),
        }
    }

    fn set_up(&mut self, setup: &Setup) -> Result<(), String> {
        // Nothing is kept of a request.
        setup.reuse();
        Ok(())
    }

    fn validate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        if let Some(most) = self.0.max_prompt_tokens.filter(|most| request.prompt_tokens > *most) {
            let message = format!("the prompt has {} tokens, at most {most} are allowed", request.prompt_tokens);
            let refusal = refused(message);
            return Err(match prompt_field(request) {
                Some(field) => refusal.param(field),
                None => refusal,
            });
        }
        // It generates nothing, whatever the endpoint's name.
        if request.max_tokens == 0 {
            return Ok(Verdict::Accept);
        }
        let t = request.temperature;
        if let Some(least) = self.0.min_temperature.filter(|least| t < *least) {
            return Err(refused(format!("temperature is {t}, at least {least} is required")).param("temperature"));
        }
        if let Some(most) = self.0.max_temperature.filter(|most| t > *most) {
            return Err(refused(format!("temperature is {t}, at most {most} is allowed")).param("temperature"));
        }
        if let Some(most) = self.0.max_n.filter(|most| request.n > *most) {
            let message =
                format!("the request asks for {} choices (prompts times n), at most {most} are allowed", request.n);
            return Err(refused(message).param("n"));
        }
        match self.0.max_tokens.filter(|most| request.max_tokens > *most) {
            Some(most) if request.max_tokens_set => {
                let field = output_field(request);
                Err(refused(format!("{field} is {}, at most {most} is allowed", request.max_tokens)).param(field))
            }
            Some(most) => Ok(Verdict::Amend(format!("{{\"max_tokens\": {most}}}"))),
            None => Ok(Verdict::Accept),
        }
    }
}

fn refused(message: String) -> Refusal {
    Refusal::new(400, "policy_refused", message)
}

/// The field that holds the prompt, at the endpoints that this policy knows.
fn prompt_field(request: &Request<'_>) -> Option<&'static str> {
    match request.endpoint.as_str() {
        "chat" => Some("messages"),
        "completion" => Some("prompt"),
        "embedding" => Some("input"),
        _ => None,
    }
}

/// The field with which the client limited its output.
fn output_field(request: &Request<'_>) -> &'static str {
    /// `null` counts as absent.
    #[derive(Deserialize)]
    struct Body {
        max_completion_tokens: Option<IgnoredAny>,
    }
    match serde_json::from_str(&request.body()) {
        Ok(Body { max_completion_tokens: Some(_) }) => "max_completion_tokens",
        _ => "max_tokens",
    }
}

camshaft_plugin::export_validator!(Limits);

#[cfg(test)]
mod tests;
