//! Arrays of f64 with plain loops over them, tensors that hold the same values in every kind of view, and their comparison.
#![allow(dead_code)]

#[allow(unused_imports)] // Not every program runs its arrays on devices.
pub use crate::common::devices;
use half::{bf16, f16};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// The plain dtypes of a device that are tried.
pub fn dtypes(device: &Device) -> Vec<DType> {
    let all = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::U8,
        DType::Bool,
        DType::F64,
        DType::I64,
        DType::I8,
        DType::I16,
        DType::U16,
        DType::U64,
    ];
    all.into_iter().filter(|&d| device.supports(d)).collect()
}

/// Numbers in [0, 1) that look random and are the same every time.
pub fn noise(count: usize, seed: u64) -> Vec<f64> {
    crate::common::noise(count, seed).into_iter().map(|v| (v + 1.0) / 2.0).collect()
}

/// A value as `dtype` holds it.
fn stored(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => v,
        DType::F32 => f64::from(v as f32),
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::BF16 => bf16::from_f64(v).to_f64(),
        DType::Bool => f64::from(v > 0.0),
        DType::U8 | DType::U16 | DType::U64 => v.abs().round(),
        _ => v.round(),
    }
}

/// The tensor of these values, which `dtype` holds exactly.
fn tensor(values: &[f64], dtype: DType, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
    macro_rules! make {
        ($t:ty) => {
            Tensor::from_vec(values.iter().map(|&v| v as $t).collect(), shape, device)
        };
    }
    match dtype {
        DType::F64 => make!(f64),
        DType::F32 => make!(f32),
        DType::F16 => Tensor::from_vec(values.iter().map(|&v| f16::from_f64(v)).collect(), shape, device),
        DType::BF16 => Tensor::from_vec(values.iter().map(|&v| bf16::from_f64(v)).collect(), shape, device),
        DType::I32 => make!(i32),
        DType::I64 => make!(i64),
        DType::I8 => make!(i8),
        DType::I16 => make!(i16),
        DType::U16 => make!(u16),
        DType::U64 => make!(u64),
        DType::U8 => make!(u8),
        _ => {
            let bytes = values.iter().map(|&v| v as u8).collect();
            Tensor::from_bytes(tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes)), dtype, shape, device)
        }
    }
}

/// A row-major array.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    pub fn from_fn(shape: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Array {
        let mut data = Vec::new();
        let mut index = vec![0; shape.len()];
        for n in 0..shape.iter().product::<usize>() {
            let mut rest = n;
            for d in (0..shape.len()).rev() {
                index[d] = rest % shape[d];
                rest /= shape[d];
            }
            data.push(f(&index));
        }
        Array { shape: shape.to_vec(), data }
    }
    pub fn at(&self, index: &[usize]) -> f64 {
        self.data[index.iter().zip(&self.shape).fold(0, |n, (&i, &d)| n * d + i)]
    }
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Array {
        Array { shape: self.shape.clone(), data: self.data.iter().map(|&v| f(v)).collect() }
    }
    pub fn index_map(&self, f: impl Fn(&[usize], f64) -> f64) -> Array {
        Array::from_fn(&self.shape, |i| f(i, self.at(i)))
    }
    /// Elementwise, broadcast as numpy does.
    pub fn zip(&self, other: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
        let rank = self.shape.len().max(other.shape.len());
        let size = |a: &Array, d: usize| if d + a.shape.len() >= rank { a.shape[d + a.shape.len() - rank] } else { 1 };
        let shape: Vec<usize> = (0..rank).map(|d| if size(self, d) == 1 { size(other, d) } else { size(self, d) }).collect();
        let at = |a: &Array, i: &[usize]| {
            let own: Vec<usize> = (rank - a.shape.len()..rank).map(|d| if size(a, d) == 1 { 0 } else { i[d] }).collect();
            a.at(&own)
        };
        Array::from_fn(&shape, |i| f(at(self, i), at(other, i)))
    }
    pub fn permute(&self, order: &[usize]) -> Array {
        let shape: Vec<usize> = order.iter().map(|&o| self.shape[o]).collect();
        Array::from_fn(&shape, |i| {
            let mut own = vec![0; i.len()];
            order.iter().zip(i).for_each(|(&o, &v)| own[o] = v);
            self.at(&own)
        })
    }
    pub fn reshape(&self, shape: &[usize]) -> Array {
        Array { shape: shape.to_vec(), data: self.data.clone() }
    }
    /// The entries of a dimension that `index` names.
    pub fn pick(&self, d: usize, index: &[usize]) -> Array {
        let mut shape = self.shape.clone();
        shape[d] = index.len();
        Array::from_fn(&shape, |i| {
            let mut own = i.to_vec();
            own[d] = index[i[d]];
            self.at(&own)
        })
    }
    /// `f` over the elements along `dims`: one result per row, or with `keep` as many as there were, along one dimension.
    pub fn rows(&self, dims: &[isize], f: impl Fn(&[f64]) -> Vec<f64>, keep: bool) -> Array {
        let rank = self.shape.len();
        let gone: Vec<usize> = dims.iter().map(|&d| if d < 0 { (d + rank as isize) as usize } else { d as usize }).collect();
        let row = |index: &[usize]| {
            let inner: Vec<usize> = gone.iter().map(|&d| self.shape[d]).collect();
            Array::from_fn(&inner, |j| {
                let mut own = index.to_vec();
                gone.iter().zip(j).for_each(|(&d, &v)| own[d] = v);
                self.at(&own)
            })
            .data
        };
        if keep {
            return Array::from_fn(&self.shape, |i| f(&row(i))[i[gone[0]]]);
        }
        let kept: Vec<usize> = (0..rank).filter(|d| !gone.contains(d)).collect();
        let shape: Vec<usize> = kept.iter().map(|&d| self.shape[d]).collect();
        Array::from_fn(&shape, |i| {
            let mut own = vec![0; rank];
            kept.iter().zip(i).for_each(|(&d, &v)| own[d] = v);
            f(&row(&own))[0]
        })
    }
    pub fn matmul(&self, other: &Array) -> Array {
        let (mut a, mut b) = (self.clone(), other.clone());
        if self.shape.len() == 1 {
            a.shape.insert(0, 1);
        }
        if other.shape.len() == 1 {
            b.shape.push(1);
        }
        let (ra, rb) = (a.shape.len(), b.shape.len());
        let (m, k, n) = (a.shape[ra - 2], a.shape[ra - 1], b.shape[rb - 1]);
        let batches = |s: &[usize]| Array { shape: s.to_vec(), data: vec![0.0; s.iter().product()] };
        let batch = batches(&a.shape[..ra - 2]).zip(&batches(&b.shape[..rb - 2]), |x, _| x).shape;
        let mut shape = batch.clone();
        shape.extend([m, n]);
        let own = |a: &Array, i: &[usize], last: [usize; 2]| {
            let lead = a.shape.len() - 2;
            let mut own: Vec<usize> = (0..lead).map(|d| if a.shape[d] == 1 { 0 } else { i[batch.len() - lead + d] }).collect();
            own.extend(last);
            a.at(&own)
        };
        let r = shape.len();
        let mut y = Array::from_fn(&shape, |i| (0..k).map(|e| own(&a, i, [i[r - 2], e]) * own(&b, i, [e, i[r - 1]])).sum());
        if other.shape.len() == 1 {
            y.shape.pop();
        }
        if self.shape.len() == 1 {
            y.shape.remove(batch.len());
        }
        y
    }
}

/// How a tensor's elements lie in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Layout {
    /// Row by row.
    Contiguous,
    /// The last two dimensions exchanged in memory.
    Transposed,
    /// Every second element, from the second on.
    Stepped,
    /// Backwards along the first dimension.
    Flipped,
    /// Rows inside a larger array.
    Window,
    /// One row read again and again.
    Broadcast,
    /// No elements.
    Empty,
    /// One element.
    One,
}
pub const LAYOUTS: &[Layout] = &[
    Layout::Contiguous,
    Layout::Transposed,
    Layout::Stepped,
    Layout::Flipped,
    Layout::Window,
    Layout::Broadcast,
    Layout::Empty,
    Layout::One,
];
impl Layout {
    /// Whether the shape stays what was asked for.
    pub fn keeps(self) -> bool {
        !matches!(self, Layout::Empty | Layout::One)
    }
}

/// A tensor and what it holds.
pub struct Data {
    pub tensor: Tensor,
    pub array: Array,
}

impl Data {
    /// Values of a range in this layout; `shape` is the tensor's, but for `Empty` and `One`.
    pub fn new(layout: Layout, dtype: DType, shape: &[usize], range: (f64, f64), seed: u64, device: &Device) -> Data {
        let rank = shape.len();
        let mut shape = shape.to_vec();
        match layout {
            Layout::Empty => shape[0] = 0,
            Layout::One => shape.fill(1),
            _ => {}
        }
        let values: Vec<f64> =
            noise(shape.iter().product(), seed).iter().map(|v| stored(range.0 + v * (range.1 - range.0), dtype)).collect();
        let mut array = Array { shape: shape.clone(), data: values };
        let make = |a: &Array| tensor(&a.data, dtype, &a.shape, device);
        let last = rank - 1;
        let tensor = match layout {
            Layout::Transposed if rank > 1 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(last, last - 1);
                make(&array.permute(&order)).and_then(|t| t.t())
            }
            Layout::Stepped => {
                let mut wide = shape.clone();
                wide[last] = 2 * shape[last] + 1;
                let base = Array::from_fn(&wide, |i| {
                    if i[last] % 2 == 0 {
                        return 1.0;
                    }
                    let mut own = i.to_vec();
                    own[last] /= 2;
                    array.at(&own)
                });
                make(&base).and_then(|t| t.slice(-1, 1, wide[last], 2))
            }
            Layout::Flipped => {
                let back: Vec<usize> = (0..shape[0]).rev().collect();
                make(&array.pick(0, &back)).and_then(|t| t.flip(0))
            }
            Layout::Window => {
                let wide: Vec<usize> = shape.iter().map(|d| d + 3).collect();
                let base = Array::from_fn(&wide, |i| {
                    let inside = i.iter().zip(&shape).all(|(&i, &d)| (1..=d).contains(&i));
                    if inside { array.at(&i.iter().map(|i| i - 1).collect::<Vec<_>>()) } else { 1.0 }
                });
                let start = make(&base);
                (0..rank).fold(start, |t, d| t.and_then(|t| t.narrow(d as isize, 1, shape[d])))
            }
            Layout::Broadcast if shape[0] > 0 => {
                array = array.pick(0, &vec![0; shape[0]]);
                make(&array.pick(0, &[0])).and_then(|t| t.broadcast_to(&shape))
            }
            _ => make(&array),
        };
        Data { tensor: tensor.unwrap(), array }
    }
}

/// The relative error that a result of this dtype may have: its rounding, and that of f32 arithmetic on the way.
fn tolerance(dtype: DType, device: &Device) -> f64 {
    match dtype {
        DType::F64 => 1e-11,
        DType::F32 if device.is_cpu() => 4e-6,
        DType::F32 => 1e-4,
        DType::F16 => 1.2e-3,
        DType::BF16 => 9e-3,
        _ => 0.0,
    }
}

/// The elements as f64.
pub fn read(t: &Tensor) -> TensorResult<Vec<f64>> {
    Ok(match t.dtype() {
        DType::F64 => t.to_vec_of::<f64>()?,
        DType::I64 => t.to_vec_of::<i64>()?.into_iter().map(|v| v as f64).collect(),
        DType::U64 => t.to_vec_of::<u64>()?.into_iter().map(|v| v as f64).collect(),
        DType::I32 => t.to_vec_of::<i32>()?.into_iter().map(f64::from).collect(),
        _ => t.to_vec()?.into_iter().map(f64::from).collect(),
    })
}

/// Compares a result with the array that is expected.
#[track_caller]
pub fn check(name: &str, device: &Device, got: TensorResult<Tensor>, want: Array) {
    let name = format!("{name} on {}", device.name());
    let got = got.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(got.dims(), want.shape, "{name}: shape");
    let values = read(&got).unwrap_or_else(|e| panic!("{name}: {e}"));
    let tolerance = tolerance(got.dtype(), device);
    let want = match got.dtype() {
        DType::U8 => want.map(|v| v.rem_euclid(256.0)),
        DType::U16 => want.map(|v| v.rem_euclid(65_536.0)),
        DType::U64 => want.map(|v| if v < 0.0 { v + 2f64.powi(64) } else { v }),
        _ => want,
    };
    // Sums of terms of both signs are only as exact as their terms.
    let scale = want.data.iter().fold(0.0f64, |m, v| m.max(v.abs())).min(10.0);
    for (i, (&a, &b)) in values.iter().zip(&want.data).enumerate() {
        let fits = a == b || (a - b).abs() <= tolerance * (b.abs() + 0.2 * scale + 0.1);
        assert!(fits, "{name}: element {i} is {a} instead of {b} (results {})", got.dtype());
    }
    assert_eq!(values.len(), want.data.len(), "{name}: length");
}
