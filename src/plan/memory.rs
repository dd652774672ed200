//! How a plan uses memory for its intermediates: the order that was asked for, the planned bytes, and the least that would do.

use super::{Plan, Source, Step};
use std::fmt;
use std::str::FromStr;

/// In which order a plan's steps run and its intermediates are placed. Results are the same bits in every order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BufferOrder {
    /// The best of up to three passes (time, size, search), and never more bytes than `Program`.
    #[default]
    Auto,
    /// Steps as the program wrote them; each value takes the smallest free slot that is large enough.
    Program,
    /// On a device whose steps may read and write parts of one buffer: values in one buffer, in order of first use. Elsewhere as `Program`.
    Spatial,
    /// Steps are moved so that values are read soon after they are written: the least sum of bytes times steps from write to last read.
    Temporal,
    /// The largest values are placed first.
    Size,
    /// As `Program`, with rows of intermediates padded to whole memory transactions, and off the multiples of 4 KiB, where only elementwise
    /// steps touch them: the sums of kernels would have other bits.
    Workgroup,
}

impl BufferOrder {
    /// Every order.
    pub const ALL: [BufferOrder; 6] =
        [BufferOrder::Program, BufferOrder::Spatial, BufferOrder::Temporal, BufferOrder::Size, BufferOrder::Workgroup, BufferOrder::Auto];

    /// The name, as `TL_ORDER` takes it.
    pub fn name(self) -> &'static str {
        match self {
            BufferOrder::Auto => "auto",
            BufferOrder::Program => "program",
            BufferOrder::Spatial => "spatial",
            BufferOrder::Temporal => "temporal",
            BufferOrder::Size => "size",
            BufferOrder::Workgroup => "workgroup",
        }
    }
}

impl fmt::Display for BufferOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BufferOrder {
    type Err = String;
    fn from_str(name: &str) -> Result<BufferOrder, String> {
        let known = |o: &BufferOrder| o.name() == name.trim().to_lowercase();
        let all = || BufferOrder::ALL.map(BufferOrder::name).join(", ");
        BufferOrder::ALL.into_iter().find(known).ok_or_else(|| format!("{name:?} is not a buffer order; expected one of {}", all()))
    }
}

/// What the planner of memory found out about a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanMemory {
    /// The order that was asked for.
    pub order: BufferOrder,
    /// Bytes of intermediates that are live at the same step, at most. No placement of this order of steps needs fewer.
    pub most_live: usize,
    /// Passes of `Auto` that ran; 0 where the program's order already needs no more bytes than are live.
    pub passes: usize,
    /// Steps that do not run in the program's place.
    pub moved_steps: usize,
    /// Intermediates whose rows are padded.
    pub padded: usize,
}

impl Plan {
    /// Bytes of all slots.
    pub fn planned_bytes(&self) -> usize {
        self.slots.iter().sum()
    }

    /// The planned bytes beyond those that are live at most, as a part of the latter; 0 for a plan without intermediates.
    pub fn slack(&self) -> f64 {
        match self.memory.most_live {
            0 => 0.0,
            live => self.planned_bytes() as f64 / live as f64 - 1.0,
        }
    }

    /// For each read of an intermediate the bytes that steps moved since the same memory was last touched, with the bytes read: what a cache
    /// must hold for the read not to go to memory.
    pub fn reuse_distances(&self) -> Vec<(u64, u64)> {
        // Of each slot the ranges that were touched, and the bytes moved until then.
        let mut touched: Vec<Vec<((isize, isize), u64)>> = vec![Vec::new(); self.slots.len()];
        let (mut moved, mut distances) = (0, Vec::new());
        // Where the range is not known before the run, it may be all of the slot.
        let bytes = |s: &Source| match (s.range(), s.buf.start() as isize, s.dtype.block_bytes() as isize) {
            (Some((low, high)), start, size) => (start + low * size, start + (high + 1) * size),
            (None, ..) => (0, isize::MAX),
        };
        for step in &self.steps {
            for source in step.reads() {
                if let Some(n) = source.buf.slot() {
                    let (from, to) = bytes(source);
                    let meets = |((start, end), _): &&((isize, isize), u64)| *start < to && from < *end;
                    let last = touched[n as usize].iter().filter(meets).map(|t| t.1).max();
                    distances.extend(last.map(|then| (moved - then, source.distinct_bytes())));
                }
            }
            moved += step.bytes();
            for source in step.reads().chain(step.stores.iter().map(|s| &s.target)) {
                if let Some(n) = source.buf.slot() {
                    let (range, list) = (bytes(source), &mut touched[n as usize]);
                    list.retain(|t| t.0 != range);
                    list.push((range, moved));
                }
            }
        }
        distances
    }
}

impl Step {
    /// What the step reads: the sources of its loads, and those of its stores' programs.
    pub fn reads(&self) -> impl Iterator<Item = &Source> {
        self.loads.iter().flat_map(|l| &l.sources).chain(self.stores.iter().flat_map(|s| &s.sources))
    }
}
