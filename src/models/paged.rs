//! Keys and values in pages that many texts share out among themselves.

use crate::backends::Bytes;
use crate::device::{Device, StorageMode};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::eval_all;
use crate::models::{LayerCache, ModelShape};
use crate::ops::AttentionOptions;
pub(crate) use crate::ops::attention::paged::PAGE;
use crate::tensor::Tensor;

/// The pages of every layer, and which of them the texts of one pass have.
pub(crate) struct PagedCache {
    /// For each layer `[2,pages,Hkv,64,D]`: keys, then values.
    pub pools: Vec<Tensor>,
    /// Where the pass's tokens go, i32 `[B,T]`: slot s is row s % 64 of page s / 64.
    pub slots: Tensor,
    /// The pages of each text, i32 `[B,P]`.
    pub table: Tensor,
    /// Keys of each text after the pass, i32 `[B]`.
    pub lens: Tensor,
}

impl PagedCache {
    /// Pools of `pages` pages, the first of which belongs to nobody.
    pub fn pools(shape: &ModelShape, pages: usize, device: &Device) -> TensorResult<Vec<Tensor>> {
        let rows = LayerCache::keys_values(shape.kv_heads, shape.head_dim, shape.head_dim);
        if shape.cache.iter().any(|layer| *layer != rows) {
            let message = format!("{}: pages for layers that keep something else than keys and values of equal heads", shape.architecture);
            return Err(TensorError::Unsupported(message));
        }
        let sizes = [2, pages, shape.kv_heads, PAGE, shape.head_dim];
        let zeros = |_| {
            // Each its own memory: equal zeros would be computed once and shared.
            let pool = Tensor::zeros(&sizes, shape.dtype, device)?;
            eval_all(&[&pool])?;
            // Little work of a GPU may be done by the CPU, whose memory kernels cannot write in place.
            if pool.storage_mode() != Some(StorageMode::Managed) {
                return Ok(pool);
            }
            let bytes = Bytes::of_vec(vec![0u8; shape.dtype.bytes(pool.numel()).unwrap_or(0)]);
            Tensor::from_bytes_in(bytes, shape.dtype, &sizes, device, StorageMode::Private)
        };
        (0..shape.layers).map(zeros).collect()
    }

    /// Bytes that a page takes in all layers.
    pub fn page_bytes(shape: &ModelShape) -> usize {
        let elements = 2 * shape.layers * shape.kv_heads * PAGE * shape.head_dim;
        shape.dtype.bytes(elements).unwrap_or(usize::MAX)
    }

    /// Puts keys and values `[B,Hkv,T,D]` into the pages of layer `i`, and attends to them, and to a sink of each head `[H]` if there are any:
    /// `[B,H,T,D]`.
    pub fn attend(
        &mut self,
        i: usize,
        [q, k, v]: [&Tensor; 3],
        sinks: Option<&Tensor>,
        options: &AttentionOptions,
    ) -> TensorResult<Tensor> {
        debug_assert!(k.dtype() != DType::F64);
        let layers = self.pools.len();
        let pool = self.pools.get_mut(i).ok_or_else(|| TensorError::Value(format!("layer {i} of pages for {layers}")))?;
        // The old handle goes, so that the write may happen in place.
        *pool = pool.paged_write(k, v, &self.slots)?;
        match sinks {
            Some(sinks) => q.paged_attention_with_sinks(pool, &self.table, &self.lens, sinks, options),
            None => q.paged_attention(pool, &self.table, &self.lens, options),
        }
    }
}
