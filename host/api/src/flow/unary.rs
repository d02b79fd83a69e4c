//! A response that is sent when all choices are done.
use axum::response::Response;

use crate::flow::error::FlowError;
use crate::flow::generation::{Output, Running};
use crate::flow::render::whole::{self, Collected};
use crate::flow::request::GenerationRequest;

/// # Errors
/// What the first choice to fail failed with; the others are cancelled then.
pub(crate) async fn respond(mut running: Running, request: GenerationRequest) -> Result<Response, FlowError> {
    let mut choices: Vec<Collected> = request.choices().map(|prompt| Collected::new(&prompt.echo)).collect();
    while let Some((index, output)) = running.next().await {
        match output? {
            Output::Queued(_) | Output::Started => {}
            Output::Delta(delta) => choices[index].add(delta),
            Output::Finished(reason) => choices[index].reason = Some(reason),
        }
    }
    Ok(whole::respond(&request, &choices, running.totals()))
}
