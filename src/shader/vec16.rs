//! WGSL functions that read rows eight elements at a time: 16 bytes of halves in one access where an operand lies in memory like that.

use super::row_group::{RowGroup, subgroup_threads};
use super::template::TemplateValue;
use super::{StartParams, start};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, Source};
use crate::tuning::MAX_WORKGROUP_THREADS;
use std::iter::successors;

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
    /// Vectors of eight that a thread has in flight where it keeps none.
    in_flight: u32,
    vec: bool,
    eights: bool,
}

impl RowTiling {
    /// For `rows` of `cols` elements that are read in this form; `stored` says whether as many are written.
    pub fn new(rows: usize, cols: usize, form: &Vec16Form, stored: bool, adapter: &AdapterInfo) -> RowTiling {
        let number = cols.div_ceil(8).max(1);
        let (most, subgroup, tuning) =
            (adapter.workgroup_threads.clamp(1, MAX_WORKGROUP_THREADS), subgroup_threads(adapter), &adapter.tuning.rows);
        let [narrow, wide] = tuning.workgroup_threads;
        let few = rows < tuning.subgroup_min_rows;
        let held_by = |threads: u32| number <= tuning.thread_vectors * threads as usize;
        let (workgroup, size) = if number == 1 && rows >= tuning.thread_min_rows {
            (wide.min(most), 1)
        } else if held_by(subgroup) && (!few || number <= subgroup as usize) {
            // Few rows: small workgroups spread over more of the GPU.
            ((if rows >= tuning.multi_row_min_rows { wide } else { narrow }).min(most).max(subgroup), subgroup)
        } else {
            let mut sizes = successors(Some(narrow), |n| Some(2 * n)).take_while(|&n| n <= MAX_WORKGROUP_THREADS);
            let size = sizes.find(|&n| held_by(n) && (n > narrow || few)).unwrap_or(MAX_WORKGROUP_THREADS);
            // What is read only once needs no memory, and small workgroups take turns better.
            let size = if stored || few { size } else { size.min(wide) }.min(most);
            (size, size)
        };
        let group = RowGroup { workgroup, size, col_major: false };
        let registers = if form.raw.is_some() { 4 } else { 8 };
        let [most_room, less_room] = tuning.registers;
        let room = if stored && workgroup < MAX_WORKGROUP_THREADS { most_room } else { less_room };
        let resident = Some(number.div_ceil(size as usize)).filter(|h| h * registers <= room).unwrap_or(0) as u32;
        let several = if stored { 2 } else { 1 };
        let fits = size > 1 && size <= subgroup && resident > 0 && several * resident * registers as u32 <= most_room as u32;
        let group_rows = if fits && rows >= tuning.multi_row_min_rows { several } else { 1 };
        RowTiling { group, group_rows, resident, in_flight: tuning.in_flight, vec: cols.is_multiple_of(4), eights: cols.is_multiple_of(8) }
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
            ("PREFETCH", self.in_flight.into()),
            ("VEC", vec),
            ("EIGHTS", eights),
        ]
    }
}
