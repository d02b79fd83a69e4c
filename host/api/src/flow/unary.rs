//! Responds once all choices have ended.
use axum::response::Response;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::generation::{ChoiceEvent, RunningChoices};
use crate::flow::render::whole::{self, Collected};
use crate::flow::request::GenerationRequest;

/// # Errors
/// The error of the first choice that fails, or there is no room for the response. The others are then cancelled.
pub(crate) async fn respond(
    mut running: RunningChoices,
    request: GenerationRequest,
    mut share: Share,
) -> Result<Response, FlowError> {
    let mut choices: Vec<Collected> = request.choices().map(|prompt| Collected::new(&prompt.echo)).collect();
    while let Some((index, output)) = running.next().await {
        match output? {
            ChoiceEvent::Queued(_) | ChoiceEvent::Started => {}
            ChoiceEvent::Delta(delta) => {
                share.grow(whole::bytes(&delta))?;
                choices[index].add(delta);
            }
            ChoiceEvent::Finished(reason) => choices[index].reason = Some(reason),
        }
    }
    whole::respond(&request, &choices, running.totals(), share)
}
