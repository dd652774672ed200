//! Idle connections, the longest idle first: at the limit of connections that one is closed to make room for a new one.

use super::routes::Reply;
use super::sse::Stream;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A connection that was idle for less may have a request on its way: the first of a client comes with it.
const IDLE_TIME: Duration = Duration::from_millis(100);

/// The connections of a server that have no request under way.
#[derive(Default)]
pub struct Idle {
    /// Since when each is idle, in that order.
    by_age: Mutex<BTreeMap<u64, (Instant, Arc<Connection>)>>,
    /// How many times one has become idle.
    times: AtomicU64,
}

impl Idle {
    fn by_age(&self) -> MutexGuard<'_, BTreeMap<u64, (Instant, Arc<Connection>)>> {
        self.by_age.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection that has been idle for the longest time, if that is long enough that no request of it is on its way; whether there is one.
    pub fn end_one(&self) -> bool {
        let mut by_age = self.by_age();
        let first = by_age.iter().find(|(_, (_, c))| !c.writes.load(Relaxed));
        let at = first.filter(|(_, (since, _))| since.elapsed() >= IDLE_TIME).map(|(at, _)| *at);
        let ended = at.and_then(|at| by_age.remove(&at));
        ended.iter().for_each(|(_, c)| c.end.notify_one());
        ended.is_some()
    }
}

/// What others know of a connection.
#[derive(Default)]
pub struct Connection {
    /// Its place among the idle ones.
    at: AtomicU64,
    /// Whether its client has yet to take bytes of an answer.
    pub writes: AtomicBool,
    /// Told when it is to make room.
    pub end: Notify,
}

/// A connection's part of [`Idle`]: it is idle from the beginning, and when it is dropped it is out.
#[derive(Clone)]
pub struct Place(Arc<PlaceOf>);

struct PlaceOf {
    idle: Arc<Idle>,
    connection: Arc<Connection>,
}

impl Place {
    pub fn new(idle: &Arc<Idle>) -> Place {
        let place = Place(Arc::new(PlaceOf { idle: idle.clone(), connection: Arc::default() }));
        place.wait();
        place
    }

    pub fn connection(&self) -> &Arc<Connection> {
        &self.0.connection
    }

    fn wait(&self) {
        let PlaceOf { idle, connection } = &*self.0;
        let at = idle.times.fetch_add(1, Relaxed);
        connection.at.store(at, Relaxed);
        idle.by_age().insert(at, (Instant::now(), connection.clone()));
    }

    /// The connection has a request until what is given is dropped.
    pub fn work(&self) -> Busy {
        self.0.leave();
        Busy(self.clone())
    }
}

impl PlaceOf {
    fn leave(&self) {
        self.idle.by_age().remove(&self.connection.at.load(Relaxed));
    }
}

impl Drop for PlaceOf {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A request that is under way.
pub struct Busy(Place);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The body of an answer, with which its request ends.
pub struct Answered {
    body: Either<Full<Bytes>, Stream>,
    _busy: Busy,
}

/// An answer that keeps its connection busy.
pub fn answered(reply: Reply, busy: Busy) -> hyper::Response<Answered> {
    reply.map(|body| Answered { body, _busy: busy })
}

impl Body for Answered {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
