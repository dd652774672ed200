//! WGSL functions that read rows eight elements at a time: 16 bytes of halves in one access where an operand lies in memory like that.

use super::row_group::RowGroup;
use super::template::TemplateValue;
use super::{StartParams, start};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, Source};

/// Vectors of eight that a row that is not resident has under way for a thread.
const PREFETCH: u32 = 4;

/// What comes of a vector of eight that reaches beyond its row's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// Elements of the row stand in.
    Any,
    /// `REST` does, but for vectors that lie beyond the end as a whole.
    Rest,
}

/// In which form a load's rows are read, eight elements at a time: what `vec16.wgsl` is included with.
#[derive(Clone, Copy)]
pub struct Vec16Form {
    /// Where the operand begins, if its buffer is read; otherwise a vector is eight f32.
    pub raw: Option<StartParams>,
    f16: bool,
    quads: bool,
    guarded: bool,
}

impl Vec16Form {
    /// The form for a load that is rows of `size` elements.
    pub fn of(load: &Load, size: usize, beyond: Beyond) -> Vec16Form {
        let whole = |s: &&Source| {
            let aligned = s.layout.offset.is_multiple_of(8) && (s.offset.is_none() || s.aligned);
            s.layout.is_contiguous() && size.is_multiple_of(8) && aligned && matches!(s.dtype, DType::F16 | DType::BF16)
        };
        let plain = load.plain().filter(whole);
        Vec16Form {
            raw: plain.and_then(start).map(StartParams::from),
            f16: plain.is_some_and(|s| s.dtype == DType::F16),
            quads: size.is_multiple_of(4),
            guarded: beyond == Beyond::Rest && !size.is_multiple_of(8),
        }
    }
    /// The start, as the last parameters of a kernel.
    pub fn start(&self) -> StartParams {
        self.raw.unwrap_or(StartParams::ABSENT)
    }
    /// What the names that `vec16.wgsl` asks about stand for.
    pub fn values(&self) -> [(&'static str, TemplateValue); 4] {
        [("RAW", self.raw.is_some().into()), ("F16", self.f16.into()), ("QUADS", self.quads.into()), ("GUARDED", self.guarded.into())]
    }
}

/// How the threads of a kernel over rows share them, eight elements at a time.
#[derive(Clone, Copy, Debug)]
pub struct RowTiling {
    /// The threads of a row.
    pub group: RowGroup,
    /// Rows of a row group.
    pub group_rows: u32,
    /// Vectors of eight of a row that a thread keeps in registers, or 0 where the row is too long.
    pub resident: u32,
    vec: bool,
    eights: bool,
}

impl RowTiling {
    /// For `rows` of `cols` elements that are read in this form; `stored` says whether as many are written.
    pub fn new(rows: usize, cols: usize, form: &Vec16Form, stored: bool, adapter: &AdapterInfo) -> RowTiling {
        let number = cols.div_ceil(8).max(1);
        let most = adapter.workgroup_threads.clamp(1, 1024);
        let subgroup = if adapter.subgroup > 0 { adapter.subgroup } else { 32.min(most) };
        let wide = 256.min(most);
        let (workgroup, size) = if number == 1 && rows >= 64 {
            (wide, 1)
        } else if number <= 4 * subgroup as usize && (rows >= adapter.tuning.rows.subgroup_min_rows || number <= subgroup as usize) {
            // Few rows: small workgroups spread over more of the GPU.
            ((if rows >= adapter.tuning.rows.multi_row_min_rows { wide } else { wide.min(128) }).max(subgroup), subgroup)
        } else {
            let size = [128, 256, 512, 1024]
                .into_iter()
                .find(|&n| number <= 4 * n && (n > 128 || rows < adapter.tuning.rows.subgroup_min_rows))
                .unwrap_or(1024);
            // What is read only once needs no memory, and small workgroups take turns better.
            let size = if stored || rows < adapter.tuning.rows.subgroup_min_rows { size } else { size.min(256) };
            let size = (size as u32).min(most);
            (size, size)
        };
        let group = RowGroup { workgroup, size, col_major: false };
        let registers = if form.raw.is_some() { 4 } else { 8 };
        let room = if workgroup >= 1024 { 32 } else { 64 };
        let room = if stored { room } else { 32 };
        let resident = Some(number.div_ceil(size as usize)).filter(|h| h * registers <= room).unwrap_or(0) as u32;
        let several = if stored { 2 } else { 1 };
        let fits = size > 1 && size <= subgroup && resident > 0 && several * resident * registers as u32 <= 64;
        let group_rows = if fits && rows >= adapter.tuning.rows.multi_row_min_rows { several } else { 1 };
        RowTiling { group, group_rows, resident, vec: cols.is_multiple_of(4), eights: cols.is_multiple_of(8) }
    }
    /// Workgroups.
    pub fn groups(&self, rows: usize) -> usize {
        rows.div_ceil((self.group.rows() * self.group_rows) as usize)
    }
    /// Constants of the kernel's code.
    pub fn consts(&self) -> Vec<(&'static str, u32)> {
        let [vec, eights] = [self.vec, self.eights].map(u32::from);
        vec![
            ("ROW_THREADS", self.group.size),
            ("RESIDENT", self.resident),
            ("GROUP_ROWS", self.group_rows),
            ("VEC", vec),
            ("EIGHTS", eights),
        ]
    }
    /// What names in the kernel's template stand for.
    pub fn values(&self) -> [(&'static str, TemplateValue); 5] {
        let (vec, eights) = (self.vec.into(), self.eights.into());
        [
            ("RESIDENT", self.resident.into()),
            ("GROUP_ROWS", self.group_rows.into()),
            ("PREFETCH", PREFETCH.into()),
            ("VEC", vec),
            ("EIGHTS", eights),
        ]
    }
}
