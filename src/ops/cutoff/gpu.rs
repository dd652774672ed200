//! The GPU form of the least logit that may be drawn.

use super::Cutoff;
use crate::plan::{AdapterInfo, Step, Wgsl, Word};
use crate::shader::row_group::{Combine, RowGroup};
use crate::shader::{indexable, words};

/// Logits `[V]` to `[1]`.
pub fn cutoff(of: &Cutoff, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let count = step.loads[0].shape.count();
    if !indexable(&[count]) {
        return None;
    }
    // Two words a bin and two a thread.
    let (bits, most) = if adapter.workgroup_bytes >= 32 << 10 { (11, 1024) } else { (8, 256) };
    let workgroup = 1 << adapter.workgroup_threads.clamp(1, most).ilog2();
    let team = RowGroup { workgroup, size: workgroup, col_major: false };
    let largest = Combine { ty: "u32", expr: "max(a, b)", builtin: Some("subgroupMax") };
    let source = format!("{}{}", include_str!("cutoff.wgsl"), team.function("team_max", largest, adapter));
    let k = if of.top_k < count { of.top_k } else { 0 };
    let mut list = words(&[count, k])?;
    list.extend([of.top_p, 1.0 / of.temperature, of.temperature * of.min_p.ln()].map(|v| Word::F32((v as f32).max(-3e38))));
    Some(Wgsl {
        source: source.into(),
        consts: vec![("BITS", bits)],
        workgroup,
        grid: [1, 1, 1],
        words: list,
        raw: vec![],
        transposed: vec![],
    })
}
