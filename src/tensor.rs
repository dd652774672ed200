//! Tensors and the graph they stand for. Building a node checks shapes and dtypes and runs nothing.

mod parts;

use crate::backends::{Buffer, Bytes};
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::Kernel;
use crate::scalar::Prim;
use crate::shape::Shape;
use smallvec::SmallVec;
use std::cell::{Cell, UnsafeCell};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

/// The dtype and shape of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
}

/// A multi-dimensional array, or the promise of one: operations build a graph, which runs when a value is asked for.
///
/// Tensors are values: no operation changes one. Cloning is cheap and shares the value.
///
/// Determinants, inverses and decompositions of matrices (`det`, `inverse`, `solve`, `cholesky`, `qr`, `svd`, `eigh`) are left out: copy the matrix to
/// the host and use a crate for matrices, such as `faer` or `nalgebra`. Page 9 of the guide shows this, and an inverse by products only.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) node: Arc<Node>,
    pub(crate) out: u32,
}

/// One operation of the graph.
pub struct Node {
    pub(crate) kind: Kind,
    pub(crate) device: Device,
    pub(crate) metas: SmallVec<[Meta; 1]>,
    /// The user's line that wrote the operation.
    pub(crate) at: At,
    /// Hash of kind, settings, shapes and dtypes, without the inputs.
    pub(crate) key: u64,
    /// Run-time parameters, in the order that the kind counts them.
    pub(crate) params: SmallVec<[f64; 2]>,
    /// What it reads. Changed only under the device's evaluator lock, or by the last owner.
    inputs: UnsafeCell<Inputs>,
    /// The value, once it is stored.
    pub(crate) stored: OnceLock<SmallVec<[Buffer; 1]>>,
    /// Evaluation number and position in it; used under the device's evaluator lock.
    pub(crate) mark: AtomicU64,
    /// Whether an evaluation passed this node without storing it.
    pub(crate) visited: AtomicBool,
    /// Whether the host had the value computed to read it, and nothing was computed on it since.
    pub(crate) read: AtomicBool,
    /// Whether a gradient may flow through: then the node keeps its inputs after it is stored.
    pub(crate) tracked: bool,
    /// Whether `backward` has been here: the inputs may go as soon as the value is stored.
    pub(crate) inputs_freed: AtomicBool,
    /// What only few nodes have.
    pub(crate) extra: Option<Box<RareFields>>,
}

/// What few nodes have besides: the place where a gradient is collected, or a derivative of their own.
#[derive(Default)]
pub(crate) struct RareFields {
    /// Where `backward` adds the gradient of this value.
    pub cell: Option<Arc<GradCell>>,
    /// The gradients of the inputs (of a view: after the first; `None` where there is none) for these inputs and the gradient of the result. It
    /// holds none of them itself: what somebody outside of the graph holds may have to be stored.
    pub backward: Option<Backward>,
    /// Whether this view is another name of a value: views of it are seen by gradients as views of it, not of what it names.
    pub alias: bool,
    /// Whether the last input is the alias that this view, or alias, is seen through: gradients go there.
    pub parent: bool,
}

/// A derivative of a node's own: inputs and gradient of the result to gradients of the inputs.
pub(crate) type Backward = Arc<dyn Fn(&[Tensor], &Tensor) -> TensorResult<Vec<Option<Tensor>>> + Send + Sync>;

/// Where `backward` collects the gradient of a value; shared by all versions of a parameter.
#[derive(Default)]
pub struct GradCell(pub(crate) Mutex<Option<Tensor>>);

impl GradCell {
    /// The gradient collected so far.
    pub fn get(&self) -> Option<Tensor> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
    /// Replaces the gradient; gives the one before.
    pub fn replace(&self, grad: Option<Tensor>) -> Option<Tensor> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(|e| e.into_inner()), grad)
    }
}

/// How nodes are built on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    /// Whether gradients are tracked.
    pub grad: bool,
    /// The line that new nodes carry, where they are built on behalf of another node.
    pub at: Option<At>,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode { grad: true, at: None }) };
}

impl Mode {
    /// This thread's mode.
    pub fn current() -> Mode {
        MODE.get()
    }
    /// Whether what is made of these tensors now is to have a gradient.
    pub fn learns<'a>(of: impl IntoIterator<Item = &'a Tensor>) -> bool {
        Mode::current().grad && of.into_iter().any(|t| t.node.tracked)
    }
    /// Runs `f` in this mode.
    pub fn run<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(Mode);
        impl Drop for Restore {
            fn drop(&mut self) {
                MODE.set(self.0);
            }
        }
        let _restore = Restore(MODE.replace(self));
        f()
    }
}

/// A node's inputs.
pub type Inputs = SmallVec<[Tensor; 3]>;

// SAFETY: everything in a node is Send + Sync but `inputs`, which is only read and changed by code that holds the device's evaluator
// lock, or by `Drop`, which has the only reference.
unsafe impl Send for Node {}
// SAFETY: see above.
unsafe impl Sync for Node {}

/// What a node is: the closed set that the compiler matches on.
pub enum Kind {
    /// A stored value.
    Leaf,
    /// A layout over input 0, which is not a view. Never stored. The layout's offset is run-time parameter 0 when it is not zero.
    View(Layout),
    /// A scalar primitive over inputs of broadcastable shapes.
    Map(Prim, [Arg; 3]),
    /// A coarse operation.
    Op(Arc<dyn Op>),
}

/// An argument of a `Map`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// Input number.
    In(u8),
    /// The node's run-time parameter of this number, as a value of this dtype.
    Param(u8, DType),
    /// A literal: part of the structure.
    Lit(f64Bits, DType),
    /// Not used.
    None,
}
/// The bits of an f64, so that literals can be compared and hashed.
#[allow(non_camel_case_types)]
pub type f64Bits = u64;

/// How an operation is done by kernels, as the compiler sees it.
pub enum Lowered {
    /// A kernel over re-laid inputs and outputs.
    Kernel {
        /// The kernel.
        kernel: Arc<dyn Kernel>,
        /// For each operand: the input's number, a layout over that input's row-major elements, and the logical shape for the kernel.
        loads: Vec<(usize, Layout, Shape)>,
        /// For each result, likewise over the output's row-major elements.
        stores: Vec<(usize, Layout, Shape)>,
    },
    /// The output is put together from inputs in windows of it; `base` (an input of the output's shape) lies underneath.
    Windows {
        /// The input underneath, or `None` when the pieces cover everything.
        base: Option<usize>,
        /// Input, window of the output's row-major elements, and the node's run-time parameter that is added to the window's offset.
        pieces: Vec<(usize, Layout, Option<usize>)>,
    },
    /// The output is `base` (an input of the output's dtype and shape) with some elements replaced by a kernel, which finds out from its operands which.
    Into {
        /// The input underneath.
        base: usize,
        /// The kernel; its one store has the output's shape, and what it does not write stays.
        kernel: Arc<dyn Kernel>,
        /// As for [`Lowered::Kernel`].
        loads: Vec<(usize, Layout, Shape)>,
    },
}

impl Lowered {
    /// A kernel that reads the only input and writes the only output, both row-major.
    pub fn plain(kernel: Arc<dyn Kernel>, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        Lowered::Kernel { kernel, loads: Lowered::whole(&inputs[..1]), stores: Lowered::whole(outputs) }
    }

    /// The inputs side by side along dimension `dim` of the output.
    pub(crate) fn side_by_side(dim: usize, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = Layout::contiguous(outputs[0].shape);
        let mut start = 0;
        let piece = |(i, m): (usize, &Meta)| {
            start += m.shape[dim];
            (i, whole.slice(dim, start - m.shape[dim], m.shape[dim], 1), None)
        };
        Lowered::Windows { base: None, pieces: inputs.iter().enumerate().map(piece).collect() }
    }

    /// All of these inputs or outputs, each as it is.
    pub(crate) fn whole(all: &[Meta]) -> Vec<(usize, Layout, Shape)> {
        all.iter().enumerate().map(|(i, m)| (i, Layout::contiguous(m.shape), m.shape)).collect()
    }
}

/// A coarse operation: what it is, and how it is done. A user's crate may implement it.
///
/// ```
/// use std::panic::Location;
/// use tensorlogic::layout::Layout;
/// use tensorlogic::prelude::*;
/// use tensorlogic::tensor::{Grads, Key, Lowered, Meta, Op, Vjp};
///
/// /// A vector twice, one behind the other.
/// struct Twice;
///
/// impl Op for Twice {
///     fn name(&self) -> &'static str {
///         "twice"
///     }
///     fn key(&self, _: &mut Key) {}
///     fn define(&self, x: &[Tensor]) -> Option<TensorResult<Tensor>> {
///         Some(Tensor::cat(&[&x[0], &x[0]], 0))
///     }
///     fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
///         let n = inputs[0].shape[0];
///         let half = |start| (0, Layout::contiguous(outputs[0].shape).slice(0, start, n, 1), None);
///         Lowered::Windows { base: None, pieces: vec![half(0), half(n)] }
///     }
///     fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
///         let halves = v.grad().reshape((2, v.inputs[0].numel()));
///         Some(halves.and_then(|g| Ok(vec![Some(g.sum(&[0], false)?)])))
///     }
/// }
///
/// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?.requires_grad()?;
/// let meta = Meta { dtype: DType::F32, shape: Shape::of(&[4]) };
/// let y = Tensor::op1(Twice, [x.clone()].into_iter().collect(), Default::default(), meta, Location::caller())?;
/// assert_eq!(y.to_vec()?, Twice.define(&[x.clone()]).expect("it is defined")?.to_vec()?);
/// y.sum_all()?.backward()?;
/// assert_eq!(x.grad().expect("collected").to_vec()?, [2.0, 2.0]);
/// # assert!(Twice.grad(&Vjp { inputs: &[x], outputs: &[y.clone()], grads: &[Some(y)], params: &[] }).is_some_and(|g| g.is_ok()));
/// # Ok::<(), TensorError>(())
/// ```
pub trait Op: Send + Sync + 'static {
    /// PyTorch's name.
    fn name(&self) -> &'static str;
    /// Hashes the settings that are part of the structure.
    fn key(&self, key: &mut Key);
    /// What it means in simpler operations: the oracle of tests. `None` for the few roots.
    ///
    /// # Errors
    /// Those of the simpler operations.
    fn define(&self, inputs: &[Tensor]) -> Option<TensorResult<Tensor>>;
    /// How it is done, for inputs and outputs of these dtypes and shapes.
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered;
    /// The gradients of the inputs, by hand. Without them [`Op::define`] is differentiated.
    ///
    /// # Errors
    /// Those of its operations; [`Tensor::backward`] passes them on.
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        None
    }
    /// Whether elementwise work on this input is better stored first than done where the kernel reads it.
    fn materialize_input(&self, _input: usize, _inputs: &[Meta]) -> bool {
        false
    }
    /// Whether the output may take input 0's memory when nothing else reads it.
    fn in_place(&self) -> bool {
        false
    }
    /// The values that stand side by side along a dimension of the output, where no one buffer may be able to hold it: products with it and lookups in
    /// it use them instead.
    fn parts(&self) -> Option<(usize, &[Tensor])> {
        None
    }
}

/// The gradients of a node's inputs; `None` where no gradient flows.
pub type Grads = Vec<Option<Tensor>>;

/// What a gradient by hand is made from.
pub struct Vjp<'a> {
    /// The node's inputs.
    pub inputs: &'a [Tensor],
    /// Its results.
    pub outputs: &'a [Tensor],
    /// The gradient of each result; at least one is there.
    pub grads: &'a [Option<Tensor>],
    /// Its run-time parameters.
    pub params: &'a [f64],
}

impl Vjp<'_> {
    /// Whether the gradient of input `i` is wanted.
    pub fn wants(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(|t| t.node.tracked && t.dtype().is_float())
    }
    /// The gradient of the only result.
    pub fn grad(&self) -> &Tensor {
        self.grads[0].as_ref().expect("a node is asked only when a gradient has reached it")
    }
}

/// A running 64-bit hash of structure.
#[derive(Clone, Copy)]
pub struct Key(u64);
impl Default for Key {
    fn default() -> Key {
        Key(0x9E37_79B9_7F4A_7C15)
    }
}
impl Key {
    /// Mixes a number in.
    #[inline]
    pub fn word(&mut self, w: u64) -> &mut Key {
        let m = ((self.0 ^ w) as u128).wrapping_mul(0xA076_1D64_78BD_642F_E703_7ED1_A0B4_28DB);
        self.0 = (m as u64) ^ ((m >> 64) as u64).rotate_left(23);
        self
    }
    /// Mixes text in.
    pub fn text(&mut self, t: &str) -> &mut Key {
        for c in t.as_bytes().chunks(8) {
            let mut b = [0; 8];
            b[..c.len()].copy_from_slice(c);
            self.word(u64::from_le_bytes(b));
        }
        self.word(t.len() as u64)
    }
    /// The hash.
    pub fn value(self) -> u64 {
        self.0
    }
    fn meta(&mut self, m: &Meta) {
        self.word(m.dtype as u64 | (m.shape.rank() as u64) << 8);
        for &d in m.shape.iter() {
            self.word(d as u64);
        }
    }
}

impl Node {
    /// The inputs.
    ///
    /// # Safety
    /// The caller holds the evaluator lock of the node's device for as long as it uses the reference, or owns the node alone.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn inputs(&self) -> &mut Inputs {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.inputs.get() }
    }
}

impl Node {
    /// Whether the node collects its gradient, which then flows no further.
    pub(crate) fn collects(&self) -> bool {
        self.extra.as_ref().is_some_and(|e| e.cell.is_some())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Long chains are taken apart here one by one, so that dropping does not recurse.
        let mut rest: Vec<Tensor> = Vec::new();
        let own = self.inputs.get_mut();
        if own.is_empty() {
            return;
        }
        rest.extend(own.drain(..));
        while let Some(t) = rest.pop() {
            if let Some(mut n) = Arc::into_inner(t.node) {
                rest.extend(n.inputs.get_mut().drain(..));
            }
        }
    }
}

/// Drops tensors that were taken out of nodes without recursing into long chains.
pub(crate) fn release(inputs: &mut Inputs) {
    while let Some(t) = inputs.pop() {
        if let Some(mut n) = Arc::into_inner(t.node) {
            inputs.extend(n.inputs.get_mut().drain(..));
        }
    }
}

/// What a new node is made of.
struct NodeParts {
    kind: Kind,
    device: Device,
    metas: SmallVec<[Meta; 1]>,
    inputs: Inputs,
    params: SmallVec<[f64; 2]>,
    at: At,
    key: u64,
    extra: Option<Box<RareFields>>,
}

impl Tensor {
    #[inline(always)]
    fn node(parts: NodeParts) -> Tensor {
        let NodeParts { kind, device, metas, inputs, params, at, key, extra } = parts;
        let mode = Mode::current();
        let own = extra.as_ref().is_some_and(|e| e.cell.is_some());
        let from = match (&kind, &extra) {
            (Kind::View(_), Some(e)) if e.backward.is_some() => &inputs[1..],
            (Kind::View(_), Some(e)) if e.parent => &inputs[inputs.len() - 1..],
            (Kind::View(_), _) => &inputs[..1],
            _ => &inputs[..],
        };
        let tracked = own || mode.grad && from.iter().any(|t| t.node.tracked) && metas.iter().any(|m| m.dtype.is_float());
        let at = mode.at.unwrap_or(at);
        let node = Node {
            kind,
            device,
            metas,
            at,
            key,
            params,
            inputs: UnsafeCell::new(inputs),
            stored: OnceLock::new(),
            mark: AtomicU64::new(0),
            visited: AtomicBool::new(false),
            read: AtomicBool::new(false),
            tracked,
            inputs_freed: AtomicBool::new(false),
            extra,
        };
        Tensor { node: Arc::new(node), out: 0 }
    }

    /// A tensor over stored memory.
    pub(crate) fn leaf(device: &Device, meta: Meta, buffer: Buffer, op: &'static str, at: At) -> Tensor {
        if device.backend().pool().recording() {
            device.backend().label(&buffer, op, at);
        }
        let mut key = Key::default();
        key.meta(&meta);
        let (inputs, params) = (Inputs::new(), SmallVec::new());
        let metas = smallvec::smallvec![meta];
        let t =
            Tensor::node(NodeParts { kind: Kind::Leaf, device: device.clone(), metas, inputs, params, at, key: key.value(), extra: None });
        let _ = t.node.stored.set(smallvec::smallvec![buffer]);
        t
    }

    /// This stored tensor as a result of `sources`, which may be on another device, with this derivative.
    pub(crate) fn result_of(&self, sources: &[Tensor], backward: Backward, at: At) -> Tensor {
        let extra = RareFields { backward: Some(backward), ..RareFields::default() };
        let node = &self.node;
        let inputs = sources.iter().cloned().collect();
        let t = Tensor::node(NodeParts {
            kind: Kind::Leaf,
            device: node.device.clone(),
            metas: node.metas.clone(),
            inputs,
            params: SmallVec::new(),
            at,
            key: node.key,
            extra: Some(Box::new(extra)),
        });
        // An evaluation does not look behind a stored node.
        if let Some(buffers) = node.stored.get() {
            let _ = t.node.stored.set(buffers.clone());
        }
        t
    }

    /// A tensor of raw bytes in row-major order, in place where the device can read them there.
    ///
    /// # Errors
    /// When the bytes are not as many as shape and dtype ask for, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::backends::Bytes;
    /// let bytes = Bytes::Owned(std::sync::Arc::new(vec![0, 0, 128, 63]));
    /// let x = Tensor::from_bytes(bytes, DType::F32, &[1], &Device::cpu())?;
    /// assert_eq!(x.to_vec()?, [1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn from_bytes(bytes: Bytes, dtype: DType, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let meta = Meta { dtype, shape: Tensor::bytes_fit(&bytes, dtype, shape, device, at)? };
        let most = device.capabilities().max_tensor_bytes;
        if bytes.len() > most
            && let Some(parts) = Tensor::upload_parts(&bytes, meta, device, most, at)?
        {
            return Ok(parts);
        }
        Ok(Tensor::leaf(device, meta, device.upload(bytes)?, "from_bytes", at))
    }

    /// The shape, when that many bytes make a tensor of it on this device.
    pub(crate) fn bytes_fit(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device, at: At) -> TensorResult<Shape> {
        let shape = Shape::new(shape, "from_bytes", at)?;
        device.require(dtype)?;
        let row = shape.last().copied().unwrap_or(1);
        if row % dtype.block() != 0 || dtype.bytes(shape.count()) != Some(bytes.len()) {
            return Err(TensorError::shape("from_bytes", at, format!("{} bytes for {dtype}{shape}", bytes.len())));
        }
        Ok(shape)
    }

    /// A tensor of these values in row-major order.
    ///
    /// # Errors
    /// When the number of values is not the shape's, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::from_vec(vec![1.0f64, 2.0], &[2, 1], &Device::cpu())?;
    /// assert_eq!((x.dtype(), x.dims()), (DType::F64, &[2, 1][..]));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn from_vec<T: Element>(data: Vec<T>, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let shape = Shape::new(shape, "from_vec", at)?;
        if data.len() != shape.count() {
            return Err(TensorError::shape(
                "from_vec",
                at,
                format!("{} values for shape {shape}, which has {}", data.len(), shape.count()),
            ));
        }
        device.require(T::DTYPE)?;
        Ok(Tensor::leaf(device, Meta { dtype: T::DTYPE, shape }, device.upload(Bytes::of_vec(data))?, "from_vec", at))
    }

    /// [`Tensor::from_vec`] with the device first, for the elements' own type: f16 values make an f16 tensor. `device` may be any device.
    ///
    /// # Errors
    /// As [`Tensor::from_vec`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::from_vec_gpu(&Device::cpu(), vec![1.0f32, 2.0], [2])?;
    /// assert_eq!(x.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn from_vec_gpu<T: Element>(device: &Device, data: Vec<T>, shape: impl AsRef<[usize]>) -> TensorResult<Tensor> {
        Tensor::from_vec(data, shape.as_ref(), device)
    }

    /// A view of this tensor's elements. `layout` is over the elements that `self.layout()` is over.
    pub(crate) fn view(&self, layout: Layout, at: At) -> Tensor {
        let (base, parent) = self.seen();
        let extra = parent.is_some().then(|| RareFields { parent: true, ..RareFields::default() });
        Tensor::view_of(layout, [base].into_iter().chain(parent).collect(), extra, self.dtype(), at)
    }

    /// What a view of this tensor looks at, and the alias that it looks through, if there is one.
    fn seen(&self) -> (Tensor, Option<Tensor>) {
        let Kind::View(_) = self.node.kind else { return (self.clone(), None) };
        // SAFETY: a view is never stored, so its inputs never change.
        let inputs = unsafe { self.node.inputs() };
        let parent = match &self.node.extra {
            Some(e) if e.alias => Some(self.clone()),
            Some(e) if e.parent => inputs.last().cloned(),
            _ => None,
        };
        (inputs[0].clone(), parent)
    }

    fn view_of(layout: Layout, inputs: Inputs, extra: Option<RareFields>, dtype: DType, at: At) -> Tensor {
        let meta = Meta { dtype, shape: layout.shape };
        let mut key = Key::default();
        key.word(1).meta(&meta);
        for &s in layout.strides() {
            key.word(s as u64);
        }
        key.word((layout.offset == 0) as u64 | ((layout.offset % 8 == 0) as u64) << 1);
        let params = if layout.offset == 0 { SmallVec::new() } else { smallvec::smallvec![layout.offset as f64] };
        let device = inputs[0].node.device.clone();
        let (kind, metas, extra) = (Kind::View(layout), smallvec::smallvec![meta], extra.map(Box::new));
        Tensor::node(NodeParts { kind, device, metas, inputs, params, at, key: key.value(), extra })
    }

    /// This tensor, whose elements lie in row-major order where gradients are to flow, under another name: it may depend on `others` as well,
    /// and may have a gradient of its own.
    pub(crate) fn alias(&self, others: &[Tensor], extra: RareFields, at: At) -> Tensor {
        let (base, parent) = self.seen();
        let extra = RareFields { alias: true, parent: parent.is_some(), ..extra };
        let inputs = [base].into_iter().chain(others.iter().cloned()).chain(parent).collect();
        Tensor::view_of(self.layout(), inputs, Some(extra), self.dtype(), at)
    }

    /// Where the elements lie relative to the row-major elements of the node that holds them.
    pub(crate) fn layout(&self) -> Layout {
        match &self.node.kind {
            Kind::View(l) => *l,
            _ => Layout::contiguous(*self.shape()),
        }
    }

    /// An elementwise node. Shapes have been checked to broadcast to `shape`.
    pub(crate) fn map(
        device: &Device,
        prim: Prim,
        args: [Arg; 3],
        inputs: Inputs,
        params: SmallVec<[f64; 2]>,
        meta: Meta,
        at: At,
    ) -> Tensor {
        let mut key = Key::default();
        let (tag, sub) = match prim {
            Prim::Unary(u) => (2, u as u64),
            Prim::Binary(b) => (3, b as u64),
            Prim::Where => (4, 0),
            Prim::Cast => (5, 0),
            Prim::Philox => (6, 0),
            Prim::Source(n) => (7, n as u64),
            Prim::Lit(b) => (8, b),
            Prim::Param(n) => (9, n as u64),
            Prim::Value => (10, 0),
            Prim::SwapPair => (11, 0),
        };
        key.word(tag).word(sub).meta(&meta);
        for a in args {
            match a {
                Arg::In(i) => key.word(16 + i as u64),
                Arg::Param(i, d) => key.word(32 + i as u64 + ((d as u64) << 8)),
                Arg::Lit(b, d) => key.word(48 + ((d as u64) << 8)).word(b),
                Arg::None => &mut key,
            };
        }
        let (kind, device, metas) = (Kind::Map(prim, args), device.clone(), smallvec::smallvec![meta]);
        Tensor::node(NodeParts { kind, device, metas, inputs, params, at, key: key.value(), extra: None })
    }

    /// A node of a coarse operation; the results, one per entry of `metas`.
    ///
    /// # Errors
    /// When the inputs are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use std::{panic::Location, sync::Arc};
    /// # use tensorlogic::layout::Layout;
    /// # use tensorlogic::tensor::{Key, Lowered, Meta, Op};
    /// #
    /// # /// The elements of two vectors in turn.
    /// # struct Interleave;
    /// #
    /// # impl Op for Interleave {
    /// #     fn name(&self) -> &'static str {
    /// #         "interleave"
    /// #     }
    /// #     fn key(&self, _: &mut Key) {}
    /// #     fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
    /// #         None
    /// #     }
    /// #     fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
    /// #         let window = |i: usize| (i, Layout::contiguous(outputs[0].shape).slice(0, i, inputs[i].shape[0], 2), None);
    /// #         Lowered::Windows { base: None, pieces: vec![window(0), window(1)] }
    /// #     }
    /// # }
    /// #
    /// // `Interleave` is defined in the example of `Tensor::op1`.
    /// let [a, b] = [Tensor::new(&[1.0, 3.0], &Device::cpu())?, Tensor::new(&[2.0, 4.0], &Device::cpu())?];
    /// let meta = Meta { dtype: DType::F32, shape: Shape::of(&[4]) };
    /// let (inputs, metas) = ([a, b].into_iter().collect(), [meta].into_iter().collect());
    /// let results = Tensor::op(Arc::new(Interleave), inputs, Default::default(), metas, Location::caller())?;
    /// assert_eq!(results[0].to_vec()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn op(
        op: Arc<dyn Op>,
        inputs: Inputs,
        params: SmallVec<[f64; 2]>,
        metas: SmallVec<[Meta; 1]>,
        at: At,
    ) -> TensorResult<Vec<Tensor>> {
        let device = inputs[0].device().clone();
        for t in &inputs[1..] {
            same_device(op.name(), &inputs[0], t, at)?;
        }
        let mut key = Key::default();
        key.word(11).text(op.name());
        op.key(&mut key);
        for m in &metas {
            key.meta(m);
        }
        let n = metas.len() as u32;
        let first = Tensor::node(NodeParts { kind: Kind::Op(op), device, metas, inputs, params, at, key: key.value(), extra: None });
        Ok((0..n).map(|out| Tensor { node: first.node.clone(), out }).collect())
    }

    /// As [`Tensor::op`] for an operation of one result.
    ///
    /// # Errors
    /// When the inputs are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use std::panic::Location;
    /// use tensorlogic::layout::Layout;
    /// use tensorlogic::tensor::{Key, Lowered, Meta, Op};
    ///
    /// /// The elements of two vectors in turn.
    /// struct Interleave;
    ///
    /// impl Op for Interleave {
    ///     fn name(&self) -> &'static str {
    ///         "interleave"
    ///     }
    ///     fn key(&self, _: &mut Key) {}
    ///     fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
    ///         None
    ///     }
    ///     fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
    ///         let window = |i: usize| (i, Layout::contiguous(outputs[0].shape).slice(0, i, inputs[i].shape[0], 2), None);
    ///         Lowered::Windows { base: None, pieces: vec![window(0), window(1)] }
    ///     }
    /// }
    ///
    /// let [a, b] = [Tensor::new(&[1.0, 3.0], &Device::cpu())?, Tensor::new(&[2.0, 4.0], &Device::cpu())?];
    /// let meta = Meta { dtype: DType::F32, shape: Shape::of(&[4]) };
    /// let y = Tensor::op1(Interleave, [a, b].into_iter().collect(), Default::default(), meta, Location::caller())?;
    /// assert_eq!(y.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn op1(op: impl Op, inputs: Inputs, params: SmallVec<[f64; 2]>, meta: Meta, at: At) -> TensorResult<Tensor> {
        Ok(Tensor::op(Arc::new(op), inputs, params, smallvec::smallvec![meta], at)?.remove(0))
    }

    /// The device that holds the tensor.
    pub fn device(&self) -> &Device {
        &self.node.device
    }
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.node.metas[self.out as usize].dtype
    }
    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.node.metas[self.out as usize].shape
    }
    /// The sizes, as a slice.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }
    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }
    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape().count()
    }
    pub(crate) fn meta(&self) -> Meta {
        self.node.metas[self.out as usize]
    }
}

/// Fails where two operands live on different devices.
pub(crate) fn same_device(op: &'static str, a: &Tensor, b: &Tensor, at: At) -> TensorResult<()> {
    if a.device() == b.device() {
        return Ok(());
    }
    let message = format!("operands are on {} and on {}; move one with .to_device()", a.device().name(), b.device().name());
    Err(TensorError::Device { op, message, at })
}
