//! Attention by operations that have gradients: which keys a query sees, what dropout keeps, and attention whose weights are stored.

use super::{AttentionKernel, dropout};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::ops::random;
use crate::shape::Shape;
use crate::tensor::Tensor;

impl AttentionKernel {
    /// Whether each of `t` queries sees each of `s` keys, of which `valid` are valid: bool `[t, s]` or `[1, s]`, without the mask.
    pub(super) fn visible(&self, t: usize, s: usize, valid: f64, device: &Device) -> TensorResult<Tensor> {
        let key = Tensor::arange(0.0, s as f64, 1.0, DType::I32, device)?.unsqueeze(0)?;
        let valid = valid as i64;
        // The position of each query, counted among the valid keys.
        let query = Tensor::arange(0.0, t as f64, 1.0, DType::I32, device)?.unsqueeze(1)?.add(valid - t as i64)?;
        let mut seen = key.lt(valid)?;
        if self.causal {
            seen = seen.bitwise_and(&key.le(&query)?)?;
        }
        if self.window > 0 {
            seen = seen.bitwise_and(&key.gt(&query.sub(i64::from(self.window))?)?)?;
        }
        Ok(seen)
    }

    /// Scores as the softmax takes them.
    pub(super) fn capped(&self, scores: Tensor) -> TensorResult<Tensor> {
        if self.softcap > 0.0 { scores.softcap(self.softcap) } else { Ok(scores) }
    }

    /// What dropout multiplies the weights `[B, H, T, S]` with, by the step's parameters.
    pub(super) fn keep_factors(&self, weights: Shape, params: &[f64], dtype: DType, device: &Device, at: At) -> TensorResult<Tensor> {
        let draw = random::uniform_of(weights, params[1], params[2], device, at)?;
        draw.ge(self.dropout)?.where_(dropout::factor(self.dropout), 0.0)?.cast(dtype)
    }

    /// Attention without a mask of queries, keys and values by two products, between which the weights `[B, H, T, S]` are in memory.
    pub(super) fn with_stored_weights(&self, inputs: &[Tensor], params: &[f64], at: At) -> TensorResult<Tensor> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let [b, h, t, s, groups] = [q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2], k.shape()[1]];
        let device = q.device();
        // Query heads that share a key head lie side by side: [B, Hkv, sharing, T, ...].
        let split = |x: &Tensor, n: usize| x.reshape(&[b, groups, h / groups, t, n]);
        let scores = split(&q.mul(self.scale)?, q.shape()[3])?.matmul(&k.unsqueeze(2)?.transpose(-2, -1)?)?;
        let scores = self.capped(scores)?;
        let hidden = self.visible(t, s, params[0], device)?.logical_not()?;
        let mut weights = scores.masked_fill(&hidden, f64::NEG_INFINITY)?.softmax(-1)?;
        if self.dropout > 0.0 {
            weights = weights.mul(&split(&self.keep_factors(Shape::of(&[b, h, t, s]), params, weights.dtype(), device, at)?, s)?)?;
        }
        weights.matmul(&v.unsqueeze(2)?)?.reshape(&[b, h, t, v.shape()[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::{AttentionDropout, AttentionOptions};
    use crate::ops::random::Rng;

    /// Against the fused kernel, which tests hold against f64: [B, H, Hkv, T, S, D, Dv], then causal, window and valid keys.
    #[test]
    fn stored_weights_give_what_the_fused_kernel_gives() {
        let cases = [
            ([2, 4, 2, 70, 70, 16, 12], true, 0, 70),
            ([1, 2, 2, 33, 90, 8, 8], false, 0, 81),
            ([1, 3, 1, 40, 61, 24, 40], true, 17, 55),
            ([2, 2, 1, 1, 5, 4, 4], false, 3, 4),
        ];
        let device = Device::cpu();
        let mut rng = Rng::new(3);
        for (n, ([b, h, groups, t, s, d, dv], causal, window, valid)) in cases.into_iter().enumerate() {
            let shapes = [[b, h, t, d], [b, groups, s, d], [b, groups, s, dv]];
            let inputs = shapes.map(|shape| rng.normal(&shape, DType::F32, &device).unwrap());
            let dropout = AttentionDropout::new(0.3, &mut rng).unwrap();
            let softcap = Some(0.5).filter(|_| n % 2 == 1);
            let params = [valid as f64, f64::from(dropout.rng.draws), f64::from(dropout.rng.key())];
            let options = AttentionOptions {
                causal,
                window: Some(window).filter(|w| *w > 0),
                kv_len: Some(valid),
                dropout: Some(dropout),
                scale: None,
                softcap,
            };
            let fused = inputs[0].attention(&inputs[1], &inputs[2], None, &options).unwrap().to_vec().unwrap();
            let scale = 1.0 / (d as f64).sqrt();
            let kernel = AttentionKernel {
                causal,
                scale,
                window: window as u32,
                mask: false,
                sums: false,
                dropout: 0.3,
                softcap: softcap.unwrap_or(0.0),
                paged: false,
            };
            let stored = kernel.with_stored_weights(&inputs, &params, std::panic::Location::caller()).unwrap();
            assert_eq!(stored.dims(), [b, h, t, dv]);
            for (i, (a, b)) in stored.to_vec().unwrap().into_iter().zip(fused).enumerate() {
                assert!((a - b).abs() <= 2e-5, "case {n}, element {i}: stored {a}, fused {b}");
            }
        }
    }
}
