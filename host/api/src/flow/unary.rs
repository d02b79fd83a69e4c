//! Responds once all choices have ended.
use axum::response::Response;

use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::generation::{ChoiceEvent, RunningChoices};
use crate::flow::kept;
use crate::flow::render::whole::{self, Collected};
use crate::flow::request::GenerationRequest;

/// # Errors
/// The error of the first choice that fails. The others are then cancelled.
pub(crate) async fn respond(
    mut running: RunningChoices,
    request: GenerationRequest,
    mut share: Share,
) -> Result<Response, FlowError> {
    let mut choices: Vec<Collected> = request.choices().map(|prompt| Collected::new(&request, prompt)).collect();
    while let Some((index, output)) = running.next().await {
        match output? {
            ChoiceEvent::Queued(_) | ChoiceEvent::Started => {}
            ChoiceEvent::Delta(delta) => {
                // Log-probabilities, which take far more, have their memory from the start.
                share.add(budget::text_bytes(delta.text.len()));
                choices[index].add(&request, delta);
            }
            ChoiceEvent::Finished(reason) => choices[index].end(&request, reason),
        }
    }
    let totals = running.totals();
    let choices = whole::likeliest(&request, choices);
    kept::rendered(share, move |share| whole::respond(&request, &choices, totals, share)).await
}
