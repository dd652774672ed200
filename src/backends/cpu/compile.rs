//! Compiles programs to operations over registers: which are chained, where each result lies, how many elements a block has.

use super::chain::{self, FusedInstr, TILE, TileInstr};
use super::lanes::{self, Op};
use super::map::{Compiled, Instr, NO_SLOT};
use crate::dtype::DType;
use crate::plan::{Load, Source, Step, Store};
use crate::scalar::{Inst, Prim, Program, Reg, Unary};
use smallvec::SmallVec;
use std::ops::Range;

/// The most elements of a block.
const MAX_BLOCK_ELEMENTS: usize = 1024;
/// Bytes that the registers of a program should stay within: most of an L1 cache.
const REGISTER_FILE_BYTES: usize = 32 << 10;

/// The code of a load.
pub(super) fn load(load: &Load) -> Compiled {
    compile(&load.program, &[load.program.insts.len() as Reg - 1], &[load.program.dtype()])
}

/// The code of a kernel's store.
pub(super) fn store(store: &Store) -> Compiled {
    compile(&store.program, &[store.program.insts.len() as Reg - 1], &[store.target.dtype])
}

/// One code for all stores of a map, and the sources that it reads: as (store, source).
pub(super) fn map(step: &Step) -> (Compiled, Vec<(usize, usize)>) {
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
            for a in 0..inst.op.arity() {
                inst.args[a] = renamed[inst.args[a] as usize];
            }
            renamed.push(all.push(inst));
        }
        outs.push(renamed[renamed.len() - 1]);
    }
    let dtypes: SmallVec<[DType; 2]> = step.stores.iter().map(|s| s.target.dtype).collect();
    (compile(&all, &outs, &dtypes), sources)
}

/// The code of a program whose results `outs` are stored as `targets`.
fn compile(program: &Program, outs: &[Reg], targets: &[DType]) -> Compiled {
    Compiler::new(program, outs, targets).finish()
}

/// A program while it is compiled.
struct Compiler {
    insts: SmallVec<[Inst; 16]>,
    /// The instructions whose results are written, one per store.
    outs: SmallVec<[Reg; 2]>,
    /// Instructions that are chained, and the links of each chain with the number of links up to each instruction.
    runs: Vec<Range<usize>>,
    chains: Vec<(Vec<FusedInstr>, Vec<usize>)>,
    /// Literals and parameters.
    numbers: Vec<Reg>,
}

/// Who reads each result.
struct Readers {
    /// Whether an operation reads it from its place.
    read: Vec<bool>,
    /// Whether only its own chain does, a tile at a time.
    tiles: Vec<bool>,
}

/// The places of results: numbered, blocks and tiles apart.
struct Places {
    of: Vec<Option<u16>>,
    blocks: usize,
    tiles: usize,
}

/// Appends conversions of results in another compute type than their target's; gives the results that are stored.
fn converted(insts: &mut SmallVec<[Inst; 16]>, outs: &[Reg], targets: &[DType]) -> SmallVec<[Reg; 2]> {
    let mut convert = |(&out, &target): (&Reg, &DType)| {
        if insts[out as usize].dtype.compute() == target.compute() {
            return out;
        }
        insts.push(Inst { op: Prim::Cast, args: [out, 0, 0], dtype: target });
        (insts.len() - 1) as Reg
    };
    outs.iter().zip(targets).map(&mut convert).collect()
}

impl Compiler {
    fn new(program: &Program, outs: &[Reg], targets: &[DType]) -> Compiler {
        let mut insts: SmallVec<[Inst; 16]> = program.insts.iter().copied().collect();
        let mut outs = converted(&mut insts, outs, targets);
        let runs = chain::gather(&mut insts, &mut outs);
        let numbers: Vec<Reg> = (0..insts.len() as Reg).filter(|&i| insts[i as usize].op.is_number()).collect();
        let chains = runs.iter().map(|run| chain::compile(&insts, run.clone(), &|r| numbers.contains(&r))).collect();
        Compiler { insts, outs, runs, chains, numbers }
    }

    fn finish(self) -> Compiled {
        let Readers { read, tiles } = self.readers();
        let uniform = self.uniform_arguments();
        let spread = self.spread_numbers(&uniform);
        let places = self.assign_places(&read, &tiles);
        let items = self.items(&read, &uniform, &places);
        let narrow = spread.iter().filter(|s| !**s).count();
        let (block, register) = self.block_size(places.blocks - narrow);
        let tiles_at = places.blocks * register;
        let slot = |i: usize| match places.of[i] {
            None => NO_SLOT,
            Some(p) if tiles[i] => tiles_at + p as usize * TILE * 4,
            Some(p) => p as usize * register,
        };
        let op = |(i, &uniform): (&Inst, &Option<u8>)| Op {
            prim: i.op,
            args: i.args,
            dtype: i.dtype,
            from: self.insts[i.args[0] as usize].dtype,
            uniform,
        };
        let ops: Vec<Op> = self.insts.iter().zip(&uniform).map(op).collect();
        Compiled {
            identity: ops.len() == 1 && matches!(ops[0].prim, Prim::Source(0) | Prim::Value),
            slots: (0..ops.len()).map(slot).collect(),
            still: (0..ops.len()).map(|i| tiles[i] || ops[i].prim.is_number()).collect(),
            scratch: tiles_at + places.tiles * TILE * 4,
            ops,
            items,
            tiles,
            read,
            numbers: self.numbers,
            spread,
            outs: self.outs,
            block,
        }
    }

    fn is_number(&self, r: Reg) -> bool {
        self.insts[r as usize].op.is_number()
    }
    fn is_out(&self, i: usize) -> bool {
        self.outs.contains(&(i as Reg))
    }
    /// The chain that an instruction belongs to.
    fn run_of(&self, i: usize) -> Option<usize> {
        self.runs.iter().position(|r| r.contains(&i))
    }

    /// Who reads each result from memory: nobody, its own chain, or others as well.
    fn readers(&self) -> Readers {
        let n = self.insts.len();
        let (mut read, mut outside) = (vec![false; n], vec![false; n]);
        for (run, (links, _)) in self.runs.iter().zip(&self.chains) {
            for v in links.iter().filter(|l| l.reads()).map(|l| l.value as usize) {
                read[v] = true;
                outside[v] |= !run.contains(&v);
            }
        }
        for (_, inst) in self.insts.iter().enumerate().filter(|&(i, _)| self.run_of(i).is_none()) {
            for &a in inst.reads() {
                (read[a as usize], outside[a as usize]) = (true, true);
            }
        }
        let tiles = (0..n).map(|i| self.run_of(i).is_some() && !outside[i] && !self.is_out(i)).collect();
        Readers { read, tiles }
    }

    /// The last instruction that reads each result; none after it for those that are written.
    fn last_reads(&self) -> Vec<usize> {
        let mut last = vec![0; self.insts.len()];
        for (i, inst) in self.insts.iter().enumerate() {
            inst.reads().iter().for_each(|&a| last[a as usize] = i);
        }
        self.outs.iter().for_each(|&o| last[o as usize] = usize::MAX);
        last
    }

    /// Gives each result a place, which later results take over once nobody reads it any more.
    fn assign_places(&self, read: &[bool], tiles: &[bool]) -> Places {
        let last = self.last_reads();
        let (mut free, mut count) = ([SmallVec::<[u16; 16]>::new(), SmallVec::new()], [0u16; 2]);
        let mut of: Vec<Option<u16>> = Vec::with_capacity(self.insts.len());
        for (i, inst) in self.insts.iter().enumerate() {
            let kind = tiles[i] as usize;
            let mut fresh = || {
                count[kind] += 1;
                count[kind] - 1
            };
            of.push(match inst.op {
                Prim::Value => None,
                op if op.is_number() => Some(fresh()),
                _ if tiles[i] && !read[i] => None,
                _ => Some(free[kind].pop().unwrap_or_else(fresh)),
            });
            // Freed only now: a result never takes the place of its own arguments.
            let args = inst.reads();
            for (k, &arg) in args.iter().enumerate() {
                let a = arg as usize;
                if let Some(place) = of[a].filter(|_| last[a] == i && !self.is_number(arg) && !args[..k].contains(&arg)) {
                    free[tiles[a] as usize].push(place);
                }
            }
        }
        Places { of, blocks: count[0] as usize, tiles: count[1] as usize }
    }

    /// The argument of each instruction that may be one number for all elements.
    fn uniform_arguments(&self) -> SmallVec<[Option<u8>; 16]> {
        let uniform = |i: &Inst| match (self.is_number(i.args[0]), self.is_number(i.args[1])) {
            _ if !Op::takes_uniform(i.op, self.insts[i.args[0] as usize].dtype) => None,
            (true, false) => Some(0),
            (false, true) => Some(1),
            _ => None,
        };
        self.insts.iter().map(uniform).collect()
    }

    /// Whether each number has to fill a block: not where it is only ever the one uniform argument of its users.
    fn spread_numbers(&self, uniform: &[Option<u8>]) -> Vec<bool> {
        let spread = |&number: &Reg| {
            let used_as_block = |(i, inst): (usize, &Inst)| {
                self.run_of(i).is_none() && uniform[i].is_none_or(|u| inst.args[1 - u as usize] == number) && inst.reads().contains(&number)
            };
            self.outs.contains(&number) || self.insts.iter().enumerate().any(used_as_block)
        };
        self.numbers.iter().map(spread).collect()
    }

    /// How many elements a block has where this many registers hold one, and the bytes of a register.
    fn block_size(&self, registers: usize) -> (usize, usize) {
        let width = if self.insts.iter().any(|i| lanes::wide(i.dtype)) { 8 } else { 4 };
        let mut block = MAX_BLOCK_ELEMENTS;
        while block > 256 && block * width * registers > REGISTER_FILE_BYTES {
            block /= 2;
        }
        // A distance that is not a power of two keeps registers out of each other's cache sets.
        (block, block * width + 64)
    }

    /// What is done for a block, in order: instructions one by one, and chains.
    fn items(&self, read: &[bool], uniform: &[Option<u8>], places: &Places) -> Vec<Instr> {
        let mut items = Vec::with_capacity(self.insts.len());
        for i in 0..self.insts.len() {
            match self.run_of(i) {
                None => items.push(Instr::One(i as u16)),
                Some(run) if i == self.runs[run].start => items.push(self.chain(run, read, uniform, places)),
                Some(_) => {}
            }
        }
        items
    }

    /// A chain with the links that save results.
    fn chain(&self, run: usize, read: &[bool], uniform: &[Option<u8>], places: &Places) -> Instr {
        let (run, (links, ends)) = (self.runs[run].clone(), &self.chains[run]);
        let first = run.start;
        let (mut all, mut done) = (Vec::new(), 0);
        for (i, &end) in run.clone().zip(ends) {
            all.extend_from_slice(&links[done..end]);
            done = end;
            if read[i] || self.is_out(i) {
                all.push(FusedInstr { act: TileInstr::Save, call: Unary::Neg, value: i as u16 });
            }
        }
        // One alone is a loop over it, unless its bits would differ from a chain's or nobody reads its result, which then has no place.
        let reads_number_as_block =
            self.insts[first].reads().iter().enumerate().any(|(k, &a)| self.is_number(a) && uniform[first] != Some(k as u8));
        let plain = all.iter().all(|l| l.act.is_plain()) && !reads_number_as_block && places.of[first].is_some();
        Instr::Chain(all, (run.len() == 1 && plain).then_some(first as u16))
    }
}
