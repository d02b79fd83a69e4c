//! The events of a streamed response.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chat::ScoredToken;
use super::responses::{OutputItem, OutputPart, Response};

/// An event, which also has its type as its name. `sequence_number` counts from 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", deny_unknown_fields)]
pub(crate) enum ResponseEvent {
    #[serde(rename = "response.created")]
    Created { sequence_number: u64, response: Box<Response> },
    #[serde(rename = "response.in_progress")]
    InProgress { sequence_number: u64, response: Box<Response> },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { sequence_number: u64, output_index: u64, item: OutputItem },
    #[serde(rename = "response.content_part.added")]
    PartAdded { sequence_number: u64, item_id: String, output_index: u64, content_index: u64, part: OutputPart },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta { sequence_number: u64, item_id: String, output_index: u64, content_index: u64, delta: String },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone { sequence_number: u64, item_id: String, output_index: u64, content_index: u64, text: String },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        delta: String,
        logprobs: Vec<ScoredToken>,
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        text: String,
        /// Empty: those of a stream are in its deltas.
        logprobs: Vec<ScoredToken>,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { sequence_number: u64, item_id: String, output_index: u64, delta: String },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone { sequence_number: u64, item_id: String, output_index: u64, name: String, arguments: String },
    #[serde(rename = "response.custom_tool_call_input.delta")]
    CustomInputDelta { sequence_number: u64, item_id: String, output_index: u64, delta: String },
    #[serde(rename = "response.custom_tool_call_input.done")]
    CustomInputDone { sequence_number: u64, item_id: String, output_index: u64, input: String },
    #[serde(rename = "response.content_part.done")]
    PartDone { sequence_number: u64, item_id: String, output_index: u64, content_index: u64, part: OutputPart },
    #[serde(rename = "response.output_item.done")]
    ItemDone { sequence_number: u64, output_index: u64, item: OutputItem },
    #[serde(rename = "response.completed")]
    Completed { sequence_number: u64, response: Box<Response> },
    #[serde(rename = "response.incomplete")]
    Incomplete { sequence_number: u64, response: Box<Response> },
    #[serde(rename = "response.failed")]
    Failed { sequence_number: u64, response: Box<Response> },
}
