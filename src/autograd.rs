//! Reverse-mode differentiation: traverses the graph backwards and builds the gradients' graph. Nothing runs here.

mod overlap;

use self::overlap::{has_overlap, sum_overlapping};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{forget_inputs, inputs_of};
use crate::layout::Layout;
use crate::ops::write::windows;
use crate::ops::{Lit, Rhs};
use crate::scalar::{Binary, Prim, Unary, binary_primitives, unary_primitives};
use crate::shape::Shape;
use crate::tensor::{Arg, GradCell, Grads, Inputs, Kind, Meta, Mode, Node, RareFields, Tensor, Vjp};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

/// Runs `f` without tracking gradients.
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    Mode { grad: false, ..Mode::current() }.run(f)
}

/// Settings of [`grad`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GradOptions {
    /// Whether the gradients can be differentiated again.
    pub create_graph: bool,
    /// Whether the graph is kept, so that it can be differentiated once more.
    pub retain_graph: bool,
    /// Whether an input that the outputs do not depend on gets a zero gradient instead of an error.
    pub allow_unused: bool,
}

/// The gradients of the sum of `outputs` with respect to each of `inputs`, like PyTorch's `torch.autograd.grad`. Inputs may be any tensors
/// from which the outputs were computed while gradients were tracked.
///
/// # Errors
/// If an output is not tracked, or an input does not contribute (unless [`GradOptions::allow_unused`] is set).
///
/// ```
/// use tensorlogic::autograd::{GradOptions, grad};
/// use tensorlogic::prelude::*;
/// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?.requires_grad()?;
/// let squares = x.square()?;
/// let y = squares.mul(3.0)?.sum_all()?;
/// let gradients = grad(&[&y], &[&x, &squares], &GradOptions::default())?;
/// assert_eq!(gradients[0].to_vec()?, [6.0, 12.0]); // of 3x²: 6x
/// assert_eq!(gradients[1].to_vec()?, [3.0, 3.0]); // an intermediate value has one, too
/// # Ok::<(), TensorError>(())
/// ```
#[track_caller]
pub fn grad(outputs: &[&Tensor], inputs: &[&Tensor], options: &GradOptions) -> TensorResult<Vec<Tensor>> {
    let at = Location::caller();
    let mut roots = Vec::new();
    for y in outputs {
        check_root(y, "grad")?;
        roots.push(((*y).clone(), ones(y)?));
    }
    let wanted: HashSet<Place> = inputs.iter().map(|t| place(t)).collect();
    let found = BackwardPass::new(options.create_graph, false).run(roots, &wanted)?;
    if !options.retain_graph && !options.create_graph {
        // The nodes passed lose their inputs, so that memory goes back.
        found.visited.iter().for_each(|t| forget_inputs(&t.node));
    }
    inputs
        .iter()
        .map(|x| match found.wanted.get(&place(x)) {
            Some(g) => Ok(g.clone()),
            None if options.allow_unused => x.zeros_like(),
            None => Err(TensorError::State(format!("grad: an input of shape {} does not contribute to the outputs ({at})", x.shape()))),
        })
        .collect()
}

fn ones(y: &Tensor) -> TensorResult<Tensor> {
    Mode { grad: false, at: Some(y.node.at) }.run(|| y.ones_like())
}

fn check_root(y: &Tensor, op: &'static str) -> TensorResult<()> {
    if !y.node.tracked || !y.dtype().is_float() {
        let why = "does not depend on a tensor with requires_grad, or was computed inside no_grad";
        return Err(TensorError::State(format!("{op}: the {} of shape {} {why} ({})", y.dtype(), y.shape(), y.node.at)));
    }
    Ok(())
}

impl Tensor {
    /// A tensor of this value that accumulates its gradient: [`Tensor::backward`] of a result computed from it adds to [`Tensor::grad`].
    ///
    /// # Errors
    /// If the dtype is not a float (blocks are not).
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let x = x.requires_grad()?;
    /// x.square()?.sum_all()?.backward()?;
    /// assert_eq!(x.grad().expect("collected").to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn requires_grad(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        if !self.dtype().is_float() || self.dtype().is_block() {
            return Err(TensorError::dtype("requires_grad", at, format!("{} has no gradient; cast to a float first", self.dtype())));
        }
        self.with_cell(Arc::default())
    }

    /// The same value with this place for its gradient.
    #[track_caller]
    pub(crate) fn with_cell(&self, cell: Arc<GradCell>) -> TensorResult<Tensor> {
        Ok(self.in_order()?.alias(&[], RareFields { cell: Some(cell), ..RareFields::default() }, Location::caller()))
    }

    /// Where this tensor's gradient is collected, if it is.
    pub(crate) fn cell(&self) -> Option<Arc<GradCell>> {
        self.node.extra.as_ref()?.cell.clone()
    }

    /// This tensor with its elements in row-major order, where an alias can see them.
    fn in_order(&self) -> TensorResult<Tensor> {
        if self.layout().is_contiguous() { Ok(self.clone()) } else { self.contiguous() }
    }

    /// Whether gradients flow through this tensor.
    pub fn is_tracked(&self) -> bool {
        self.node.tracked
    }

    /// This value without gradient tracking.
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        if !self.node.tracked {
            return self.clone();
        }
        let at = Location::caller();
        no_grad(|| self.alias(&[], RareFields::default(), at))
    }

    /// The gradient accumulated by [`Tensor::backward`] for this tensor, which must come from [`Tensor::requires_grad`]. It is computed when requested.
    pub fn grad(&self) -> Option<Tensor> {
        self.node.extra.as_ref()?.cell.as_ref()?.get()
    }

    /// Clears the accumulated gradient.
    pub fn zero_grad(&self) {
        if let Some(cell) = self.node.extra.as_ref().and_then(|e| e.cell.as_ref()) {
            cell.replace(None);
        }
    }

    /// Adds the gradient of this one-element tensor to every tensor with [`Tensor::requires_grad`] that it was computed from. This only extends
    /// the graph; gradients are computed by the next evaluation that needs them. The graph is released; [`Tensor::backward_with`] can keep it.
    ///
    /// # Errors
    /// If the tensor has more than one element, or is not tracked.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[3.0], &Device::cpu())?;
    /// let x = x.requires_grad()?;
    /// x.log()?.sum_all()?.backward()?;
    /// (2.0 * &x)?.sum_all()?.backward()?; // adds to the gradient
    /// let grad = x.grad().expect("collected").to_vec()?;
    /// assert!((grad[0] - 7.0 / 3.0).abs() < 1e-6);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn backward(&self) -> TensorResult<()> {
        if self.numel() != 1 {
            let m = format!("the tensor is {}, not one element; use backward_with(&gradient, …)", self.shape());
            return Err(TensorError::shape("backward", Location::caller(), m));
        }
        check_root(self, "backward")?;
        self.backward_with(&ones(self)?, false)
    }

    /// As [`Tensor::backward`], from this gradient of the tensor (its shape); `retain_graph` keeps the graph for another call.
    ///
    /// # Errors
    /// If the gradient's shape is not this tensor's, or the tensor is not tracked.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let x = x.requires_grad()?;
    /// let gradient = Tensor::new(&[10.0, 1.0], &Device::cpu())?;
    /// x.square()?.backward_with(&gradient, false)?;
    /// assert_eq!(x.grad().expect("collected").to_vec()?, [20.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn backward_with(&self, gradient: &Tensor, retain_graph: bool) -> TensorResult<()> {
        check_root(self, "backward")?;
        if gradient.shape() != self.shape() {
            let m = format!("the gradient is {}, the tensor {}", gradient.shape(), self.shape());
            return Err(TensorError::shape("backward", Location::caller(), m));
        }
        let gradient = gradient.cast(self.dtype())?;
        let found = BackwardPass::new(false, false).run(vec![(self.clone(), gradient)], &HashSet::new())?;
        crate::events::backward(found.visited.len());
        collect(found.cells)?;
        if !retain_graph {
            found.visited.iter().for_each(|t| forget_inputs(&t.node));
        }
        Ok(())
    }

    /// Sums over leading and repeated dimensions: the transpose of broadcasting `shape` to this tensor's shape.
    pub(crate) fn sum_to(&self, shape: &Shape) -> TensorResult<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let lead = self.rank() - shape.rank();
        let dims: SmallVec<[isize; 8]> =
            (0..self.rank()).filter(|&d| d < lead || shape[d - lead] == 1 && self.shape()[d] != 1).map(|d| d as isize).collect();
        let sum = if dims.is_empty() { self.clone() } else { self.sum(&dims, true)?.cast(self.dtype())? };
        sum.reshape(shape)
    }
}

/// Computes `f(inputs)` without keeping its intermediate values: the backward pass recomputes them from the inputs (Chen et al., 2016). `f` must
/// return the same result each time; random numbers inside must come from a fixed seed.
///
/// # Errors
/// Those of `f`.
///
/// ```
/// use tensorlogic::autograd::checkpoint;
/// use tensorlogic::prelude::*;
/// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?.requires_grad()?;
/// let y = checkpoint(|inputs| inputs[0].square()?.square(), &[&x])?; // x² is not kept
/// y.sum_all()?.backward()?;
/// assert_eq!(x.grad().expect("collected").to_vec()?, [4.0, 32.0]); // of x⁴: 4x³
/// # Ok::<(), TensorError>(())
/// ```
#[track_caller]
pub fn checkpoint(f: impl Fn(&[Tensor]) -> TensorResult<Tensor> + Send + Sync + 'static, inputs: &[&Tensor]) -> TensorResult<Tensor> {
    let at = Location::caller();
    let own: Vec<Tensor> = inputs.iter().map(|t| t.in_order()).collect::<TensorResult<_>>()?;
    let y = no_grad(|| f(&own))?;
    let count = own.len();
    let backward = move |inputs: &[Tensor], g: &Tensor| -> TensorResult<Grads> {
        let kept = &inputs[..count];
        let create_graph = Mode::current().grad;
        let track = Mode { grad: true, at: Some(at) };
        // Aliases that wait for the gradient: what is computed from them is computed again, and not before it is needed.
        let again: Vec<Tensor> = kept.iter().map(|t| track.run(|| t.alias(std::slice::from_ref(g), RareFields::default(), at))).collect();
        let y = track.run(|| f(&again))?;
        if !y.node.tracked {
            return Ok(vec![None; kept.len()]);
        }
        let found = inner(y, g.clone(), &again, create_graph)?;
        // Parameters that `f` uses besides its inputs collect their gradients as always.
        collect(found.cells)?;
        Ok(again.iter().map(|t| found.wanted.get(&place(t)).cloned()).collect())
    };
    // Tracked whenever gradients are: `f` may use parameters that are not among the inputs.
    let anchor = if own.iter().any(|t| t.node.tracked) || !Mode::current().grad {
        None
    } else {
        Some(Tensor::zeros(&[], DType::F32, y.device())?.with_cell(Arc::default())?)
    };
    let mut others = own;
    others.extend(anchor);
    Ok(y.in_order()?.alias(&others, RareFields { backward: Some(Arc::new(backward)), ..RareFields::default() }, at))
}

/// The gradients of a part of a graph, from `y` down to `ends`.
fn inner(y: Tensor, g: Tensor, ends: &[Tensor], create_graph: bool) -> TensorResult<Found> {
    let wanted: HashSet<Place> = ends.iter().filter(|t| t.node.tracked).map(place).collect();
    let found = BackwardPass::new(create_graph, true).run(vec![(y, g)], &wanted)?;
    if !create_graph {
        found.visited.iter().filter(|t| !wanted.contains(&place(t))).for_each(|t| forget_inputs(&t.node));
    }
    Ok(found)
}

/// Adds gradients to where they are collected.
fn collect(cells: Vec<(Arc<GradCell>, Tensor)>) -> TensorResult<()> {
    for (cell, g) in cells {
        let before = cell.replace(None);
        cell.replace(Some(match before {
            Some(before) => no_grad(|| before.add(&g))?,
            None => g,
        }));
    }
    Ok(())
}

/// A tensor's identity: its node and which of the results it is.
type Place = (*const Node, u32);

fn place(t: &Tensor) -> Place {
    (Arc::as_ptr(&t.node), t.out)
}

/// A partial gradient of a value: of all of it, or of a window of its row-major elements.
enum GradPart {
    Whole(Tensor),
    Window(Layout, Tensor),
}

/// What a backward pass found.
#[derive(Default)]
struct Found {
    /// Gradients of the tensors asked for.
    wanted: HashMap<Place, Tensor>,
    /// Gradients of tensors that collect them, in the order in which they were met.
    cells: Vec<(Arc<GradCell>, Tensor)>,
    /// The nodes passed.
    visited: Vec<Tensor>,
}

struct BackwardPass {
    create_graph: bool,
    /// Whether the pass ends at the tensors asked for.
    stop: bool,
    parts: HashMap<Place, SmallVec<[GradPart; 1]>>,
    /// The inputs of each node passed, as they were when the pass began.
    inputs: HashMap<*const Node, Inputs>,
}

impl BackwardPass {
    fn new(create_graph: bool, stop: bool) -> BackwardPass {
        BackwardPass { create_graph, stop, parts: HashMap::new(), inputs: HashMap::new() }
    }

    /// Tracked nodes under the roots, inputs first.
    fn order(&mut self, roots: &[(Tensor, Tensor)], wanted: &HashSet<Place>) -> Vec<Tensor> {
        let mut order: Vec<Tensor> = Vec::new();
        let mut seen: HashSet<*const Node> = HashSet::new();
        let mut stack: Vec<(Tensor, usize)> = Vec::new();
        for (root, _) in roots {
            if seen.insert(Arc::as_ptr(&root.node)) {
                stack.push((root.clone(), 0));
            }
            while let Some((t, next)) = stack.last_mut() {
                let ends = t.node.collects() || self.stop && wanted.contains(&place(t));
                let inputs =
                    self.inputs.entry(Arc::as_ptr(&t.node)).or_insert_with(|| if ends { Inputs::new() } else { inputs_of(&t.node) });
                match inputs.get(*next) {
                    Some(input) => {
                        *next += 1;
                        if input.node.tracked && seen.insert(Arc::as_ptr(&input.node)) {
                            let input = input.clone();
                            stack.push((input, 0));
                        }
                    }
                    None => order.push(stack.pop().expect("just seen").0),
                }
            }
        }
        order
    }

    fn add(&mut self, to: &Tensor, part: GradPart) {
        if to.node.tracked && to.dtype().is_float() {
            self.parts.entry(place(to)).or_default().push(part);
        }
    }

    fn run(mut self, roots: Vec<(Tensor, Tensor)>, wanted: &HashSet<Place>) -> TensorResult<Found> {
        let order = self.order(&roots, wanted);
        for (y, g) in roots {
            self.add(&y, GradPart::Whole(g));
        }
        let mut found = Found::default();
        for t in order.iter().rev() {
            let node = &t.node;
            let outputs: Vec<Tensor> = (0..node.metas.len() as u32).map(|out| Tensor { node: node.clone(), out }).collect();
            let mode = Mode { grad: self.create_graph, at: Some(node.at) };
            let mut grads: Grads = Vec::new();
            for y in &outputs {
                let parts = self.parts.remove(&place(y));
                grads.push(match parts {
                    Some(parts) => Some(mode.run(|| sum_gradients(parts, y))?),
                    None => None,
                });
            }
            if grads.iter().all(Option::is_none) {
                continue;
            }
            let mut asked = false;
            for (y, g) in outputs.iter().zip(&grads) {
                if let (true, Some(g)) = (wanted.contains(&place(y)), g) {
                    found.wanted.insert(place(y), g.clone());
                    asked = true;
                }
            }
            if asked && self.stop {
                continue;
            }
            if let Some(cell) = node.extra.as_ref().and_then(|e| e.cell.as_ref()) {
                if let Some(g) = grads.swap_remove(0) {
                    if !wanted.contains(&place(&outputs[0])) {
                        found.cells.push((cell.clone(), g));
                    }
                }
                continue;
            }
            let inputs = self.inputs.remove(&Arc::as_ptr(node)).unwrap_or_default();
            if inputs.is_empty() {
                let m = "the graph of a value is gone: backward has been here already; keep it with retain_graph";
                return Err(TensorError::State(format!("backward: {m} ({})", node.at)));
            }
            let results = mode.run(|| self.node(node, &inputs, &outputs, &grads))?;
            for (input, part) in inputs.iter().zip(results) {
                if let Some(part) = part {
                    self.add(input, part);
                }
            }
        }
        found.visited = order;
        Ok(found)
    }

    /// Gradients of a node's inputs.
    fn node(&self, node: &Arc<Node>, inputs: &Inputs, outputs: &[Tensor], grads: &[Option<Tensor>]) -> TensorResult<Vec<Option<GradPart>>> {
        let whole = |list: Grads| list.into_iter().map(|g| g.map(GradPart::Whole)).collect();
        if let Some(backward) = node.extra.as_ref().and_then(|e| e.backward.as_ref()) {
            let g = grads[0].as_ref().expect("a gradient has reached the node");
            if !matches!(node.kind, Kind::View(_)) {
                return Ok(whole(backward(inputs, g)?));
            }
            // The first input of an alias is its value, which has no gradient here.
            let mut list: Vec<Option<GradPart>> = whole(backward(&inputs[1..], g)?);
            list.insert(0, None);
            return Ok(list);
        }
        match &node.kind {
            Kind::Leaf => Ok(Vec::new()),
            Kind::View(layout) => {
                let g = grads[0].as_ref().expect("a view has one result");
                if !node.extra.as_ref().is_some_and(|e| e.parent) {
                    return Ok(vec![Some(through_view(layout, &inputs[0].meta(), g)?)]);
                }
                // Seen through an alias, whose row-major elements begin at its offset.
                let parent = inputs.last().expect("the alias is the last input");
                let own = Layout { offset: layout.offset - parent.layout().offset, ..*layout };
                let mut list: Vec<Option<GradPart>> = inputs.iter().map(|_| None).collect();
                *list.last_mut().expect("as above") = Some(through_view(&own, &parent.meta(), g)?);
                Ok(list)
            }
            Kind::Map(prim, args) => {
                let g = grads[0].as_ref().expect("a map has one result");
                map_grad(*prim, args, &node.params, inputs, &outputs[0], g).map(whole)
            }
            Kind::Op(op) => {
                let vjp = Vjp { inputs, outputs, grads, params: &node.params };
                if let Some(list) = op.grad(&vjp) {
                    return list.map(whole);
                }
                self.defined(op.as_ref(), inputs, &grads[0])
            }
        }
    }

    /// The gradient of an operation's definition.
    fn defined(&self, op: &dyn crate::tensor::Op, inputs: &Inputs, g: &Option<Tensor>) -> TensorResult<Vec<Option<GradPart>>> {
        let none = || TensorError::Unsupported(format!("the gradient of {}", op.name()));
        let g = g.as_ref().ok_or_else(none)?;
        let track = Mode { grad: true, ..Mode::current() };
        let y = track.run(|| op.define(inputs)).ok_or_else(none)??;
        let y = track.run(|| y.cast(g.dtype()))?;
        let mut found = inner(y, g.clone(), inputs, self.create_graph)?;
        // An input that stands twice gets its gradient once.
        Ok(inputs.iter().map(|t| found.wanted.remove(&place(t)).map(GradPart::Whole)).collect())
    }
}

/// The sum of a value's partial gradients.
fn sum_gradients(parts: SmallVec<[GradPart; 1]>, value: &Tensor) -> TensorResult<Tensor> {
    let meta = value.meta();
    let mut sum: Option<Tensor> = None;
    let mut add = |t: Tensor| -> TensorResult<()> {
        let t = t.cast(meta.dtype)?;
        sum = Some(match sum.take() {
            Some(s) => s.add(&t)?,
            None => t,
        });
        Ok(())
    };
    let mut pieces: Vec<(Layout, Tensor)> = Vec::new();
    for p in parts {
        match p {
            GradPart::Whole(t) => add(t)?,
            GradPart::Window(layout, t) => {
                // Windows side by side are written into one tensor; one that may overlap another starts its own.
                if !pieces.iter().all(|(l, _)| apart(l, &layout, &meta.shape)) {
                    add(windows(meta, std::mem::take(&mut pieces), value.node.at)?)?;
                }
                pieces.push((layout, t));
            }
        }
    }
    if !pieces.is_empty() {
        add(windows(meta, pieces, value.node.at)?)?;
    }
    Ok(sum.expect("there is a share"))
}

/// The box of a row-major tensor that a window of positive strides stays within: per dimension the first and the last index.
fn bounds(l: &Layout, shape: &Shape) -> Option<SmallVec<[(usize, usize); 8]>> {
    let strides = Layout::contiguous(*shape).strides;
    let mut rest = l.offset;
    let mut out: SmallVec<[(usize, usize); 8]> = SmallVec::new();
    for d in 0..shape.rank() {
        let i = rest / strides[d].max(1) as usize;
        rest %= strides[d].max(1) as usize;
        out.push((i, i));
    }
    for (&n, &s) in l.shape.iter().zip(l.strides()) {
        if n <= 1 {
            continue;
        }
        // The dimension in which this step moves: the last whose own step is not larger.
        let d = (0..shape.rank()).find(|&d| shape[d] > 1 && strides[d] <= s && s % strides[d] == 0)?;
        out[d].1 += (n - 1) * (s / strides[d]) as usize;
    }
    out.iter().zip(shape.iter()).all(|(&(_, end), &n)| end < n).then_some(out)
}

/// Whether two windows are known to share no element.
fn apart(a: &Layout, b: &Layout, shape: &Shape) -> bool {
    match (bounds(a, shape), bounds(b, shape)) {
        (Some(a), Some(b)) => a.iter().zip(&b).any(|(x, y)| x.1 < y.0 || y.1 < x.0),
        _ => false,
    }
}

/// The gradient of a view's base.
fn through_view(layout: &Layout, base: &Meta, g: &Tensor) -> TensorResult<GradPart> {
    if layout.shape.count() == 0 {
        return Ok(GradPart::Whole(Tensor::zeros(base.shape.dims(), base.dtype, g.device())?));
    }
    // Repeated elements collect the gradients of all their places.
    let repeated: SmallVec<[isize; 8]> =
        (0..layout.shape.rank()).filter(|&d| layout.strides[d] == 0 && layout.shape[d] > 1).map(|d| d as isize).collect();
    let mut g = if repeated.is_empty() { g.clone() } else { g.sum(&repeated, true)?.cast(base.dtype)? };
    let mut offset = layout.offset as isize;
    let mut dims: Vec<(usize, isize, usize)> = Vec::new(); // size, stride, dimension of g
    for d in 0..layout.shape.rank() {
        let (n, s) = (layout.shape[d], layout.strides[d]);
        if n > 1 && s != 0 {
            if s < 0 {
                offset += (n as isize - 1) * s;
                g = g.flip(d)?;
            }
            dims.push((n, s.abs(), dims.len()));
        }
    }
    g = g.reshape(dims.iter().map(|d| d.0).collect::<Vec<_>>())?;
    dims.sort_by_key(|d| std::cmp::Reverse(d.1));
    g = g.permute(&dims.iter().map(|d| d.2).collect::<Vec<_>>())?;
    let mut window = Layout::contiguous(Shape::of(&dims.iter().map(|d| d.0).collect::<Vec<_>>()));
    for (i, d) in dims.iter().enumerate() {
        window.strides[i] = d.1;
    }
    let separate = !has_overlap(&window);
    let all = separate && window.shape.count() == base.shape.count();
    window.offset = offset as usize;
    if all && g.layout().reshape(base.shape).is_some() {
        return Ok(GradPart::Whole(g.reshape(base.shape)?));
    }
    if separate {
        return Ok(GradPart::Window(window, g));
    }
    if let Some(sum) = sum_overlapping(&window, base, &g)? {
        return Ok(GradPart::Whole(sum));
    }
    // No fold of reasonable size: each element finds its place by index.
    let wide = if g.device().supports(DType::I64) { DType::I64 } else { DType::I32 };
    let places = Tensor::arange(0.0, base.shape.count() as f64, 1.0, wide, g.device())?.view(window, g.node.at);
    let zeros = Tensor::zeros(&[base.shape.count()], base.dtype, g.device())?;
    Ok(GradPart::Whole(zeros.index_add(0, &places.flatten(0, -1)?, &g.flatten(0, -1)?)?.reshape(base.shape)?))
}

/// The gradients of an elementwise node's inputs: the definition of each primitive's derivative.
fn map_grad(prim: Prim, args: &[Arg; 3], params: &[f64], inputs: &Inputs, y: &Tensor, g: &Tensor) -> TensorResult<Grads> {
    let mut sums: Grads = vec![None; inputs.len()];
    let mut give = |arg: Arg, grad: TensorResult<Option<Tensor>>| -> TensorResult<()> {
        let Arg::In(i) = arg else { return Ok(()) };
        if let Some(grad) = grad? {
            let x = &inputs[i as usize];
            let grad = grad.sum_to(x.shape())?.cast(x.dtype())?;
            let slot = &mut sums[i as usize];
            *slot = Some(match slot.take() {
                Some(before) => before.add(&grad)?,
                None => grad,
            });
        }
        Ok(())
    };
    let value = |arg: Arg| match arg {
        Arg::In(i) => Rhs::Tensor(&inputs[i as usize]),
        Arg::Param(i, d) if d.is_float() => Rhs::Float(params[i as usize]),
        Arg::Param(i, _) => Rhs::Int(params[i as usize] as i64),
        Arg::Lit(bits, _) => Rhs::Lit(f64::from_bits(bits)),
        Arg::None => Rhs::Lit(0.0),
    };
    let wants = |arg: Arg| matches!(arg, Arg::In(i) if inputs[i as usize].node.tracked && inputs[i as usize].dtype().is_float());
    match prim {
        Prim::Unary(u) => {
            if let (true, Rhs::Tensor(x)) = (wants(args[0]), value(args[0])) {
                give(args[0], unary_grad(u, x, y, g))?;
            }
        }
        Prim::Binary(b) => {
            let (a, c) = (value(args[0]), value(args[1]));
            if wants(args[0]) {
                give(args[0], left_grad(b, a, c, y, g))?;
            }
            if wants(args[1]) {
                give(args[1], right_grad(b, a, c, y, g))?;
            }
        }
        Prim::Where => {
            let Rhs::Tensor(c) = value(args[0]) else { return Ok(sums) };
            if wants(args[1]) {
                give(args[1], c.where_(Rhs::Tensor(g), Rhs::Lit(0.0)).map(Some))?;
            }
            if wants(args[2]) {
                give(args[2], c.where_(Rhs::Lit(0.0), Rhs::Tensor(g)).map(Some))?;
            }
        }
        Prim::Cast if wants(args[0]) => give(args[0], Ok(Some(g.clone())))?,
        _ => {}
    }
    Ok(sums)
}

/// What a row of the table of primitives says of the gradient.
macro_rules! gradient {
    ($of:expr, (none)) => {
        return Ok(None)
    };
    ($of:expr, (|$g:ident, $x:ident, $y:ident| $e:expr)) => {{
        let ($g, $x, $y): (&Tensor, &Tensor, &Tensor) = $of;
        $e?
    }};
}

fn square(t: &Tensor) -> TensorResult<Tensor> {
    t.mul(t)
}

/// g · dy/dx; `None` where the derivative is zero everywhere.
#[allow(unused_variables)]
fn unary_grad(u: Unary, x: &Tensor, y: &Tensor, g: &Tensor) -> TensorResult<Option<Tensor>> {
    macro_rules! gradients {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, grad: $grad:tt, })*) => { match u { $(Unary::$v => gradient!((g, x, y), $grad)),* } };
    }
    Ok(Some(unary_primitives!(gradients)))
}

/// The operand as a tensor that broadcasts with `like`.
fn tensor(v: Rhs, like: &Tensor) -> TensorResult<Tensor> {
    match v {
        Rhs::Tensor(t) => Ok(t.clone()),
        Rhs::Float(v) | Rhs::Lit(v) => Tensor::full(v, &[], like.dtype(), like.device()),
        Rhs::Int(v) => Tensor::full(v as f64, &[], like.dtype(), like.device()),
    }
}

/// What a row of the table of primitives of two arguments says of a gradient.
macro_rules! gradient_of_two {
    ($of:expr, (none)) => {
        return Ok(None)
    };
    ($of:expr, (|$g:ident, $x:ident, $other:ident, $y:ident| $e:expr)) => {{
        let ($g, $x, $other, $y): (&Tensor, &Tensor, Rhs, &Tensor) = $of;
        let gradient: TensorResult<Tensor> = $e;
        gradient?
    }};
}

/// g · dy/da of y = b(a, c); `None` where it is zero everywhere.
#[allow(unused_variables)]
fn left_grad(b: Binary, a: Rhs, c: Rhs, y: &Tensor, g: &Tensor) -> TensorResult<Option<Tensor>> {
    let Rhs::Tensor(x) = a else { return Ok(None) };
    macro_rules! gradients {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match b { $(Binary::$v => gradient_of_two!((g, x, c, y), $left)),* } };
    }
    Ok(Some(binary_primitives!(gradients)))
}

/// g · dy/dc of y = b(a, c); `None` where it is zero everywhere.
#[allow(unused_variables)]
fn right_grad(b: Binary, a: Rhs, c: Rhs, y: &Tensor, g: &Tensor) -> TensorResult<Option<Tensor>> {
    let Rhs::Tensor(x) = c else { return Ok(None) };
    macro_rules! gradients {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match b { $(Binary::$v => gradient_of_two!((g, x, a, y), $right)),* } };
    }
    Ok(Some(binary_primitives!(gradients)))
}

/// The gradient of a power for its base x; p is the exponent.
fn power_of_base(g: &Tensor, x: &Tensor, p: Rhs) -> TensorResult<Tensor> {
    match p {
        // Not 0·x⁻¹, which is NaN where x is 0.
        Rhs::Float(0.0) | Rhs::Lit(0.0) | Rhs::Int(0) => x.zeros_like(),
        Rhs::Float(p) | Rhs::Lit(p) if p == 2.0 => g.mul(x)?.mul(Rhs::Lit(2.0)),
        Rhs::Float(p) | Rhs::Lit(p) => g.mul(&x.pow(p - 1.0)?)?.mul(p),
        Rhs::Int(p) => g.mul(&x.pow((p - 1) as f64)?)?.mul(p as f64),
        Rhs::Tensor(p) => {
            // 0⁻¹·0 where the exponent is 0 must be 0.
            let slope = x.pow(&p.sub(Rhs::Lit(1.0))?)?.mul(p)?;
            g.mul(&p.eq(Rhs::Lit(0.0))?.where_(Rhs::Lit(0.0), Rhs::Tensor(&slope))?)
        }
    }
}

/// The gradient of a power y for its exponent.
fn power_of_exponent(g: &Tensor, base: Rhs, y: &Tensor) -> TensorResult<Tensor> {
    // ln 0 · 0 must be 0.
    let base = tensor(base, y)?;
    let slope = y.mul(&base.log()?)?;
    g.mul(&base.eq(Rhs::Lit(0.0))?.where_(Rhs::Lit(0.0), Rhs::Tensor(&slope))?)
}

/// The gradient of an angle y for its first coordinate; that of the second is its negative, with the coordinates exchanged.
fn angle(g: &Tensor, x: &Tensor, other: Rhs, y: &Tensor) -> TensorResult<Tensor> {
    let other = tensor(other, y)?;
    g.mul(&other)?.div(&x.mul(x)?.add(&other.mul(&other)?)?)
}

/// The gradient of an extreme for operand `x`: all of it where `x` is the extreme (`strict`). Where both are equal, two tensors share it and a
/// number (`clamp`, `relu`) stops it, as in PyTorch.
fn share_extreme(strict: Tensor, g: &Tensor, x: &Tensor, other: Rhs) -> TensorResult<Tensor> {
    match other {
        Rhs::Lit(_) | Rhs::Float(_) | Rhs::Int(_) => strict.where_(Rhs::Tensor(g), Rhs::Lit(0.0)),
        Rhs::Tensor(_) => {
            let half = g.mul(Rhs::Lit(0.5))?;
            let tie = x.eq(other)?.where_(Rhs::Tensor(&half), Rhs::Lit(0.0))?;
            strict.where_(g, &tie)
        }
    }
}
