//! A pool that answers each submission with the events of a script, on a thread as the real one does.
use std::sync::{Arc, Mutex};
use std::time::Duration;

use camshaft_api::PoolSnapshot;
use camshaft_api::backend::{PoolMessage, Submission};
use camshaft_core::ids::{RequestId, SessionId, Token};
use camshaft_core::message::{Delta, Event, FinishReason, OpenSession, Start, TokenLogprob, Usage, WorkerError};
use camshaft_core::segments::Namespace;
use crossbeam_channel::{Receiver, Sender, bounded};

/// What a choice does, in order. The channel closes after the last step unless that is `Hold`.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Queued(u32),
    Started(u32),
    Text(&'static str),
    /// Text with the log-probabilities of its bytes as tokens, each with the next byte as the one alternative.
    Scored(&'static str),
    /// Text of which each byte, as a token, has this log-probability.
    Likely(&'static str, f32),
    /// The log-probabilities of the prompt's tokens but the first, from this one on up to that one.
    PromptScores(usize, usize),
    Progressed,
    Finished(FinishReason, u32),
    Failed(WorkerError),
    /// Says nothing more until the client is gone, then reports the request on `cancelled`.
    Hold,
}

type Script = Box<dyn Fn(&Start) -> Vec<Step> + Send>;

/// A session that no worker of a test has.
pub(crate) const UNKNOWN_SESSION: &str = "never-opened";

/// What the pool has seen.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) sender: Sender<PoolMessage>,
    pub(crate) starts: Arc<Mutex<Vec<Start>>>,
    pub(crate) cancelled: Receiver<RequestId>,
    pub(crate) closed_sessions: Receiver<(Namespace, SessionId)>,
}

impl Pool {
    pub(crate) fn run(script: Script) -> Self {
        let (sender, messages) = bounded::<PoolMessage>(256);
        let (report, cancelled) = bounded(256);
        let (closing, closed_sessions) = bounded(256);
        let starts = Arc::new(Mutex::new(Vec::new()));
        let seen = starts.clone();
        std::thread::spawn(move || {
            let mut held: Vec<Submission> = Vec::new();
            for message in messages {
                match message {
                    PoolMessage::Submit(submission) => {
                        seen.lock().unwrap().push(submission.start.clone());
                        held.extend(play(*submission, &script));
                    }
                    PoolMessage::Wake => {
                        for gone in held.extract_if(.., |submission| submission.events.is_closed()) {
                            report.send(gone.start.id).unwrap();
                        }
                    }
                    PoolMessage::ListSessions { namespace, reply } => drop(reply.send(sessions(&namespace))),
                    PoolMessage::ForgetAdapter(_) => {}
                    PoolMessage::CloseSession { namespace, session, reply } => {
                        // Of the sessions that tests close, one is unknown.
                        let _ = reply.send(session.as_str() != UNKNOWN_SESSION);
                        closing.send((namespace, session)).unwrap();
                    }
                    PoolMessage::Snapshot(reply) => drop(reply.send(PoolSnapshot::default())),
                    PoolMessage::Stop => held.clear(),
                }
            }
        });
        Self { sender, starts, cancelled, closed_sessions }
    }

    /// A pool whose channel takes `capacity` messages and that never looks at them.
    pub(crate) fn stuck(capacity: usize) -> (Self, Receiver<PoolMessage>) {
        let (sender, messages) = bounded(capacity);
        let ((_, cancelled), (_, closed_sessions)) = (bounded(1), bounded(1));
        (Self { sender, starts: Arc::default(), cancelled, closed_sessions }, messages)
    }
}

fn play(submission: Submission, script: &Script) -> Option<Submission> {
    let start = &submission.start;
    let id = start.id;
    for step in script(start) {
        let event = match step {
            Step::Queued(position) => Event::Queued { id, position },
            Step::Started(cached_tokens) => Event::Started { id, cached_tokens },
            Step::Text(text) => Event::Delta { id, delta: delta(text, false) },
            Step::Scored(text) => Event::Delta { id, delta: delta(text, true) },
            Step::Likely(text, logprob) => {
                let mut delta = delta(text, true);
                delta.logprobs.iter_mut().for_each(|token| token.logprob = logprob);
                Event::Delta { id, delta }
            }
            Step::PromptScores(from, to) => {
                let one = |token: &Token| TokenLogprob { token: *token, logprob: -2.0, top: Vec::new(), skipped: 0 };
                let logprobs = start.prompt[1..][from..to].iter().map(one).collect();
                Event::Delta { id, delta: Delta { logprobs, ..Delta::default() } }
            }
            Step::Progressed => Event::Progressed { id, prompt_tokens: 1, generated_tokens: 1 },
            Step::Finished(reason, generated_tokens) => {
                let prompt_tokens = start.prompt.len() as u32;
                Event::Finished { id, reason, usage: Usage { prompt_tokens, generated_tokens, ..Usage::default() } }
            }
            Step::Failed(error) => Event::Failed { id, error },
            Step::Hold => return Some(submission),
        };
        submission.shared.spent.note(&event);
        let _ = submission.events.blocking_send(event);
    }
    None
}

fn delta(text: &str, scored: bool) -> Delta {
    let score = |byte: u8| {
        let token = Token(u32::from(byte));
        TokenLogprob { token, logprob: -0.5, top: vec![(token, -0.5), (Token(u32::from(byte) + 1), -1.5)], skipped: 0 }
    };
    let logprobs = if scored { text.bytes().map(score).collect() } else { Vec::new() };
    Delta { text: text.into(), tokens: text.len() as u32, logprobs }
}

/// What two workers have: a session of each part of the namespace, and one that both have.
fn sessions(owner: &Namespace) -> Vec<OpenSession> {
    let open = |name: &str, namespace: Namespace, seconds: u64| OpenSession {
        session: name.into(),
        namespace,
        tokens: 30,
        expires_in: Duration::from_secs(seconds),
    };
    vec![
        open("both", owner.clone(), 5),
        open("last", owner.keyed("k"), 90),
        open("both", owner.clone(), 60),
        open("first", owner.clone(), 1),
        open("both", owner.keyed("k"), 70),
    ]
}

/// Two deltas and a proper end.
pub(crate) fn hello(_: &Start) -> Vec<Step> {
    vec![Step::Started(2), Step::Text("Hel"), Step::Progressed, Step::Text("lo"), Step::Finished(FinishReason::Stop, 5)]
}
