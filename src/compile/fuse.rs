//! Fusion: elementwise nodes are fused into each other, into the prologues and epilogues of kernels, and into windows of larger buffers.
//!
//! | rule, in order | condition | before → after |
//! |---|---|---|
//! | 1. a map is fused into its user | it has one user; or all its uses end in one map; or it is cheap and no epilogue, then into every user | `exp`, `add` → `exp+add` |
//! | 2. a stored map becomes a kernel's epilogue | it reads that kernel's result, and nothing else does; the latest such kernel; else the map is a dispatch | `matmul`, `relu` → `matmul+relu` |
//! | 3. the producer stores into a window | a `cat` or `write` fills the window with its result | `exp`, `cat` → `exp` into its part of the result |
//! | 4. adjacent maps share a dispatch | equal number of elements, independent | `exp(x)`, `neg(y)` → one dispatch |

mod epilogue;

use super::expr::{Expr, append, arity, finish, read, simplify, truncate};
use super::{GNode, Graph, compose};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::plan::{Buf, Load, Source, Step, Store, Work};
use crate::scalar::{Inst, Prim, Program, Reg};
use crate::shape::Shape;
use crate::tensor::{Arg, Kind, Lowered, Meta, Op};
use smallvec::{SmallVec, smallvec};

/// The most instructions of a fused program.
const MAX_INSTS: usize = 48;
/// The most instructions in the load of a kernel that reads elements more than once.
const MAX_LOAD_INSTS: usize = 10;
/// A map of at most this many instructions is recomputed for each user rather than stored.
const CHEAP_INSTS: usize = 3;
/// The most uses that are followed to where they meet.
const MAX_USERS: usize = 16;

/// A value in memory: stored before the run, or written by a step.
pub(super) struct Value {
    /// The node's output it is, if it is one.
    pub of: Option<(u32, u32)>,
    pub dtype: DType,
    pub bytes: usize,
    /// The bound input that holds it.
    pub bound: Option<u16>,
    /// The last step that writes it.
    def: Option<usize>,
}

/// Emitted steps; a source's `Buf::Slot(v)` is value `v`.
pub(super) struct Steps {
    pub list: Vec<Step>,
    pub values: Vec<Value>,
}

pub(super) struct Fuser<'a, 'g> {
    graph: &'a Graph<'g>,
    same: &'a [u32],
    users: &'a [SmallVec<[u32; 4]>],
    /// Distinct buffers that one step may bind, its results and parameters not counted.
    sources: usize,
    /// Whether anything fuses; else every map and op is a step of its own.
    fuse: bool,
    values: Vec<Value>,
    /// The value of each (node, output) that is in memory or has a place.
    at: Vec<SmallVec<[Option<u32>; 1]>>,
    exprs: Vec<Option<Expr>>,
    /// Maps that were put into another expression or into a kernel's load, so that their operands are read there.
    inlined: Vec<bool>,
    list: Vec<Step>,
    /// For each node, the step that computes it, if one does.
    step_of: Vec<Option<usize>>,
}

impl<'a, 'g> Fuser<'a, 'g> {
    pub fn new(graph: &'a Graph<'g>, same: &'a [u32], users: &'a [SmallVec<[u32; 4]>], buffers: usize, fuse: bool) -> Self {
        let mut f = Fuser {
            graph,
            same,
            users,
            sources: buffers.saturating_sub(3).max(3),
            fuse,
            values: Vec::new(),
            at: graph.nodes.iter().map(|n| smallvec![None; n.node.metas.len()]).collect(),
            exprs: vec![None; graph.nodes.len()],
            inlined: vec![false; graph.nodes.len()],
            list: Vec::new(),
            step_of: vec![None; graph.nodes.len()],
        };
        for (i, n) in graph.nodes.iter().enumerate() {
            if let Some(first) = n.bound {
                for out in 0..n.node.metas.len() as u32 {
                    let v = f.value(i as u32, out, Some(first + out as u16));
                    f.at[i][out as usize] = Some(v);
                }
            }
        }
        f
    }

    /// Emits steps for everything that is kept and what it needs.
    pub fn run(mut self) -> Steps {
        for i in 0..self.graph.nodes.len() as u32 {
            let n = &self.graph.nodes[i as usize];
            if self.same[i as usize] != i || n.bound.is_some() || (!n.keep && self.users[i as usize].is_empty()) {
                continue;
            }
            match &n.node.kind {
                Kind::Op(_) => self.emit_op(i),
                // In order, so that a map's inputs have their expressions already and long chains do not recurse.
                Kind::Map(..) => {
                    self.expr(i);
                    if n.keep {
                        self.ensure(i, 0);
                    }
                }
                _ => {}
            }
        }
        Steps { list: self.list, values: self.values }
    }

    fn node(&self, i: u32) -> &'a GNode<'g> {
        &self.graph.nodes[i as usize]
    }

    fn value(&mut self, node: u32, out: u32, bound: Option<u16>) -> u32 {
        let m = self.node(node).meta(out);
        self.values.push(Value {
            of: Some((node, out)),
            dtype: m.dtype,
            bytes: m.dtype.bytes(m.shape.count()).unwrap_or(0),
            bound,
            def: None,
        });
        self.values.len() as u32 - 1
    }

    fn scratch(&mut self, dtype: DType, count: usize) -> u32 {
        self.values.push(Value { of: None, dtype, bytes: dtype.bytes(count).unwrap_or(0), bound: None, def: None });
        self.values.len() as u32 - 1
    }

    /// An input tensor as base node, output, layout over the base's row-major elements, and run-time offset.
    fn resolve(&self, input: (u32, u32)) -> (u32, u32, Layout, Option<u16>) {
        let n = self.node(input.0);
        match &n.node.kind {
            Kind::View(l) if n.bound.is_none() => {
                let base = n.inputs[0];
                if l.offset == 0 { (base.0, base.1, *l, None) } else { (base.0, base.1, Layout { offset: 0, ..*l }, Some(n.params as u16)) }
            }
            _ => (input.0, input.1, Layout::contiguous(n.meta(input.1).shape), None),
        }
    }

    /// Whether a map may be computed again inside a user instead of being read from memory.
    fn may_inline(&self, i: u32, expr: &Expr) -> bool {
        let n = self.node(i);
        if !self.fuse || self.at[i as usize][0].is_some() {
            return false;
        }
        let wide =
            |s: &&Source| s.buf != Buf::Iota && s.layout.strides().iter().zip(s.layout.shape.iter()).any(|(&st, &n)| st != 0 && n > 1);
        let cheap = expr.sources.iter().filter(wide).count() <= 1 && expr.program.insts.len() <= CHEAP_INSTS;
        (!n.keep && (self.users[i as usize].len() == 1 || self.fuses_gemv(i)))
            || (cheap && (!n.keep || expr.sources.iter().all(|s| s.buf == Buf::Iota)) && !self.is_epilogue(i, expr))
    }

    /// The expression of a map, built once.
    fn expr(&mut self, i: u32) -> Expr {
        if let Some(e) = &self.exprs[i as usize] {
            return e.clone();
        }
        let n = self.node(i);
        let Kind::Map(prim, args) = n.node.kind else { unreachable!("only maps have expressions") };
        let meta = n.meta(0);
        let mut e = Expr { program: Program::default(), sources: Vec::new(), shape: meta.shape };
        let mut regs: [Reg; 3] = [0; 3];
        for (k, arg) in args.iter().enumerate() {
            regs[k] = match *arg {
                Arg::In(input) => {
                    // What is left of the budget when the other inputs take one source each.
                    let others = args.iter().filter(|a| matches!(a, Arg::In(_))).count() - 1;
                    self.splice(&mut e, n.inputs[input as usize], others, MAX_INSTS)
                }
                Arg::Param(p, d) => e.program.push(Inst { op: Prim::Param((n.params + p as usize) as u16), args: [0; 3], dtype: d }),
                Arg::Lit(bits, d) => e.program.push(Inst { op: Prim::Lit(bits), args: [0; 3], dtype: d }),
                Arg::None => 0,
            };
        }
        match prim {
            Prim::Source(_) => {
                e.sources.push(Source {
                    buf: Buf::Iota,
                    dtype: DType::U32,
                    layout: Layout::contiguous(meta.shape),
                    offset: None,
                    aligned: true,
                });
                let r = e.program.push(Inst { op: Prim::Source(0), args: [0; 3], dtype: DType::U32 });
                finish(&mut e.program, Inst { op: Prim::Cast, args: [r, 0, 0], dtype: meta.dtype });
            }
            Prim::Lit(_) => finish(&mut e.program, Inst { op: prim, args: [0; 3], dtype: meta.dtype }),
            Prim::Param(p) => finish(&mut e.program, Inst { op: Prim::Param(n.params as u16 + p), args: [0; 3], dtype: meta.dtype }),
            _ => simplify(&mut e.program, Inst { op: prim, args: regs, dtype: meta.dtype }),
        }
        self.exprs[i as usize] = Some(e.clone());
        e
    }

    /// Puts an input into an expression: its program where that is allowed, else a read of its stored value. Gives the register.
    fn splice(&mut self, e: &mut Expr, input: (u32, u32), reserve: usize, max_insts: usize) -> Reg {
        let shape = e.shape;
        let (base, out, layout, param) = self.resolve(input);
        let layout = layout.broadcast_to(shape);
        if self.node(base).is_map() && self.at[base as usize][0].is_none() {
            let inner = self.expr(base);
            if param.is_none() && self.may_inline(base, &inner) && e.program.insts.len() + inner.program.insts.len() < max_insts {
                if let Some(sources) = relay(&inner, &layout) {
                    let mut merged = e.sources.clone();
                    for s in &sources {
                        if !merged.contains(s) {
                            merged.push(s.clone());
                        }
                    }
                    if buffers(&merged) + reserve <= self.sources {
                        e.sources = merged;
                        let map: Vec<u16> = sources.iter().map(|s| e.sources.iter().position(|t| t == s).expect("merged") as u16).collect();
                        self.inlined[base as usize] = true;
                        return append(&mut e.program, &inner.program, &map);
                    }
                }
            }
        }
        let v = self.ensure(base, out);
        let source = self.source(v, layout, param, base);
        read(e, source)
    }

    fn source(&self, v: u32, layout: Layout, param: Option<u16>, base: u32) -> Source {
        let _ = base;
        let aligned = layout.offset % 8 == 0 && param.is_none_or(|p| self.param_aligned(p));
        Source { buf: Buf::Slot(v as u16), dtype: self.values[v as usize].dtype, layout, offset: param, aligned }
    }

    /// Whether run-time parameter `p`, an offset, is a multiple of 8. Nodes hash this fact about their offsets, so it holds for the plan.
    fn param_aligned(&self, p: u16) -> bool {
        let i = self.graph.nodes.partition_point(|n| n.params <= p as usize) - 1;
        // Nodes without parameters share the start of the next one that has some; the last with this start owns it.
        let n = &self.graph.nodes[i];
        n.node.params.get(p as usize - n.params).is_some_and(|v| v % 8.0 == 0.0)
    }

    /// The value of a node's output in memory, emitting what computes it.
    fn ensure(&mut self, i: u32, out: u32) -> u32 {
        if let Some(v) = self.at[i as usize][out as usize] {
            return v;
        }
        debug_assert!(self.node(i).is_map(), "operations are emitted before their users");
        let e = self.expr(i);
        let v = self.value(i, 0, None);
        self.at[i as usize][0] = Some(v);
        let target = self.source(v, Layout::contiguous(e.shape), None, i);
        self.emit_map(e, target, Some(i));
        v
    }

    /// Stores an expression: in the store of a kernel where that is allowed, else as a step of its own. `node` is the map it is.
    fn emit_map(&mut self, e: Expr, target: Source, node: Option<u32>) {
        if e.shape.count() == 0 {
            return;
        }
        if let Some(i) = node {
            if self.host(&e, &target, i) {
                return;
            }
        }
        let (name, at) = match node {
            Some(i) => (map_name(self.node(i)), self.node(i).node.at),
            None => ("copy", std::panic::Location::caller()),
        };
        self.define(&target, self.list.len());
        let store = Store { shape: e.shape, program: e.program, sources: e.sources, target };
        self.list.push(Step { name, at, work: Work::Map, loads: Vec::new(), stores: vec![store], params: Vec::new() });
    }

    fn define(&mut self, target: &Source, step: usize) {
        if let Buf::Slot(v) = target.buf {
            let def = &mut self.values[v as usize].def;
            *def = Some(def.map_or(step, |d| d.max(step)));
        }
    }

    /// Whether every use of `op` ends up in map `reader`, through maps that are stored nowhere.
    fn only_reader(&self, op: u32, reader: u32) -> bool {
        self.first_fused_gemv(op, |j| j == reader)
    }

    /// Whether every use of map `i` ends up in one map of as many elements, whose program then holds `i` once.
    fn fuses_gemv(&self, i: u32) -> bool {
        let count = |j: u32| self.node(j).meta(0).shape.count();
        self.first_fused_gemv(i, |j| self.node(j).is_map() && count(j) == count(i)) && self.read_in_one_order(i)
    }

    /// Whether all that reads map `i` reads it through the same view.
    fn read_in_one_order(&self, i: u32) -> bool {
        let inputs = self.users[i as usize].iter().flat_map(|&j| &self.node(j).inputs);
        let mut views = inputs.filter_map(|&input| {
            let (base, _, layout, param) = self.resolve(input);
            (base == i).then(|| (layout.simplified(), param))
        });
        let Some(first) = views.next() else { return true };
        views.all(|view| view == first)
    }

    /// Follows the uses of `i` through maps that are stored nowhere until they meet in one node that is `wanted`.
    fn first_fused_gemv(&self, i: u32, wanted: impl Fn(u32) -> bool) -> bool {
        let mut open: SmallVec<[u32; 8]> = self.users[i as usize].iter().take(MAX_USERS + 1).copied().collect();
        for _ in 0..MAX_INSTS {
            if open.len() > MAX_USERS {
                return false;
            }
            open.sort_unstable();
            open.dedup();
            let Some(&next) = open.first() else { return false };
            if open.len() == 1 && wanted(next) {
                return true;
            }
            // Nodes are in topological order: what the first one leads to comes later.
            if !self.node(next).is_map() || self.node(next).keep || self.at[next as usize][0].is_some() {
                return false;
            }
            open.remove(0);
            open.extend(self.users[next as usize].iter().copied());
        }
        false
    }

    fn emit_op(&mut self, i: u32) {
        let n = self.node(i);
        let Kind::Op(op) = &n.node.kind else { unreachable!("called for operations") };
        let ins: SmallVec<[Meta; 4]> = n.inputs.iter().map(|&(j, out)| self.node(j).meta(out)).collect();
        match op.lower(&ins, &n.node.metas) {
            Lowered::Windows { base, pieces } => self.emit_windows(i, base, pieces),
            Lowered::Into { base, kernel, loads } => {
                let loads = self.loads(i, &**op, &ins, loads);
                let v = self.underneath(i, Some(base));
                let (shape, dtype) = (n.meta(0).shape, n.meta(0).dtype);
                let target = self.source(v, Layout::contiguous(shape), None, i);
                self.define(&target, self.list.len());
                let store = Store { shape, program: Program::value(dtype), sources: Vec::new(), target };
                let params = (0..n.node.params.len()).map(|p| (n.params + p) as u16).collect();
                self.list.push(Step { name: op.name(), at: n.node.at, work: Work::Kernel(kernel), loads, stores: vec![store], params });
            }
            Lowered::Kernel { kernel, loads, stores } => {
                if n.node.metas.iter().all(|m| m.shape.count() == 0) {
                    for out in 0..n.node.metas.len() as u32 {
                        let v = self.value(i, out, None);
                        self.at[i as usize][out as usize] = Some(v);
                    }
                    return;
                }
                let loads = self.loads(i, &**op, &ins, loads);
                let step = self.list.len();
                let mut outs = Vec::new();
                for (out, layout, shape) in stores {
                    let v = self.value(i, out as u32, None);
                    self.at[i as usize][out] = Some(v);
                    let dtype = n.meta(out as u32).dtype;
                    let target = self.source(v, layout, None, i);
                    self.define(&target, step);
                    outs.push(Store { shape, program: Program::value(dtype), sources: Vec::new(), target });
                }
                self.step_of[i as usize] = Some(step);
                let params = (0..n.node.params.len()).map(|p| (n.params + p) as u16).collect();
                self.list.push(Step { name: op.name(), at: n.node.at, work: Work::Kernel(kernel), loads, stores: outs, params });
            }
        }
    }

    /// The operands of op `i`'s kernel.
    fn loads(&mut self, i: u32, op: &dyn Op, ins: &[Meta], loads: Vec<(usize, Layout, Shape)>) -> Vec<Load> {
        let n = self.node(i);
        let mut bound = Vec::new();
        let count = loads.len();
        let operand = |(k, (input, layout, shape)): (usize, (usize, Layout, Shape))| {
            let plain = op.materialize_input(input, ins);
            let load = self.load(n.inputs[input], &layout, shape, &bound, count - 1 - k, plain);
            bound.extend(load.sources.iter().cloned());
            load
        };
        loads.into_iter().enumerate().map(operand).collect()
    }

    /// An operand of a kernel: rule 1 for maps unless it is to be `plain`, a plain read for the rest.
    fn load(&mut self, input: (u32, u32), order: &Layout, shape: Shape, bound: &[Source], reserve: usize, plain: bool) -> Load {
        let (base, out, view, param) = self.resolve(input);
        let meta = self.node(input.0).meta(input.1);
        if self.node(base).is_map() && self.at[base as usize][0].is_none() {
            let mut e = self.expr(base);
            if !plain && param.is_none() && self.stores_rounded(base, &e) {
                e = self.expr(base);
            }
            let short = e.program.insts.len() <= MAX_LOAD_INSTS && !plain;
            if param.is_none() && short && self.may_inline(base, &e) && !self.hostable(base, &e) {
                let sources = relay(&e, &view).and_then(|s| {
                    s.into_iter()
                        .map(|s| compose_order(order, &meta.shape, &s.layout).map(|layout| Source { layout, ..s }))
                        .collect::<Option<Vec<_>>>()
                });
                if let Some(sources) = sources {
                    let all: Vec<Source> = bound.iter().cloned().chain(sources.iter().cloned()).collect();
                    if buffers(&all) + reserve <= self.sources + 1 {
                        self.inlined[base as usize] = true;
                        return Load { shape, program: e.program.clone(), sources };
                    }
                }
            }
        }
        let v = self.ensure(base, out);
        if let Some(layout) = compose_order(order, &meta.shape, &view) {
            let source = self.source(v, layout, param, base);
            return Load { shape, program: Program::identity(source.dtype), sources: vec![source] };
        }
        // No strides can say this view of a view: copy the inner one.
        let copy = self.scratch(meta.dtype, meta.shape.count());
        let source = self.source(v, view, param, base);
        let e = Expr { program: Program::identity(source.dtype), sources: vec![source], shape: meta.shape };
        let target = self.source(copy, Layout::contiguous(meta.shape), None, base);
        self.emit_map(e, target, None);
        let source = self.source(copy, *order, None, base);
        Load { shape, program: Program::identity(source.dtype), sources: vec![source] }
    }

    /// Where map `i` widens what was rounded to bf16 last, and would go into the store of a kernel: that stores the rounded numbers, and map `i` reads
    /// them. They have half of the bytes, and whoever multiplies pairs of bf16 finds them so.
    fn stores_rounded(&mut self, i: u32, e: &Expr) -> bool {
        let Some(&(j, out)) = self.node(i).inputs.first() else { return false };
        let is_map = e.program.rounds_to_bf16() && out == 0 && self.node(j).is_map() && self.at[j as usize][0].is_none();
        let of_j = is_map && self.node(j).meta(0).dtype == DType::BF16 && self.node(j).meta(0).shape == e.shape;
        if !of_j || self.users[j as usize][..] != [i] || self.node(j).keep || self.node(i).keep || !self.hostable(i, e) {
            return false;
        }
        let mut program = e.program.clone();
        program.insts.pop();
        let before = (self.exprs[i as usize].take(), self.exprs[j as usize].take(), self.inlined[j as usize]);
        let narrow = Expr { program, sources: e.sources.clone(), shape: e.shape };
        self.inlined[j as usize] = false;
        if self.host_of(&narrow, j).is_none() {
            (self.exprs[i as usize], self.exprs[j as usize], self.inlined[j as usize]) = before;
            return false;
        }
        let v = self.value(j, 0, None);
        self.at[j as usize][0] = Some(v);
        let target = self.source(v, Layout::contiguous(e.shape), None, j);
        self.emit_map(narrow, target, Some(j));
        true
    }

    /// The value of op `i`, which is written piece by piece: input `base` itself where its memory may be taken, else new memory with a copy of it.
    fn underneath(&mut self, i: u32, base: Option<usize>) -> u32 {
        let n = self.node(i);
        let v = match base {
            Some(b) if n.donated => {
                let (j, out) = n.inputs[b];
                let bound = self.values[self.at[j as usize][out as usize].expect("a donated input is bound") as usize].bound;
                self.value(i, 0, bound)
            }
            _ => self.value(i, 0, None),
        };
        self.at[i as usize][0] = Some(v);
        if let (Some(b), false) = (base, n.donated) {
            let shape = n.meta(0).shape;
            let mut e = Expr { program: Program::default(), sources: Vec::new(), shape };
            let r = self.splice(&mut e, n.inputs[b], 0, MAX_INSTS);
            truncate(&mut e.program, r);
            let target = self.source(v, Layout::contiguous(shape), None, i);
            self.emit_map(e, target, None);
        }
        v
    }

    /// Rule 3: `cat`, `write` and their kin.
    fn emit_windows(&mut self, i: u32, base: Option<usize>, pieces: Vec<(usize, Layout, Option<usize>)>) {
        let n = self.node(i);
        let v = self.underneath(i, base);
        for (input, window, param) in pieces {
            let input = n.inputs[input];
            let shape = self.node(input.0).meta(input.1).shape;
            if shape.count() == 0 {
                continue;
            }
            let param = param.map(|p| (n.params + p) as u16);
            let target = self.source(v, window, param, i);
            let (b, out, view, view_param) = self.resolve(input);
            let whole =
                view_param.is_none() && view.offset == 0 && view.is_contiguous() && shape.count() == self.node(b).meta(out).shape.count();
            // What goes into several windows is stored by itself: the kernel that computes it could fill one of them only.
            let whole = whole && n.inputs.iter().filter(|other| self.resolve(**other).0 == b).count() == 1;
            if whole && self.redirect(b, out, &target, i) {
                continue;
            }
            let mut e = Expr { program: Program::default(), sources: Vec::new(), shape };
            let before = self.inlined[b as usize];
            let r = self.splice(&mut e, input, 0, MAX_INSTS);
            truncate(&mut e.program, r);
            // This copy of the map is the one that may go into a kernel's store.
            self.inlined[b as usize] = before;
            if whole
                && self.node(b).is_map()
                && self.at[b as usize][0].is_none()
                && self.users[b as usize][..] == [i]
                && self.host(&e, &target, b)
            {
                continue;
            }
            self.emit_map(e, target, None);
            self.list.last_mut().expect("just emitted").name = op_name(n);
            self.list.last_mut().expect("just emitted").at = n.node.at;
        }
    }

    /// Makes the kernel that computes (`op`, `out`) store into a window. False where others read its result or the window cannot be written yet.
    fn redirect(&mut self, op: u32, out: u32, target: &Source, user: u32) -> bool {
        let Some(step) = self.step_of[op as usize].filter(|_| self.fuse) else { return false };
        if self.users[op as usize][..] != [user] || self.node(op).keep || self.node(op).node.metas.len() != 1 {
            return false;
        }
        let Buf::Slot(v) = target.buf else { return false };
        if self.values[v as usize].def.is_some_and(|d| d > step) {
            return false;
        }
        let store = &self.list[step].stores[0];
        if !store.program.is_value() {
            return false;
        }
        let space = self.node(op).meta(out).shape;
        let Some(layout) = compose_order(&store.target.layout, &space, &target.layout) else { return false };
        self.list[step].stores[0].target = Source { layout, ..target.clone() };
        self.define(target, step);
        true
    }
}

impl Steps {
    /// Rule 4: neighbouring maps over the same number of elements become one step, unless one reads other places of what another writes. All
    /// of a step's programs read before any writes; one that reads an earlier one's result computes it again from the same operands.
    pub fn merge_siblings(&mut self, buffers_limit: usize) {
        let mut out: Vec<Step> = Vec::with_capacity(self.list.len());
        for s in std::mem::take(&mut self.list) {
            if let (Some(prev), Work::Map) = (out.last_mut(), &s.work) {
                let alike = matches!(prev.work, Work::Map) && prev.stores[0].shape.count() == s.stores[0].shape.count();
                if let Some(stores) = if alike { self.fused_stores(prev, &s) } else { None } {
                    let all: Vec<Source> =
                        prev.stores.iter().chain(&stores).flat_map(|x| x.sources.iter().cloned().chain([x.target.clone()])).collect();
                    let homes: Vec<Source> = all.into_iter().map(|x| Source { buf: self.home(x.buf), ..x }).collect();
                    if buffers(&homes) < buffers_limit {
                        prev.stores.extend(stores);
                        continue;
                    }
                }
            }
            out.push(s);
        }
        self.list = out;
    }

    /// The memory of a value, where several values share an input's.
    pub fn home(&self, buf: Buf) -> Buf {
        match buf {
            Buf::Slot(v) => self.values[v as usize].bound.map_or(buf, Buf::Input),
            b => b,
        }
    }

    /// The stores of `s` as they run together with `prev`, where they can: reads of what `prev` writes are replaced by the programs that
    /// compute it.
    fn fused_stores(&self, prev: &Step, s: &Step) -> Option<Vec<Store>> {
        let place = |x: &Source| (x.layout.simplified(), x.offset);
        let same_memory = |x: &Source, y: &Source| x.buf != Buf::Iota && self.home(x.buf) == self.home(y.buf);
        let mut stores = s.stores.clone();
        for x in &mut stores {
            let overwrites = |y: &Source| same_memory(y, &x.target) && place(y) != place(&x.target);
            if prev.stores.iter().any(|p| same_memory(&p.target, &x.target) || p.sources.iter().any(overwrites)) {
                return None;
            }
            // Inlining renumbers the sources: look again from the first.
            let mut k = 0;
            while let Some(source) = x.sources.get(k) {
                k += 1;
                let Some(p) = prev.stores.iter().find(|p| same_memory(&p.target, source)) else { continue };
                if place(&p.target) != place(source) {
                    return None;
                }
                // The old value is read before it is overwritten; the new one is computed again.
                if p.target.buf == source.buf {
                    if !inline(x, k - 1, p) {
                        return None;
                    }
                    k = 0;
                }
            }
        }
        Some(stores)
    }

    /// A node that overwrites its input while something still reads the old value.
    pub fn overwritten_too_early(&self, graph: &Graph) -> Option<u32> {
        for (v, value) in self.values.iter().enumerate() {
            let (Some((node, _)), Some(input)) = (value.of, value.bound) else { continue };
            if graph.nodes[node as usize].bound.is_some() {
                continue;
            }
            let writes = |s: &Step| s.stores.iter().any(|t| t.target.buf == Buf::Slot(v as u16));
            let Some(first) = self.list.iter().position(writes) else { continue };
            let old = |x: &Source| match x.buf {
                Buf::Slot(o) => o as usize != v && self.values[o as usize].bound == Some(input),
                _ => false,
            };
            for (i, s) in self.list.iter().enumerate().skip(first) {
                let target = s.stores.iter().find(|t| t.target.buf == Buf::Slot(v as u16)).map(|t| &t.target);
                // In the writing step itself only the same element may be read.
                let in_place = |x: &Source| {
                    i == first
                        && matches!(s.work, Work::Map)
                        && target.is_some_and(|t| t.layout.simplified() == x.layout.simplified() && t.offset == x.offset)
                };
                let sources = s.loads.iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources));
                if sources.filter(|x| old(x)).any(|x| !in_place(x)) {
                    return Some(node);
                }
            }
        }
        None
    }
}

/// Replaces source `k` of a store by the program of the store that writes it. False where that would be too long.
fn inline(x: &mut Store, k: usize, p: &Store) -> bool {
    if x.program.insts.len() + p.program.insts.len() > 2 * MAX_INSTS {
        return false;
    }
    let mut program = Program::default();
    let mut sources: Vec<Source> = Vec::new();
    let mut number = |s: &Source| {
        let n = sources.iter().position(|t| t == s).unwrap_or_else(|| {
            sources.push(s.clone());
            sources.len() - 1
        });
        n as u16
    };
    let inner: Vec<u16> = p.sources.iter().map(&mut number).collect();
    let outer: Vec<u16> = x.sources.iter().enumerate().map(|(i, s)| if i == k { u16::MAX } else { number(s) }).collect();
    let mut value = append(&mut program, &p.program, &inner);
    // What is stored was rounded.
    let dtype = p.target.dtype;
    if program.insts[value as usize].dtype != dtype || matches!(dtype, DType::F16 | DType::BF16) {
        value = program.push(Inst { op: Prim::Cast, args: [value, 0, 0], dtype });
    }
    let mut regs: SmallVec<[Reg; 16]> = SmallVec::new();
    for inst in &x.program.insts {
        let mut i = *inst;
        match i.op {
            Prim::Source(n) if outer[n as usize] == u16::MAX => {
                regs.push(value);
                continue;
            }
            Prim::Source(n) => i.op = Prim::Source(outer[n as usize]),
            _ => {}
        }
        for a in 0..arity(&i.op) {
            i.args[a] = regs[i.args[a] as usize];
        }
        regs.push(program.push(i));
    }
    truncate(&mut program, *regs.last().expect("a program has an instruction"));
    x.program = program;
    x.sources = sources;
    true
}

/// Distinct buffers among sources.
pub(super) fn buffers(sources: &[Source]) -> usize {
    let mut seen: SmallVec<[Buf; 16]> = SmallVec::new();
    for s in sources {
        if s.buf != Buf::Iota && !seen.contains(&s.buf) {
            seen.push(s.buf);
        }
    }
    seen.len()
}

/// The sources of an expression seen through a layout over the expression's elements.
fn relay(inner: &Expr, layout: &Layout) -> Option<Vec<Source>> {
    inner
        .sources
        .iter()
        .map(|s| {
            let l = compose_order(layout, &inner.shape, &s.layout)?;
            let aligned = s.aligned && (l.offset as isize - s.layout.offset as isize) % 8 == 0;
            Some(Source { layout: l, aligned, ..s.clone() })
        })
        .collect()
}

/// `inner` (with as many elements as `space`) in the order that a kernel visits `space`.
fn compose_order(order: &Layout, space: &Shape, inner: &Layout) -> Option<Layout> {
    // Only the order of the elements counts: dimensions that no reshape could merge stay as they are.
    if order.offset == 0 && order.shape.count() == space.count() && order.is_contiguous() {
        return Some(*inner);
    }
    if inner.shape == *space {
        return compose(order, space, inner);
    }
    compose(order, space, &inner.reshape(*space)?)
}

fn map_name(n: &GNode) -> &'static str {
    match n.node.kind {
        Kind::Map(Prim::Unary(u), _) => u.name(),
        Kind::Map(Prim::Binary(b), _) => b.name(),
        Kind::Map(Prim::Where, _) => "where",
        Kind::Map(Prim::Cast, _) => "cast",
        Kind::Map(Prim::Philox, _) => "random",
        Kind::Map(Prim::Source(_), _) => "arange",
        Kind::Map(..) => "full",
        _ => "map",
    }
}

fn op_name(n: &GNode) -> &'static str {
    match &n.node.kind {
        Kind::Op(op) => op.name(),
        _ => map_name(n),
    }
}
