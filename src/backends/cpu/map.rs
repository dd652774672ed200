//! Programs: compiled to a list of operations over registers, and run block by block.

use super::chain::{self, FusedInstr, TILE, TileInstr, TileOperand};
use super::lanes::{self, Blocks, Op};
use super::span::{StridedView, stream_copy};
use crate::dtype::DType;
use crate::plan::{Load, Source, Step, Store};
use crate::scalar::{Inst, Prim, Program, Reg, Unary};
use smallvec::SmallVec;

/// The most elements of a block.
const MAX_BLOCK_ELEMENTS: usize = 1024;
/// Bytes that the registers of a program should stay within: most of an L1 cache.
const REGISTER_FILE_BYTES: usize = 32 << 10;
/// The place of a result that has none.
const NONE: usize = usize::MAX;

/// What is done for a block.
#[derive(Debug)]
enum Instr {
    /// One operation.
    One(u16),
    /// Operations whose values stay in registers; where there is only one, which: `One` begins sooner.
    Chain(Vec<FusedInstr>, Option<u16>),
}

/// A program ready to run, with one or several results.
#[derive(Debug)]
pub(crate) struct Compiled {
    ops: Vec<Op>,
    items: Vec<Instr>,
    /// The place of each result in the register file, in bytes.
    slots: Vec<usize>,
    /// The results that only their chain reads: their place holds a tile.
    tiles: Vec<bool>,
    /// The results of which a chain finds each tile at the same place: those, and numbers.
    still: Vec<bool>,
    /// Whether another operation reads a result from its place.
    read: Vec<bool>,
    /// Literals and parameters, filled in once per run.
    fixed: Vec<u16>,
    /// Whether each of them fills a block, or is one number.
    spread: Vec<bool>,
    /// The operations whose results are written, one per store.
    outs: SmallVec<[u16; 2]>,
    /// Elements of a block.
    block: usize,
    /// Bytes of all places.
    scratch: usize,
    /// Whether this passes its one source, or the kernel's value, on as it is.
    pub(crate) identity: bool,
}

/// Where a program's results go.
pub(crate) enum Output<'a> {
    /// To one piece of memory, in the compute type.
    Memory(*mut u8),
    /// To targets.
    Targets(&'a [StridedView<'a>]),
    /// To targets that are too large for the caches.
    Streams(&'a [StridedView<'a>]),
}

impl Compiled {
    /// The code of a load.
    pub(crate) fn of_load(load: &Load) -> Compiled {
        Compiled::new(&load.program, &[load.program.insts.len() as Reg - 1], &[load.program.dtype()])
    }

    /// The code of a kernel's store.
    pub(crate) fn of_store(store: &Store) -> Compiled {
        Compiled::new(&store.program, &[store.program.insts.len() as Reg - 1], &[store.target.dtype])
    }

    /// One code for all stores of a map, and the sources that it reads: as (store, source).
    pub(crate) fn of_map(step: &Step) -> (Compiled, Vec<(usize, usize)>) {
        let mut all = Program::default();
        let mut outs: SmallVec<[Reg; 2]> = SmallVec::new();
        let mut sources: Vec<(usize, usize)> = Vec::new();
        for (s, store) in step.stores.iter().enumerate() {
            let mut renamed: SmallVec<[Reg; 16]> = SmallVec::new();
            for inst in &store.program.insts {
                let mut inst = *inst;
                if let Prim::Source(n) = inst.op {
                    let source: &Source = &store.sources[n as usize];
                    let known = sources.iter().position(|&(a, b)| step.stores[a].sources[b] == *source);
                    inst.op = Prim::Source(known.unwrap_or(sources.len()) as u16);
                    if known.is_none() {
                        sources.push((s, n as usize));
                    }
                }
                for a in 0..arity(inst.op) {
                    inst.args[a] = renamed[inst.args[a] as usize];
                }
                renamed.push(all.push(inst));
            }
            outs.push(renamed[renamed.len() - 1]);
        }
        let dtypes: SmallVec<[DType; 2]> = step.stores.iter().map(|s| s.target.dtype).collect();
        (Compiled::new(&all, &outs, &dtypes), sources)
    }

    fn new(program: &Program, outs: &[Reg], targets: &[DType]) -> Compiled {
        let mut insts: SmallVec<[Inst; 16]> = program.insts.iter().copied().collect();
        // A result in another compute type than its target's is converted first.
        let mut outs: SmallVec<[u16; 2]> = outs
            .iter()
            .zip(targets)
            .map(|(&out, &target)| {
                if insts[out as usize].dtype.compute() == target.compute() {
                    return out;
                }
                insts.push(Inst { op: Prim::Cast, args: [out, 0, 0], dtype: target });
                (insts.len() - 1) as u16
            })
            .collect();
        let runs = chain::gather(&mut insts, &mut outs);
        let fixed: Vec<u16> = (0..insts.len() as u16).filter(|&i| matches!(insts[i as usize].op, Prim::Param(_) | Prim::Lit(_))).collect();
        let is_fixed = |r: u16| fixed.contains(&r);
        let run_of = |i: usize| runs.iter().position(|r| r.contains(&i));
        let chains: Vec<(Vec<FusedInstr>, Vec<usize>)> = runs.iter().map(|run| chain::compile(&insts, run.clone(), &is_fixed)).collect();
        // Who reads a result from memory: nobody, its own chain, or others as well.
        let (mut read, mut outside) = (vec![false; insts.len()], vec![false; insts.len()]);
        for (run, (links, _)) in runs.iter().zip(&chains) {
            for v in links.iter().filter(|l| l.reads()).map(|l| l.value as usize) {
                read[v] = true;
                outside[v] |= !run.contains(&v);
            }
        }
        for (_, inst) in insts.iter().enumerate().filter(|&(i, _)| run_of(i).is_none()) {
            for &a in &inst.args[..arity(inst.op)] {
                (read[a as usize], outside[a as usize]) = (true, true);
            }
        }
        let is_out = |i: usize| outs.contains(&(i as u16));
        let tiles: Vec<bool> = (0..insts.len()).map(|i| run_of(i).is_some() && !outside[i] && !is_out(i)).collect();
        let mut last = vec![0usize; insts.len()];
        for (i, inst) in insts.iter().enumerate() {
            inst.args[..arity(inst.op)].iter().for_each(|&a| last[a as usize] = i);
        }
        outs.iter().for_each(|&o| last[o as usize] = usize::MAX);
        // Places of blocks, and of tiles.
        let (mut free, mut count) = ([SmallVec::<[u16; 16]>::new(), SmallVec::new()], [0u16; 2]);
        let mut places: Vec<Option<u16>> = Vec::with_capacity(insts.len());
        for (i, inst) in insts.iter().enumerate() {
            let kind = tiles[i] as usize;
            let mut fresh = || {
                count[kind] += 1;
                count[kind] - 1
            };
            places.push(match inst.op {
                Prim::Value => None,
                Prim::Param(_) | Prim::Lit(_) => Some(fresh()),
                _ if tiles[i] && !read[i] => None,
                _ => Some(free[kind].pop().unwrap_or_else(fresh)),
            });
            // Freed only now: a result never takes the place of its own arguments.
            let args = &inst.args[..arity(inst.op)];
            for (k, &a) in args.iter().enumerate() {
                let a = a as usize;
                let keeps = matches!(insts[a].op, Prim::Param(_) | Prim::Lit(_));
                if let Some(place) = places[a].filter(|_| last[a] == i && !keeps && !args[..k].contains(&args[k])) {
                    free[tiles[a] as usize].push(place);
                }
            }
        }
        // Literals and parameters that are only ever the one uniform argument of their users need not be spread over a block.
        let uniform: SmallVec<[Option<u8>; 16]> = insts
            .iter()
            .map(|i| match (is_fixed(i.args[0]), is_fixed(i.args[1])) {
                _ if !Op::takes_uniform(i.op, insts[i.args[0] as usize].dtype) => None,
                (true, false) => Some(0),
                (false, true) => Some(1),
                _ => None,
            })
            .collect();
        let reads_fixed_block =
            |i: usize| insts[i].args[..arity(insts[i].op)].iter().enumerate().any(|(k, &a)| is_fixed(a) && uniform[i] != Some(k as u8));
        let spread: Vec<bool> = fixed
            .iter()
            .map(|&f| {
                let used_as_block = |(i, inst): (usize, &Inst)| {
                    run_of(i).is_none()
                        && uniform[i].is_none_or(|u| inst.args[1 - u as usize] == f)
                        && inst.args[..arity(inst.op)].contains(&f)
                };
                outs.contains(&f) || insts.iter().enumerate().any(used_as_block)
            })
            .collect();
        let any_wide = insts.iter().any(|i| lanes::wide(i.dtype));
        let width = if any_wide { 8 } else { 4 };
        let mut block = MAX_BLOCK_ELEMENTS;
        let blocks = count[0] as usize - spread.iter().filter(|s| !**s).count();
        while block > 256 && block * width * blocks > REGISTER_FILE_BYTES {
            block /= 2;
        }
        // A distance that is no power of two keeps registers out of each other's cache sets.
        let register = block * width + 64;
        let slots = (0..insts.len())
            .map(|i| match places[i] {
                None => NONE,
                Some(p) if tiles[i] => count[0] as usize * register + p as usize * TILE * 4,
                Some(p) => p as usize * register,
            })
            .collect();
        let mut items = Vec::with_capacity(insts.len());
        for i in 0..insts.len() {
            let Some(run) = run_of(i) else {
                items.push(Instr::One(i as u16));
                continue;
            };
            if i > runs[run].start {
                continue;
            }
            let (mut links, mut done) = (Vec::new(), 0);
            for (i, &end) in runs[run].clone().zip(&chains[run].1) {
                links.extend_from_slice(&chains[run].0[done..end]);
                done = end;
                if read[i] || is_out(i) {
                    links.push(FusedInstr { act: TileInstr::Save, call: Unary::Neg, value: i as u16 });
                }
            }
            // One alone is a loop over it, unless its bits would differ from a chain's or nobody reads its result, which then has no place.
            let plain = links.iter().all(|l| l.act.is_plain()) && !reads_fixed_block(i) && places[i].is_some();
            let one = Some(i as u16).filter(|_| runs[run].len() == 1 && plain);
            items.push(Instr::Chain(links, one));
        }
        let ops: Vec<Op> = insts
            .iter()
            .zip(&uniform)
            .map(|(i, &uniform)| Op { prim: i.op, args: i.args, dtype: i.dtype, from: insts[i.args[0] as usize].dtype, uniform })
            .collect();
        let identity = ops.len() == 1 && matches!(ops[0].prim, Prim::Source(0) | Prim::Value);
        let scratch = count[0] as usize * register + count[1] as usize * TILE * 4;
        let still = (0..insts.len()).map(|i| tiles[i] || is_fixed(i as u16)).collect();
        Compiled { ops, items, slots, tiles, still, read, fixed, spread, outs, block, scratch, identity }
    }

    /// Bytes of registers that `run` needs.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Results' operations that cost much more than an addition, for sizing teams.
    pub(crate) fn cost(&self) -> usize {
        let heavy = |op: &Op| match op.prim {
            Prim::Unary(u) => {
                use crate::scalar::Unary::*;
                !matches!(u, Neg | Abs | Sign | Floor | Ceil | Round | Trunc | IsNan | IsInf | LogicalNot | BitNot)
            }
            Prim::Binary(b) => {
                use crate::scalar::Binary::*;
                matches!(b, Div | Pow | Fmod | Remainder | Atan2)
            }
            Prim::Philox => true,
            _ => false,
        };
        self.ops.iter().map(|op| if heavy(op) { 8 } else { 1 }).sum()
    }

    /// Computes elements `start..start + n`, of many more where it is `large`. `value` holds the kernel's values of these elements, where the
    /// program has some.
    ///
    /// # Safety
    /// The spans must cover these elements, `registers` must have `scratch()` bytes, 64-byte aligned, and the sink must have room for
    /// the results and be nobody else's.
    pub(crate) unsafe fn run(
        &self,
        sources: &[StridedView<'_>],
        params: &[f64],
        value: *const u8,
        registers: *mut u8,
        start: usize,
        n: usize,
        large: bool,
        sink: &Output<'_>,
    ) {
        // SAFETY: all addresses computed here stay within what the caller vouches for; registers do not overlap each other.
        unsafe {
            let mut places: SmallVec<[*const u8; 24]> = SmallVec::with_capacity(self.ops.len());
            places.extend(self.slots.iter().map(|&s| if s == NONE { value } else { registers.add(s).cast_const() }));
            for (&f, &spread) in self.fixed.iter().zip(&self.spread) {
                let op = &self.ops[f as usize];
                let x = match op.prim {
                    Prim::Param(p) => params.get(p as usize).copied().unwrap_or(f64::NAN),
                    Prim::Lit(bits) => f64::from_bits(bits),
                    _ => 0.0,
                };
                fill(op.dtype, x, places[f as usize].cast_mut(), if spread { n.min(self.block) } else { 1 });
            }
            let mut done = 0;
            while done < n {
                let len = self.block.min(n - done);
                self.run_block(sources, &mut places, value, registers, start, done, len, large, sink);
                done += len;
            }
        }
    }

    /// # Safety
    /// See `run`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn run_block(
        &self,
        sources: &[StridedView<'_>],
        places: &mut [*const u8],
        value: *const u8,
        registers: *mut u8,
        start: usize,
        done: usize,
        len: usize,
        large: bool,
        sink: &Output<'_>,
    ) {
        // SAFETY: as in `run`.
        unsafe {
            let at = start + done;
            // Where a result may go straight to memory.
            let direct = |i: usize| {
                let k = self.outs.iter().position(|&o| o as usize == i)?;
                match *sink {
                    Output::Memory(out) => Some(out.add(done * if lanes::wide(self.ops[i].dtype) { 8 } else { 4 })),
                    Output::Targets(targets) => {
                        let t = &targets[k];
                        if t.apart && t.direct() { t.in_place(at, len) } else { None }
                    }
                    Output::Streams(_) => None,
                }
            };
            let slot = |i: usize| registers.add(self.slots[i]);
            for item in &self.items {
                let i = match item {
                    Instr::One(i) => *i as usize,
                    Instr::Chain(_, Some(i)) if !large => *i as usize,
                    Instr::Chain(links, _) => {
                        self.run_chain(links, places, registers, at, len, large, sink, &direct);
                        continue;
                    }
                };
                let op = &self.ops[i];
                match op.prim {
                    Prim::Source(s) => {
                        let source = &sources[s as usize];
                        let here = if source.direct() { source.in_place(at, len) } else { None };
                        places[i] = match here {
                            Some(p) => p,
                            None => {
                                let out = direct(i).unwrap_or_else(|| slot(i));
                                source.fetch(at, len, out);
                                out
                            }
                        };
                    }
                    Prim::Value => places[i] = value.add(done * if lanes::wide(op.dtype) { 8 } else { 4 }),
                    Prim::Param(_) | Prim::Lit(_) => {}
                    _ => {
                        let out = direct(i).unwrap_or_else(|| slot(i));
                        let args = [0, 1, 2].map(|k| places[op.args[k] as usize]);
                        lanes::run(op, Blocks { args, out, n: len });
                        places[i] = out;
                    }
                }
            }
            for (k, &o) in self.outs.iter().enumerate() {
                let from = places[o as usize];
                match *sink {
                    Output::Memory(out) => {
                        let width = if lanes::wide(self.ops[o as usize].dtype) { 8 } else { 4 };
                        let out = out.add(done * width);
                        if from != out.cast_const() {
                            std::ptr::copy(from, out, len * width);
                        }
                    }
                    Output::Targets(targets) => {
                        let t = &targets[k];
                        let there = if t.apart && t.direct() { t.in_place(at, len) } else { None };
                        if there.is_none_or(|p| from != p.cast_const()) {
                            t.put(at, len, from);
                        }
                    }
                    Output::Streams(targets) => {
                        let t = &targets[k];
                        match if t.direct() { t.in_place(at, len) } else { None } {
                            Some(there) if there.cast_const() == from => {}
                            Some(there) => stream_copy(from, there, len * t.dtype.block_bytes()),
                            None => t.put(at, len, from),
                        }
                    }
                }
            }
        }
    }

    /// Binds a chain's links to this block's memory and runs them.
    ///
    /// # Safety
    /// See `run`.
    unsafe fn run_chain(
        &self,
        links: &[FusedInstr],
        places: &mut [*const u8],
        registers: *mut u8,
        at: usize,
        len: usize,
        large: bool,
        sink: &Output<'_>,
        direct: &dyn Fn(usize) -> Option<*mut u8>,
    ) {
        // SAFETY: as in `run`.
        unsafe {
            let mut bound: SmallVec<[TileOperand; 32]> = SmallVec::with_capacity(links.len());
            for link in links {
                let (v, mut act) = (link.value as usize, link.act);
                if large && link.reads() && matches!(self.ops[v].prim, Prim::Source(_)) && places[v] != registers.add(self.slots[v]) {
                    let fetch = TileOperand { act: TileInstr::Fetch, call: Unary::Neg, at: places[v].cast_mut(), step: 4 };
                    if !bound.iter().any(|b| b.act == TileInstr::Fetch && b.at == fetch.at) {
                        bound.push(fetch);
                    }
                }
                if act == TileInstr::Save && !self.tiles[v] {
                    let stream = match *sink {
                        Output::Streams(targets) if !self.read[v] => {
                            let target = self.outs.iter().position(|&o| o as usize == v).map(|k| &targets[k]);
                            target.filter(|t| t.direct()).and_then(|t| t.in_place(at, len)).filter(|p| p.addr() % 64 == 0)
                        }
                        _ => None,
                    };
                    if stream.is_some() {
                        act = TileInstr::Stream;
                    }
                    places[v] = stream.or_else(|| direct(v)).unwrap_or_else(|| registers.add(self.slots[v]));
                }
                let step = if self.still[v] { 0 } else { 4 };
                bound.push(TileOperand { act, call: link.call, at: places[v].cast_mut(), step });
            }
            chain::run(&bound, len);
        }
    }
}

/// How many of an instruction's arguments it reads.
pub(super) fn arity(op: Prim) -> usize {
    match op {
        Prim::Source(_) | Prim::Value | Prim::SwapPair | Prim::Param(_) | Prim::Lit(_) => 0,
        Prim::Unary(_) | Prim::Cast => 1,
        Prim::Binary(_) => 2,
        Prim::Where | Prim::Philox => 3,
    }
}

/// Fills `n` compute values with a number.
///
/// # Safety
/// `out` must have room for them.
unsafe fn fill(dtype: DType, x: f64, out: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype.compute() {
            DType::F64 => std::slice::from_raw_parts_mut(out.cast(), n).fill(x),
            DType::I64 => std::slice::from_raw_parts_mut(out.cast(), n).fill(x as i64),
            DType::U32 if dtype == DType::Bool => std::slice::from_raw_parts_mut(out.cast(), n).fill((x != 0.0) as u32),
            DType::U32 => std::slice::from_raw_parts_mut(out.cast(), n).fill(x as i64 as u32),
            DType::I32 => {
                let x = x as i64;
                let x = match dtype {
                    DType::I8 => x as i8 as i32,
                    DType::U8 => x as u8 as i32,
                    _ => x as i32,
                };
                std::slice::from_raw_parts_mut(out.cast(), n).fill(x);
            }
            _ => std::slice::from_raw_parts_mut(out.cast(), n).fill(x as f32),
        }
    }
}
