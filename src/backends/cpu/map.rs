//! Compiled programs, run block by block over registers.

use super::chain::{self, FusedInstr, TileInstr, TileOperand};
use super::lanes::{self, Blocks, Op};
use super::span::{StridedView, stream_copy};
use crate::dtype::DType;
use crate::scalar::{Prim, Unary};
use smallvec::SmallVec;

/// The slot of a result that has no place in the register file.
pub(super) const NO_SLOT: usize = usize::MAX;

/// What is done for a block.
#[derive(Debug)]
pub(super) enum Instr {
    /// One operation.
    One(u16),
    /// Operations whose values stay in registers; where there is only one, which: `One` begins sooner.
    Chain(Vec<FusedInstr>, Option<u16>),
}

/// A program ready to run, with one or several results.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(super) ops: Vec<Op>,
    pub(super) items: Vec<Instr>,
    /// The place of each result in the register file, in bytes.
    pub(super) slots: Vec<usize>,
    /// The results that only their chain reads: their place holds a tile.
    pub(super) tiles: Vec<bool>,
    /// The results of which a chain finds each tile at the same place: those above, and numbers.
    pub(super) still: Vec<bool>,
    /// Whether another operation reads a result from its place.
    pub(super) read: Vec<bool>,
    /// Literals and parameters, filled in once per run.
    pub(super) numbers: Vec<u16>,
    /// Whether each of them fills a block, or is one number.
    pub(super) spread: Vec<bool>,
    /// The operations whose results are written, one per store.
    pub(super) outs: SmallVec<[u16; 2]>,
    /// Elements of a block.
    pub(super) block: usize,
    /// Bytes of all places.
    pub(super) scratch: usize,
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

/// What a program is run on.
pub(crate) struct Operands<'a> {
    pub sources: &'a [StridedView<'a>],
    pub params: &'a [f64],
    /// The kernel's values of the elements that are computed, where the program has some.
    pub value: *const u8,
    /// The register file.
    pub registers: *mut u8,
    /// Whether the step has many elements, so that what is read is prefetched.
    pub large: bool,
    pub sink: Output<'a>,
}

/// A block of elements: the first, how many were computed before it, and how many it has.
#[derive(Clone, Copy)]
struct Block {
    at: usize,
    done: usize,
    len: usize,
}

impl Compiled {
    /// Bytes of registers that `run` needs.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// The operations, weighted by their cost, from which the number of threads is chosen.
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

    /// Computes elements `start..start + n`.
    ///
    /// # Safety
    /// The views must cover these elements, `registers` must have `scratch()` bytes, 64-byte aligned, and the sink must have room for
    /// the results and belong to nobody else.
    pub(crate) unsafe fn run(&self, on: &Operands<'_>, start: usize, n: usize) {
        // SAFETY: all addresses computed here stay within what the caller vouches for; registers do not overlap each other.
        unsafe {
            let mut places: SmallVec<[*const u8; 24]> = SmallVec::with_capacity(self.ops.len());
            places.extend(self.slots.iter().map(|&s| if s == NO_SLOT { on.value } else { on.registers.add(s).cast_const() }));
            for (&number, &spread) in self.numbers.iter().zip(&self.spread) {
                let op = &self.ops[number as usize];
                let x = match op.prim {
                    Prim::Param(p) => on.params.get(p as usize).copied().unwrap_or(f64::NAN),
                    Prim::Lit(bits) => f64::from_bits(bits),
                    _ => 0.0,
                };
                fill(op.dtype, x, places[number as usize].cast_mut(), if spread { n.min(self.block) } else { 1 });
            }
            let mut done = 0;
            while done < n {
                let len = self.block.min(n - done);
                self.run_block(on, &mut places, Block { at: start + done, done, len });
                done += len;
            }
        }
    }

    /// Where the result of operation `i` may go straight to memory.
    ///
    /// # Safety
    /// See `run`.
    unsafe fn direct(&self, on: &Operands<'_>, i: usize, block: Block) -> Option<*mut u8> {
        let k = self.outs.iter().position(|&o| o as usize == i)?;
        match on.sink {
            // SAFETY: the caller's promise.
            Output::Memory(out) => Some(unsafe { out.add(block.done * self.ops[i].width()) }),
            Output::Targets(targets) => direct_target(&targets[k], block),
            Output::Streams(_) => None,
        }
    }

    /// # Safety
    /// See `run`.
    unsafe fn run_block(&self, on: &Operands<'_>, places: &mut [*const u8], block: Block) {
        // SAFETY: as in `run`.
        unsafe {
            let out_of = |i: usize| self.direct(on, i, block).unwrap_or_else(|| on.registers.add(self.slots[i]));
            for item in &self.items {
                let i = match item {
                    Instr::One(i) => *i as usize,
                    Instr::Chain(_, Some(i)) if !on.large => *i as usize,
                    Instr::Chain(links, _) => {
                        self.run_chain(links, on, places, block);
                        continue;
                    }
                };
                let op = &self.ops[i];
                match op.prim {
                    Prim::Source(s) => {
                        let source = &on.sources[s as usize];
                        let here = if source.direct() { source.in_place(block.at, block.len) } else { None };
                        places[i] = match here {
                            Some(p) => p,
                            None => {
                                let out = out_of(i);
                                source.fetch(block.at, block.len, out);
                                out
                            }
                        };
                    }
                    Prim::Value => places[i] = on.value.add(block.done * op.width()),
                    Prim::Param(_) | Prim::Lit(_) => {}
                    _ => {
                        let out = out_of(i);
                        let args = [0, 1, 2].map(|k| places[op.args[k] as usize]);
                        lanes::run(op, Blocks { args, out, n: block.len });
                        places[i] = out;
                    }
                }
            }
            for (k, &o) in self.outs.iter().enumerate() {
                self.hand_over(on, k, places[o as usize], block);
            }
        }
    }

    /// Brings result `k` of a block from where it lies to where it is wanted.
    ///
    /// # Safety
    /// See `run`.
    unsafe fn hand_over(&self, on: &Operands<'_>, k: usize, from: *const u8, Block { at, done, len }: Block) {
        // SAFETY: as in `run`.
        unsafe {
            match on.sink {
                Output::Memory(out) => {
                    let width = self.ops[self.outs[k] as usize].width();
                    let out = out.add(done * width);
                    if from != out.cast_const() {
                        std::ptr::copy(from, out, len * width);
                    }
                }
                Output::Targets(targets) => {
                    let t = &targets[k];
                    if direct_target(t, Block { at, done, len }).is_none_or(|p| from != p.cast_const()) {
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

    /// Binds a chain's links to this block's memory and runs them.
    ///
    /// # Safety
    /// See `run`.
    unsafe fn run_chain(&self, links: &[FusedInstr], on: &Operands<'_>, places: &mut [*const u8], block: Block) {
        // SAFETY: as in `run`.
        unsafe {
            let mut bound: SmallVec<[TileOperand; 32]> = SmallVec::with_capacity(links.len());
            for link in links {
                let (v, mut act) = (link.value as usize, link.act);
                if on.large && link.reads() && matches!(self.ops[v].prim, Prim::Source(_)) && places[v] != on.registers.add(self.slots[v]) {
                    let fetch = TileOperand { act: TileInstr::Fetch, call: Unary::Neg, at: places[v].cast_mut(), step: 4 };
                    if !bound.iter().any(|b| b.act == TileInstr::Fetch && b.at == fetch.at) {
                        bound.push(fetch);
                    }
                }
                if act == TileInstr::Save && !self.tiles[v] {
                    let stream = match on.sink {
                        Output::Streams(targets) if !self.read[v] => {
                            let target = self.outs.iter().position(|&o| o as usize == v).map(|k| &targets[k]);
                            target.filter(|t| t.direct()).and_then(|t| t.in_place(block.at, block.len)).filter(|p| p.addr() % 64 == 0)
                        }
                        _ => None,
                    };
                    if stream.is_some() {
                        act = TileInstr::Stream;
                    }
                    places[v] = stream.or_else(|| self.direct(on, v, block)).unwrap_or_else(|| on.registers.add(self.slots[v]));
                }
                let step = if self.still[v] { 0 } else { 4 };
                bound.push(TileOperand { act, call: link.call, at: places[v].cast_mut(), step });
            }
            chain::run(&bound, block.len);
        }
    }
}

/// Where a block may be computed in its target: where it lies apart from what is read, in one piece and in the compute type.
fn direct_target(t: &StridedView<'_>, block: Block) -> Option<*mut u8> {
    if t.apart && t.direct() { t.in_place(block.at, block.len) } else { None }
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
            DType::U64 => std::slice::from_raw_parts_mut(out.cast(), n).fill(if x < 0.0 { x as i64 as u64 } else { x as u64 }),
            DType::U32 if dtype == DType::Bool => std::slice::from_raw_parts_mut(out.cast(), n).fill((x != 0.0) as u32),
            DType::U32 => std::slice::from_raw_parts_mut(out.cast(), n).fill(x as i64 as u32),
            DType::I32 => {
                let x = x as i64;
                let x = match dtype {
                    DType::I8 => x as i8 as i32,
                    DType::U8 => x as u8 as i32,
                    DType::I16 => x as i16 as i32,
                    DType::U16 => x as u16 as i32,
                    _ => x as i32,
                };
                std::slice::from_raw_parts_mut(out.cast(), n).fill(x);
            }
            _ => std::slice::from_raw_parts_mut(out.cast(), n).fill(x as f32),
        }
    }
}
