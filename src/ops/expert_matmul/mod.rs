//! Products of rows with the weights of the experts that each row names, of which no other is read.

mod coop;
pub(crate) mod gpu;
mod operands;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::gemm::{Matrix, MatrixMut, gemm};
use crate::backends::cpu::operand::{by_index, slice, values};
use crate::backends::cpu::{dot, path, share, vector::Real};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::matmul::weights::Weights;
use crate::plan::{AdapterInfo, FusedGemv, Kernel, Step, Task, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Inputs, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// x `[rows, K]`, weights `[E, N, K]` and experts `[pairs]`, as many for each row, to `[pairs, N]`. Behind these loads are the biases `[E, N]` or the
/// factors `[pairs]`, where there are some, and the second product's weights and biases.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMatMulKernel {
    /// Whether an expert's bias is added.
    pub bias: bool,
    /// Whether the products of as many pairs as there are for each row of results `[rows, N]` are multiplied by the pairs' factors and added up.
    pub summed: bool,
    /// Whether there is a second product of the same pairs, by weights of the same shape. Its store may read what the first's has written.
    pub second: bool,
    /// Pairs of an expert, on average, from which each expert's weights are read once for all of its own.
    pub grouped_min_pairs: usize,
}

/// The same where no tuning table says it.
const GROUPED_MIN_PAIRS: usize = 4;

impl Default for ExpertMatMulKernel {
    fn default() -> ExpertMatMulKernel {
        ExpertMatMulKernel { bias: false, summed: false, second: false, grouped_min_pairs: GROUPED_MIN_PAIRS }
    }
}

/// Rows of x that are multiplied at a time.
const MAX_PAIRS_PER_BATCH: usize = 256;
/// Rows of weights that are streamed at a time.
const STREAMED_ROWS: usize = 1024;
/// Rows of weights that are decoded together, at least and at most.
const PANEL_ROWS: [usize; 2] = [16, 64];
/// Panels of an expert that there had better be, for as many threads.
const PANELS: usize = 16;

/// The sizes of a step.
#[derive(Clone, Copy)]
struct ExpertSizes {
    experts: usize,
    pairs: usize,
    /// Pairs of a row of x.
    per: usize,
    /// Rows of results.
    results: usize,
    n: usize,
    k: usize,
}

impl ExpertSizes {
    /// Rows of weights that are decoded together, of which a thread has whole panels. Their number depends on the shape alone: the bits of a product depend
    /// on how many columns it has, and must not depend on the number of threads.
    fn panel_rows(&self) -> usize {
        let [least, most] = PANEL_ROWS;
        (self.n / PANELS / least * least).clamp(least, most)
    }

    fn of(step: &Step) -> ExpertSizes {
        let (x, w, pairs) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape.count());
        let results = step.stores[0].shape[0];
        ExpertSizes { experts: w[0], pairs, per: (pairs / x[0].max(1)).max(1), results, n: w[1], k: w[2] }
    }
}

/// Weights as they are stored: rows of whole blocks one after the other, in a type that dot products read.
struct Stored<'a> {
    dtype: DType,
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> Stored<'a> {
    /// Those of load `load`.
    fn of(task: &'a dyn Task, load: usize, s: &ExpertSizes) -> Option<Stored<'a>> {
        let source = task.step().loads[load].plain().filter(|l| l.layout.is_contiguous())?;
        let dtype = source.dtype;
        let raw = task.raw_load(load);
        let read = matches!(dtype, DType::F32 | DType::F16 | DType::BF16) || dtype.is_block();
        let block = dtype.block();
        if !read || !s.k.is_multiple_of(block) || !raw.offset.is_multiple_of(block) || raw.ptr.is_null() || s.k == 0 {
            return None;
        }
        // SAFETY: the backend checked that the operand lies within its buffer, which nobody writes meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(raw.ptr.cast_const(), raw.len) };
        let size = dtype.block_bytes();
        Some(Stored { dtype, bytes: &bytes[raw.offset / block * size..], row_bytes: s.k / block * size })
    }

    /// The bytes from row `r` of all experts' on.
    fn row(&self, r: usize) -> &[u8] {
        &self.bytes[r * self.row_bytes..]
    }
}

impl ExpertMatMulKernel {
    /// Whether `pairs` pairs are so many that each expert's weights are read once for all of its own.
    fn grouped(&self, pairs: usize, experts: usize) -> bool {
        pairs >= self.grouped_min_pairs.saturating_mul(experts)
    }
    fn products(&self) -> usize {
        1 + usize::from(self.second)
    }

    /// The load of the weights of product `p`.
    fn weights(&self, p: usize) -> usize {
        if p == 0 { 1 } else { 3 + usize::from(self.bias) }
    }

    /// The load of the biases of product `p`.
    fn biases(&self, p: usize) -> Option<usize> {
        self.bias.then(|| if p == 0 { 3 } else { self.weights(p) + 1 })
    }

    /// Pairs sorted by expert; each thread has some rows of every expert's weights.
    fn run<T: Real>(&self, task: &dyn Task) {
        let s = ExpertSizes::of(task.step());
        let size = s.experts + 2 + s.pairs;
        let lists = task.shared(size * size_of::<u32>()).cast::<u32>();
        if task.thread() == 0 {
            // SAFETY: the memory has this size, and only this thread uses it before the barrier.
            let (starts, order) = unsafe { std::slice::from_raw_parts_mut(lists, size) }.split_at_mut(s.experts + 2);
            by_index(task, 2, s.experts, s.pairs, starts, order);
        }
        task.barrier();
        // SAFETY: written before the barrier, and not any more.
        let (starts, order) = unsafe { std::slice::from_raw_parts(lists, size) }.split_at(s.experts + 2);
        let of = |e: usize| &order[starts[e] as usize..starts[e + 1] as usize];
        let most = (0..s.experts).map(|e| of(e).len()).max().unwrap_or(0).min(MAX_PAIRS_PER_BATCH);
        let height = s.panel_rows();
        let rows = share(s.n, height, task.thread(), task.threads());
        if rows.is_empty() || most == 0 {
            return;
        }
        let mut buffers = ExpertBuffers::<T> {
            x: values(task, most * s.k),
            panel: values(task, height.min(s.n) * s.k),
            y: values(task, (most * height.min(s.n)).max(most.min(dot::MAX_STREAMED_ROWS) * STREAMED_ROWS.min(s.n))),
            bias: values(task, if self.bias { STREAMED_ROWS.min(s.n) } else { 0 }),
            factors: values(task, if self.summed { s.pairs } else { 0 }),
            sums: values(task, if self.summed { s.results * rows.len() } else { 0 }),
            whole: slice::<T>(task, 0),
        };
        if self.summed {
            task.load(3 + usize::from(self.bias), 0, T::slice_mut(buffers.factors));
            buffers.sums.fill(T::ZERO);
        }
        for p in 0..self.products() {
            let stored = if T::DTYPE == DType::F32 { Stored::of(task, self.weights(p), &s) } else { None };
            let product = ExpertProduct { store: p, weights: self.weights(p), biases: self.biases(p), stored };
            for e in 0..s.experts {
                for pairs in of(e).chunks(MAX_PAIRS_PER_BATCH) {
                    buffers.expert(task, &s, &product, e, pairs, rows.clone());
                }
            }
        }
        for (result, sums) in buffers.sums.chunks_exact_mut(rows.len()).enumerate() {
            task.store(0, result * s.n + rows.start, T::slice_mut(sums));
        }
    }
}

/// One of the products of a step.
struct ExpertProduct<'a> {
    store: usize,
    /// Its loads.
    weights: usize,
    biases: Option<usize>,
    stored: Option<Stored<'a>>,
}

/// What a thread works with.
struct ExpertBuffers<'a, T> {
    x: &'a mut [T],
    panel: &'a mut [T],
    y: &'a mut [T],
    bias: &'a mut [T],
    /// The factors of all pairs, and the sums over pairs of the thread's rows of all results, where pairs are summed.
    factors: &'a mut [T],
    sums: &'a mut [T],
    /// All of x, where it is stored as it is used.
    whole: Option<&'a [T]>,
}

impl<T: Real> ExpertBuffers<'_, T> {
    /// Rows `rows` of the results of these pairs of expert `e`.
    fn expert(
        &mut self,
        task: &dyn Task,
        s: &ExpertSizes,
        product: &ExpertProduct<'_>,
        e: usize,
        pairs: &[u32],
        rows: std::ops::Range<usize>,
    ) {
        for (&pair, x) in pairs.iter().zip(self.x.chunks_exact_mut(s.k.max(1))) {
            let at = pair as usize / s.per * s.k;
            match self.whole {
                Some(whole) => x.copy_from_slice(&whole[at..at + s.k]),
                None => task.load(0, at, T::slice_mut(x)),
            }
        }
        let m = pairs.len();
        let stored = product.stored.as_ref();
        let streamed = stored.filter(|w| m <= path::current().streamed_rows(w.dtype));
        let piece = if streamed.is_some() { STREAMED_ROWS } else { s.panel_rows() };
        for row in rows.clone().step_by(piece) {
            let n = piece.min(rows.end - row);
            let (x, y) = (&self.x[..m * s.k], &mut self.y[..m * n]);
            match streamed {
                Some(w) => {
                    let (x, y): (&[f32], &mut [f32]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
                    dot::gemv_multi(path::current(), w.dtype, w.row(e * s.n + row), w.row_bytes, x, y, [m, n]);
                }
                None => {
                    let panel = &mut self.panel[..n * s.k];
                    match stored {
                        Some(w) => {
                            let bytes = &w.row(e * s.n + row)[..n * w.row_bytes];
                            dot::dequantize(path::current(), w.dtype, bytes, bytemuck::cast_slice_mut(panel));
                        }
                        None => task.load(product.weights, (e * s.n + row) * s.k, T::slice_mut(panel)),
                    }
                    let left = Matrix { ptr: x.as_ptr(), row: s.k as isize, col: 1 };
                    let right = Matrix { ptr: panel.as_ptr(), row: 1, col: s.k as isize };
                    // SAFETY: the matrices lie in slices of these sizes, and the results are this thread's.
                    unsafe { gemm([m, n, s.k], left, right, MatrixMut::new(y.as_mut_ptr(), n), T::of(1.0)) };
                }
            }
            if let Some(biases) = product.biases {
                let bias = &mut self.bias[..n];
                task.load(biases, e * s.n + row, T::slice_mut(bias));
                for y in y.chunks_exact_mut(n) {
                    y.iter_mut().zip(&*bias).for_each(|(y, &b)| *y = *y + b);
                }
            }
            for (&pair, y) in pairs.iter().zip(y.chunks_exact_mut(n)) {
                let pair = pair as usize;
                if self.factors.is_empty() {
                    task.store(product.store, pair * s.n + row, T::slice_mut(y));
                    continue;
                }
                let at = pair / (s.pairs / s.results) * rows.len() + row - rows.start;
                let factor = self.factors[pair];
                self.sums[at..at + n].iter_mut().zip(y).for_each(|(sum, y)| *sum = *sum + *y * factor);
            }
        }
    }
}

impl Kernel for ExpertMatMulKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let s = ExpertSizes::of(step);
        2 * (self.products() * s.pairs * s.n * s.k) as u64
    }
    /// Of the weights those of one expert for each pair, or of all.
    fn most_read(&self, step: &Step, k: usize) -> u64 {
        let s = ExpertSizes::of(step);
        match step.loads[k].sources.first() {
            Some(w) if (0..self.products()).any(|p| self.weights(p) == k) => {
                (s.experts.min(s.pairs) * s.n * s.k / w.dtype.block() * w.dtype.block_bytes()) as u64
            }
            _ => u64::MAX,
        }
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::expert_matmul(self, step, adapter)
    }
    /// Of few pairs: of many, one expert's weights are read for all of its own, a product at a time.
    fn gemv_products(&self, step: &Step) -> Option<FusedGemv> {
        let (s, weights) = (ExpertSizes::of(step), &step.loads[1]);
        if self.summed || self.second || self.grouped(s.pairs, s.experts) {
            return None;
        }
        Weights::of(weights, s.k).raw?;
        let kind = weights.plain()?.dtype;
        Some(FusedGemv { products: 1, gated: false, vec4_store: false, norm: None, kind, experts: true })
    }
    fn fuse_gemv(&self, fused: FusedGemv) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(ExpertMatMulKernel { second: fused.products == 2, ..*self }))
    }
}

/// The op of products with experts' weights; inputs x, weights, experts, biases, factors.
struct ExpertMatMul {
    bias: bool,
    /// Whether the pairs of a row of ids are multiplied by factors and added up. Has no gradient.
    summed: bool,
    /// See [`grouped_min_pairs`].
    grouped_min_pairs: usize,
}

/// Pairs of an expert, on average, from which its weights are read once for all of them. With matrix units, which multiply rows and weights where both are
/// f16 or weights are unpacked to it, fewer pairs are many.
fn grouped_min_pairs(x: &Tensor, weights: &Tensor) -> usize {
    let halves = x.dtype() == DType::F16 && (weights.dtype() == DType::F16 || weights.dtype().is_block());
    let by_matrices = halves && x.device().backend().matrices();
    x.device().backend().tuning_in_force().map_or(GROUPED_MIN_PAIRS, |t| t.experts.grouped_min_pairs[usize::from(by_matrices)])
}

impl Op for ExpertMatMul {
    fn name(&self) -> &'static str {
        "expert_matmul"
    }
    fn key(&self, key: &mut Key) {
        key.word(u64::from(self.bias) | u64::from(self.summed) << 1).word(self.grouped_min_pairs as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let (x, w, ids, y) = (inputs[0].shape, inputs[1].shape, inputs[2].shape, outputs[0].shape);
        let (k, pairs) = (w[2], ids.count());
        let rows = if x.rank() == 3 { pairs } else { x[0] };
        let mut loads = vec![
            (0, Layout::contiguous(x), Shape::of(&[rows, k])),
            (1, Layout::contiguous(w), w),
            (2, Layout::contiguous(ids), Shape::of(&[pairs])),
        ];
        if self.bias {
            loads.push((3, Layout::contiguous(inputs[3].shape), inputs[3].shape));
        }
        if self.summed {
            let factors = inputs.len() - 1;
            loads.push((factors, Layout::contiguous(inputs[factors].shape), Shape::of(&[pairs])));
        }
        Lowered::Kernel {
            kernel: Arc::new(ExpertMatMulKernel {
                bias: self.bias,
                summed: self.summed,
                second: false,
                grouped_min_pairs: self.grouped_min_pairs,
            }),
            loads,
            stores: vec![(0, Layout::contiguous(y), Shape::of(&[if self.summed { ids[0] } else { pairs }, w[1]]))],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let run = || {
            let (g, x, w, ids) = (v.grad(), &v.inputs[0], &v.inputs[1], &v.inputs[2]);
            let left = match v.wants(0) {
                // The same experts' weights, the other way round.
                true => {
                    let each = g.expert_matmul(&w.transpose(1, 2)?, ids)?;
                    Some(if x.rank() == 3 { each } else { each.sum(&[1], false)? })
                }
                false => None,
            };
            let right = if v.wants(1) { Some(weight_gradient(x, g, w, ids)?) } else { None };
            let mut grads: Grads = vec![left, right];
            grads.resize(v.inputs.len(), None);
            Ok(grads)
        };
        Some(run())
    }
}

/// Σ over an expert's pairs of g·xᵀ, `[E,N,K]`: one product for each expert, in which what is not its own counts as 0.
fn weight_gradient(x: &Tensor, g: &Tensor, w: &Tensor, ids: &Tensor) -> TensorResult<Tensor> {
    let (pairs, n, k) = (ids.numel(), w.dims()[1], w.dims()[2]);
    let experts = Tensor::arange(0.0, w.dims()[0] as f64, 1.0, DType::I32, w.device())?.reshape(&[-1, 1, 1])?;
    let own = ids.cast(DType::I32)?.reshape(&[1, pairs, 1])?.eq(&experts)?;
    let x = if x.rank() == 3 { x.clone() } else { x.unsqueeze(1)?.broadcast_to(&[x.dims()[0], ids.dims()[1], k])? };
    let g = g.reshape(&[1, pairs, n])?.mul(&own.cast(g.dtype())?)?;
    g.transpose(1, 2)?.matmul(&x.reshape(&[pairs, k])?)
}

impl Tensor {
    /// Products of rows with the weights of the experts that each names: `[T,K]`, or `[T,k,K]` with a row for each, with weights `[E,N,K]` and
    /// experts `[T,k]` (integers below E) gives `[T,k,N]`, y\[t,j\] = W\[ids\[t,j\]\]·x\[t\]. Only the weights of named experts are read, in
    /// any format that a product reads; the experts stay data of the device. Sums are accumulated in f32 (f64 in f64). A bad expert is an error
    /// of the evaluation.
    ///
    /// # Errors
    /// When the shapes do not fit, the experts are not integers, or the dtypes have no product of floats.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let cpu = Device::cpu();
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &cpu)?;
    /// let weights = Tensor::new(&[[[1.0, 0.0]], [[0.0, 10.0]], [[5.0, 5.0]]], &cpu)?; // three experts with a row each
    /// let ids = Tensor::new(&[[1, 2], [0, 1]], &cpu)?;
    /// assert_eq!(x.expert_matmul(&weights, &ids)?.to_vec()?, [20.0, 15.0, 3.0, 40.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn expert_matmul(&self, weights: &Tensor, ids: &Tensor) -> TensorResult<Tensor> {
        self.by_experts(weights, ids, None, None, Location::caller())
    }

    /// As [`Tensor::expert_matmul`], where the bias `[E,N]` of each expert, if there is one, is added before the result is rounded to the dtype of the rows.
    ///
    /// # Errors
    /// Those of [`Tensor::expert_matmul`]; when the biases have another shape.
    #[track_caller]
    pub(crate) fn expert_linear(&self, weights: &Tensor, bias: Option<&Tensor>, ids: &Tensor) -> TensorResult<Tensor> {
        match bias {
            Some(b) if Mode::learns([b]) => self.expert_matmul(weights, ids)?.add(&b.embedding(ids)?)?.cast(self.dtype()),
            Some(_) => self.by_experts(weights, ids, bias, None, Location::caller())?.cast(self.dtype()),
            None => self.expert_matmul(weights, ids),
        }
    }

    /// The sum over a row's experts of [`Tensor::expert_linear`] of `[T,k,K]` times `factors` `[T,k]`: `[T,N]`. Where a gradient will be asked for, or each
    /// expert has many rows, products are stored.
    ///
    /// # Errors
    /// Those of [`Tensor::expert_linear`]; when the factors have another shape than the experts.
    #[track_caller]
    pub(crate) fn expert_sum(&self, weights: &Tensor, bias: Option<&Tensor>, ids: &Tensor, factors: &Tensor) -> TensorResult<Tensor> {
        // Nothing would write the sums of no pairs.
        let grouped = ids.numel() >= grouped_min_pairs(self, weights).saturating_mul(weights.dims()[0]);
        let stored =
            grouped || ids.numel() == 0 || weights.parts().is_some() || Mode::learns([self, weights, factors].into_iter().chain(bias));
        match stored {
            true => self.expert_linear(weights, bias, ids)?.mul(&factors.unsqueeze(-1)?)?.sum(&[1], false)?.cast(self.dtype()),
            false => self.by_experts(weights, ids, bias, Some(factors), Location::caller())?.cast(self.dtype()),
        }
    }

    fn by_experts(&self, weights: &Tensor, ids: &Tensor, bias: Option<&Tensor>, factors: Option<&Tensor>, at: At) -> TensorResult<Tensor> {
        let wrong = |text: String| Err(TensorError::shape("expert_matmul", at, text));
        let shapes = || format!("{} with experts {} of weights {}", self.shape(), ids.shape(), weights.shape());
        let (&[t, per], &[_, n, k]) = (ids.dims(), weights.dims()) else {
            return wrong(format!("{}: expected experts [T,k] and weights [E,N,K]", shapes()));
        };
        match *self.dims() {
            [rows, inner] if rows == t && inner == k => {}
            [rows, each, inner] if rows == t && each == per && inner == k => {}
            _ => return wrong(format!("{}: expected rows [{t},{k}] or [{t},{per},{k}]", shapes())),
        }
        if !ids.dtype().is_int() {
            return Err(TensorError::dtype("expert_matmul", at, format!("the experts are {}, not integers", ids.dtype())));
        }
        let dtype = match weights.dtype().is_block() {
            true => self.dtype(),
            false => self.dtype().promote(weights.dtype()).map_err(|e| TensorError::dtype("expert_matmul", at, e.to_string()))?,
        };
        if !dtype.is_float() || self.dtype().is_block() {
            let text = format!("{} and {} have no product of floats; cast first", self.dtype(), weights.dtype());
            return Err(TensorError::dtype("expert_matmul", at, text));
        }
        if let Some((0, parts)) = weights.parts().filter(|_| factors.is_none()) {
            // Every part multiplies as many rows, some of which are for experts of other parts.
            let of_part = |part: &Tensor, start: usize, own: &Tensor| {
                let bias = bias.map(|b| b.narrow(0, start, part.dims()[0])).transpose()?;
                self.by_experts(part, own, bias.as_ref(), None, at)
            };
            let mode = Mode { at: Some(at), ..Mode::current() };
            return mode.run(|| Tensor::at_indices((0, parts), ids, |inside| inside.unsqueeze(-1), of_part));
        }
        let x = if self.dtype().compute() == dtype.compute() { self.clone() } else { self.cast(dtype)? };
        let w = if weights.dtype().compute() == dtype.compute() { weights.clone() } else { weights.cast(dtype)? };
        let grouped_min_pairs = grouped_min_pairs(&x, &w);
        let mut inputs: Inputs = smallvec::smallvec![x, w, ids.cast(DType::I32)?];
        if let Some(bias) = bias {
            if bias.dims() != [weights.dims()[0], n] {
                return wrong(format!("{} and biases {}: expected [{},{n}]", shapes(), bias.shape(), weights.dims()[0]));
            }
            inputs.push(bias.cast(dtype.compute())?);
        }
        let sizes: &[usize] = if factors.is_some() { &[t, n] } else { &[t, per, n] };
        let shape = Shape::new(sizes, "expert_matmul", at)?;
        if let Some(factors) = factors {
            if factors.dims() != ids.dims() {
                return wrong(format!("{} and factors {}: expected {}", shapes(), factors.shape(), ids.shape()));
            }
            inputs.push(factors.cast(dtype.compute())?);
        }
        let op = ExpertMatMul { bias: bias.is_some(), summed: factors.is_some(), grouped_min_pairs };
        Tensor::op1(op, inputs, Default::default(), Meta { dtype, shape }, at)
    }
}
