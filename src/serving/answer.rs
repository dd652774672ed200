//! A request that an engine has taken, as whoever asked has it.

use super::door::{Door, Message, lock};
use super::request::{Event, Usage};
use super::scheduler::RowId;
use crate::error::{TensorError, TensorResult};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

/// A request that was taken. Dropping it cancels what is left.
pub struct RequestHandle {
    pub(super) id: RowId,
    pub(super) door: Arc<Mutex<Door>>,
    pub(super) cached: Arc<AtomicUsize>,
}

/// A request that was taken: its events. Dropping it cancels what is left.
pub struct Answer {
    pub(super) handle: RequestHandle,
    pub(super) events: Receiver<Event>,
    pub(super) done: bool,
}

impl Answer {
    /// Tokens of the prompt that needed no reading; known from the first token on.
    pub fn cached(&self) -> usize {
        self.handle.cached()
    }

    /// Waits for the next event; `None` after the last.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.done {
            return None;
        }
        let event = self.events.recv().unwrap_or_else(|_| Event::Failed(TensorError::State("the engine has stopped".into())));
        self.done = matches!(event, Event::Finished(..) | Event::Failed(_));
        Some(event)
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// What the answer failed for.
    ///
    /// ```
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::serving::{Engine, EngineOptions, Request};
    /// use tensorlogic::Device;
    ///
    /// # let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// # let engine = Engine::start(model, &Device::cpu(), EngineOptions { rows: 1, context: Some(128), ..Default::default() })?;
    /// let (tokens, usage) = engine.submit(Request::new(&[5, 6, 7], 4))?.wait()?;
    /// assert_eq!((tokens.len(), usage.prompt, usage.written), (4, 3, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(mut self) -> TensorResult<(Vec<u32>, Usage)> {
        let mut tokens = Vec::new();
        while let Some(event) = self.next_event() {
            match event {
                Event::Token(token) => tokens.push(token),
                Event::LogProbs(_) => {}
                Event::Finished(_, usage) => return Ok((tokens, usage)),
                Event::Failed(e) => return Err(e),
            }
        }
        Err(TensorError::State("the answer was read already".into()))
    }
}

impl Iterator for Answer {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_event()
    }
}

impl RequestHandle {
    /// Tokens of the prompt that needed no reading; known from the first token on.
    pub fn cached(&self) -> usize {
        self.cached.load(Relaxed)
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        // The engine knows whether anything is left to cancel.
        let _ = lock(&self.door).sender.send(Message::Cancel(self.id));
    }
}
