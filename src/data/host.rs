//! Batches in host memory, the thread that reads them ahead, and the device memory that they go to.

use super::{Field, Part};
use crate::backends::{ADOPT_MIN_BYTES, Bytes, Elements};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use half::f16;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// Declares the element types of fields: the variants of [`Values`] and what differs by them.
macro_rules! values {
    ($($variant:ident: $t:ty),*) => {
        /// One field of several examples, which tensors of the CPU read where it lies.
        pub(super) enum Values {
            $($variant(Arc<Elements<$t>>),)*
        }

        impl Values {
            /// Room for `n` elements; `None` for a dtype that fields cannot have.
            fn new(dtype: DType, n: usize) -> Option<Values> {
                match dtype {
                    $(DType::$variant => Some(Values::$variant(Arc::new(Elements(vec![<$t>::default(); n])))),)*
                    _ => None,
                }
            }

            fn part(&mut self, range: Range<usize>) -> Part<'_> {
                match self {
                    $(Values::$variant(v) => Part::$variant(&mut own(v)[range]),)*
                }
            }

            /// Copies elements of `from`, which has the same type.
            fn copy(&mut self, at: usize, from: &Values, range: Range<usize>) {
                match (self, from) {
                    $((Values::$variant(v), Values::$variant(from)) => own(v)[at..at + range.len()].copy_from_slice(&from.0[range]),)*
                    _ => unreachable!("fields keep their types"),
                }
            }

            /// Copies the elements from `from` on to those from `to` on.
            fn copy_within(&mut self, from: Range<usize>, to: usize) {
                match self {
                    $(Values::$variant(v) => own(v).copy_within(from, to),)*
                }
            }

            /// A tensor of the CPU: in this memory where it is large.
            fn lend(&self, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
                let count = shape.iter().product::<usize>();
                match self {
                    $(Values::$variant(v) if count * size_of::<$t>() >= ADOPT_MIN_BYTES => {
                        Tensor::from_bytes(Bytes::Shared(v.clone(), 0, count * size_of::<$t>()), DType::$variant, shape, device)
                    })*
                    _ => self.tensor(shape, device),
                }
            }

            /// Whether no tensor reads it.
            fn is_free(&mut self) -> bool {
                match self {
                    $(Values::$variant(v) => Arc::get_mut(v).is_some(),)*
                }
            }

            fn tensor(&self, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
                let count = shape.iter().product::<usize>();
                match self {
                    $(Values::$variant(v) => Tensor::from_vec(v.0[..count].to_vec(), shape, device),)*
                }
            }

            fn overwrite(&self, tensor: &mut Tensor) -> TensorResult<()> {
                let count = tensor.numel();
                match self {
                    $(Values::$variant(v) => tensor.copy_from_slice(&v.0[..count]),)*
                }
            }
        }
    };
}

/// The elements, for writing: no tensor reads a batch that is being filled.
fn own<T: Clone>(v: &mut Arc<Elements<T>>) -> &mut Vec<T> {
    &mut Arc::make_mut(v).0
}

values!(F32: f32, F16: f16, I32: i32, I64: i64, U8: u8);

/// Fails where fields have a dtype that loaders, or this device, do not know.
pub(super) fn check(fields: &[Field], device: &Device) -> TensorResult<()> {
    for f in fields {
        if Values::new(f.dtype, 0).is_none() {
            return Err(TensorError::Config(format!("fields of examples are f32, f16, i32, i64 or u8, not {}", f.dtype)));
        }
        if !device.supports(on_device(f.dtype, device)) {
            return Err(TensorError::Config(format!("{} does not support {}, which a field of the examples has", device.name(), f.dtype)));
        }
    }
    Ok(())
}

/// The dtype in which a field arrives: i32 for i64 on a device without i64.
fn on_device(dtype: DType, device: &Device) -> DType {
    if dtype == DType::I64 && !device.supports(dtype) { DType::I32 } else { dtype }
}

/// The first `count` values of an i64 field as i32, for a device without i64; `None` for other fields and devices.
fn narrowed(values: &Values, count: usize, device: &Device) -> TensorResult<Option<Values>> {
    let Values::I64(v) = values else { return Ok(None) };
    if device.supports(DType::I64) {
        return Ok(None);
    }
    let fits = |&v: &i64| {
        i32::try_from(v)
            .map_err(|_| TensorError::Value(format!("i64 value {v} does not fit i32, and {} does not support i64", device.name())))
    };
    v.0[..count].iter().map(fits).collect::<TensorResult<Vec<i32>>>().map(|v| Some(Values::I32(Arc::new(Elements(v)))))
}

/// Elements of one example's part.
fn width(field: &Field) -> usize {
    field.shape.iter().product()
}

/// Examples in host memory.
pub(super) struct HostBatch {
    pub rows: usize,
    /// The epoch and the batch's number in it, where a stream is read.
    pub place: (u64, u64),
    parts: Vec<Values>,
}

impl HostBatch {
    /// Room for so many rows of `fields`, which were checked.
    pub fn new(fields: &[Field], rows: usize) -> HostBatch {
        let parts = fields.iter().filter_map(|f| Values::new(f.dtype, rows * width(f))).collect();
        HostBatch { rows: 0, place: (0, 0), parts }
    }
    /// Where the parts of row `row` go.
    pub fn row(&mut self, fields: &[Field], row: usize) -> smallvec::SmallVec<[Part<'_>; 4]> {
        let parts = self.parts.iter_mut().zip(fields);
        parts.map(|(v, f)| v.part(row * width(f)..(row + 1) * width(f))).collect()
    }
    /// Copies a row of another batch.
    pub fn copy_row(&mut self, fields: &[Field], row: usize, from: &HostBatch, from_row: usize) {
        for ((v, from), n) in self.parts.iter_mut().zip(&from.parts).zip(fields.iter().map(width)) {
            v.copy(row * n, from, from_row * n..(from_row + 1) * n);
        }
    }
    /// Copies one of its rows to another.
    pub fn move_row(&mut self, fields: &[Field], from: usize, to: usize) {
        for (v, n) in self.parts.iter_mut().zip(fields.iter().map(width)) {
            v.copy_within(from * n..(from + 1) * n, to * n);
        }
    }
}

/// Batches on the CPU, in the memory that they were read into, of which the ones that nobody reads are filled again. On other devices the
/// memory of the last two full batches, used again unless somebody still holds a tensor of it.
#[derive(Default)]
pub(super) struct Ring {
    lent: VecDeque<HostBatch>,
    slots: [Vec<Tensor>; 2],
    given: usize,
}

/// Batches that were lent and are asked whether somebody still reads them.
const LENT: usize = 3;

impl Ring {
    /// A batch as one tensor for each field, and one that may be filled now; `full` is the number of rows of batches that are kept.
    pub fn tensors(
        &mut self,
        host: HostBatch,
        fields: &[Field],
        full: usize,
        device: &Device,
    ) -> TensorResult<(Vec<Tensor>, Option<HostBatch>)> {
        let shapes = fields.iter().map(|f| [&[host.rows], &f.shape[..]].concat());
        if device.capabilities().host_memory {
            let tensors = host.parts.iter().zip(shapes).map(|(values, shape)| values.lend(&shape, device)).collect::<TensorResult<_>>()?;
            self.lent.push_back(host);
            let free = self.lent.iter_mut().position(|b| b.parts.iter_mut().all(Values::is_free)).and_then(|at| self.lent.remove(at));
            // The oldest belong to those who hold their tensors.
            self.lent.drain(..self.lent.len().saturating_sub(LENT));
            return Ok((tensors, free));
        }
        self.given += 1;
        let slot = &mut self.slots[self.given % 2];
        let mut tensors = std::mem::take(slot);
        if tensors.first().is_some_and(|t| t.dims()[0] != host.rows) {
            tensors.clear();
        }
        for (n, (shape, values)) in shapes.zip(&host.parts).enumerate() {
            let narrowed = narrowed(values, shape.iter().product(), device)?;
            let values = narrowed.as_ref().unwrap_or(values);
            match tensors.get_mut(n) {
                Some(t) => values.overwrite(t)?,
                None => tensors.push(values.tensor(&shape, device)?),
            }
        }
        if host.rows == full {
            slot.clone_from(&tensors);
        }
        Ok((tensors, Some(host)))
    }
}

/// A thread that reads batches ahead.
pub(super) struct Worker {
    batches: Receiver<TensorResult<HostBatch>>,
    used: Sender<HostBatch>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that has up to `ahead` batches of `read`, which gets a used one to write into where there is one, and ends with the first
    /// error; `None` where there are no threads.
    pub fn start(ahead: usize, mut read: impl FnMut(Option<HostBatch>) -> TensorResult<HostBatch> + Send + 'static) -> Option<Worker> {
        let (send, batches): (SyncSender<TensorResult<HostBatch>>, _) = sync_channel(ahead);
        let (used, back) = channel();
        let work = move || {
            loop {
                let batch = read(back.try_recv().ok());
                let failed = batch.is_err();
                if send.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("data".into()).spawn(work).ok()?;
        Some(Worker { batches, used, thread: Some(thread) })
    }
    /// The next batch.
    pub fn next(&self) -> TensorResult<HostBatch> {
        self.batches.recv().unwrap_or_else(|_| Err(TensorError::Internal("the thread that reads the data ended".into())))
    }
    /// Gives a batch's memory back.
    pub fn give_back(&self, batch: HostBatch) {
        let _ = self.used.send(batch);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The thread ends as soon as nobody takes its batches.
        self.batches = channel().1;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
