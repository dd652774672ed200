//! Horizontal fusion: on a GPU, products of few rows that read one left side become one dispatch, and the normalization that makes the left side goes
//! into it. One token's step is dispatches that wait for each other, and each wait costs more than its work.

use super::fuse::{Steps, buffers};
use crate::backends::FusedGemvLimits;
use crate::plan::{Buf, FusedGemv, Load, Source, Step, Store, Work};
use crate::scalar::{Prim, Program};

/// Products of a dispatch at most: the kernel has parameters for so many.
const MAX_PRODUCTS: usize = 4;
/// Steps behind a product among which others are looked for: a bound of the compiler's time. A layer's products of one left side stand closer.
const MAX_STEPS_AHEAD: usize = 24;

/// What a backend allows.
#[derive(Clone, Copy)]
pub struct GemvFusion {
    /// Buffers of a step.
    pub buffers: usize,
    /// Rows of products that are fused, and bytes of what is normalised in them.
    pub limits: FusedGemvLimits,
}

impl GemvFusion {
    /// The products that a step consists of, if there are few enough rows.
    fn products(&self, s: &Step) -> Option<FusedGemv> {
        match &s.work {
            Work::Kernel(k) => {
                k.gemv_products(s).filter(|p| p.experts || s.loads[0].shape[1] <= self.limits.most(s.loads[0].dtype(), p.kind))
            }
            Work::Map => None,
        }
    }
}

fn sources(s: &Step) -> impl Iterator<Item = &Source> {
    s.loads.iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources))
}

/// Whether two loads are the same values.
fn same(a: &Load, b: &Load) -> bool {
    let place = |s: &Source| (s.buf, s.dtype, s.layout.simplified(), s.offset);
    a.shape == b.shape
        && a.program == b.program
        && a.sources.len() == b.sources.len()
        && a.sources.iter().zip(&b.sources).all(|(a, b)| place(a) == place(b))
}

impl Steps {
    /// Fuses what can be fused; `lasting` says which values outlive the run.
    pub fn fuse_gemvs(&mut self, fusion: GemvFusion, lasting: impl Fn(usize) -> bool) {
        let mut list: Vec<Option<Step>> = std::mem::take(&mut self.list).into_iter().map(Some).collect();
        for i in 0..list.len() {
            self.fuse_siblings(&mut list, i, fusion);
        }
        for i in 0..list.len() {
            self.fuse_rope(&mut list, i, fusion, &lasting);
        }
        for i in 0..list.len() {
            self.fuse_norm(&mut list, i, fusion, &lasting);
        }
        self.list = list.into_iter().flatten().collect();
    }

    fn reads(&self, s: &Step, buf: Buf) -> bool {
        sources(s).any(|x| self.home(x.buf) == self.home(buf))
    }
    fn writes(&self, s: &Step, buf: Buf) -> bool {
        s.stores.iter().any(|t| self.home(t.target.buf) == self.home(buf))
    }
    /// Whether a step may run as early as `with`, before the steps in between.
    fn movable(&self, s: &Step, between: &[Option<Step>]) -> bool {
        between.iter().flatten().all(|b| {
            !sources(s).any(|x| x.buf != Buf::Iota && self.writes(b, x.buf))
                && !s.stores.iter().any(|t| self.reads(b, t.target.buf) || self.writes(b, t.target.buf))
        })
    }
    fn fits(&self, s: &Step, limit: usize) -> bool {
        let all: Vec<Source> =
            sources(s).chain(s.stores.iter().map(|t| &t.target)).map(|x| Source { buf: self.home(x.buf), ..x.clone() }).collect();
        buffers(&all) < limit
    }

    /// Fuses the product at `i` with later ones of the same left side.
    fn fuse_siblings(&self, list: &mut [Option<Step>], i: usize, fusion: GemvFusion) {
        let Some(mut own) = list[i].clone() else { return };
        let Some(FusedGemv { products: 1, kind, norm: None, experts, .. }) = fusion.products(&own) else { return };
        let (mut count, mut gated) = (1, false);
        for j in i + 1..list.len().min(i + 1 + MAX_STEPS_AHEAD) {
            let Some(other) = &list[j] else { continue };
            let alike = |p: FusedGemv| p.products == 1 && p.norm.is_none() && p.kind == kind && p.experts == experts;
            if !fusion.products(other).is_some_and(alike) || !same(&own.loads[0], &other.loads[0]) {
                continue;
            }
            let same_experts = || {
                own.loads.len() == other.loads.len() && own.loads[1].shape == other.loads[1].shape && same(&own.loads[2], &other.loads[2])
            };
            if experts && !same_experts() {
                continue;
            }
            let store = &other.stores[0];
            // A store that reads another product's results must read each where that one writes it.
            let dependent = own.stores.iter().any(|t| self.reads(other, t.target.buf));
            if dependent {
                let first = &own.stores[0];
                let place = |s: &Source| (s.layout.simplified(), s.offset, s.dtype);
                let mine = |x: &Source| self.home(x.buf) == self.home(first.target.buf);
                let in_place = |x: &Source| !mine(x) || (x.buf == first.target.buf && place(x) == place(&first.target));
                let loads = other.loads.iter().flat_map(|l| &l.sources).any(mine);
                if count > 1 || loads || store.shape != first.shape || !store.sources.iter().all(in_place) {
                    continue;
                }
            }
            let clash = self.reads(&own, store.target.buf) || self.writes(&own, store.target.buf);
            if clash || !self.movable(other, &list[i + 1..j]) {
                continue;
            }
            let mut fused = own.clone();
            fused.loads.push(other.loads[1].clone());
            if experts {
                fused.loads.extend(other.loads[3..].iter().cloned());
            }
            fused.stores.push(store.clone());
            if !self.fits(&fused, fusion.buffers) {
                continue;
            }
            (own, count, gated) = (fused, count + 1, dependent || experts);
            list[j] = None;
            if gated || count == MAX_PRODUCTS {
                break;
            }
        }
        if count > 1 {
            set(&mut own, FusedGemv { products: count, gated, vec4_store: false, norm: None, kind, experts });
            list[i] = Some(own);
        }
    }

    /// Lets products of one row do what comes next to a result of theirs, where that only combines it with the other element of each pair,
    /// as a rotary embedding does on its way into a cache.
    fn fuse_rope(&self, list: &mut [Option<Step>], i: usize, fusion: GemvFusion, lasting: &impl Fn(usize) -> bool) {
        let Some(mut own) = list[i].clone() else { return };
        let Some(fused) = fusion.products(&own).filter(|p| p.products > 1 && !p.gated) else { return };
        if own.stores.iter().any(|s| s.shape[1] != 1 || s.shape[2] % 4 != 0) {
            return;
        }
        for p in 0..own.stores.len() {
            let Some(target) = own.stores[p].plain().filter(|t| t.offset.is_none() && t.layout.offset == 0).cloned() else { continue };
            let Buf::Slot(v) = target.buf else { continue };
            let value = &self.values[v as usize];
            let n = own.stores[p].shape[2];
            if value.bound.is_some() || lasting(v as usize) || Some(value.bytes) != target.dtype.bytes(n) {
                continue;
            }
            let mut users =
                (i + 1..list.len()).filter(|&j| list[j].as_ref().is_some_and(|s| self.reads(s, target.buf) || self.writes(s, target.buf)));
            let (Some(j), None) = (users.next(), users.next()) else { continue };
            let Some(next) = &list[j] else { continue };
            let (Work::Map, [store]) = (&next.work, &next.stores[..]) else { continue };
            let Some(program) = paired(store, &target, n) else { continue };
            let clash = self.reads(&own, store.target.buf)
                || self.writes(&own, store.target.buf)
                || self.home(store.target.buf) == self.home(target.buf);
            if clash || !self.movable(next, &list[i + 1..j]) {
                continue;
            }
            let mut rotated = own.clone();
            let sources = store.sources.iter().filter(|s| s.buf != target.buf).cloned().collect();
            rotated.stores[p] = Store { shape: own.stores[p].shape, program, sources, target: store.target.clone() };
            if self.fits(&rotated, fusion.buffers) {
                set(&mut rotated, FusedGemv { vec4_store: true, ..fused });
                own = rotated;
                list[j] = None;
                list[i] = Some(own.clone());
            }
        }
    }

    /// Puts the normalization at `i` into the products that read it, when nothing else does.
    fn fuse_norm(&self, list: &mut [Option<Step>], i: usize, fusion: GemvFusion, lasting: &impl Fn(usize) -> bool) {
        let Some(own) = &list[i] else { return };
        let Work::Kernel(k) = &own.work else { return };
        let (Some(norm), [store]) = (k.normalization(), &own.stores[..]) else { return };
        let Some(target) = store.plain().filter(|t| t.offset.is_none() && t.layout.offset == 0) else { return };
        let Buf::Slot(v) = target.buf else { return };
        if self.values[v as usize].bound.is_some() || lasting(v as usize) {
            return;
        }
        let (rows, columns) = (own.loads[0].shape[0], own.loads[0].shape[1]);
        if rows.next_power_of_two() * columns * 4 > fusion.limits.norm_bytes {
            return;
        }
        let mut made: Vec<(usize, Step)> = Vec::new();
        for j in i + 1..list.len() {
            let Some(s) = &list[j] else { continue };
            if self.writes(s, target.buf) {
                return;
            }
            if !self.reads(s, target.buf) {
                continue;
            }
            let Some(fused) = fusion.products(s).filter(|p| p.norm.is_none() && !p.experts) else { return };
            let left = &s.loads[0];
            let whole = left.plain().is_some_and(|x| x.layout.is_contiguous() && x.layout.offset == 0 && x.offset.is_none());
            let elsewhere = s.loads[1..].iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources));
            let overwritten = |x: &Source| {
                x.buf != Buf::Iota && (self.writes(s, x.buf) || list[i + 1..j].iter().flatten().any(|b| self.writes(b, x.buf)))
            };
            if !whole
                || left.shape[1..] != [rows, columns]
                || elsewhere.into_iter().any(|x| self.home(x.buf) == self.home(target.buf))
                || sources(own).any(overwritten)
            {
                return;
            }
            let mut step = s.clone();
            step.loads[0] = Load { shape: left.shape, ..own.loads[0].clone() };
            step.loads.extend(own.loads[1..].iter().cloned());
            set(&mut step, FusedGemv { norm: Some(norm), ..fused });
            if !self.fits(&step, fusion.buffers) {
                return;
            }
            made.push((j, step));
        }
        if !made.is_empty() {
            list[i] = None;
        }
        for (j, step) in made {
            list[j] = Some(step);
        }
    }
}

/// The program of a step over `of`, `n` elements, and over what it does not make, as the program of the store that makes `of`: elements of
/// it are the store's value, or its partner.
fn paired(store: &Store, of: &Source, n: usize) -> Option<Program> {
    let mut program = store.program.clone();
    let mut kept = 0;
    let places: Option<Vec<Prim>> = store
        .sources
        .iter()
        .map(|s| {
            if s.buf != of.buf {
                kept += 1;
                return Some(Prim::Source(kept - 1));
            }
            let l = s.layout.simplified();
            // Where a view begins may be known at run time only; within `n` elements there is one place for such a view.
            let transposed = l.shape.dims() == [n / 2, 2] && l.strides() == [2, -1];
            let same = s.layout.is_contiguous() && l.offset == 0 && s.offset.is_none();
            match (s.dtype == of.dtype && s.layout.shape.count() == n, same, transposed) {
                (true, true, _) => Some(Prim::Value),
                (true, _, true) => Some(Prim::SwapPair),
                _ => None,
            }
        })
        .collect();
    let places = places?;
    for inst in &mut program.insts {
        if let Prim::Source(k) = inst.op {
            inst.op = places[k as usize];
        }
    }
    program.has(Prim::SwapPair).then_some(program)
}

fn set(s: &mut Step, fused: FusedGemv) {
    if let Work::Kernel(k) = &s.work {
        if let Some(kernel) = k.fuse_gemv(fused) {
            s.work = Work::Kernel(kernel);
        }
    }
}
