//! What plain loops in f64 give: concatenations, products, attention, convolutions, pools, Einstein's sums, entropies, neighbours and quantized integers.

use crate::conformance_support::Array;
use tensorlogic::ops::index_add::Combine;
use tensorlogic::quant::{Affine, Granularity, Mapping};

pub fn narrowed(a: &Array, d: usize, start: usize, len: usize) -> Array {
    a.pick(d, &(start..start + len).collect::<Vec<_>>())
}

/// Arrays side by side along a dimension.
pub fn sides(all: &[Array], d: usize) -> Array {
    let mut shape = all[0].shape.clone();
    shape[d] = all.iter().map(|a| a.shape[d]).sum();
    Array::from_fn(&shape, |i| {
        let mut own = i.to_vec();
        for a in all {
            if own[d] < a.shape[d] {
                return a.at(&own);
            }
            own[d] -= a.shape[d];
        }
        unreachable!("an index outside of all parts")
    })
}

/// `to` with each element of `from` combined with the one whose index has another entry in one dimension.
pub fn combined(to: &Array, from: &Array, how: Combine, place: impl Fn(&[usize]) -> (usize, usize)) -> Array {
    let mut out = to.clone();
    // In order, since the last of several counts.
    let mut index = vec![0; from.shape.len()];
    for (n, &v) in from.data.iter().enumerate() {
        let mut rest = n;
        for d in (0..index.len()).rev() {
            index[d] = rest % from.shape[d];
            rest /= from.shape[d];
        }
        let (d, at) = place(&index);
        let mut own = index.clone();
        own[d] = at;
        let old = &mut out.data[own.iter().zip(&to.shape).fold(0, |n, (&i, &d)| n * d + i)];
        *old = match how {
            Combine::Add => *old + v,
            Combine::Set => v,
            Combine::Mul => *old * v,
            Combine::Min => old.min(v),
            Combine::Max => old.max(v),
        };
    }
    out
}

/// `softmax(q·kᵀ·scale + mask)·v`; a query sees keys below `valid`, with `causal` up to its own position, and of those the last `window`.
pub struct Attention {
    pub scale: f64,
    pub causal: bool,
    pub valid: usize,
    pub window: usize,
    pub softcap: Option<f64>,
}

impl Attention {
    pub fn run(&self, q: &Array, k: &Array, v: &Array, mask: Option<&Array>) -> Array {
        let (h, groups, t, s) = (q.shape[1], k.shape[1], q.shape[2], k.shape[2]);
        let shape = [q.shape[0], h, t, v.shape[3]];
        let mask = mask.map(|m| Array { shape: vec![q.shape[0], h, t, s], data: vec![0.0; q.shape[0] * h * t * s] }.zip(m, |_, v| v));
        Array::from_fn(&shape, |i| {
            let (b, head, row) = (i[0], i[1], i[2]);
            let group = head / (h / groups);
            let position = (self.valid + row) as isize - t as isize;
            let sees = |j: usize| {
                let j = j as isize;
                (!self.causal || j <= position) && (self.window == 0 || j > position - self.window as isize)
            };
            let score = |j: usize| {
                let dot: f64 = (0..q.shape[3]).map(|e| q.at(&[b, head, row, e]) * k.at(&[b, group, j, e])).sum();
                let score = dot * self.scale;
                self.softcap.map_or(score, |c| c * (score / c).tanh()) + mask.as_ref().map_or(0.0, |m| m.at(&[b, head, row, j]))
            };
            let scores: Vec<(usize, f64)> = (0..self.valid).filter(|&j| sees(j)).map(|j| (j, score(j))).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.1));
            let sum: f64 = scores.iter().map(|s| (s.1 - top).exp()).sum();
            scores.iter().map(|&(j, x)| (x - top).exp() / sum * v.at(&[b, group, j, i[3]])).sum()
        })
    }
}

/// Where windows lie in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub kernel: usize,
    pub stride: usize,
    pub padding: (usize, usize),
    pub dilation: usize,
}

impl Axis {
    /// How many windows fit into `size` elements.
    pub fn count(&self, size: usize, ceil: bool) -> Option<usize> {
        let rest = (size + self.padding.0 + self.padding.1).checked_sub(self.dilation * (self.kernel - 1) + 1)?;
        let n = if ceil { rest.div_ceil(self.stride) } else { rest / self.stride } + 1;
        Some(if ceil && (n - 1) * self.stride >= size + self.padding.0 { n - 1 } else { n })
    }
}

/// The places of a window's taps, all combinations of the dimensions' taps, as signed indices.
pub fn taps(axes: &[Axis], window: &[usize]) -> Vec<(Vec<usize>, Vec<isize>)> {
    let sizes: Vec<usize> = axes.iter().map(|a| a.kernel).collect();
    let mut all = Vec::new();
    Array::from_fn(&sizes, |tap| {
        let place = |d: usize| (window[d] * axes[d].stride + tap[d] * axes[d].dilation) as isize - axes[d].padding.0 as isize;
        all.push((tap.to_vec(), (0..tap.len()).map(place).collect()));
        0.0
    });
    all
}

/// The element of `[N, C, …]` at a place, if it is inside.
pub fn inside(x: &Array, n: usize, c: usize, place: &[isize]) -> Option<f64> {
    let fits = place.iter().zip(&x.shape[2..]).all(|(&p, &s)| p >= 0 && p < s as isize);
    fits.then(|| x.at(&[n, c].into_iter().chain(place.iter().map(|&p| p as usize)).collect::<Vec<_>>()))
}

/// Cross-correlation of `[N, C, …]` with `[outputs, C / groups, …]`.
pub fn conv(x: &Array, w: &Array, bias: Option<&Array>, axes: &[Axis], groups: usize) -> Array {
    let own = w.shape[0] / groups;
    let mut shape = vec![x.shape[0], w.shape[0]];
    shape.extend(axes.iter().zip(&x.shape[2..]).map(|(a, &s)| a.count(s, false).expect("windows that fit")));
    Array::from_fn(&shape, |i| {
        let mut sum = bias.map_or(0.0, |b| b.data[i[1]]);
        for (tap, place) in taps(axes, &i[2..]) {
            for c in 0..w.shape[1] {
                let weight = || w.at(&[i[1], c].into_iter().chain(tap.iter().copied()).collect::<Vec<_>>());
                sum += inside(x, i[0], i[1] / own * w.shape[1] + c, &place).map_or(0.0, |v| v * weight());
            }
        }
        sum
    })
}

/// Its transpose: each element times the weight `[C, outputs / groups, …]`, added where the convolution would read it.
pub fn conv_transpose(x: &Array, w: &Array, bias: Option<&Array>, axes: &[Axis], groups: usize, more: &[usize]) -> Array {
    let (inner, own) = (w.shape[0] / groups, w.shape[1]);
    let mut shape = vec![x.shape[0], own * groups];
    for (d, a) in axes.iter().enumerate() {
        let whole = (x.shape[d + 2] - 1) * a.stride + a.dilation * (a.kernel - 1) + 1 + more[d];
        shape.push(whole - a.padding.0 - a.padding.1);
    }
    let mut out = Array::from_fn(&shape, |i| bias.map_or(0.0, |b| b.data[i[1]]));
    let mut add = |index: Vec<usize>, v: f64| {
        let flat = index.iter().zip(&shape).fold(0, |n, (&i, &d)| n * d + i);
        out.data[flat] += v;
    };
    Array::from_fn(&x.shape, |i| {
        for (tap, place) in taps(axes, &i[2..]) {
            if place.iter().zip(&shape[2..]).any(|(&p, &s)| p < 0 || p >= s as isize) {
                continue;
            }
            for o in 0..own {
                let weight = w.at(&[i[1], o].into_iter().chain(tap.iter().copied()).collect::<Vec<_>>());
                let index = [i[0], i[1] / inner * own + o].into_iter().chain(place.iter().map(|&p| p as usize)).collect();
                add(index, x.at(i) * weight);
            }
        }
        0.0
    });
    out
}

/// Einstein's sum of an equation of letters with its result.
pub fn einsum(equation: &str, operands: &[Array]) -> Array {
    let (left, right) = equation.split_once("->").expect("an equation with a result");
    let parts: Vec<Vec<char>> = left.split(',').map(|p| p.chars().collect()).collect();
    let mut letters: Vec<char> = right.chars().collect();
    letters.extend(left.chars().filter(|c| c.is_alphabetic() && !right.contains(*c)));
    let mut seen = Vec::new();
    letters.retain(|c| {
        !seen.contains(c) && {
            seen.push(*c);
            true
        }
    });
    let size = |c: char| {
        parts.iter().zip(operands).find_map(|(p, a)| p.iter().position(|x| *x == c).map(|d| a.shape[d])).expect("a letter of an operand")
    };
    let (outer, inner) = letters.split_at(right.len());
    let sizes = |l: &[char]| l.iter().map(|&c| size(c)).collect::<Vec<_>>();
    Array::from_fn(&sizes(outer), |i| {
        let terms = Array::from_fn(&sizes(inner), |j| {
            let at =
                |c: &char| letters.iter().position(|l| l == c).map(|k| if k < i.len() { i[k] } else { j[k - i.len()] }).expect("known");
            parts.iter().zip(operands).map(|(p, a)| a.at(&p.iter().map(at).collect::<Vec<_>>())).product()
        });
        terms.data.iter().sum()
    })
}

/// The entropy of the bytes around each one of a row, as a share of 8 bits: those of `window` bytes, of which the row has.
pub fn entropy(row: &[f64], window: usize) -> Vec<f64> {
    let around = |i: usize| {
        let mut bytes = row[i.saturating_sub(window / 2)..row.len().min(i + window.div_ceil(2))].to_vec();
        bytes.sort_by(f64::total_cmp);
        let shares = bytes.chunk_by(|a, b| a == b).map(|equal| equal.len() as f64 / bytes.len() as f64);
        // Not −0 where there is one kind.
        shares.map(|share| share * (1.0 / share).log2() / 8.0).sum()
    };
    (0..row.len()).map(around).collect()
}

/// The number that follows `x` in f32 in the direction of `y`, by its bits.
pub fn neighbour(x: f32, y: f32) -> f32 {
    match x {
        _ if x == y => y,
        _ if x == 0.0 => f32::from_bits(1).copysign(y),
        // Further away from 0, or nearer to it.
        _ if (x < y) == (x > 0.0) => f32::from_bits(x.to_bits() + 1),
        _ => f32::from_bits(x.to_bits() - 1),
    }
}

/// The group of each element of a tensor that is quantized.
pub fn groups(shape: &[usize], granularity: Granularity) -> Vec<usize> {
    let rank = shape.len();
    let of = |i: &[usize]| match granularity {
        Granularity::PerTensor => 0,
        Granularity::PerChannel(axis) => i[axis.rem_euclid(rank as isize) as usize],
        Granularity::Block(n) => {
            let row = i[..rank - 1].iter().zip(shape).fold(0, |row, (&i, &d)| row * d + i);
            row * shape[rank - 1].div_ceil(n) + i[rank - 1] / n
        }
    };
    Array::from_fn(shape, |i| of(i) as f64).data.into_iter().map(|g| g as usize).collect()
}

/// The integers of a tensor and what they stand for; `None` where it is not certain how a value is rounded.
pub fn quantized(a: &Array, how: &Affine) -> Option<(Array, Array)> {
    let [least, most] = how.range().map(f64::from);
    let groups = groups(&a.shape, how.granularity);
    let symmetric = how.mapping == Mapping::Symmetric;
    // Down and up, cut off: the same unless the number is between two integers.
    let rounded = |x: f64, [least, most]: [f64; 2]| {
        let [down, up] = [x - 1e-3, x + 1e-3].map(|x| x.round().clamp(least, most));
        (down == up).then_some(down)
    };
    let mut out = (a.clone(), a.clone());
    for (i, (&x, group)) in a.data.iter().zip(&groups).enumerate() {
        let own = || a.data.iter().zip(&groups).filter(|(_, g)| *g == group).map(|(v, _)| *v);
        let (low, high) = (own().fold(0.0, f64::min), own().fold(0.0, f64::max));
        let span = if symmetric { high.max(-low) / ((most - least) / 2.0) } else { (high - low) / (most - least) };
        let scale = span.max(f64::from(f32::MIN_POSITIVE));
        let zero = if symmetric { 0.0 } else { least + rounded(-low / scale, [0.0, most - least])? };
        let q = rounded(x / scale + zero, [least, most])?;
        (out.0.data[i], out.1.data[i]) = (q, (q - zero) * scale);
    }
    Some(out)
}
