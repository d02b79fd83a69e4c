//! Draws a sequence's next tokens after a batch was decoded, and tells clients and scheduler about them.
use crate::engine::Engine;
use crate::message::{Event, Events, FinishReason, WorkerError};
use crate::sampling::Workspace;
use crate::sequence::{Drawn, Sequence};

/// A running request reports its progress to the scheduler once in this many tokens.
const PROGRESS_EVERY: u32 = 32;

/// The tokens that one sequence drew in a step.
#[derive(Debug)]
pub(super) struct DrawOutcome {
    pub(super) tokens: u32,
    /// The length of the draft, and how much of it was drawn. Nothing of what a grammar was certain of.
    pub(super) drafted: u32,
    pub(super) accepted: u32,
    /// A filter took this many tokens back, and the KV entries are still those of all.
    pub(super) taken_back: Option<u32>,
    /// `None`: the sequence goes on.
    pub(super) end: Option<Result<FinishReason, WorkerError>>,
}

/// Draws from `row`, which gives a sequence's next token, and from the rows of its draft after it as long as each token
/// drawn equals the draft's.
pub(super) fn draw(
    sequence: &mut Sequence,
    row: usize,
    engine: &impl Engine,
    workspace: &mut Workspace,
    events: &mut impl Events,
) -> DrawOutcome {
    let (mut accepted, mut taken_back) = (0, None);
    let end = loop {
        let (delta, end) = match sequence.advance(engine.logits(row + accepted as usize), workspace) {
            Drawn::Continues(delta) => (delta, None),
            Drawn::Ended(delta, reason) => (delta, Some(Ok(reason))),
            Drawn::Failed(error) => (None, Some(Err(error))),
            Drawn::Rewound { tokens } => {
                taken_back = Some(tokens);
                break None;
            }
        };
        if let Some(delta) = delta {
            events.push(Event::Delta { id: sequence.id(), delta });
        }
        if end.is_some() {
            break end;
        }
        report_progress(sequence, events);
        if !sequence.matches_draft(accepted) {
            break None;
        }
        accepted += 1;
        // The batch has computed the draft's token already.
        sequence.kv_tokens += 1;
    };
    let tokens = accepted + 1;
    let (drafted, accepted) = sequence.settle_draft(accepted);
    DrawOutcome { tokens, drafted, accepted, taken_back, end }
}

fn report_progress(sequence: &mut Sequence, events: &mut impl Events) {
    // What is drawn in the place of others is no progress.
    if sequence.generated % PROGRESS_EVERY == 1 && sequence.generated > sequence.told {
        sequence.told = sequence.generated;
        let prompt_tokens = sequence.start.prompt.len() as u32;
        events.push(Event::Progressed { id: sequence.id(), prompt_tokens, generated_tokens: sequence.generated });
    }
}
