//! The backend-independent program of one evaluation: steps over numbered buffers. A plan refers to no op and no graph, owns no memory, and prints as text.

mod capabilities;
mod hash;
mod kernel;
mod matrix_elements;
mod memory;
mod stats;
mod task;

pub use capabilities::Capabilities;
pub(crate) use hash::IdentityHasher;
pub use kernel::*;
pub use matrix_elements::{ElementBit, MatrixElements};
pub use memory::{BufferOrder, PlanMemory};
pub use stats::*;
pub use task::*;

use crate::dtype::DType;
use crate::error::At;
use crate::layout::Layout;
use crate::scalar::Program;
use crate::shape::Shape;
use std::fmt;
use std::sync::Arc;

/// A buffer as a plan names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Buf {
    /// A stored tensor bound by the caller; read, or written in place if `Plan::inputs` says so.
    Input(u16),
    /// A result that outlives the run.
    Output(u16),
    /// Scratch leased for the run; several values take turns in one slot.
    Slot(u16),
    /// A part of a slot beside others of it. Kernels see a buffer of its own.
    Window {
        /// The slot.
        slot: u16,
        /// Its first byte there, in units of [`WINDOW_UNIT`].
        start: u32,
        /// Its size in the same units.
        units: u32,
    },
    /// No memory: element k has the value k (u32).
    Iota,
}

/// Bytes of which windows of slots are made: every API can bind a buffer from a multiple of them on.
pub const WINDOW_UNIT: usize = 256;

impl Buf {
    /// The slot that it is or lies in.
    pub fn slot(self) -> Option<u16> {
        match self {
            Buf::Slot(slot) | Buf::Window { slot, .. } => Some(slot),
            _ => None,
        }
    }
    /// Its first byte in the memory that it is part of.
    pub fn start(self) -> usize {
        if let Buf::Window { start, .. } = self { start as usize * WINDOW_UNIT } else { 0 }
    }
}

/// Where an operand's elements lie: buffer, element type, strides over the step's iteration shape, and a start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The buffer.
    pub buf: Buf,
    /// The type stored there.
    pub dtype: DType,
    /// Sizes and strides in elements. `layout.offset` is the constant part of the start.
    pub layout: Layout,
    /// The run-time part of the start: a parameter's index, in elements.
    pub offset: Option<u16>,
    /// Whether constant and run-time start are each known to be a multiple of 8 elements.
    pub aligned: bool,
}

/// A value that a kernel reads: element `i` (row-major in `shape`) is `program` over element `i` of each source.
#[derive(Clone, Debug)]
pub struct Load {
    /// The logical shape that the kernel sees.
    pub shape: Shape,
    /// Fused elementwise work, often the identity.
    pub program: Program,
    /// What the program reads. Each layout has as many elements as `shape`, in the same row-major order, with the fewest dimensions that say so.
    pub sources: Vec<Source>,
}

/// A value that a kernel writes: `program` over the kernel's value and the sources, rounded to the target's dtype.
#[derive(Clone, Debug)]
pub struct Store {
    /// The logical shape that the kernel sees.
    pub shape: Shape,
    /// Fused elementwise work, often just `value`.
    pub program: Program,
    /// What the program reads besides the value, as in `Load`.
    pub sources: Vec<Source>,
    /// Where results go; its layout has as many elements as `shape`, in the same order, and may be a window of a larger buffer.
    pub target: Source,
}

impl Load {
    /// The one source, when the program only passes it on.
    pub fn plain(&self) -> Option<&Source> {
        self.program.is_identity().then(|| &self.sources[0])
    }
    /// The dtype of the values.
    pub fn dtype(&self) -> DType {
        self.program.dtype()
    }
    /// These values with the last two dimensions exchanged; `None` if a source's layout does not allow it.
    pub fn transposed(&self) -> Option<Load> {
        let rank = self.shape.rank();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank.checked_sub(2)?, rank - 1);
        let turn = |s: &Source| {
            let layout = s.layout.reshape(self.shape)?.permute(&order);
            Some(Source { layout: layout.simplified(), ..s.clone() })
        };
        let sources = self.sources.iter().map(turn).collect::<Option<Vec<_>>>()?;
        Some(Load { shape: Layout::contiguous(self.shape).permute(&order).shape, program: self.program.clone(), sources })
    }
}

impl Store {
    /// Whether the kernel's value goes to row-major memory unchanged but for rounding.
    pub fn plain(&self) -> Option<&Source> {
        (self.program.is_value() && self.target.layout.is_contiguous()).then_some(&self.target)
    }
}

/// What a step does between its loads and its stores.
#[derive(Clone)]
pub enum Work {
    /// Nothing: each store's program runs over its own sources, element by element. All stores have one shape.
    Map,
    /// A kernel.
    Kernel(Arc<dyn Kernel>),
}

/// One dispatch.
#[derive(Clone)]
pub struct Step {
    /// The op that wrote it.
    pub name: &'static str,
    /// The user's line that wrote the op.
    pub at: At,
    /// What it does.
    pub work: Work,
    /// The kernel's operands.
    pub loads: Vec<Load>,
    /// The kernel's results.
    pub stores: Vec<Store>,
    /// The kernel's run-time parameters, as indices of the plan's parameters.
    pub params: Vec<u16>,
}

/// An input bound by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The stored type.
    pub dtype: DType,
    /// Whether the plan writes into it.
    pub written: bool,
}

/// What a run leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The stored type.
    pub dtype: DType,
    /// Its size in bytes.
    pub bytes: usize,
}

/// Steps in order, with the buffers they use.
pub struct Plan {
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Stored tensors that the caller binds.
    pub inputs: Vec<Input>,
    /// Results.
    pub outputs: Vec<Output>,
    /// Bytes of each slot.
    pub slots: Vec<usize>,
    /// The number of run-time parameters.
    pub params: usize,
    /// How the slots were planned.
    pub memory: PlanMemory,
}

/// How much a plan has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkCost {
    /// Dispatches.
    pub steps: usize,
    /// Elements that are read, written or computed on the way, once for each scalar instruction.
    pub elements: u64,
    /// Floating-point operations of kernels.
    pub ops: u64,
    /// Whether some kernel has no CPU form.
    pub device_only: bool,
}

impl Plan {
    /// How much there is to do.
    pub fn amount(&self) -> WorkCost {
        let mut a = WorkCost { steps: self.steps.len(), ..WorkCost::default() };
        for s in &self.steps {
            let cells = |shape: &Shape, p: &Program| shape.count() as u64 * p.insts.len().max(1) as u64;
            a.elements += s.loads.iter().map(|l| cells(&l.shape, &l.program)).sum::<u64>();
            a.elements += s.stores.iter().map(|st| cells(&st.shape, &st.program)).sum::<u64>();
            if let Work::Kernel(k) = &s.work {
                a.ops = a.ops.saturating_add(k.ops(s));
                a.device_only |= !k.portable();
            }
        }
        a
    }
    /// The first step that writes to a slot.
    pub fn slot_writer(&self, slot: usize) -> Option<&Step> {
        self.steps.iter().find(|s| s.stores.iter().any(|st| st.target.buf.slot().is_some_and(|n| n as usize == slot)))
    }
    /// The first step that writes to a buffer.
    pub fn writer(&self, buf: Buf) -> Option<&Step> {
        self.steps.iter().find(|s| s.stores.iter().any(|st| st.target.buf == buf))
    }
}

impl Source {
    /// The first and the last element that is touched; `None` where that is not known before the run.
    pub fn range(&self) -> Option<(isize, isize)> {
        if self.offset.is_some() {
            return None;
        }
        let at = self.layout.offset as isize;
        let steps = || self.layout.shape.iter().zip(self.layout.strides()).map(|(&n, &st)| (n as isize - 1).max(0) * st);
        Some((at + steps().map(|d| d.min(0)).sum::<isize>(), at + steps().map(|d| d.max(0)).sum::<isize>()))
    }
    /// Whether both may touch the same memory.
    pub fn may_overlap(&self, other: &Source) -> bool {
        let apart = |((a, b), (c, d)): ((isize, isize), (isize, isize))| b < c || d < a;
        self.buf == other.buf && !(self.dtype == other.dtype && self.range().zip(other.range()).is_some_and(apart))
    }
    /// Bytes that are read or written at least: each distinct element once.
    pub fn distinct_bytes(&self) -> u64 {
        let l = &self.layout;
        let count: usize = l.shape.iter().zip(l.strides()).map(|(&d, &s)| if s == 0 { d.min(1) } else { d }).product();
        if self.buf == Buf::Iota { 0 } else { (count / self.dtype.block() * self.dtype.block_bytes()) as u64 }
    }
}

impl Step {
    /// What captures of a GPU's work call the step: its op and the user's line, `matmul examples/x.rs:12`.
    pub fn label(&self) -> String {
        format!("{} {}:{}", self.name, self.at.file(), self.at.line())
    }

    /// Bytes that the step has to move between memory and the processor: every operand once, results included. A table of which only a
    /// part is read counts with what the operations can use.
    pub fn bytes(&self) -> u64 {
        let mut seen: Vec<&Source> = Vec::new();
        let most = |load: usize| match &self.work {
            Work::Kernel(k) => k.most_read(self, load),
            Work::Map => u64::MAX,
        };
        let loads = self.loads.iter().enumerate().map(|(n, l)| (&l.sources, most(n)));
        let stores = self.stores.iter().map(|s| (&s.sources, u64::MAX));
        let mut bytes = 0;
        for (s, most) in loads.chain(stores).flat_map(|(list, most)| list.iter().map(move |s| (s, most))) {
            if !seen.contains(&s) {
                seen.push(s);
                bytes += s.distinct_bytes().min(most);
            }
        }
        bytes + self.stores.iter().map(|s| s.target.distinct_bytes()).sum::<u64>()
    }

    /// Arithmetic operations: the kernel's, and those of fused programs, once an element.
    pub fn operations(&self) -> u64 {
        let own = match &self.work {
            Work::Kernel(k) => k.ops(self),
            Work::Map => 0,
        };
        let loads = self.loads.iter().map(|l| l.shape.count() * l.program.arithmetic());
        let stores = self.stores.iter().map(|s| s.shape.count() * s.program.arithmetic());
        own + loads.chain(stores).sum::<usize>() as u64
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, s) in self.steps.iter().enumerate() {
            write!(f, "%{n} = {}", s.name)?;
            for (i, l) in s.loads.iter().enumerate() {
                write!(f, "{}{}", if i > 0 { " · " } else { " " }, ProgramOver(&l.program, &l.sources, &l.shape))?;
            }
            for st in &s.stores {
                match &s.work {
                    Work::Map => write!(f, " {}", ProgramOver(&st.program, &st.sources, &st.shape))?,
                    Work::Kernel(_) if st.program.is_value() => {}
                    Work::Kernel(_) => write!(f, " → {}", ProgramOver(&st.program, &st.sources, &st.shape))?,
                }
                write!(f, " ⇒ {} {}{}", Name(st.target.buf), st.target.dtype, st.shape)?;
            }
            writeln!(f)?;
        }
        write!(f, "{} dispatch{}", self.steps.len(), if self.steps.len() == 1 { "" } else { "es" })?;
        if !self.slots.is_empty() {
            let (slots, m) = (self.slots.len(), self.memory);
            write!(f, ", {slots} slot{} of {} bytes", if slots == 1 { "" } else { "s" }, self.planned_bytes())?;
            write!(f, "; order {}: {} bytes live at most, slack {:.1} %", m.order, m.most_live, 100.0 * self.slack())?;
        }
        writeln!(f)
    }
}

struct Name(Buf);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Buf::Input(n) => write!(f, "in{n}"),
            Buf::Output(n) => write!(f, "out{n}"),
            Buf::Slot(n) => write!(f, "slot{n}"),
            Buf::Window { slot, .. } => write!(f, "slot{slot}+{}", self.0.start()),
            Buf::Iota => f.write_str("iota"),
        }
    }
}

struct ProgramOver<'a>(&'a Program, &'a [Source], &'a Shape);

impl fmt::Display for ProgramOver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        for (i, s) in self.1.iter().enumerate().rev() {
            text =
                text.replace(&format!("s{i}"), &format!("{}:{}{}", Name(s.buf), s.dtype, if s.layout.is_contiguous() { "" } else { "'" }));
        }
        write!(f, "{text} {}", self.2)
    }
}
