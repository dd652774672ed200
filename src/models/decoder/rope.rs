//! Rotary positions on a device.

use crate::device::Device;
use crate::error::TensorResult;
use crate::models::Pass;
use crate::models::rope_settings::{Growth, RopeTable};
use crate::ops::rope::{RopePairs, rope_tables};
use crate::tensor::Tensor;

/// Tables of a rotary embedding: cosines and signed sines of each position.
#[derive(Clone)]
pub(crate) struct Rope {
    /// `[context,R]`, of which R elements of a head are rotated; where long texts have other frequencies, the rows of the positions behind the limit
    /// are theirs, so that single tokens find their row here.
    table: [Tensor; 2],
    /// The tables of texts longer than this many tokens.
    long: Option<(usize, [Tensor; 2])>,
    rope_dim: usize,
    pairs: RopePairs,
}

impl Rope {
    /// The tables of positions below `context`.
    pub fn new(context: usize, t: &RopeTable, device: &Device) -> TensorResult<Rope> {
        let rope_dim = t.freqs.len() * 2;
        let grown = |g: Growth, p: usize| 1.0 + g.beta * (1.0 + ((p as f64 + g.shift) / g.original).floor()).ln();
        let scale = |p: usize| t.factor * t.growth.map_or(1.0, |g| grown(g, p));
        let of = |freqs: &[f64]| {
            let (mut cos, mut sin) = rope_tables(context, freqs, t.pairs);
            if t.factor != 1.0 || t.growth.is_some() {
                for table in [&mut cos, &mut sin] {
                    for (p, row) in table.chunks_exact_mut(rope_dim).enumerate() {
                        row.iter_mut().for_each(|v| *v = (f64::from(*v) * scale(p)) as f32);
                    }
                }
            }
            [cos, sin]
        };
        let upload = |[cos, sin]: [Vec<f32>; 2]| -> TensorResult<[Tensor; 2]> {
            Ok([Tensor::from_vec(cos, &[context, rope_dim], device)?, Tensor::from_vec(sin, &[context, rope_dim], device)?])
        };
        let mut table = of(&t.freqs);
        let long = match &t.long {
            Some(long) if long.from < context => {
                let other = of(&long.freqs);
                for (table, other) in table.iter_mut().zip(&other) {
                    table[long.from * rope_dim..].copy_from_slice(&other[long.from * rope_dim..]);
                }
                Some((long.from, upload(other)?))
            }
            _ => None,
        };
        Ok(Rope { table: upload(table)?, long, rope_dim, pairs: t.pairs })
    }

    /// The tables of a pass's positions, by default `start..start + len`.
    pub fn at(&self, pass: &Pass<'_>, start: usize, len: usize) -> TensorResult<Rope> {
        let table = match &self.long {
            // A token by itself has its row in the first table, and repeated steps are of one token.
            Some((from, long)) if len > 1 && pass.text_length(start + len) > *from => long,
            _ => &self.table,
        };
        let part = |table: &Tensor| match pass.positions {
            Some(positions) => table.embedding(positions)?.unsqueeze(1), // [B, 1, T, R]
            None => table.narrow(0, start, len),
        };
        Ok(Rope { table: [part(&table[0])?, part(&table[1])?], long: None, ..*self })
    }

    /// Multiplies heads `[B,H,T,D]` with the cosine of the first pair: what grows with the position, where that pair does not rotate.
    pub fn grow(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.mul(&self.table[0].narrow(-1, 0, 1)?)?.cast(x.dtype())
    }

    /// Turns heads `[B,H,T,D]`.
    pub fn rotate(&self, x: &Tensor) -> TensorResult<Tensor> {
        let [cos, sin] = &self.table;
        let size = x.dims().last().copied().unwrap_or(0);
        if size == self.rope_dim {
            // Tables in f32 must not make the activations f32.
            return x.rope(cos, sin, self.pairs)?.cast(x.dtype());
        }
        let rotated = x.narrow(-1, 0, self.rope_dim)?.rope(cos, sin, self.pairs)?.cast(x.dtype())?;
        Tensor::cat(&[rotated, x.narrow(-1, self.rope_dim, size - self.rope_dim)?], -1)
    }
}
