//! Attention to keys and values in pages: each text of a batch has a list of pages, and a number of keys of its own. What differs from text to text is
//! data, so that one plan serves all lengths (Kwon et al., SOSP 2023).

use super::{AttentionKernel, AttentionOptions, with_sinks};
use crate::backends::cpu::operand::{slice, values};
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shader::{Template, U32, grid, indexable, params};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use smallvec::smallvec;
use std::panic::Location;
use std::sync::Arc;

/// Positions of a page.
pub(crate) const PAGE: usize = 64;

/// Which pages the texts of a step have.
pub(super) struct Pages<'a> {
    /// `[B,P]`.
    table: &'a [i32],
    /// `[B]`.
    lens: &'a [i32],
    /// Pages of a text at most.
    width: usize,
    /// Pages that there are.
    pages: usize,
}

impl Pages<'_> {
    /// Keys that text `batch` has.
    pub fn valid(&self, batch: usize) -> usize {
        (self.lens[batch].max(0) as usize).min(self.width * PAGE)
    }
}

/// Where key `from` of text `batch` lies: page and row in it, or the text and the row where there are no pages.
pub(super) fn place(pages: Option<&Pages<'_>>, batch: usize, from: usize) -> (usize, usize) {
    let Some(p) = pages else { return (batch, from) };
    // Behind the last key, any page will do.
    let page = p.table[batch * p.width + (from / PAGE).min(p.width - 1)];
    (usize::try_from(page).unwrap_or(0).min(p.pages - 1), from % PAGE)
}

impl AttentionKernel {
    /// The pages of a step's texts, where keys are in pages.
    pub(super) fn pages<'a>(&self, task: &'a dyn Task) -> Option<Pages<'a>> {
        if !self.paged {
            return None;
        }
        let loads = &task.step().loads;
        let whole = |k: usize| {
            slice::<i32>(task, k).unwrap_or_else(|| {
                let room = values::<i32>(task, loads[k].shape.count());
                task.load(k, 0, i32::slice_mut(room));
                room
            })
        };
        Some(Pages { table: whole(3), lens: whole(4), width: loads[3].shape[1], pages: loads[1].shape[0] })
    }
}

/// Queries `[B,H,T,D]`, a pool `[2,pages,Hkv,64,D]` of keys and values, pages `[B,P]` and numbers of keys `[B]`.
struct PagedAttention(AttentionKernel);

/// Keys (0) or values (1) of a pool.
fn half(pool: Shape, n: usize) -> (Layout, Shape) {
    let shape = Shape::of(&pool.dims()[1..]);
    let layout = Layout::contiguous(pool).slice(0, n, 1, 1);
    (layout.reshape(shape).unwrap_or(layout), shape)
}

impl Op for PagedAttention {
    fn name(&self) -> &'static str {
        "paged_attention"
    }
    fn key(&self, key: &mut Key) {
        let a = &self.0;
        key.word(a.scale.to_bits()).word(u64::from(a.window) << 1 | u64::from(a.causal)).word(a.softcap.to_bits());
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = |i: usize| (i, Layout::contiguous(inputs[i].shape), inputs[i].shape);
        let pool = |n: usize| {
            let (layout, shape) = half(inputs[1].shape, n);
            (1, layout, shape)
        };
        let loads = vec![whole(0), pool(0), pool(1), whole(2), whole(3)];
        Lowered::Kernel { kernel: Arc::new(self.0.clone()), loads, stores: Lowered::whole(outputs) }
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Err(TensorError::Unsupported("attention to pages has no gradient: it is for generation".into())))
    }
}

/// Keys `[B,Hkv,T,D]`, values and slots `[B,T]` into a pool `[2,pages,Hkv,64,D]`.
struct PagedWrite;

/// Loads: keys, values, slots; the store is the pool.
#[derive(Clone, Debug)]
struct PagedWriteKernel;

params! {
    /// What the kernel reads at run time.
    struct PagedWriteParams {
        /// Heads.
        heads: u32,
        /// Positions of a text.
        positions: u32,
        /// Elements of a key, or quads of them.
        size: u32,
        /// Rows of keys: texts, heads and positions.
        rows: u32,
        /// Slots that there are.
        slots: u32,
        /// Workgroups in x.
        groups_x: u32,
    }
}

static WRITE: Template = Template::new("paged_write.wgsl", include_str!("paged_write.wgsl")).params(PagedWriteParams::FIELDS);

impl Kernel for PagedWriteKernel {
    fn cpu(&self, task: &dyn Task) {
        let step = task.step();
        let (k, pool) = (step.loads[0].shape, step.stores[0].shape);
        let (heads, t, d, slots) = (k[1], k[2], k[3], pool[1] * PAGE);
        let half = pool.count() / 2;
        let row = values::<f32>(task, d);
        for item in share(k.count() / d.max(1), (1024 / d.max(1)).max(1), task.thread(), task.threads()) {
            let (batch, head, at) = (item / t / heads, item / t % heads, item % t);
            let mut slot = [0i32];
            task.load(2, batch * t + at, i32::slice_mut(&mut slot));
            if slot[0] < 0 || slot[0] as usize >= slots {
                task.fail(i64::from(slot[0]), slots);
                continue;
            }
            let slot = slot[0] as usize;
            // Padding.
            if slot < PAGE {
                continue;
            }
            let to = ((slot / PAGE * heads + head) * PAGE + slot % PAGE) * d;
            for (load, to) in [(0, to), (1, half + to)] {
                task.load(load, item * d, f32::slice_mut(row));
                task.store(0, to, f32::slice_mut(row));
            }
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        2 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        let (k, pool) = (step.loads[0].shape, step.stores[0].shape);
        let vec = k[3] % 4 == 0;
        let size = if vec { k[3] / 4 } else { k[3] };
        let rows = k[0] * k[1] * k[2];
        if !indexable(&[k.count(), pool.count()]) {
            return None;
        }
        let workgroup = adapter.tuning.rows.workgroup_threads[1].min(adapter.workgroup_threads.max(1));
        let grid = grid((rows * size).div_ceil(workgroup as usize))?;
        let params = PagedWriteParams {
            heads: U32::size(k[1])?,
            positions: U32::size(k[2])?,
            size: U32::size(size)?,
            rows: U32::size(rows)?,
            slots: U32::size(pool[1] * PAGE)?,
            groups_x: grid[0].into(),
        };
        let source = WRITE.source(&[("VEC", vec.into()), ("PAGE", (PAGE as u32).into())]);
        Some(Wgsl { source, consts: vec![], workgroup, grid, params: params.values(), raw: vec![], transposed: vec![] })
    }
}

impl Op for PagedWrite {
    fn name(&self) -> &'static str {
        "paged_write"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], _: &[Meta]) -> Lowered {
        let whole = |i: usize| (i, Layout::contiguous(inputs[i].shape), inputs[i].shape);
        Lowered::Into { base: 0, kernel: Arc::new(PagedWriteKernel), loads: vec![whole(1), whole(2), whole(3)] }
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Err(TensorError::Unsupported("a write to pages has no gradient: it is for generation".into())))
    }
    fn in_place(&self) -> bool {
        true
    }
}

fn integers(t: &Tensor, shape: &[usize]) -> bool {
    t.dtype() == DType::I32 && t.dims() == shape
}

/// A pool's sizes `[2,pages,heads,PAGE,size]` as pages, heads and size.
fn sizes(pool: &Tensor) -> Option<[usize; 3]> {
    match *pool.dims() {
        [2, pages, heads, PAGE, size] if pages > 0 && heads > 0 => Some([pages, heads, size]),
        _ => None,
    }
}

impl Tensor {
    /// This pool `[2,pages,Hkv,64,D]` of keys and values with those of some positions replaced: `k` and `v` `[B,Hkv,T,D]` go to the slots `[B,T]`, i32, where
    /// slot s is row s % 64 of page s / 64. Nothing is written to page 0, whose slots padding has. In place as [`Tensor::write`]. No other slot may be
    /// named twice.
    ///
    /// # Errors
    /// When the shapes are not these. A slot outside the pool is an error of the evaluation.
    #[track_caller]
    pub(crate) fn paged_write(&self, k: &Tensor, v: &Tensor, slots: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let fits = match (sizes(self), k.dims()) {
            (Some([_, heads, size]), &[b, h, t, d]) => h == heads && d == size && k.dims() == v.dims() && integers(slots, &[b, t]),
            _ => false,
        };
        if !fits || !self.dtype().is_float() || self.dtype() == DType::F64 {
            return Err(mismatch("paged_write", at, &[self, k, v, slots], "expected [2,pages,Hkv,64,D], twice [B,Hkv,T,D], i32 [B,T]"));
        }
        let (k, v) = (k.cast(self.dtype())?, v.cast(self.dtype())?);
        Tensor::op1(PagedWrite, smallvec![self.clone(), k, v, slots.clone()], Default::default(), self.meta(), at)
    }

    /// Attention of queries `[B,H,T,D]` to the keys and values of a `pool` `[2,pages,Hkv,64,D]`: key j of text b lies in page `table[b, j / 64]`, and `lens[b]` of
    /// them are valid; `table` is i32 `[B,P]`, `lens` i32 `[B]`. The last query of a text stands at its last valid key. Of the options, `kv_len` and
    /// dropout do not apply.
    ///
    /// # Errors
    /// When the shapes are not these.
    #[track_caller]
    pub(crate) fn paged_attention(&self, pool: &Tensor, table: &Tensor, lens: &Tensor, options: &AttentionOptions) -> TensorResult<Tensor> {
        Ok(self.attended_in_pages(pool, [table, lens], options, false, Location::caller())?.swap_remove(0))
    }

    /// As [`Tensor::paged_attention`], with a sink of each head `[H]`, as [`Tensor::attention_with_sinks`].
    ///
    /// # Errors
    /// When the shapes are not these.
    #[track_caller]
    pub(crate) fn paged_attention_with_sinks(
        &self,
        pool: &Tensor,
        table: &Tensor,
        lens: &Tensor,
        sinks: &Tensor,
        options: &AttentionOptions,
    ) -> TensorResult<Tensor> {
        with_sinks(&self.attended_in_pages(pool, [table, lens], options, true, Location::caller())?, sinks)
    }

    fn attended_in_pages(
        &self,
        pool: &Tensor,
        [table, lens]: [&Tensor; 2],
        options: &AttentionOptions,
        sums: bool,
        at: At,
    ) -> TensorResult<Vec<Tensor>> {
        let fits = match (sizes(pool), self.dims(), table.dims()) {
            (Some([_, heads, size]), &[b, h, _, d], &[_, p]) => {
                d == size && h % heads == 0 && p > 0 && integers(table, &[b, p]) && integers(lens, &[b])
            }
            _ => false,
        };
        if !fits || pool.dtype().compute() != self.dtype().compute() {
            return Err(mismatch(
                "paged_attention",
                at,
                &[self, pool, table, lens],
                "expected [B,H,T,D], [2,pages,Hkv,64,D], i32 [B,P] and [B]",
            ));
        }
        options.check_softcap(at)?;
        let kernel = AttentionKernel {
            causal: options.causal,
            scale: options.scale.unwrap_or(1.0 / (self.dims()[3] as f64).sqrt()),
            window: options.window.unwrap_or(0) as u32,
            mask: false,
            sums,
            dropout: 0.0,
            softcap: options.softcap.unwrap_or(0.0),
            paged: true,
        };
        let inputs = smallvec![self.clone(), pool.clone(), table.clone(), lens.clone()];
        let mut metas = smallvec![self.meta()];
        if sums {
            metas.push(Meta { dtype: DType::F32, shape: Shape::of(&self.dims()[..3]) });
        }
        Tensor::op(Arc::new(PagedAttention(kernel)), inputs, Default::default(), metas, at)
    }
}

fn mismatch(op: &'static str, at: At, of: &[&Tensor], expected: &str) -> TensorError {
    let shapes: Vec<String> = of.iter().map(|t| format!("{}{}", t.dtype(), t.shape())).collect();
    TensorError::shape(op, at, format!("{}: {expected}", shapes.join(", ")))
}

#[cfg(test)]
#[path = "tests/paged.rs"]
mod tests;
