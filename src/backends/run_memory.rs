//! Which memory the buffers of a plan have in its runs.

use super::Repeat;
use super::pool::{AllocId, Allocation, Pool, PoolControl};
use crate::plan::{Buf, Plan};

/// The memory of a plan's buffers: the caller's, and what was leased for its slots.
pub(super) struct RunMemory<'b, B> {
    pub inputs: &'b [&'b B],
    pub outputs: &'b [&'b B],
    pub leased: &'b [B],
    pub repeated: Option<Repeat<'b>>,
}

impl<'b, B> RunMemory<'b, B> {
    /// The memory of a buffer in a run, that of all of the slot for a window. In a chain each run but the first reads what the one before wrote.
    pub fn find(&self, run: usize, buf: Buf) -> Option<&'b B> {
        match buf {
            Buf::Input(n) if run > 0 && self.repeated.is_some_and(|c| c.fed == n as usize) => self.outputs.get(run - 1).copied(),
            Buf::Input(n) => self.inputs.get(n as usize).copied(),
            Buf::Output(_) if self.repeated.is_some() => self.outputs.get(run).copied(),
            Buf::Output(n) => self.outputs.get(n as usize).copied(),
            Buf::Slot(slot) | Buf::Window { slot, .. } => self.leased.get(slot as usize),
            Buf::Iota => None,
        }
    }
}

/// Tells a memory recording what the slots of a plan are for.
pub(super) fn label_slots<A: Allocation>(pool: &Pool<A>, plan: &Plan, ids: impl Iterator<Item = AllocId>) {
    if !pool.recording() {
        return;
    }
    for (n, id) in ids.enumerate() {
        if let Some(step) = plan.slot_writer(n) {
            pool.label(id, step.name, step.at);
        }
    }
}
