//! Filters: one instance per policy and choice, called when there is new text.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::filter::{FilterVerdict, FilteringRequest, Piece, Replacement, TextFilter, TextWindow};
use camshaft_core::message::FinishReason;
use camshaft_core::policy::{Difference, Fault, FaultKind, Hook, Refusal};
use wasmtime::Store;
use wasmtime::component::Resource;

use crate::answers;
use crate::bindings::HookGuest;
use crate::bindings::filter as wit;
use crate::imports::stream::Stream;
use crate::loaded::Loaded;
use crate::metrics::Outcome;
use crate::set::Link;
use crate::shares::Share;
use crate::store::{self, GuestState, Subject};
use crate::view::View;

/// Opens the filters of one choice, monitored ones among them.
pub(crate) fn open(view: &View, request: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
    let mut filters: Vec<Box<dyn TextFilter>> = Vec::new();
    for link in view.chain(Hook::Filter).links.iter().filter(|link| link.matching().admits(request.target())) {
        let (opened, on_fault) = match link {
            Link::Broken(broken) => (Err(broken.fault()), broken.on_fault),
            Link::Ready(policy) => (start(view, policy, request), policy.on_fault()),
        };
        match opened {
            Ok(filter) => filters.push(Box::new(filter)),
            // It decides nothing.
            Err(_) if link.is_monitor() => {}
            // Whoever takes all instances must not switch policies off.
            Err(fault) if fault.kind == FaultKind::Exhausted || on_fault.denies(Hook::Filter) => return Err(fault),
            Err(_) => {}
        }
    }
    Ok(filters)
}

fn start(view: &View, policy: &Arc<Loaded>, request: &FilteringRequest) -> Result<Filter, Fault> {
    policy.admit()?;
    let started = Instant::now();
    Filter::start(view, policy, request).inspect_err(|fault| policy.note_fault(fault, started))
}

/// One policy, with what it is asked about.
struct Filter {
    policy: Arc<Loaded>,
    store: Store<GuestState>,
    guest: wit::FilterPolicy,
    /// Whether its breaker was told that the choice's first piece went well.
    told: bool,
    _share: Share,
    /// Keeps alive the generation with which the request began.
    _view: View,
}

impl Filter {
    fn start(view: &View, policy: &Arc<Loaded>, request: &FilteringRequest) -> Result<Self, Fault> {
        let (model, tenant, text) = (request.model.clone(), request.tenant.clone(), TextWindow::default());
        let (choice, context) = (request.choice, request.context.clone());
        let shows_body = policy.identity.grant.load().body;
        let stream = Stream { model, tenant, choice, context, shows_body, rewinds: 0, text, start: 0 };
        let share = policy.share(&request.tenant)?;
        let made = policy.configured(Some(request.request.0), |state| state.subject = Subject::Stream(stream))?;
        let (store, HookGuest::Filter(guest)) = (made.store, made.guest) else {
            return Err(policy.fault(FaultKind::Unavailable, "not a filter policy"));
        };
        Ok(Self { policy: policy.clone(), store, guest, told: false, _share: share, _view: view.clone() })
    }

    /// Moves the text into the guest's context, or back.
    fn swap(&mut self, piece: Piece, text: &mut TextWindow) {
        if let Subject::Stream(stream) = &mut self.store.data_mut().subject {
            (stream.start, stream.rewinds) = (piece.start, piece.rewinds);
            std::mem::swap(&mut stream.text, text);
        }
    }

    fn ask(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault> {
        if !piece.goes_on {
            store::arm(&mut self.store, self.policy.sidecar.deadline);
        }
        let shown = wit::Piece {
            text: text.since(piece.start).to_owned(),
            start: piece.start as u64,
            fresh: piece.fresh as u64,
            last: piece.last,
        };
        self.swap(piece, text);
        let answer = self.guest.camshaft_filter_policy().call_check(&mut self.store, &shown, Resource::new_borrow(0));
        self.swap(piece, text);
        match answer.map_err(|error| self.policy.fault_of(&error, self.store.data()))? {
            Ok(verdict) => Ok(taken(verdict)),
            Err(refusal) => {
                answers::refusal(refusal).map(FilterVerdict::Refuse).map_err(|text| self.policy.invalid(text))
            }
        }
    }
}

impl TextFilter for Filter {
    fn check(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault> {
        let started = Instant::now();
        let answer = self.ask(piece, text);
        let outcome = match &answer {
            Err(fault) => {
                self.policy.note_fault_of(fault, started, self.told);
                return answer;
            }
            Ok(FilterVerdict::Pass(_)) => Outcome::Pass,
            Ok(FilterVerdict::Replace(_)) => Outcome::Replace,
            Ok(FilterVerdict::Finish { .. }) => Outcome::Finish,
            Ok(FilterVerdict::Rewind(_)) => Outcome::Rewind,
            Ok(FilterVerdict::Refuse(_)) => Outcome::Refuse,
        };
        self.policy.note_call(outcome, started);
        // A choice counts once for the breaker, however much text it has.
        if !std::mem::replace(&mut self.told, true) {
            self.policy.tell_answered();
        }
        answer
    }

    fn refused(&mut self, why: String) -> Fault {
        let fault = self.policy.invalid(why);
        self.policy.note_fault_of(&fault, Instant::now(), self.told);
        fault
    }

    fn reads_logprobs(&self) -> bool {
        self.policy.compiled.asks.logprobs
    }

    fn denies(&self) -> bool {
        self.policy.on_fault().denies(Hook::Filter)
    }

    fn is_monitored(&self) -> bool {
        self.policy.is_monitored()
    }

    fn differs(&mut self, kind: Difference, refusal: Option<&Refusal>) {
        self.policy.note_difference(kind, refusal);
    }
}

fn taken(verdict: wit::Verdict) -> FilterVerdict {
    // What does not fit lies outside of every text.
    let at = |byte: u64| usize::try_from(byte).unwrap_or(usize::MAX);
    match verdict {
        wit::Verdict::Pass(byte) => FilterVerdict::Pass(at(byte)),
        wit::Verdict::Replace(wit::Replacement { start, end, text }) => {
            FilterVerdict::Replace(Replacement { start: at(start), end: at(end), text })
        }
        wit::Verdict::Finish(wit::Ending { at: byte, reason }) => {
            let reason = match reason {
                wit::Reason::Stop => FinishReason::Stop,
                wit::Reason::ContentFilter => FinishReason::Filtered,
            };
            FilterVerdict::Finish { at: at(byte), reason }
        }
        wit::Verdict::Rewind(byte) => FilterVerdict::Rewind(at(byte)),
    }
}
