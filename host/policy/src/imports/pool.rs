//! `camshaft:scheduler/context`: the queue that a scheduler works for.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::ids::{RequestId, TenantId};
use camshaft_core::policy::{
    Action, CancelReason, Ending, LatencyTarget, PoolBooks, Rejection, RequestFacts, SchedulerEvent, SchedulingPoint,
};
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::scheduler_context::{self, Host, HostPool};
use crate::fault::invalid;
use crate::tenants::Tenants;
use crate::text::{truncate_chars, truncated};

/// Maximum number of rejections in one point.
const REJECTIONS: usize = 65_536;
const CODE_BYTES: usize = 64;
/// Maximum characters of what a client reads of a rejection.
pub(crate) const MESSAGE_CHARS: usize = 1024;
const RETRY_AFTER_MS: u64 = 120_000;
/// Bytes of a guest's text that an error repeats.
const SHOWN_BYTES: usize = 128;

/// The part of a guest's state that tells of its pool.
pub(crate) trait PoolView: 'static {
    /// `None` outside of a call.
    fn pool(&mut self) -> Option<&mut Pool>;
}

/// What a scheduler may ask of its pool.
#[derive(Debug)]
pub(crate) struct Pool {
    model: Arc<str>,
    pub(crate) tenants: Tenants,
    /// Refilled for every point, to reuse its lists' memory.
    told: Told,
    /// While the scheduler answers a point.
    asked: Option<Asked>,
}

/// What the lists of the point in progress leave unsaid.
#[derive(Debug, Default)]
struct Told {
    resumed: Vec<u64>,
    endings: Vec<Ending>,
    /// Of requests that ended with their worker.
    lost: Vec<u64>,
    cancels: Vec<CancelReason>,
}

/// A point in progress.
#[derive(Debug)]
struct Asked {
    books: Arc<dyn PoolBooks>,
    rejections: Vec<Action>,
    wake_ms: Option<u64>,
}

/// What a scheduler asked for beside its actions.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) rejections: Vec<Action>,
    pub(crate) wake: Option<Action>,
}

impl Pool {
    pub(crate) fn new(model: &str) -> Self {
        Self { model: model.into(), tenants: Tenants::default(), told: Told::default(), asked: None }
    }

    /// The scheduler is about to answer a point.
    pub(crate) fn begin(&mut self, point: &SchedulingPoint) {
        let Told { resumed, endings, lost, cancels } = &mut self.told;
        resumed.clear();
        endings.clear();
        lost.clear();
        cancels.clear();
        for event in &point.events {
            match event {
                SchedulerEvent::Resumed { id } => resumed.push(id.0),
                SchedulerEvent::Finished { id, ending, .. } => {
                    endings.push(*ending);
                    lost.extend((*ending == Ending::WorkerLost).then_some(id.0));
                }
                SchedulerEvent::Cancelled { reason, .. } => cancels.push(*reason),
                SchedulerEvent::Arrived(_)
                | SchedulerEvent::Dispatched { .. }
                | SchedulerEvent::Progressed { .. }
                | SchedulerEvent::Preempted { .. } => {}
            }
        }
        self.asked = Some(Asked { books: point.books.clone(), rejections: Vec::new(), wake_ms: None });
    }

    /// The scheduler has answered, or faulted. The pool's books are given back.
    pub(crate) fn end(&mut self) -> Wishes {
        let Some(Asked { rejections, wake_ms, .. }) = self.asked.take() else { return Wishes::default() };
        let wake = wake_ms.map(|ms| Action::WakeAt { at: Duration::from_millis(ms) });
        Wishes { rejections, wake }
    }
}

pub(crate) struct CurrentPool<'a>(Option<&'a mut Pool>);

struct Pools;

impl HasData for Pools {
    type Data<'a> = CurrentPool<'a>;
}

pub(crate) fn add_to_linker<T: PoolView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    scheduler_context::add_to_linker::<_, Pools>(linker, |state| CurrentPool(state.pool()))
}

impl CurrentPool<'_> {
    fn get(&mut self) -> wasmtime::Result<&mut Pool> {
        self.0.as_deref_mut().ok_or_else(|| invalid("there is no pool now"))
    }

    fn asked(&mut self) -> wasmtime::Result<&mut Asked> {
        self.get()?.asked.as_mut().ok_or_else(|| invalid("there is no scheduling point now"))
    }

    fn books(&mut self) -> wasmtime::Result<&dyn PoolBooks> {
        Ok(&*self.asked()?.books)
    }

    /// One answer for each id. A list is no longer than the pool has requests, so that nobody makes the host work for ever.
    fn each<R>(&mut self, what: &str, ids: &[u64], answer: impl Fn(RequestFacts<'_>) -> R) -> wasmtime::Result<Vec<R>> {
        let books = self.books()?;
        check_count(books, what, ids)?;
        ids.iter().map(|&id| known(books, what, id).map(&answer)).collect()
    }
}

fn check_count(books: &dyn PoolBooks, what: &str, ids: &[u64]) -> wasmtime::Result<()> {
    let (count, most) = (ids.len(), books.requests());
    if count <= most {
        return Ok(());
    }
    Err(invalid(format!("{what}: {count} ids, over the {most} requests that there are")))
}

fn known<'a>(books: &'a dyn PoolBooks, what: &str, id: u64) -> wasmtime::Result<RequestFacts<'a>> {
    books.request(RequestId(id)).ok_or_else(|| invalid(format!("{what}: request {id} is unknown")))
}

/// The target of this name.
fn target(which: &str) -> wasmtime::Result<LatencyTarget> {
    let unknown = || invalid(format!("targets-ms: there is no target {:?}", truncated(which, SHOWN_BYTES)));
    LatencyTarget::parse(which).ok_or_else(unknown)
}

fn check_code(code: &str) -> wasmtime::Result<()> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if (1..=CODE_BYTES).contains(&code.len()) && code.bytes().all(allowed) {
        return Ok(());
    }
    let shown = truncated(code, SHOWN_BYTES);
    Err(invalid(format!(
        "reject: the code {shown:?}, which is not 1 to {CODE_BYTES} of the characters a-z, 0-9 and '_'"
    )))
}

impl Host for CurrentPool<'_> {}

impl HostPool for CurrentPool<'_> {
    fn model(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.model.to_string())
    }

    fn tenant(&mut self, _: Resource<Borrowed>, number: u32) -> wasmtime::Result<String> {
        let unknown = || invalid(format!("no tenant has the number {number}"));
        self.get()?.tenants.name(number).map(TenantId::to_string).ok_or_else(unknown)
    }

    fn wake_at(&mut self, _: Resource<Borrowed>, now_ms: u64) -> wasmtime::Result<()> {
        self.asked()?.wake_ms = Some(now_ms);
        Ok(())
    }

    fn needs(&mut self, _: Resource<Borrowed>, ids: Vec<u64>) -> wasmtime::Result<Vec<u32>> {
        self.each("needs", &ids, |facts| facts.need)
    }

    fn cached(&mut self, _: Resource<Borrowed>, ids: Vec<u64>) -> wasmtime::Result<Vec<u32>> {
        let books = self.books()?;
        check_count(books, "cached", &ids)?;
        let mut cached = Vec::new();
        for id in ids {
            known(books, "cached", id)?;
            books.cached(RequestId(id), &mut cached);
        }
        Ok(cached)
    }

    fn prefix_blocks(&mut self, _: Resource<Borrowed>, id: u64) -> wasmtime::Result<Vec<u64>> {
        Ok(known(self.books()?, "prefix-blocks", id)?.prefix_blocks.to_vec())
    }

    fn groups(&mut self, _: Resource<Borrowed>, ids: Vec<u64>) -> wasmtime::Result<Vec<u64>> {
        self.each("groups", &ids, |facts| facts.group)
    }

    fn turns(&mut self, _: Resource<Borrowed>, ids: Vec<u64>) -> wasmtime::Result<Vec<u32>> {
        self.each("turns", &ids, |facts| facts.turns)
    }

    fn targets_ms(&mut self, _: Resource<Borrowed>, ids: Vec<u64>, which: String) -> wasmtime::Result<Vec<u64>> {
        let target = target(&which)?;
        self.each("targets-ms", &ids, |facts| target.of(facts.attributes))
    }

    fn attribute(&mut self, _: Resource<Borrowed>, id: u64, name: String) -> wasmtime::Result<Option<String>> {
        Ok(known(self.books()?, "attribute", id)?.attributes.get(&name).map(str::to_owned))
    }

    fn hint(&mut self, _: Resource<Borrowed>, id: u64, name: String) -> wasmtime::Result<Option<String>> {
        Ok(known(self.books()?, "hint", id)?.hints.get(&name).map(str::to_owned))
    }

    fn reject(
        &mut self,
        _: Resource<Borrowed>,
        ids: Vec<u64>,
        code: String,
        retry_after_ms: u64,
        message: String,
    ) -> wasmtime::Result<()> {
        check_code(&code)?;
        let asked = self.asked()?;
        let count = asked.rejections.len().saturating_add(ids.len());
        if count > REJECTIONS {
            return Err(invalid(format!("reject: {count} rejections in one point, over {REJECTIONS}")));
        }
        let retry_after = Duration::from_millis(retry_after_ms.min(RETRY_AFTER_MS));
        let rejection = Rejection { code, message: truncate_chars(message, MESSAGE_CHARS), retry_after };
        let reject = |id| Action::Reject { id: RequestId(id), rejection: rejection.clone() };
        asked.rejections.extend(ids.into_iter().map(reject));
        Ok(())
    }

    fn resumed(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Vec<u64>> {
        Ok(self.get()?.told.resumed.clone())
    }

    fn finish_reasons(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Vec<String>> {
        Ok(self.get()?.told.endings.iter().map(|ending| ending.as_str().to_owned()).collect())
    }

    fn failed(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Vec<u64>> {
        Ok(self.get()?.told.lost.clone())
    }

    fn cancel_reasons(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Vec<String>> {
        Ok(self.get()?.told.cancels.iter().map(|reason| reason.as_str().to_owned()).collect())
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
