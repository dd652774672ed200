//! The five operations over buffers: checks, plan, dispatch.

use super::backend::RawBackend;
use super::buffer::{BufferHandle, StorageBuffer};
use super::kernels::{Name, OpsKernel, plan};
use super::pipeline::{ComputePipeline, MTLSize};
use crate::backends::Buffer;
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::plan::Plan;
use crate::shape::Shape;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans kept; when there are more, those not used since the last such time go.
const PLANS_BEFORE_SWEEP: usize = 256;

type Sizes = SmallVec<[usize; 3]>;
type Plans = HashMap<(Name, Sizes, SmallVec<[usize; 3]>), (Arc<Plan>, bool)>;

/// Operations over f32 buffers. Each call is one dispatch, submitted immediately without waiting; reads see the results of all earlier
/// dispatches.
///
/// Sizes are checked against the buffers, so that no kernel reads or writes past an end. Errors name the caller's line.
pub struct MetalOps<B: RawBackend> {
    backend: Arc<B>,
    groups: HashMap<Name, MTLSize>,
    plans: Mutex<Plans>,
}

impl<B: RawBackend> MetalOps<B> {
    /// Compiles the five kernels, with the thread groups of [`RawBackend::optimal_thread_group_size`].
    ///
    /// # Errors
    /// If the driver rejects a kernel.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// assert!(ops.backend().get_compute_pipeline("matmul_kernel").is_some());
    /// assert!(ops.backend().get_compute_pipeline("softmax_kernel").is_none()); // only the five are compiled
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn new(backend: Arc<B>) -> TensorResult<MetalOps<B>> {
        let mut groups = HashMap::new();
        for name in Name::ALL {
            let pipeline = ComputePipeline::of(name.text(), backend.metal_device());
            let group = match name {
                Name::Matmul => backend.optimal_thread_group_size_2d(&pipeline),
                _ => backend.optimal_thread_group_size(&pipeline),
            };
            // One element would be read at a fixed place, by another source than any other number.
            let shape = Shape::of(if name == Name::Matmul { &[2, 2] } else { &[2] });
            let places = [0, 1, 2];
            let operands = [shape; 2];
            let kernel = OpsKernel { name, group };
            let n = name.operands();
            backend.opened().compile(&plan(kernel, &operands[..n], shape, &places[..=n], Location::caller()), pipeline)?;
            groups.insert(name, group);
        }
        Ok(MetalOps { backend, groups, plans: Mutex::default() })
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// c ← a + b, over the first `n` elements. `c` may be `a` or `b`.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when a buffer has fewer than `n` f32, [`TensorError::DType`] when one was made of another type,
    /// [`TensorError::Device`] when one belongs to another backend.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MTLResourceOptions, MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// let shared = MTLResourceOptions::StorageModeShared;
    /// let x = ops.backend().create_buffer_with_data(&[1.0f32, 2.0], shared)?;
    /// ops.add(&x, &x, &x, 2)?;
    /// let mut result = [0.0f32; 2];
    /// ops.backend().copy_buffer_to_host(&x, &mut result)?;
    /// assert_eq!(result, [2.0, 4.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn add(&self, a: &StorageBuffer, b: &StorageBuffer, c: &StorageBuffer, n: usize) -> TensorResult<()> {
        self.elementwise(Name::Add, "add", &[("a", a), ("b", b), ("c", c)], n, Location::caller())
    }

    /// c ← a · b, element by element, over the first `n` elements. `c` may be `a` or `b`.
    ///
    /// # Errors
    /// See [`MetalOps::add`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MTLResourceOptions, MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// let shared = MTLResourceOptions::StorageModeShared;
    /// let x = ops.backend().create_buffer_with_data(&[3.0f32, 4.0], shared)?;
    /// ops.mul(&x, &x, &x, 1)?;
    /// let mut result = [0.0f32; 2];
    /// ops.backend().copy_buffer_to_host(&x, &mut result)?;
    /// assert_eq!(result, [9.0, 4.0]); // one element only
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn mul(&self, a: &StorageBuffer, b: &StorageBuffer, c: &StorageBuffer, n: usize) -> TensorResult<()> {
        self.elementwise(Name::Mul, "mul", &[("a", a), ("b", b), ("c", c)], n, Location::caller())
    }

    /// y ← max(x, 0), over the first `n` elements. `y` may be `x`.
    ///
    /// # Errors
    /// See [`MetalOps::add`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MTLResourceOptions, MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// let shared = MTLResourceOptions::StorageModeShared;
    /// let x = ops.backend().create_buffer_with_data(&[-1.0f32, 2.0], shared)?;
    /// ops.relu(&x, &x, 2)?;
    /// let mut result = [0.0f32; 2];
    /// ops.backend().copy_buffer_to_host(&x, &mut result)?;
    /// assert_eq!(result, [0.0, 2.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn relu(&self, x: &StorageBuffer, y: &StorageBuffer, n: usize) -> TensorResult<()> {
        self.elementwise(Name::Relu, "relu", &[("x", x), ("y", y)], n, Location::caller())
    }

    /// y ← 1 / (1 + e⁻ˣ), over the first `n` elements. `y` may be `x`.
    ///
    /// # Errors
    /// See [`MetalOps::add`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MTLResourceOptions, MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// let shared = MTLResourceOptions::StorageModeShared;
    /// let x = ops.backend().create_buffer_with_data(&[0.0f32, 100.0], shared)?;
    /// ops.sigmoid(&x, &x, 2)?;
    /// let mut result = [0.0f32; 2];
    /// ops.backend().copy_buffer_to_host(&x, &mut result)?;
    /// assert_eq!(result, [0.5, 1.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn sigmoid(&self, x: &StorageBuffer, y: &StorageBuffer, n: usize) -> TensorResult<()> {
        self.elementwise(Name::Sigmoid, "sigmoid", &[("x", x), ("y", y)], n, Location::caller())
    }

    /// c `[m, n]` ← a `[m, k]` × b `[k, n]`, all row-major. Sums are of f32; with `k` = 0 they are zeros.
    ///
    /// # Errors
    /// See [`MetalOps::add`]; also when `c` is the memory of `a` or `b`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MTLResourceOptions, MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// let shared = MTLResourceOptions::StorageModeShared;
    /// let a = ops.backend().create_buffer_with_data(&[1.0f32, 2.0, 3.0, 4.0], shared)?; // [2, 2]
    /// let b = ops.backend().create_buffer_with_data(&[5.0f32, 6.0], shared)?; // [2, 1]
    /// let c = ops.backend().create_buffer(8, shared)?;
    /// ops.matmul(&a, &b, &c, 2, 1, 2)?;
    /// let mut result = [0.0f32; 2];
    /// ops.backend().copy_buffer_to_host(&c, &mut result)?;
    /// assert_eq!(result, [17.0, 39.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn matmul(&self, a: &StorageBuffer, b: &StorageBuffer, c: &StorageBuffer, m: usize, n: usize, k: usize) -> TensorResult<()> {
        let at = Location::caller();
        let buffers = [("a", a), ("b", b), ("c", c)];
        for ((name, buffer), [rows, columns]) in buffers.iter().zip([[m, k], [k, n], [m, n]]) {
            let count =
                rows.checked_mul(columns).ok_or_else(|| TensorError::shape("matmul", at, format!("{rows} x {columns} elements")))?;
            self.check("matmul", name, buffer, count, at)?;
        }
        if c.same(a) || c.same(b) {
            return Err(TensorError::shape("matmul", at, "c must not share memory with a or b"));
        }
        self.run(Name::Matmul, &buffers, smallvec::smallvec![m, n, k], at)
    }

    /// Like [`MetalOps::add`], over memory that the backend holds.
    ///
    /// # Errors
    /// See [`MetalOps::add`]; also for a handle that was freed, or one of another backend.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tensorlogic::metal::{MetalOps, RawBackend, RawGpuBackend};
    /// # if !RawGpuBackend::is_available() { return Ok(()); } // there is no GPU
    /// let ops = MetalOps::new(Arc::new(RawGpuBackend::initialize()?))?;
    /// let (x, y) = (ops.backend().allocate(8)?, ops.backend().allocate(8)?);
    /// ops.backend().copy_host_to_buffer(&[0.5f32, 1.5], &ops.backend().buffer(x)?)?;
    /// ops.add_ptr(x, x, y, 2)?;
    /// let mut result = [0.0f32; 2];
    /// ops.backend().copy_buffer_to_host(&ops.backend().buffer(y)?, &mut result)?;
    /// assert_eq!(result, [1.0, 3.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn add_ptr(&self, a: BufferHandle, b: BufferHandle, result: BufferHandle, n: usize) -> TensorResult<()> {
        let at = Location::caller();
        let find = |name, handle| {
            self.backend.buffer(handle).map_err(|e| TensorError::Device { op: "add_ptr", message: format!("{name}: {e}"), at })
        };
        let (a, b, c) = (find("a", a)?, find("b", b)?, find("result", result)?);
        self.elementwise(Name::Add, "add_ptr", &[("a", &a), ("b", &b), ("result", &c)], n, at)
    }

    fn check(&self, op: &'static str, name: &str, buffer: &StorageBuffer, count: usize, at: At) -> TensorResult<()> {
        if let Err(e) = self.backend.opened().check(op, buffer, 0) {
            return Err(TensorError::Device { op, message: format!("{name}: {e}"), at });
        }
        if let Some(d) = buffer.dtype.filter(|d| *d != DType::F32) {
            return Err(TensorError::dtype(op, at, format!("{name} is {d}; these kernels support f32 only, Tensor every dtype")));
        }
        let holds = buffer.bytes / 4;
        if count > holds {
            return Err(TensorError::shape(op, at, format!("{name} has {} bytes, so {holds} f32, not {count}", buffer.bytes)));
        }
        if count > u32::MAX as usize {
            return Err(TensorError::shape(op, at, format!("{count} elements of {name}; a kernel counts to {}", u32::MAX)));
        }
        Ok(())
    }

    fn elementwise(&self, name: Name, op: &'static str, buffers: &[(&str, &StorageBuffer)], n: usize, at: At) -> TensorResult<()> {
        for (what, buffer) in buffers {
            self.check(op, what, buffer, n, at)?;
        }
        self.run(name, buffers, smallvec::smallvec![n], at)
    }

    fn run(&self, name: Name, buffers: &[(&str, &StorageBuffer)], sizes: Sizes, at: At) -> TensorResult<()> {
        // A buffer that stands for several operands is bound once.
        let mut distinct: SmallVec<[Buffer; 3]> = SmallVec::new();
        let mut places: SmallVec<[usize; 3]> = SmallVec::new();
        for (_, b) in buffers {
            let place = distinct.iter().position(|d| d.same(&b.memory)).unwrap_or(distinct.len());
            if place == distinct.len() {
                distinct.push(b.memory.clone());
            }
            places.push(place);
        }
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= PLANS_BEFORE_SWEEP {
            plans.retain(|_, (_, used)| std::mem::take(used));
        }
        let kernel = OpsKernel { name, group: self.groups[&name] };
        let (plan, used) = plans.entry((name, sizes.clone(), places.clone())).or_insert_with(|| {
            let plan = match sizes[..] {
                [m, n, k] => plan(kernel, &[Shape::of(&[m, k]), Shape::of(&[k, n])], Shape::of(&[m, n]), &places, at),
                _ => plan(kernel, &[Shape::of(&sizes); 2][..name.operands()], Shape::of(&sizes), &places, at),
            };
            (plan, true)
        });
        *used = true;
        let plan = plan.clone();
        drop(plans);
        self.backend.opened().run(&plan, &distinct)
    }
}
