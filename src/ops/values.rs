//! Nested arrays in and out: `Tensor::new(&[[1.0, 2.0]], &device)`, `to_scalar`, `to_vec1`, `to_vec2`, `to_vec3`.

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use std::panic::Location;

/// Values that [`Tensor::new`] takes: a number or `bool`, and arrays, slices and vectors of values, nested at most eight deep.
///
/// The element type decides the dtype. Literals with a point are f32, those without i32. f64 is left out, so that `1.0` need not be
/// written `1.0f32`; see [`Tensor::from_vec`] for tensors of f64.
pub trait Values {
    /// The innermost values' type.
    type Value: Value;
    /// Adds the values in row-major order; gives the sizes, or `None` where rows differ in length.
    fn collect(&self, out: &mut Vec<<Self::Value as Value>::Stored>) -> Option<Vec<usize>>;
}

/// A type of numbers for [`Tensor::new`].
pub trait Value: Copy {
    /// What a tensor holds in memory for it.
    type Stored: Element;
    /// The tensor's dtype.
    const DTYPE: DType;
    /// The value as it lies in memory.
    fn stored(self) -> Self::Stored;
}

macro_rules! values {
    ($($t:ty),*) => { $(
        impl Value for $t {
            type Stored = $t;
            const DTYPE: DType = <$t as Element>::DTYPE;
            fn stored(self) -> $t {
                self
            }
        }
        values!(scalar $t);
    )* };
    (scalar $t:ty) => {
        impl Values for $t {
            type Value = $t;
            fn collect(&self, out: &mut Vec<<$t as Value>::Stored>) -> Option<Vec<usize>> {
                out.push(self.stored());
                Some(Vec::new())
            }
        }
    };
}
values!(f32, half::f16, half::bf16, i32, u32, i8, u8, i64, i16, u16, u64);

impl Value for bool {
    type Stored = u8;
    const DTYPE: DType = DType::Bool;
    fn stored(self) -> u8 {
        self as u8
    }
}
values!(scalar bool);

impl<V: Values> Values for [V] {
    type Value = V::Value;
    fn collect(&self, out: &mut Vec<<Self::Value as Value>::Stored>) -> Option<Vec<usize>> {
        let mut sizes: Option<Vec<usize>> = None;
        for row in self {
            let own = row.collect(out)?;
            if sizes.get_or_insert_with(|| own.clone()) != &own {
                return None;
            }
        }
        let mut all = vec![self.len()];
        all.extend(sizes.unwrap_or_default());
        Some(all)
    }
}
impl<V: Values, const N: usize> Values for [V; N] {
    type Value = V::Value;
    fn collect(&self, out: &mut Vec<<Self::Value as Value>::Stored>) -> Option<Vec<usize>> {
        self[..].collect(out)
    }
}
impl<V: Values> Values for Vec<V> {
    type Value = V::Value;
    fn collect(&self, out: &mut Vec<<Self::Value as Value>::Stored>) -> Option<Vec<usize>> {
        self[..].collect(out)
    }
}
impl<V: Values + ?Sized> Values for &V {
    type Value = V::Value;
    fn collect(&self, out: &mut Vec<<Self::Value as Value>::Stored>) -> Option<Vec<usize>> {
        (**self).collect(out)
    }
}

impl Tensor {
    /// A tensor of a number, or of nested arrays, slices or vectors: `&[[1.0, 2.0]]` makes f32 `[1,2]`, `3` makes i32 `[]`. See [`Values`] for
    /// the dtypes.
    ///
    /// # Errors
    /// When rows differ in length, the nesting is more than eight deep, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &device)?;
    /// assert_eq!((x.dims(), x.dtype()), (&[3, 2][..], DType::F32));
    /// assert_eq!(Tensor::new(&[1, 2], &device)?.dtype(), DType::I32);
    /// assert_eq!(Tensor::new(true, &device)?.dtype(), DType::Bool);
    /// let error = Tensor::new(&[vec![1.0], vec![2.0, 3.0]], &device).unwrap_err();
    /// assert!(error.to_string().starts_with("new: rows of different lengths"));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn new<V: Values>(values: V, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let mut data = Vec::new();
        let wrong = || TensorError::shape("new", at, "rows of different lengths; all rows of a dimension need the same");
        let sizes = values.collect(&mut data).ok_or_else(wrong)?;
        let shape = crate::shape::Shape::new(&sizes, "new", at)?;
        let dtype = <V::Value as Value>::DTYPE;
        device.require(dtype)?;
        let buffer = device.upload(Bytes::of_vec(data))?;
        Ok(Tensor::leaf(device, crate::tensor::Meta { dtype, shape }, buffer, "new", at))
    }

    #[track_caller]
    fn want_rank(&self, op: &'static str, rank: usize) -> TensorResult<()> {
        let at = Location::caller();
        if self.rank() == rank {
            return Ok(());
        }
        let hint = if self.numel() == 1 { "; did you mean item()?" } else { "" };
        let message = format!("the tensor is {}, which has {} dimensions, not {rank}", self.shape(), self.rank());
        Err(TensorError::Shape { op, message, at, hint })
    }

    /// The value of a tensor of rank 0, in its own type (bool as u8). [`Tensor::item`] takes any tensor of one element and gives f64.
    ///
    /// # Errors
    /// When the tensor has dimensions, `T` is not its type, or for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// assert_eq!(x.sum_all()?.to_scalar::<f32>()?, 3.0);
    /// assert!(x.to_scalar::<f32>().is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_scalar<T: Element>(&self) -> TensorResult<T> {
        self.want_rank("to_scalar", 0)?;
        Ok(self.to_vec_of::<T>()?[0])
    }

    /// The elements of a vector `[N]` in their own type (bool as u8). [`Tensor::to_vec_of`] takes tensors of any shape.
    ///
    /// # Errors
    /// When the tensor has another rank, `T` is not its type, or for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[3, 4], &Device::cpu())?;
    /// assert_eq!(x.to_vec1::<i32>()?, [3, 4]);
    /// assert!(x.to_vec1::<f32>().is_err()); // it holds i32
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec1<T: Element>(&self) -> TensorResult<Vec<T>> {
        self.want_rank("to_vec1", 1)?;
        self.to_vec_of::<T>()
    }

    /// The rows of a matrix `[M,N]` in the elements' own type (bool as u8).
    ///
    /// # Errors
    /// As for [`Tensor::to_vec1`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;
    /// assert_eq!(x.t()?.to_vec2::<f32>()?, [[1.0, 3.0], [2.0, 4.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec2<T: Element>(&self) -> TensorResult<Vec<Vec<T>>> {
        self.want_rank("to_vec2", 2)?;
        let (flat, d) = (self.to_vec_of::<T>()?, self.dims());
        Ok((0..d[0]).map(|i| flat[i * d[1]..(i + 1) * d[1]].to_vec()).collect())
    }

    /// The matrices of a tensor `[B,M,N]`, as rows, in the elements' own type (bool as u8).
    ///
    /// # Errors
    /// As for [`Tensor::to_vec1`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[[1, 2]], [[3, 4]]], &Device::cpu())?;
    /// assert_eq!(x.to_vec3::<i32>()?, [[[1, 2]], [[3, 4]]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec3<T: Element>(&self) -> TensorResult<Vec<Vec<Vec<T>>>> {
        self.want_rank("to_vec3", 3)?;
        let (flat, d) = (self.to_vec_of::<T>()?, self.dims());
        let row = |i: usize, j: usize| flat[(i * d[1] + j) * d[2]..][..d[2]].to_vec();
        Ok((0..d[0]).map(|i| (0..d[1]).map(|j| row(i, j)).collect()).collect())
    }
}
