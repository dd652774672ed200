//! Programs: compiled to a list of operations over registers, and run block by block.

use super::lanes::{self, Blocks, Op};
use super::span::{Span, stream_copy};
use crate::dtype::DType;
use crate::plan::{Load, Source, Step, Store};
use crate::scalar::{Inst, Prim, Program, Reg};
use smallvec::SmallVec;

/// The most elements of a block.
const BLOCK: usize = 1024;
/// Bytes that the registers of a program should stay within: most of an L1 cache.
const REGISTERS: usize = 32 << 10;
const NONE: u16 = u16::MAX;

/// A program ready to run, with one or several results.
#[derive(Debug)]
pub(crate) struct Code {
    ops: Vec<Op>,
    /// The register file's place of each result.
    slots: Vec<u16>,
    /// Literals and parameters, filled in once per run.
    fixed: Vec<u16>,
    /// Whether each of them fills a block, or is one number.
    spread: Vec<bool>,
    /// The operations whose results are written, one per store.
    outs: SmallVec<[u16; 2]>,
    /// Elements of a block.
    block: usize,
    /// Bytes of a register.
    register: usize,
    registers: usize,
    /// Whether this passes its one source, or the kernel's value, on as it is.
    pub(crate) identity: bool,
}

/// Where a program's results go.
pub(crate) enum Sink<'a> {
    /// To one piece of memory, in the compute type.
    Memory(*mut u8),
    /// To targets.
    Targets(&'a [Span<'a>]),
    /// To targets that are too large for the caches.
    Streams(&'a [Span<'a>]),
}

impl Code {
    /// The code of a load.
    pub(crate) fn of_load(load: &Load) -> Code {
        Code::new(&load.program, &[load.program.insts.len() as Reg - 1], &[load.program.dtype()])
    }

    /// The code of a kernel's store.
    pub(crate) fn of_store(store: &Store) -> Code {
        Code::new(&store.program, &[store.program.insts.len() as Reg - 1], &[store.target.dtype])
    }

    /// One code for all stores of a map, and the sources that it reads: as (store, source).
    pub(crate) fn of_map(step: &Step) -> (Code, Vec<(usize, usize)>) {
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
        (Code::new(&all, &outs, &dtypes), sources)
    }

    fn new(program: &Program, outs: &[Reg], targets: &[DType]) -> Code {
        let mut insts: SmallVec<[Inst; 16]> = program.insts.iter().copied().collect();
        // A result in another compute type than its target's is converted first.
        let outs: SmallVec<[u16; 2]> = outs
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
        let mut last = vec![0usize; insts.len()];
        for (i, inst) in insts.iter().enumerate() {
            inst.args[..arity(inst.op)].iter().for_each(|&a| last[a as usize] = i);
        }
        outs.iter().for_each(|&o| last[o as usize] = usize::MAX);
        let (mut free, mut registers) = (SmallVec::<[u16; 16]>::new(), 0u16);
        let mut slots = Vec::with_capacity(insts.len());
        let mut fixed = Vec::new();
        for (i, inst) in insts.iter().enumerate() {
            let mut fresh = || {
                registers += 1;
                registers - 1
            };
            slots.push(match inst.op {
                Prim::Value => NONE,
                Prim::Param(_) | Prim::Lit(_) => {
                    fixed.push(i as u16);
                    fresh()
                }
                _ => free.pop().unwrap_or_else(fresh),
            });
            // Freed only now: a result never takes the place of its own arguments.
            let args = &inst.args[..arity(inst.op)];
            for (k, &a) in args.iter().enumerate() {
                let a = a as usize;
                let keeps = matches!(insts[a].op, Prim::Value | Prim::Param(_) | Prim::Lit(_));
                if last[a] == i && !keeps && !args[..k].contains(&args[k]) {
                    free.push(slots[a]);
                }
            }
        }
        // Literals and parameters that are only ever the one uniform argument of their users need not be spread over a block.
        let is_fixed = |r: u16| fixed.contains(&r);
        let uniform: SmallVec<[Option<u8>; 16]> = insts
            .iter()
            .map(|i| match (is_fixed(i.args[0]), is_fixed(i.args[1])) {
                _ if !Op::takes_uniform(i.op, insts[i.args[0] as usize].dtype) => None,
                (true, false) => Some(0),
                (false, true) => Some(1),
                _ => None,
            })
            .collect();
        let spread: Vec<bool> = fixed
            .iter()
            .map(|&f| {
                let used_as_block = |(i, inst): (usize, &Inst)| {
                    uniform[i].is_none_or(|u| inst.args[1 - u as usize] == f) && inst.args[..arity(inst.op)].contains(&f)
                };
                outs.contains(&f) || insts.iter().enumerate().any(used_as_block)
            })
            .collect();
        let any_wide = insts.iter().any(|i| lanes::wide(i.dtype));
        let width = if any_wide { 8 } else { 4 };
        let mut block = BLOCK;
        let blocks = registers as usize - spread.iter().filter(|s| !**s).count();
        while block > 256 && block * width * blocks > REGISTERS {
            block /= 2;
        }
        let ops: Vec<Op> = insts
            .iter()
            .zip(&uniform)
            .map(|(i, &uniform)| Op { prim: i.op, args: i.args, dtype: i.dtype, from: insts[i.args[0] as usize].dtype, uniform })
            .collect();
        let identity = ops.len() == 1 && matches!(ops[0].prim, Prim::Source(0) | Prim::Value);
        // A distance that is no power of two keeps registers out of each other's cache sets.
        let register = block * width + 64;
        Code { ops, slots, fixed, spread, outs, block, register, registers: registers as usize, identity }
    }

    /// Bytes of registers that `run` needs.
    pub(crate) fn scratch(&self) -> usize {
        self.registers * self.register
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

    /// Computes elements `start..start + n`. `value` holds the kernel's values of these elements, where the program has some.
    ///
    /// # Safety
    /// The spans must cover these elements, `registers` must have `scratch()` bytes, 64-byte aligned, and the sink must have room for
    /// the results and be nobody else's.
    pub(crate) unsafe fn run(
        &self,
        sources: &[Span<'_>],
        params: &[f64],
        value: *const u8,
        registers: *mut u8,
        start: usize,
        n: usize,
        sink: &Sink<'_>,
    ) {
        // SAFETY: all addresses computed here stay within what the caller vouches for; registers do not overlap each other.
        unsafe {
            let mut places: SmallVec<[*const u8; 24]> = SmallVec::with_capacity(self.ops.len());
            places
                .extend(self.slots.iter().map(|&s| if s == NONE { value } else { registers.add(s as usize * self.register).cast_const() }));
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
                self.run_block(sources, &mut places, value, registers, start, done, len, sink);
                done += len;
            }
        }
    }

    /// # Safety
    /// As `run`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn run_block(
        &self,
        sources: &[Span<'_>],
        places: &mut [*const u8],
        value: *const u8,
        registers: *mut u8,
        start: usize,
        done: usize,
        len: usize,
        sink: &Sink<'_>,
    ) {
        // SAFETY: as in `run`.
        unsafe {
            let at = start + done;
            for (i, op) in self.ops.iter().enumerate() {
                let width = if lanes::wide(op.dtype) { 8 } else { 4 };
                // Where the result may go straight to memory.
                let direct = match self.outs.iter().position(|&o| o as usize == i) {
                    None => None,
                    Some(k) => match *sink {
                        Sink::Memory(out) => Some(out.add(done * width)),
                        Sink::Targets(targets) => {
                            let t = &targets[k];
                            if t.apart && t.direct() { t.in_place(at, len) } else { None }
                        }
                        Sink::Streams(_) => None,
                    },
                };
                let slot = || registers.add(self.slots[i] as usize * self.register);
                match op.prim {
                    Prim::Source(s) => {
                        let source = &sources[s as usize];
                        let here = if source.direct() { source.in_place(at, len) } else { None };
                        places[i] = match here {
                            Some(p) => p,
                            None => {
                                let out = direct.unwrap_or_else(slot);
                                source.fetch(at, len, out);
                                out
                            }
                        };
                    }
                    Prim::Value => places[i] = value.add(done * width),
                    Prim::Param(_) | Prim::Lit(_) => {}
                    _ => {
                        let out = direct.unwrap_or_else(slot);
                        let args = [0, 1, 2].map(|k| places[op.args[k] as usize]);
                        lanes::run(op, Blocks { args, out, n: len });
                        places[i] = out;
                    }
                }
            }
            for (k, &o) in self.outs.iter().enumerate() {
                let from = places[o as usize];
                match *sink {
                    Sink::Memory(out) => {
                        let width = if lanes::wide(self.ops[o as usize].dtype) { 8 } else { 4 };
                        let out = out.add(done * width);
                        if from != out.cast_const() {
                            std::ptr::copy(from, out, len * width);
                        }
                    }
                    Sink::Targets(targets) => {
                        let t = &targets[k];
                        let there = if t.apart && t.direct() { t.in_place(at, len) } else { None };
                        if there.is_none_or(|p| from != p.cast_const()) {
                            t.put(at, len, from);
                        }
                    }
                    Sink::Streams(targets) => {
                        let t = &targets[k];
                        match if t.direct() { t.in_place(at, len) } else { None } {
                            Some(there) => stream_copy(from, there, len * t.dtype.block_bytes()),
                            None => t.put(at, len, from),
                        }
                    }
                }
            }
        }
    }
}

/// How many of an instruction's arguments it reads.
fn arity(op: Prim) -> usize {
    match op {
        Prim::Source(_) | Prim::Value | Prim::Partner | Prim::Param(_) | Prim::Lit(_) => 0,
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
