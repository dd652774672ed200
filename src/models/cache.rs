//! The KV cache: keys and values of past tokens, in buffers of fixed capacity that are written in place; or none, for training.

use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::eval::eval_all;
use crate::models::ModelShape;
use crate::models::paged::PagedCache;
use crate::tensor::Tensor;

/// Keys and values of every layer, each `[B,Hkv,capacity,D]`, of which the first `len` positions are valid.
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
    capacity: usize,
    /// Whether the cache stores anything here.
    keeps: bool,
    /// The pages that hold keys and values instead.
    pages: Option<PagedCache>,
}

impl KvCache {
    /// An empty cache with room for `capacity` positions.
    ///
    /// # Errors
    /// Those of [`KvCache::batch`].
    pub fn new(shape: &ModelShape, capacity: usize, device: &Device) -> TensorResult<KvCache> {
        KvCache::batch(shape, 1, capacity, device)
    }

    /// An empty cache for `count` sequences of one length that are read together, `[count,T]` tokens at a time.
    ///
    /// # Errors
    /// When a buffer would have too many elements, the device lacks the dtype or has no room.
    pub fn batch(shape: &ModelShape, count: usize, capacity: usize, device: &Device) -> TensorResult<KvCache> {
        let sizes = [count, shape.kv_heads, capacity, shape.head_dim];
        let zeros = || Tensor::zeros(&sizes, shape.dtype, device);
        let layers = (0..shape.layers).map(|_| Ok((zeros()?, zeros()?))).collect::<TensorResult<Vec<_>>>()?;
        // Each its own memory: equal zeros would be computed once and shared.
        for (k, v) in &layers {
            eval_all(&[k])?;
            eval_all(&[v])?;
        }
        Ok(KvCache { layers, len: 0, capacity, keeps: true, pages: None })
    }

    /// A cache that stores nothing: tokens attend only to those of the same call.
    pub fn none() -> KvCache {
        KvCache { layers: Vec::new(), len: 0, capacity: 0, keeps: false, pages: None }
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
    /// Drops all positions from `len` on, to return to an earlier point of the conversation.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
    /// Counts `n` more positions as valid, after a step appended them in every layer.
    pub fn advance(&mut self, n: usize) {
        if self.keeps {
            self.len += n;
        }
    }

    /// Writes keys and values `[B,Hkv,T,D]` of the next T positions of a layer; returns the whole buffers.
    ///
    /// # Errors
    /// [`TensorError::Value`] for keys that are not `[B,Hkv,T,D]` or a layer that is not there; [`TensorError::State`] where the positions do not
    /// fit behind those that are taken; those of [`Tensor::write`].
    pub fn append(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> TensorResult<(Tensor, Tensor)> {
        if self.pages.is_some() {
            return Err(TensorError::Unsupported("this model's attention does not read keys and values from pages".into()));
        }
        if !self.keeps {
            return Ok((k.clone(), v.clone()));
        }
        let &[_, _, t, _] = k.dims() else {
            return Err(TensorError::Value(format!("keys must be [batch, heads, positions, size], not {:?}", k.dims())));
        };
        let layers = self.layers.len();
        if layer >= layers {
            return Err(TensorError::Value(format!("layer {layer} of a cache for {layers}")));
        }
        if self.len + t > self.capacity {
            return Err(TensorError::State(format!(
                "the context is full: {} of {} positions are taken and {t} more do not fit",
                self.len, self.capacity
            )));
        }
        let slot = &mut self.layers[layer];
        // The old handle goes, so that the write may happen in place.
        slot.0 = slot.0.write(k, 2, self.len)?;
        slot.1 = slot.1.write(v, 2, self.len)?;
        Ok(slot.clone())
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|(k, v)| [k, v])
    }
}
