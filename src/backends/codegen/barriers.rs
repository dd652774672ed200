//! Where steps of a plan meet: which of them must wait for those before, computed once for each plan by ranges of bytes.

use super::{Bound, StepShader};
use crate::plan::{Buf, Source, Step};

/// Bytes to which ranges are rounded: kernels write whole words, and read rows of four.
const GRANULE: usize = 16;

/// Bytes that a step reads or writes.
#[derive(Clone, Debug, PartialEq)]
struct Access {
    buffer: Bound,
    written: bool,
    start: usize,
    end: usize,
}

impl Access {
    fn whole(buffer: Bound, written: bool) -> Access {
        Access { buffer, written, start: 0, end: usize::MAX }
    }
    fn of(source: &Source, written: bool) -> Access {
        let whole = Access::whole(Bound::Plan(source.buf.slot().map_or(source.buf, Buf::Slot)), written);
        // A block's elements share its scales; a start that is a parameter is not known before the run.
        let Some((first, last)) = source.range().filter(|(first, _)| *first >= 0 && source.dtype.block() == 1) else { return whole };
        let (bytes, from) = (source.dtype.block_bytes(), source.buf.start());
        let (start, end) = (from + first as usize * bytes / GRANULE * GRANULE, from + (last as usize + 1) * bytes);
        Access { start, end: end.next_multiple_of(GRANULE), ..whole }
    }
    /// Whether one must wait for the other.
    fn meets(&self, other: &Access) -> bool {
        (self.written || other.written) && self.buffer == other.buffer && self.start < other.end && other.start < self.end
    }
}

/// What a step reads and writes. Its error record counts as one that no other step has; steps take turns.
fn accesses(step: &Step, shader: &StepShader, record: usize) -> Vec<Access> {
    let reads = step.loads.iter().flat_map(|l| &l.sources).chain(step.stores.iter().flat_map(|s| &s.sources));
    let mut all: Vec<Access> = reads.filter(|s| s.buf != Buf::Iota).map(|s| Access::of(s, false)).collect();
    all.extend(step.stores.iter().map(|s| Access::of(&s.target, true)));
    for view in &shader.views {
        match view.buf {
            Bound::Plan(_) | Bound::Codebooks => {}
            Bound::Errors(_) => all.push(Access::whole(Bound::Errors(record), true)),
            Bound::Scratch => all.push(Access::whole(Bound::Scratch, true)),
        }
    }
    all
}

/// What was read and written since the last barrier.
#[derive(Default)]
pub(in crate::backends) struct Barriers {
    open: Vec<Access>,
    /// How many barriers there are so far.
    pub count: usize,
}

impl Barriers {
    /// Whether a barrier must stand before this step, which follows those that were asked about before.
    pub fn before(&mut self, step: &Step, shader: &StepShader, record: usize) -> bool {
        let own = accesses(step, shader, record);
        let needed = own.iter().any(|a| self.open.iter().any(|b| a.meets(b)));
        if needed {
            self.open.clear();
            self.count += 1;
        }
        self.open.extend(own);
        needed
    }

    /// Begins anew, behind a barrier or at the start of a command buffer.
    pub fn restart(&mut self) {
        self.open.clear();
    }
}
