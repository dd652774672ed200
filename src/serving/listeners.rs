//! Who hears of requests: the engine's thread tells them, and so does whoever gives that thread up.

use super::door::lock;
use super::request::Event;
use super::scheduler::RowId;
use crate::error::TensorError;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Who hears a request's events.
pub(super) type Listener = Box<dyn FnMut(Event) + Send>;

/// A listener, until its last event.
type Place = Arc<Mutex<Option<Listener>>>;

/// The listeners of all requests that have not ended.
#[derive(Clone, Default)]
pub(super) struct Listeners(Arc<Mutex<HashMap<RowId, Place>>>);

impl Listeners {
    pub fn add(&self, id: RowId, listener: Listener) {
        lock(&self.0).insert(id, Arc::new(Mutex::new(Some(listener))));
    }

    /// Hears nothing more.
    pub fn remove(&self, id: RowId) {
        // It goes behind the lock: it may itself ask for something.
        let gone = lock(&self.0).remove(&id);
        drop(gone);
    }

    /// Tells a request's listener. A panic of it is the caller's.
    pub fn tell(&self, id: RowId, event: Event) {
        // The listener may itself ask for something: nothing else is locked meanwhile.
        let Some(place) = lock(&self.0).get(&id).cloned() else { return };
        let mut listener = lock(&place);
        if let Some(listen) = listener.as_mut() {
            listen(event);
        }
    }

    /// Tells a request's listener the last of its events.
    pub fn end(&self, id: RowId, event: Event) {
        let Some(place) = lock(&self.0).remove(&id) else { return };
        let Some(mut listen) = lock(&place).take() else { return };
        // Nobody is left whom a panic would concern.
        let _ = catch_unwind(AssertUnwindSafe(|| listen(event)));
    }

    /// Ends all requests.
    pub fn fail_all(&self, e: &TensorError) {
        let all: Vec<RowId> = lock(&self.0).keys().copied().collect();
        all.into_iter().for_each(|id| self.end(id, Event::Failed(e.clone())));
    }
}
