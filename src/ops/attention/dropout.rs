//! Dropout of attention weights without storing them: which weights are kept follows from their positions, and is computed again where it is needed.

use crate::backends::cpu::path::versions;
use crate::backends::cpu::vector::Real;
use crate::error::{TensorError, TensorResult};
use crate::ops::random::Rng;
use crate::plan::Task;

/// Dropout of attention weights after the softmax (Vaswani et al., 2017): weight `[b, h, t, s]` becomes 0 where that element of
/// `rng.uniform(&[B, H, T, S], …)` is below `p`, and is multiplied by 1/(1 − p) elsewhere. The bits are the same in attention and its gradients and on
/// every device; they repeat after 2³² weights.
#[derive(Clone, Debug)]
pub struct AttentionDropout {
    /// The probability of dropping a weight, 0 to 1.
    pub p: f64,
    /// The stream whose next draw decides. It is not advanced: a caller takes a draw for each attention.
    pub rng: Rng,
}

impl AttentionDropout {
    /// Dropout by the next draw of `rng`, which is taken from the stream.
    ///
    /// # Errors
    /// When `p` is not between 0 and 1.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let mut rng = Rng::new(7);
    /// assert_eq!(AttentionDropout::new(0.1, &mut rng)?.p, 0.1);
    /// assert!(AttentionDropout::new(1.5, &mut rng).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(p: f64, rng: &mut Rng) -> TensorResult<AttentionDropout> {
        let own = AttentionDropout { p, rng: rng.clone() };
        own.check()?;
        rng.draws = rng.draws.wrapping_add(1);
        Ok(own)
    }

    pub(super) fn check(&self) -> TensorResult<()> {
        if (0.0..=1.0).contains(&self.p) {
            Ok(())
        } else {
            Err(TensorError::Value(format!("dropout: probability {} is not between 0 and 1", self.p)))
        }
    }
}

/// What the kept weights are multiplied with.
pub(super) fn factor(p: f64) -> f64 {
    1.0 / (1.0 - p).max(1e-12)
}

/// A weight is kept where the upper 24 of its random bits are not below this.
pub(super) fn threshold(p: f64) -> u32 {
    // As `Rng::uniform` and a comparison with `p` in f32.
    (f64::from(p as f32) * f64::from(1 << 24)).ceil() as u32
}

/// Dropout in a run of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    draw: u32,
    key: u32,
    below: u32,
    factor: f64,
}

impl Keep {
    /// That of a kernel with this probability; its draw and key are the task's second and third parameter.
    pub fn of(p: f64, task: &dyn Task) -> Option<Keep> {
        (p > 0.0).then(|| Keep { draw: task.param(1) as u32, key: task.param(2) as u32, below: threshold(p), factor: factor(p) })
    }

    /// The factors of the weights from number `first` on, 0 or 1/(1 − p).
    pub fn factors<T: Real>(&self, first: usize, out: &mut [T]) {
        let mut kept = [0u32; 64];
        for (n, out) in out.chunks_mut(kept.len()).enumerate() {
            let kept = &mut kept[..out.len()];
            keep(kept, (first + n * 64) as u32, self.draw, self.key, self.below);
            out.iter_mut().zip(kept).for_each(|(o, &mut k)| *o = T::of(if k != 0 { self.factor } else { 0.0 }));
        }
    }

    /// Multiplies the weights from number `first` on by their factors.
    pub fn apply<T: Real>(&self, first: usize, weights: &mut [T]) {
        let mut factors = [T::ZERO; 64];
        for (n, weights) in weights.chunks_mut(64).enumerate() {
            let factors = &mut factors[..weights.len()];
            self.factors(first + n * 64, factors);
            weights.iter_mut().zip(factors).for_each(|(w, f)| *w = *w * *f);
        }
    }
}

versions! {
    /// Whether each weight from number `first` on is kept, as 1 or 0: `scalar::philox` of many counters.
    fn keep(out: &mut [u32], first: u32, draw: u32, key: u32, below: u32) = keep_body;
}

#[inline(always)]
fn keep_body<const F: bool>(out: &mut [u32], first: u32, draw: u32, key: u32, below: u32) {
    const LANES: usize = 16;
    let wide = |m: u64, x: u32| m * u64::from(x);
    for (n, out) in out.chunks_mut(LANES).enumerate() {
        let mut c: [[u32; LANES]; 4] =
            [std::array::from_fn(|i| first.wrapping_add((n * LANES + i) as u32)), [draw; LANES], [0; LANES], [0; LANES]];
        let mut k = [key, 0u32];
        for _ in 0..10 {
            for i in 0..LANES {
                let (p, q) = (wide(0xD251_1F53, c[0][i]), wide(0xCD9E_8D57, c[2][i]));
                (c[0][i], c[1][i], c[2][i], c[3][i]) =
                    ((q >> 32) as u32 ^ c[1][i] ^ k[0], q as u32, (p >> 32) as u32 ^ c[3][i] ^ k[1], p as u32);
            }
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        }
        out.iter_mut().zip(c[0]).for_each(|(o, x)| *o = u32::from(x >> 8 >= below));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::philox;

    #[test]
    fn weights_are_kept_where_the_uniform_draw_is_not_below_p() {
        let mut rng = Rng::new(0x1234_5678_9ABC_DEF0);
        let device = crate::Device::cpu();
        for (p, n) in [(0.1, 1), (0.5, 64), (0.9, 131), (1.0, 20), (1e-9, 100)] {
            let draw = AttentionDropout::new(p, &mut rng.clone()).unwrap();
            let want: Vec<u32> = rng
                .uniform(&[n], crate::DType::F32, &device)
                .unwrap()
                .to_vec()
                .unwrap()
                .iter()
                .map(|&u| u32::from(u >= p as f32))
                .collect();
            let mut got = vec![7; n];
            keep(&mut got, 0, draw.rng.draws, draw.rng.key(), threshold(p));
            assert_eq!(got, want, "{p}");
            keep(&mut got, u32::MAX - 3, 5, 9, threshold(p));
            let bits = (0..n as u32).map(|i| philox((u32::MAX - 3).wrapping_add(i), 5, 9) >> 8);
            assert!(bits.zip(&got).all(|(b, &k)| (b >= threshold(p)) == (k == 1)));
        }
        assert!(AttentionDropout::new(1.5, &mut rng).is_err() && AttentionDropout::new(f64::NAN, &mut rng).is_err());
    }
}
