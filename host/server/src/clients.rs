//! The clients of a pool's requests: those that wait for an end, and ends that wait until a client reads.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::FirstReply;
use camshaft_api::backend::Shared;
use camshaft_core::ids::RequestId;
use camshaft_core::message::{Event, WorkerError};
use camshaft_core::policy::PolicySet;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::streams::Stream;

/// The client of a request that has not ended.
#[derive(Debug)]
struct Client {
    events: Sender<Event>,
    first_reply: FirstReply,
    /// Taken when the request is dispatched.
    stream: Option<Stream>,
}

/// The last event of a request, for a client whose channel is full.
#[derive(Debug)]
struct Farewell {
    events: Sender<Event>,
    last: Event,
    /// Then the event is dropped, and the client's channel closes without an end.
    until: Instant,
}

#[derive(Debug)]
pub(crate) struct Clients {
    live: HashMap<RequestId, Client>,
    farewells: Vec<Farewell>,
    /// How long a last event waits for a client that does not read.
    slow_reader: Duration,
}

impl Clients {
    pub(crate) fn new(slow_reader: Duration) -> Self {
        Self { live: HashMap::new(), farewells: Vec::new(), slow_reader }
    }

    /// A request was accepted. Its stream is made now, and goes to the worker later.
    pub(crate) fn insert(
        &mut self,
        id: RequestId,
        events: Sender<Event>,
        shared: Shared,
        policies: Arc<dyn PolicySet>,
    ) {
        let stream = Stream::new(events.clone(), shared.clone(), policies);
        self.live.insert(id, Client { events, first_reply: shared.first_reply, stream: Some(stream) });
    }

    /// The stream of a request that is dispatched.
    pub(crate) fn take_stream(&mut self, id: RequestId) -> Option<Stream> {
        self.live.get_mut(&id).and_then(|client| client.stream.take())
    }

    /// A request ended. Its client hears of it through the stream, or has left.
    pub(crate) fn remove(&mut self, id: RequestId) {
        self.live.remove(&id);
    }

    /// A request failed. Its client hears of it when it has read what came before.
    pub(crate) fn fail(&mut self, id: RequestId, error: WorkerError) {
        let Some(Client { events, .. }) = self.live.remove(&id) else { return };
        if let Err(TrySendError::Full(last)) = events.try_send(Event::Failed { id, error }) {
            self.farewells.push(Farewell { events, last, until: Instant::now() + self.slow_reader });
        }
    }

    /// Sends the last events that fit by now. Drops those that have waited for too long.
    pub(crate) fn flush(&mut self) {
        let now = Instant::now();
        let waits = |farewell: &Farewell| {
            let sent = farewell.events.try_send(farewell.last.clone());
            matches!(sent, Err(TrySendError::Full(_))) && now < farewell.until
        };
        self.farewells.retain(waits);
    }

    /// The deadline of a request passes. False if its client has been sent output already: then the deadline was kept.
    pub(crate) fn expire(&self, id: RequestId) -> bool {
        self.live.get(&id).is_none_or(|client| client.first_reply.expire())
    }

    /// Tells the position in the queue. A reader that is behind misses it, so that events that matter fit its channel.
    pub(crate) fn tell_position(&self, id: RequestId, position: u32) {
        let reads = |client: &&Client| client.events.capacity() * 2 > client.events.max_capacity();
        if let Some(client) = self.live.get(&id).filter(reads) {
            let _ = client.events.try_send(Event::Queued { id, position });
        }
    }

    /// Requests whose clients have left.
    pub(crate) fn left(&self) -> Vec<RequestId> {
        self.live.iter().filter(|(_, client)| client.events.is_closed()).map(|(&id, _)| id).collect()
    }

    pub(crate) fn ids(&self) -> Vec<RequestId> {
        self.live.keys().copied().collect()
    }

    #[cfg(test)]
    pub(crate) fn farewells(&self) -> usize {
        self.farewells.len()
    }
}
