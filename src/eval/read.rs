//! Values on their way to the host: what asks for a tensor's elements.

use super::evaluator::{base, plan_of};
use super::run::{eval_all, eval_for};
use crate::backends::PendingRead;
use crate::backends::limits::host_memory_info;
use crate::cpu_fallback::Purpose;
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::events::{SpanKind, span};
use crate::tensor::{Kind, Tensor};
use std::panic::Location;

/// From here on it is looked up whether the host has the memory for what is read; asking the system takes longer than a small read.
const CHECKED_READ_BYTES: usize = 256 << 20;

/// Memory of the host for what is read. Rust ends a process that asks for more than there is; this is an error.
fn host_memory<T: Clone>(len: usize, value: T) -> TensorResult<Vec<T>> {
    let asked = len.saturating_mul(size_of::<T>());
    // Systems may promise memory that they do not have.
    let possible = || host_memory_info().is_none_or(|r| asked <= r.total) && Vec::<T>::new().try_reserve_exact(len).is_ok();
    if asked >= CHECKED_READ_BYTES && !possible() {
        let help = "read the tensor in parts (narrow), or a smaller one";
        return Err(TensorError::OutOfMemory { device: "the host".into(), asked, in_use: 0, limit: None, help });
    }
    Ok(vec![value; len])
}

/// Elements on their way to the host. See [`Tensor::download`].
pub struct Download {
    pub(super) pending: PendingRead,
    pub(super) dtype: DType,
}

impl Download {
    /// Whether the elements have arrived. Does not wait.
    pub fn is_ready(&self) -> bool {
        (self.pending.ready)()
    }

    /// Waits and returns the elements in row-major order.
    ///
    /// # Errors
    /// If `T` is not the tensor's type, for a bad index met on the way, or a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 4.0], &Device::cpu())?;
    /// let download = x.sqrt()?.download()?;
    /// assert_eq!(download.wait::<f32>()?, [1.0, 2.0]);
    /// assert!(x.download()?.wait::<i32>().is_err()); // the elements are f32
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn wait<T: Element>(self) -> TensorResult<Vec<T>> {
        if self.dtype != T::DTYPE {
            let at = Location::caller();
            return Err(TensorError::dtype("wait", at, format!("the tensor is {}, not {}", self.dtype, T::DTYPE)));
        }
        let mut out = host_memory(self.pending.len / size_of::<T>(), T::zeroed())?;
        (self.pending.wait)(bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Waits and copies f32 elements to the beginning of `out`, which may be longer.
    ///
    /// # Errors
    /// Those of [`Download::wait`], and where `out` is too short.
    pub(crate) fn wait_into(self, out: &mut [f32]) -> TensorResult<()> {
        let len = self.pending.len / size_of::<f32>();
        if self.dtype != DType::F32 || len > out.len() {
            return Err(TensorError::Internal(format!(
                "{} bytes of {} do not fit {} values of f32",
                self.pending.len,
                self.dtype,
                out.len()
            )));
        }
        (self.pending.wait)(bytemuck::cast_slice_mut(&mut out[..len]))
    }

    /// Waits and returns the elements' bytes.
    pub(crate) fn bytes(self) -> TensorResult<Vec<u8>> {
        let mut out = host_memory(self.pending.len, 0)?;
        (self.pending.wait)(&mut out)?;
        Ok(out)
    }
}

impl Tensor {
    /// Computes and stores the value now. Returns the tensor itself for chaining.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let y = x.exp()?;
    /// y.eval()?; // computed once, read as often as one likes
    /// assert!(y.explain()?.is_empty());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn eval(&self) -> TensorResult<&Tensor> {
        eval_all(&[self])?;
        Ok(self)
    }

    /// The plan that asking for this value would run, one line a dispatch, as SQL's EXPLAIN, and the barriers between them where the backend sets
    /// these itself. Empty for a stored value.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// assert!(x.exp()?.explain()?.ends_with("1 dispatch\n"));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn explain(&self) -> TensorResult<String> {
        let Some(plan) = plan_of(&[self])? else { return Ok(String::new()) };
        let barriers = self.device().backend().barriers(&plan).map(|n| format!("{n} barrier{}\n", if n == 1 { "" } else { "s" }));
        Ok(format!("{plan}{}", barriers.unwrap_or_default()))
    }

    /// The elements in row-major order as f32. f64, integers and bool are converted; block formats are decoded.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.t()?.to_vec()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec(&self) -> TensorResult<Vec<f32>> {
        match self.dtype() {
            DType::F32 => self.to_vec_of::<f32>(),
            DType::F64 => Ok(self.to_vec_of::<f64>()?.into_iter().map(|v| v as f32).collect()),
            DType::I64 => Ok(self.to_vec_of::<i64>()?.into_iter().map(|v| v as f32).collect()),
            DType::U64 => Ok(self.to_vec_of::<u64>()?.into_iter().map(|v| v as f32).collect()),
            _ => self.cast(DType::F32)?.to_vec_of::<f32>(),
        }
    }

    /// The elements in row-major order in their own type; bool as u8.
    ///
    /// # Errors
    /// If `T` is not the tensor's type, or for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.to_vec_of::<i32>()?, [1, 2, 3, 4]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec_of<T: Element>(&self) -> TensorResult<Vec<T>> {
        if self.dtype() != T::DTYPE && !(self.dtype() == DType::Bool && T::DTYPE == DType::U8) {
            let at = Location::caller();
            return Err(TensorError::dtype("to_vec_of", at, format!("the tensor is {}, not {}", self.dtype(), T::DTYPE)));
        }
        let mut out = host_memory(self.numel(), T::zeroed())?;
        self.read_into(bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// The elements' bytes in row-major order as stored.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 258], &Device::cpu())?;
    /// assert_eq!(x.to_bytes()?, [1, 0, 0, 0, 2, 1, 0, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn to_bytes(&self) -> TensorResult<Vec<u8>> {
        let mut out = host_memory(self.dtype().bytes(self.numel()).unwrap_or(0), 0u8)?;
        self.read_into(&mut out)?;
        Ok(out)
    }

    fn read_into(&self, out: &mut [u8]) -> TensorResult<()> {
        let layout = self.layout();
        if matches!(self.node.kind, Kind::View(_)) && !layout.is_contiguous() {
            return self.contiguous()?.read_into(out);
        }
        if out.is_empty() {
            return Ok(());
        }
        eval_for(&[self], Purpose::Read)?;
        let (node, output) = base(self);
        let buffer = &node.stored.get().expect("evaluated")[output as usize];
        let size = self.dtype().block_bytes();
        let _span = span(SpanKind::Read);
        self.device().backend().read(buffer, layout.offset / self.dtype().block() * size, out)
    }

    /// Evaluates and submits the copy to the host without waiting for it: work submitted afterwards overlaps with it.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let download = x.exp()?.download()?;
    /// let other = x.neg()?; // further work while the values arrive
    /// assert_eq!(download.wait::<f32>()?.len(), other.numel());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn download(&self) -> TensorResult<Download> {
        let layout = self.layout();
        if matches!(self.node.kind, Kind::View(_)) && !layout.is_contiguous() {
            return self.contiguous()?.download();
        }
        eval_for(&[self], Purpose::Copy)?;
        let (node, output) = base(self);
        let buffer = &node.stored.get().expect("evaluated")[output as usize];
        let size = self.dtype().block_bytes();
        let len = self.dtype().bytes(self.numel()).unwrap_or(0);
        let pending = self.device().backend().start_read(buffer, layout.offset / self.dtype().block() * size, len)?;
        Ok(Download { pending, dtype: self.dtype() })
    }

    /// Like [`Tensor::to_vec_of`] for threads that must not block: an executor's, or a browser's only one. The work is submitted when this
    /// is first polled; the executor is free until it is done.
    ///
    /// # Errors
    /// Those of [`Tensor::to_vec_of`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let values = async { x.neg()?.to_vec_async::<f32>().await };
    /// # let mut values = std::pin::pin!(values);
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let values = loop {
    /// #     if let std::task::Poll::Ready(values) = values.as_mut().poll(&mut context) {
    /// #         break values;
    /// #     }
    /// # };
    /// assert_eq!(values?, [-1.0, -2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub async fn to_vec_async<T: Element>(&self) -> TensorResult<Vec<T>> {
        let download = self.download()?;
        self.device().backend().done().await;
        download.wait()
    }

    /// The one element, as f64.
    ///
    /// # Errors
    /// If the tensor has more or fewer elements than one.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[7.5]], &Device::cpu())?;
    /// assert_eq!(x.item()?, 7.5);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn item(&self) -> TensorResult<f64> {
        if self.numel() != 1 {
            return Err(TensorError::shape(
                "item",
                Location::caller(),
                format!("shape {} has {} elements, not 1", self.shape(), self.numel()),
            ));
        }
        Ok(match self.dtype() {
            DType::F64 => self.to_vec_of::<f64>()?[0],
            DType::I64 => self.to_vec_of::<i64>()?[0] as f64,
            DType::U64 => self.to_vec_of::<u64>()?[0] as f64,
            DType::I32 => self.to_vec_of::<i32>()?[0] as f64,
            DType::U32 => self.to_vec_of::<u32>()?[0] as f64,
            _ => self.to_vec()?[0] as f64,
        })
    }
}
