//! Copies tensor elements to and from the host; reads and writes in place if host and device share memory.

use crate::backends::{Bytes, FillsValues};
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::eval::{Lock, base};
use crate::events;
use crate::plan::StorageMode;
use crate::shape::Shape;
use crate::tensor::{Kind, Meta, Tensor};
use std::panic::Location;
use std::sync::Arc;

impl Tensor {
    /// Like [`Tensor::from_vec`], in the given storage mode if the device has it: see [`StorageMode`]. [`Tensor::storage_mode`] returns the mode used.
    ///
    /// # Errors
    /// As for [`Tensor::from_vec`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::device::StorageMode;
    /// let x = Tensor::from_vec_in(vec![1.0f32, 2.0], &[2], &Device::cpu(), StorageMode::Shared)?;
    /// assert_eq!(x.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn from_vec_in<T: Element>(data: Vec<T>, shape: &[usize], device: &Device, mode: StorageMode) -> TensorResult<Tensor> {
        let at = Location::caller();
        let shape = Shape::new(shape, "from_vec", at)?;
        if data.len() != shape.count() {
            let message = format!("{} values for shape {shape}, which has {}", data.len(), shape.count());
            return Err(TensorError::shape("from_vec", at, message));
        }
        device.require(T::DTYPE)?;
        let buffer = device.backend().upload_as(Bytes::of_vec(data), mode)?;
        Ok(Tensor::leaf(device, Meta { dtype: T::DTYPE, shape }, buffer, "from_vec", at))
    }

    /// A vector of `len` values that `fill` writes, on several threads.
    ///
    /// # Errors
    /// As for [`Tensor::from_vec`].
    #[track_caller]
    pub(crate) fn filled(len: usize, device: &Device, fill: FillsValues<'_>) -> TensorResult<Tensor> {
        let at = Location::caller();
        let shape = Shape::new(&[len], "filled", at)?;
        Ok(Tensor::leaf(device, Meta { dtype: DType::F32, shape }, device.backend().upload_filled(len, fill)?, "filled", at))
    }

    /// Like [`Tensor::from_bytes`], in the given storage mode if the device has it, and uploaded immediately even if small.
    ///
    /// # Errors
    /// As for [`Tensor::from_bytes`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::backends::Bytes;
    /// use tensorlogic::device::StorageMode;
    /// let bytes = Bytes::Owned(std::sync::Arc::new(vec![0, 0, 128, 63]));
    /// let x = Tensor::from_bytes_in(bytes, DType::F32, &[1], &Device::cpu(), StorageMode::Shared)?;
    /// assert_eq!(x.to_vec()?, [1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn from_bytes_in(bytes: Bytes, dtype: DType, shape: &[usize], device: &Device, mode: StorageMode) -> TensorResult<Tensor> {
        let at = Location::caller();
        let shape = Tensor::bytes_fit(&bytes, dtype, shape, device, at)?;
        Ok(Tensor::leaf(device, Meta { dtype, shape }, device.backend().upload_as(bytes, mode)?, "from_bytes", at))
    }

    /// The storage mode of a stored value; `None` while it is pending.
    pub fn storage_mode(&self) -> Option<StorageMode> {
        let (node, out) = base(self);
        Some(self.device().backend().mode(&node.stored.get()?[out as usize]))
    }

    /// Replaces the elements, in row-major order. Tensors have value semantics: if this handle is the only reference, the new elements are
    /// written in place; if another handle, a view or a pending operation refers to the old value, this handle gets new memory.
    ///
    /// ```
    /// # use tensorlogic::{Device, Tensor};
    /// # fn main() -> tensorlogic::TensorResult<()> {
    /// let mut x = Tensor::from_vec(vec![0.0f32; 4], &[2, 2], &Device::cpu())?;
    /// let old = x.clone();
    /// x.copy_from_slice(&[1.0f32, 2.0, 3.0, 4.0])?; // copies: `old` still reads zeros
    /// x.copy_from_slice(&[5.0f32, 6.0, 7.0, 8.0])?; // in place
    /// assert_eq!((old.to_vec()?, x.to_vec()?), (vec![0.0; 4], vec![5.0, 6.0, 7.0, 8.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If `T` is not the tensor's type, the number of elements differs, or the device fails.
    #[track_caller]
    pub fn copy_from_slice<T: Element>(&mut self, data: &[T]) -> TensorResult<()> {
        let at = Location::caller();
        if self.dtype() != T::DTYPE {
            return Err(TensorError::dtype("copy_from_slice", at, format!("the tensor is {}, not {}", self.dtype(), T::DTYPE)));
        }
        if data.len() != self.numel() {
            let message = format!("{} values for shape {}, which has {}", data.len(), self.shape(), self.numel());
            return Err(TensorError::shape("copy_from_slice", at, message));
        }
        let device = self.device().clone();
        {
            // No evaluation holds buffers of its own while we look and write.
            let _turn = Lock::of(&device);
            let own = !matches!(self.node.kind, Kind::View(_)) && self.node.metas.len() == 1 && Arc::strong_count(&self.node) == 1;
            if let Some(buffers) = self.node.stored.get().filter(|b| own && b[0].is_unique()) {
                events::value_overwritten(size_of_val(data));
                return device.backend().overwrite(&buffers[0], bytemuck::cast_slice(data));
            }
        }
        *self = Tensor::leaf(&device, self.meta(), device.upload(Bytes::of_vec(data.to_vec()))?, "copy_from_slice", at);
        Ok(())
    }

    /// Calls `f` with the elements in row-major order: without a copy on the CPU and on GPUs that share memory with the host, otherwise
    /// from staging memory. Work on the device waits until `f` returns.
    ///
    /// # Errors
    /// If `T` is not the tensor's type, or for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// assert_eq!(x.with_slice(|values: &[f32]| values.iter().sum::<f32>())?, 3.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn with_slice<T: Element, R>(&self, f: impl FnOnce(&[T]) -> R) -> TensorResult<R> {
        if self.dtype() != T::DTYPE {
            let message = format!("the tensor is {}, not {}", self.dtype(), T::DTYPE);
            return Err(TensorError::dtype("with_slice", Location::caller(), message));
        }
        let layout = self.layout();
        if matches!(self.node.kind, Kind::View(_)) && !layout.is_contiguous() {
            return self.contiguous()?.with_slice(f);
        }
        if self.numel() == 0 {
            return Ok(f(&[]));
        }
        self.eval()?;
        let (node, output) = base(self);
        let buffer = &node.stored.get().expect("evaluated")[output as usize];
        let (mut f, mut result) = (Some(f), None);
        self.device().backend().view(buffer, layout.offset * size_of::<T>(), self.numel() * size_of::<T>(), &mut |bytes| {
            let Some(f) = f.take() else { return };
            result = Some(match bytemuck::try_cast_slice(bytes) {
                Ok(elements) => f(elements),
                // Staging memory may begin between two elements' boundaries.
                Err(_) => {
                    let mut copy = vec![T::zeroed(); bytes.len() / size_of::<T>()];
                    bytemuck::cast_slice_mut(&mut copy).copy_from_slice(bytes);
                    f(&copy)
                }
            });
        })?;
        result.ok_or_else(|| TensorError::Internal(format!("{} showed nothing", self.device().name())))
    }
}
