//! What a model keeps of past tokens, layer by layer: keys and values in buffers of fixed capacity that are written in place, states that each
//! token replaces; or nothing, for training.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{Replay, eval_all};
use crate::models::ModelShape;
use crate::models::paged::PagedCache;
use crate::strategy::with_pacing;
use crate::tensor::{Node, Tensor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the host spins for the result of a part of a model.
const PART_AWAKE: Duration = Duration::from_millis(20);

/// What a layer keeps of past tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerCache {
    /// Tensors of its own.
    Own(Vec<CachePart>),
    /// Nothing: it reads what the layer of this number keeps.
    OfLayer(usize),
}

/// A tensor that a layer keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachePart {
    /// A row for each position and head, `[B,heads,capacity,size]`.
    Rows {
        /// Heads.
        heads: usize,
        /// Elements of a head's row.
        size: usize,
    },
    /// What all past tokens together come to, `[B,dims…]`: each step replaces it, and it cannot be undone.
    State {
        /// The sizes behind that of the batch.
        dims: Vec<usize>,
        /// The type of its elements.
        dtype: DType,
    },
}

impl LayerCache {
    /// Keys and values of attention.
    pub fn keys_values(heads: usize, key: usize, value: usize) -> LayerCache {
        LayerCache::Own(vec![CachePart::Rows { heads, size: key }, CachePart::Rows { heads, size: value }])
    }
    /// Nothing at all.
    pub fn nothing() -> LayerCache {
        LayerCache::Own(Vec::new())
    }
}

/// What the layers of a model keep of past tokens, with room for `capacity` positions, of which the first `len` are valid.
pub struct KvCache {
    parts: Arc<[LayerCache]>,
    /// Another for each cache of the process; 0 where nothing is kept.
    number: u64,
    /// How many sequences there are.
    batch: usize,
    layers: Vec<Vec<Tensor>>,
    len: usize,
    capacity: usize,
    /// Whether the cache stores anything here.
    keeps: bool,
    /// Keys and values that layers of this pass lend to later ones, where nothing is kept.
    lent: Vec<(usize, [Tensor; 2])>,
    /// Points at which the states are known, first to last: the start, and the last one that was kept. None without states.
    snapshots: Vec<Snapshot>,
    /// The pages that hold keys and values instead.
    pages: Option<PagedCache>,
    /// The steps of a model's parts, where its layers are distributed. They hold the memory of the cache.
    steps: Vec<PartStep>,
}

/// The step of a part of a model that reads one position of each sequence, and the length of the cache at which it can run again.
#[derive(Default)]
struct PartStep {
    replay: Replay,
    next: Option<usize>,
}

/// Where a cache is: which one, for how many sequences, with how much room, how many positions are valid, and up to where states were kept last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheView {
    pub number: u64,
    pub batch: usize,
    pub capacity: usize,
    pub len: usize,
    pub kept: usize,
}

/// The states after the first `len` positions, in the order of layers and parts.
struct Snapshot {
    len: usize,
    states: Vec<Tensor>,
}

impl KvCache {
    /// An empty cache with room for `capacity` positions.
    ///
    /// # Errors
    /// Those of [`KvCache::batch`].
    ///
    /// ```
    /// use tensorlogic::models::{self, KvCache, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let mut cache = KvCache::new(&model.shape(), 16, &device)?;
    /// assert_eq!((cache.len(), cache.capacity()), (0, 16));
    /// model.hidden(&Tensor::new(&[5, 6, 7], &device)?, &mut cache)?;
    /// assert_eq!(cache.len(), 3);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(shape: &ModelShape, capacity: usize, device: &Device) -> TensorResult<KvCache> {
        KvCache::batch(shape, 1, capacity, device)
    }

    /// An empty cache for `count` sequences of one length that are read together, `[count,T]` tokens at a time.
    ///
    /// # Errors
    /// When a buffer would have too many elements, the device lacks the dtype or has no room.
    ///
    /// ```
    /// use tensorlogic::models::{self, KvCache, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let mut cache = KvCache::batch(&model.shape(), 2, 16, &device)?;
    /// let hidden = model.hidden(&Tensor::new(&[[5, 6, 7], [8, 9, 10]], &device)?, &mut cache)?;
    /// assert_eq!((hidden.dims(), cache.len()), (&[2, 3, 384][..], 3)); // three positions of either sequence
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn batch(shape: &ModelShape, count: usize, capacity: usize, device: &Device) -> TensorResult<KvCache> {
        let zeros = |part: &CachePart, device: &Device| match part {
            CachePart::Rows { heads, size } => Tensor::zeros(&[count, *heads, capacity, *size], shape.dtype, device),
            CachePart::State { dims, dtype } => Tensor::zeros(&[&[count], &dims[..]].concat(), *dtype, device),
        };
        let layer = |(i, l): (usize, &LayerCache)| match (l, shape.places.get(i).map_or(Some(device), Option::as_ref)) {
            (LayerCache::Own(parts), Some(device)) => parts.iter().map(|part| zeros(part, device)).collect(),
            _ => Ok(Vec::new()),
        };
        let layers = shape.cache.iter().enumerate().map(layer).collect::<TensorResult<Vec<Vec<Tensor>>>>()?;
        // Each its own memory: equal zeros would be computed once and shared.
        for part in layers.iter().flatten() {
            eval_all(&[part])?;
        }
        static MADE: AtomicU64 = AtomicU64::new(1);
        let mut cache = KvCache {
            parts: shape.cache.clone(),
            number: MADE.fetch_add(1, Ordering::Relaxed),
            batch: count,
            layers,
            len: 0,
            capacity,
            keeps: true,
            lent: Vec::new(),
            snapshots: Vec::new(),
            pages: None,
            steps: Vec::new(),
        };
        cache.keep_states();
        Ok(cache)
    }

    /// A cache that stores nothing: tokens attend only to those of the same call.
    pub fn none() -> KvCache {
        KvCache {
            parts: Arc::new([]),
            number: 0,
            batch: 0,
            layers: Vec::new(),
            len: 0,
            capacity: 0,
            keeps: false,
            lent: Vec::new(),
            snapshots: Vec::new(),
            pages: None,
            steps: Vec::new(),
        }
    }

    /// Keys and values in pages: a pass then needs positions.
    pub(crate) fn paged(pages: PagedCache) -> KvCache {
        KvCache { pages: Some(pages), ..KvCache::none() }
    }

    /// The pages, where keys and values are in pages.
    pub(crate) fn pages(&mut self) -> Option<&mut PagedCache> {
        self.pages.as_mut()
    }

    /// The pages again, after a pass.
    pub(crate) fn into_pages(self) -> Option<PagedCache> {
        self.pages
    }

    /// The number of valid keys after `t` more positions; `None` if all keys of the call are valid.
    pub fn valid(&self, t: usize) -> Option<usize> {
        self.keeps.then_some(self.len + t)
    }

    /// Number of valid positions.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether no position is valid.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Capacity in positions.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// Counts `n` more positions as valid, after a step appended them in every layer.
    pub fn advance(&mut self, n: usize) {
        if self.keeps {
            self.len += n;
        }
    }

    /// Whether a layer keeps a state, which steps replace and nothing can undo. Padding must not be read into such a cache.
    ///
    /// ```
    /// use tensorlogic::models::{self, KvCache, Weights};
    /// use tensorlogic::{Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let model = models::load(&Weights::open(file, &device)?, None)?;
    /// let mut cache = KvCache::new(&model.shape(), 16, &device)?;
    /// model.hidden(&Tensor::from_vec(vec![5i32, 6, 7, 8], &[4], &device)?, &mut cache)?;
    /// // Attention only: every position can be dropped by itself.
    /// assert!(!cache.has_states());
    /// cache.truncate(3);
    /// assert_eq!(cache.len(), 3);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn has_states(&self) -> bool {
        self.parts.iter().any(|l| matches!(l, LayerCache::Own(parts) if parts.iter().any(CachePart::is_state)))
    }

    /// Drops positions, to return to an earlier point of the conversation: all from `len` on. A state cannot be undone: where there is one, the
    /// cache returns to the last point up to `len` at which it was kept ([`KvCache::keep_states`]), or to its start, and the tokens behind
    /// [`KvCache::len`] have to be read again. [`crate::models::Session`] does so.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.go_back(len);
        }
    }

    /// Returns to `len` positions, or with states to the last point up to there at which they were kept.
    fn go_back(&mut self, len: usize) {
        self.forget_steps();
        if self.has_states() {
            self.snapshots.retain(|s| s.len <= len);
        }
        let Some(Snapshot { len: known, states }) = self.snapshots.last() else {
            self.len = len;
            return;
        };
        let places = self.parts.iter().zip(&mut self.layers).flat_map(states_of);
        places.zip(states).for_each(|(place, state)| *place = state.clone());
        self.len = *known;
    }

    /// Where the cache is, to return to by [`KvCache::return_to`]. Its buffers can still be written in place.
    pub(crate) fn point(&self) -> CachePoint {
        CachePoint { len: self.len, nodes: self.tensors().map(|t| Arc::downgrade(&t.node)).collect() }
    }

    /// Returns to an earlier point after an evaluation that failed: what was written since and is not stored is dropped, so that it is not computed
    /// with what comes next. Of what is stored, as by [`KvCache::truncate`].
    pub(crate) fn return_to(&mut self, point: &CachePoint) {
        for (slot, node) in self.layers.iter_mut().flatten().zip(&point.nodes) {
            // Where the old buffer is gone, the write took place in it.
            if let Some(node) = node.upgrade().filter(|_| slot.node.stored.get().is_none()) {
                slot.node = node;
            }
        }
        self.lent.clear();
        self.go_back(point.len);
    }

    /// What another process needs to know to keep its layers' part of this cache.
    pub(crate) fn view(&self) -> CacheView {
        let kept = self.snapshots.last().map_or(0, |s| s.len);
        CacheView { number: self.number, batch: self.batch, capacity: self.capacity, len: self.len, kept }
    }

    /// Follows a cache of another process, whose layers here are those of `shape`, to where that is before the next pass.
    pub(crate) fn follow(&mut self, of: &CacheView, shape: &ModelShape, device: &Device) -> TensorResult<()> {
        if of.number == 0 {
            *self = KvCache::none();
            return Ok(());
        }
        if self.number != of.number {
            if of.len > 0 {
                return Err(TensorError::State("layers on another rank keep one conversation at a time".into()));
            }
            *self = KvCache { number: of.number, ..KvCache::batch(shape, of.batch, of.capacity, device)? };
        }
        self.truncate(of.len);
        if self.len != of.len {
            return Err(TensorError::State(format!("a rank has {} positions of the text, rank 0 has {}", self.len, of.len)));
        }
        if self.has_states() && of.kept == of.len && self.snapshots.last().is_none_or(|s| s.len != of.len) {
            self.keep_states();
        }
        Ok(())
    }

    /// Keeps the states as they are now, so that [`KvCache::truncate`] can return here. One such point is kept, besides the start.
    pub fn keep_states(&mut self) {
        if !self.has_states() {
            return;
        }
        // They would overwrite what is kept.
        self.forget_steps();
        self.snapshots.truncate(1);
        let states = self.parts.iter().zip(&mut self.layers).flat_map(states_of).map(|t| t.clone()).collect();
        self.snapshots.push(Snapshot { len: self.len, states });
    }

    /// The bytes of what a part of the model computes of the next position from `fed`, which is stored: by `compute`, or by the step that was recorded where the
    /// positions before were read in this way too.
    pub(crate) fn step(
        &mut self,
        part: usize,
        fed: &Tensor,
        compute: impl FnOnce(&mut KvCache) -> TensorResult<Tensor>,
    ) -> TensorResult<Vec<u8>> {
        if self.steps.len() <= part {
            self.steps.resize_with(part + 1, PartStep::default);
        }
        let PartStep { mut replay, next } = std::mem::take(&mut self.steps[part]);
        if next != Some(self.len) {
            replay = Replay::default();
        }
        let download = match replay.replay(fed, 1)? {
            Some((_, download)) => download,
            None => {
                let result = compute(self)?;
                replay.record(fed, &result)?
            }
        };
        // The next part, on another device, begins with these bytes: by the time that a sleeping thread is woken, a part is half done.
        let adapter = fed.device().backend().adapter();
        let bytes = match adapter.map(|a| a.pacing(|p| Arc::new(p.awake_for(PART_AWAKE)))) {
            Some(pacing) => with_pacing(&pacing, || download.bytes())?,
            None => download.bytes()?,
        };
        self.steps[part] = PartStep { replay, next: Some(self.len + 1) };
        Ok(bytes)
    }

    /// Lets go of recorded steps, so that the cache's memory can be written in place by what comes.
    pub(crate) fn forget_steps(&mut self) {
        self.steps.clear();
    }

    /// Writes keys and values `[B,Hkv,T,D]` of the next T positions of a layer; returns the whole buffers.
    ///
    /// # Errors
    /// [`TensorError::Value`] for keys that are not `[B,Hkv,T,D]` or a layer that is not there; [`TensorError::State`] where the positions do not
    /// fit behind those that are taken; those of [`Tensor::write`].
    ///
    /// ```
    /// use tensorlogic::models::{self, KvCache, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let mut cache = KvCache::new(&model.shape(), 16, &device)?;
    /// let rows = Tensor::ones(&[1, 6, 3, 64], DType::F32, &device)?; // 6 heads of size 64, 3 positions
    /// let (keys, _) = cache.append(0, &rows, &rows)?;
    /// assert_eq!(keys.dims(), [1, 6, 16, 64]);
    /// assert_eq!(keys.sum_all()?.item()?, 1152.0); // 6 · 3 · 64 ones, and zeros behind them
    /// assert_eq!(cache.len(), 0); // until the last layer has appended and `advance` is called
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn append(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> TensorResult<(Tensor, Tensor)> {
        Ok((self.append_rows(layer, 0, k)?, self.append_rows(layer, 1, v)?))
    }

    /// Writes rows `[B,heads,T,size]` of the next T positions to a part of a layer; returns the whole buffer, or the rows where nothing is kept.
    ///
    /// # Errors
    /// [`TensorError::Value`] for rows that are not `[B,heads,T,size]` or a layer that is not there; [`TensorError::State`] where the positions do
    /// not fit behind those that are taken; those of [`Tensor::write`].
    pub(crate) fn append_rows(&mut self, layer: usize, part: usize, rows: &Tensor) -> TensorResult<Tensor> {
        if self.pages.is_some() {
            return Err(TensorError::Unsupported("this model's attention does not read keys and values from pages".into()));
        }
        if !self.keeps {
            return Ok(rows.clone());
        }
        let &[_, _, t, _] = rows.dims() else {
            return Err(TensorError::Value(format!("keys must be [batch, heads, positions, size], not {:?}", rows.dims())));
        };
        let (len, capacity) = (self.len, self.capacity);
        let slot = self.slot(layer, part)?;
        if len + t > capacity {
            return Err(TensorError::State(format!(
                "the context is full: {len} of {capacity} positions are taken and {t} more do not fit"
            )));
        }
        // The old handle goes, so that the write may happen in place.
        *slot = slot.write(rows, 2, len)?;
        Ok(slot.clone())
    }

    /// Hands keys and values of all positions, as [`KvCache::append`] gave them, to later layers of the same pass.
    pub(crate) fn lend(&mut self, layer: usize, k: &Tensor, v: &Tensor) {
        if !self.keeps {
            self.lent.retain(|(of, _)| *of != layer);
            self.lent.push((layer, [k.clone(), v.clone()]));
        }
    }

    /// Keys and values of an earlier layer.
    ///
    /// # Errors
    /// [`TensorError::Config`] where nothing is kept and the layer did not lend them in this pass.
    pub(crate) fn lent(&mut self, layer: usize) -> TensorResult<(Tensor, Tensor)> {
        if let (Some(k), Some(v)) = (self.part(layer, 0)?, self.part(layer, 1)?) {
            return Ok((k, v));
        }
        match self.lent.iter().find(|(of, _)| *of == layer) {
            Some((_, [k, v])) => Ok((k.clone(), v.clone())),
            None => Err(TensorError::Config(format!(
                "layer {layer}'s keys are missing: models with shared keys do not support per-block checkpointing"
            ))),
        }
    }

    /// A part of what a layer keeps: its own or that of the layer whose keys and values it reads. `None` where nothing is kept.
    ///
    /// # Errors
    /// [`TensorError::Value`] for a layer or part that is not there.
    pub(crate) fn part(&mut self, layer: usize, part: usize) -> TensorResult<Option<Tensor>> {
        if !self.keeps {
            return Ok(None);
        }
        let of = match self.parts.get(layer) {
            Some(LayerCache::OfLayer(other)) => *other,
            _ => layer,
        };
        Ok(Some(self.slot(of, part)?.clone()))
    }

    /// Replaces a state of a layer, in place where nothing else holds the old one. What `y` comes to is stored only after that, so that reading it
    /// takes the cache along. Without a cache there is nothing to do.
    ///
    /// # Errors
    /// [`TensorError::Value`] for a layer or part that is not there; those of [`Tensor::write`].
    pub(crate) fn set_state(&mut self, layer: usize, part: usize, state: &Tensor, y: Tensor) -> TensorResult<Tensor> {
        if !self.keeps {
            return Ok(y);
        }
        let slot = self.slot(layer, part)?;
        *slot = slot.write(state, 0, 0)?;
        y.after(slot)
    }

    fn slot(&mut self, layer: usize, part: usize) -> TensorResult<&mut Tensor> {
        let layers = self.layers.len();
        let slot = self.layers.get_mut(layer).and_then(|l| l.get_mut(part));
        slot.ok_or_else(|| TensorError::Value(format!("part {part} of layer {layer} of a cache for {layers}")))
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flatten()
    }
}

impl CachePart {
    fn is_state(&self) -> bool {
        matches!(self, CachePart::State { .. })
    }
}

/// A point of a cache that reading more may have to return to.
pub(crate) struct CachePoint {
    len: usize,
    /// The buffers, in the order of [`KvCache::tensors`].
    nodes: Vec<Weak<Node>>,
}

/// The states of a layer.
fn states_of<'t>((parts, tensors): (&LayerCache, &'t mut Vec<Tensor>)) -> Vec<&'t mut Tensor> {
    let LayerCache::Own(parts) = parts else { return Vec::new() };
    parts.iter().zip(tensors).filter(|(part, _)| part.is_state()).map(|(_, t)| t).collect()
}
