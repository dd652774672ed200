//! A session that goes on where its device was lost or is full: the model is loaded again, the cache is computed again from the tokens.

use super::{Generation, Session};
use crate::device::{Device, FallbackNote};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::Replay;
use crate::models::{KvCache, Model};
use crate::strategy::with_pacing;
use std::ops::Deref;
use std::time::Duration;

/// Loads a session's model again, on another device and with activations of the dtype that it had.
pub type Reload<'m> = Box<dyn Fn(&Device, DType) -> TensorResult<Box<dyn Model>> + 'm>;

/// The model of a session: the caller's, or one that was loaded again.
pub(super) enum ModelRef<'m> {
    Given(&'m dyn Model),
    Own(Box<dyn Model>),
}

impl<'m> Deref for ModelRef<'m> {
    type Target = dyn Model + 'm;
    fn deref(&self) -> &Self::Target {
        match self {
            ModelRef::Given(model) => *model,
            ModelRef::Own(model) => &**model,
        }
    }
}

impl<'m> Session<'m> {
    /// As [`Session::new`], and the session goes on with [`Device::fallback`] where `device` is lost or full: `reload` reads the weights
    /// again, the cache is computed from the tokens, and a note is added to [`Session::fallbacks`]. Greedy tokens are those that the other device
    /// gives for the same text; draws of a sampler may be others. A tensor that was given out before, such as a prompt's logits, is gone with its
    /// device: [`Session::generate`] computes it again.
    ///
    /// ```
    /// use tensorlogic::models::{self, Sampler, Session, Weights};
    /// use tensorlogic::prelude::*;
    ///
    /// let device = Device::open("vulkan,cpu")?;
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let model = models::load(&Weights::open(file, &device)?, None)?;
    /// let reload = |device: &Device, dtype| models::load(&Weights::open(file, device)?, Some(dtype));
    /// let mut session = Session::with_reload(&*model, 64, &device, Box::new(reload))?;
    /// let logits = session.prompt(&[5, 6, 7], || false)?.expect("nobody stopped it");
    /// let mut sampler = Sampler::default();
    /// let tokens = session.generate(logits, &mut sampler)?.take(8).collect::<TensorResult<Vec<u32>>>()?;
    /// assert_eq!(tokens.len(), 8);
    /// session.fallbacks().iter().for_each(|note| eprintln!("{note}"));
    /// # Ok::<(), TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Session::new`], and of `reload`.
    pub fn with_reload(model: &'m dyn Model, context: usize, device: &Device, reload: Reload<'m>) -> TensorResult<Session<'m>> {
        let mut session = Session::without_cache(model, context, device)?;
        session.reload = Some(reload);
        loop {
            match session.new_cache() {
                Ok(()) => return Ok(session),
                Err(e) => session.move_on(e)?,
            }
        }
    }

    /// The devices that this session has left so far, and why.
    pub fn fallbacks(&self) -> &[FallbackNote] {
        &self.fallbacks
    }

    /// The device that the session runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// An empty cache for a model on a device.
    fn cache_for(&self, model: &dyn Model, device: &Device) -> TensorResult<KvCache> {
        let shape = model.shape();
        KvCache::new(&shape, self.capacity.min(shape.context.max(super::MIN_CHUNK)), device)
    }

    /// An empty cache on the session's device.
    pub(super) fn new_cache(&mut self) -> TensorResult<()> {
        self.cache = self.cache_for(&*self.model, &self.device)?;
        Ok(())
    }

    /// Loads the model on the next device after `error`, with an empty cache and no tokens. Gives the error back, and leaves the session as it
    /// is, where there is no such device.
    pub(super) fn move_on(&mut self, mut error: TensorError) -> TensorResult<()> {
        let Some(reload) = &self.reload else { return Err(error) };
        let dtype = self.model.shape().dtype;
        let mut from = self.device.clone();
        let mut notes = Vec::new();
        loop {
            let Some(next) = from.fallback(&error) else { return Err(error) };
            notes.push(FallbackNote::new(&from, &next, &error));
            let loaded = reload(&next, dtype).and_then(|model| Ok((self.cache_for(&*model, &next)?, model)));
            match loaded {
                Ok((cache, model)) => {
                    (self.model, self.cache, self.device) = (ModelRef::Own(model), cache, next);
                    break;
                }
                Err(e) => (from, error) = (next, e),
            }
        }
        self.fallbacks.extend(notes);
        self.tokens.clear();
        // A table is measured for an adapter.
        self.set_strategy(self.strategy);
        Ok(())
    }

    /// What `work` gives for this session. Where the device is lost or full, the session moves to the next one, and `work` is done there, with the
    /// tokens that the session had. After an error the session has the tokens that it had.
    pub(super) fn recovering<T>(&mut self, mut work: impl FnMut(&mut Self, &[u32]) -> TensorResult<T>) -> TensorResult<T> {
        let known = self.tokens.clone();
        let mut lost: &[u32] = &[];
        loop {
            let error = match work(self, lost) {
                Err(e) => self.move_on(e).err(),
                done => return done,
            };
            if let Some(e) = error {
                self.cache.truncate(known.len());
                self.tokens = known;
                return Err(e);
            }
            lost = &known;
        }
    }
}

impl Generation<'_, '_> {
    /// Begins again behind the tokens that were given out, on the next device after `error`.
    pub(super) fn recover(&mut self, error: TensorError) -> TensorResult<()> {
        let mut error = error;
        let tokens = self.session.tokens.clone();
        let given = tokens.len() - self.prompt_len;
        // Tokens that the host chooses are drawn when they are given out, the others before.
        let chosen = if given == 0 { self.begun } else { self.sampler.rng.draws };
        let draws = self.drawn.unwrap_or(chosen);
        loop {
            self.session.move_on(error)?;
            (self.next, self.given, self.logits, self.replay) = (None, None, None, Replay::default());
            self.here.clear();
            self.running = self.session.device.begin_generation();
            self.sampler.rng.draws = draws;
            (self.first, self.drawn, self.draws) = (true, None, 0);
            (self.arrived, self.pace, self.count) = (None, Duration::MAX, 1);
            self.left = self.wanted.saturating_sub(given + 1);
            match self.begin(&tokens) {
                Ok(()) => return Ok(()),
                Err(e) => {
                    // The session has what was given out, as after any error.
                    self.session.tokens.clone_from(&tokens);
                    error = e;
                }
            }
        }
    }

    /// Reads these tokens and chooses the one behind them.
    fn begin(&mut self, tokens: &[u32]) -> TensorResult<()> {
        let Some(logits) = self.session.read(tokens, || false)? else { return Ok(()) };
        let pacing = self.session.pacing(self.wanted);
        with_pacing(&pacing, || self.choose(logits))
    }
}
