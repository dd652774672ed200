//! WGSL functions that combine one value of each thread of a row group: by subgroup operations, and through workgroup memory where those end.

use super::template::Template;
use crate::plan::AdapterInfo;
use crate::tuning::MAX_WORKGROUP_THREADS;

/// How the threads of a workgroup share rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Threads of a workgroup.
    pub workgroup: u32,
    /// Threads of a row group, a power of two.
    pub size: u32,
    /// Whether the members stand `workgroup / size` apart instead of side by side.
    pub col_major: bool,
}

/// What the values are combined with.
#[derive(Clone, Copy, Debug)]
pub struct Combine {
    /// WGSL type of the value.
    pub ty: &'static str,
    /// Expression over `a` and `b`, commutative and associative.
    pub expr: &'static str,
    /// The subgroup builtin that does the same, if there is one.
    pub builtin: Option<&'static str>,
}

/// f32 sum.
pub const SUM: Combine = Combine { ty: "f32", expr: "a + b", builtin: Some("subgroupAdd") };
/// Two f32 sums.
pub const SUMS: Combine = Combine { ty: "vec2<f32>", expr: "a + b", builtin: Some("subgroupAdd") };
/// f32 maximum.
pub const MAX: Combine = Combine { ty: "f32", expr: "max(a, b)", builtin: Some("subgroupMax") };

/// Threads that share a row where there are no subgroups.
const UNGROUPED_THREADS: u32 = 32;
/// Rows that are neighbours in memory of which a workgroup has elements side by side: usually, and at least.
const ROWS_ACROSS: u32 = 32;
const MIN_ROWS_ACROSS: u32 = 8;
/// Threads of such a workgroup at least.
const MIN_COLUMN_THREADS: u32 = 64;
/// Elements of such a row for each of its threads at least, and these at most.
const COLUMN_ELEMENTS: usize = 8;
const MAX_SLICES: usize = 32;

/// Threads of a subgroup, or as many where there are none.
pub fn subgroup_threads(adapter: &AdapterInfo) -> u32 {
    if adapter.subgroup > 0 { adapter.subgroup } else { UNGROUPED_THREADS.min(adapter.workgroup_threads.max(1)) }
}

static ROW_REDUCE: Template = Template::new("row_reduce.wgsl", include_str!("lib/row_reduce.wgsl"));

impl RowGroup {
    /// A row group for rows of `units` loads each, `rows` of them: a thread, a subgroup or a workgroup, so that few threads idle and the GPU is filled.
    pub fn for_rows(rows: usize, units: usize, adapter: &AdapterInfo) -> RowGroup {
        let (most, subgroup, tuning) =
            (adapter.workgroup_threads.clamp(1, MAX_WORKGROUP_THREADS), subgroup_threads(adapter), &adapter.tuning.rows);
        let [narrow, wide] = tuning.workgroup_threads.map(|n| n.min(most));
        let [long, few] = tuning.long_row;
        // A load is a quad.
        let short = 2 * tuning.thread_vectors * subgroup as usize;
        let (workgroup, size) = if units <= 2 && rows >= tuning.thread_min_rows {
            (wide, 1)
        } else if units <= short && (rows >= tuning.subgroup_min_rows || units <= 2 * subgroup as usize) {
            // Few rows: small workgroups spread over more of the GPU.
            ((if rows >= tuning.multi_row_min_rows { wide } else { narrow }).max(subgroup), subgroup)
        } else if units >= long && rows <= few {
            (most, most)
        } else {
            (wide, wide)
        };
        RowGroup { workgroup, size, col_major: false }
    }
    /// A row group for an operand whose rows are neighbours in memory.
    pub fn for_columns(rows: usize, cols: usize, adapter: &AdapterInfo) -> RowGroup {
        let most = adapter.workgroup_threads.clamp(1, MAX_WORKGROUP_THREADS);
        let slices = (cols / COLUMN_ELEMENTS).clamp(1, MAX_SLICES).next_power_of_two() as u32;
        let full = rows >= adapter.tuning.reduce.column_full_rows;
        let threads = if full {
            adapter.tuning.rows.workgroup_threads[1]
        } else {
            (ROWS_ACROSS * slices).clamp(MIN_COLUMN_THREADS, MAX_WORKGROUP_THREADS)
        };
        let workgroup = threads.min(most);
        RowGroup { workgroup, size: slices.min(workgroup / MIN_ROWS_ACROSS).max(1), col_major: true }
    }
    /// Rows of one workgroup.
    pub fn rows(&self) -> u32 {
        self.workgroup / self.size
    }
    /// WGSL of `fn name(v: ty) -> ty`: every thread of a group gets the combination of all. All threads of the workgroup call it.
    ///
    /// The kernel keeps its thread's number in `var<private> thread`.
    pub fn function(&self, name: &'static str, combine: Combine, adapter: &AdapterInfo) -> String {
        self.reduction(name, combine, true, adapter)
    }
    /// The same for a kernel that has a barrier of its own between any two calls.
    pub fn function_once(&self, name: &'static str, combine: Combine, adapter: &AdapterInfo) -> String {
        self.reduction(name, combine, false, adapter)
    }
    fn reduction(&self, name: &'static str, combine: Combine, barrier_after: bool, adapter: &AdapterInfo) -> String {
        let Combine { ty, expr, builtin } = combine;
        let (RowGroup { workgroup, size, col_major }, subgroup) = (*self, adapter.subgroup);
        let in_subgroup = !col_major && size <= subgroup;
        let of_subgroups = !col_major && !in_subgroup && subgroup > 1 && size % subgroup == 0 && workgroup % size == 0;
        let lanes = if in_subgroup { size } else { subgroup.max(1) };
        ROW_REDUCE
            .source(&[
                ("NAME", name.into()),
                ("TYPE", ty.into()),
                ("EXPR", expr.into()),
                ("BUILTIN", builtin.filter(|_| lanes == subgroup).unwrap_or_default().into()),
                ("BARRIER_AFTER", barrier_after.into()),
                ("SIZE", size.into()),
                ("COL_MAJOR", col_major.into()),
                ("IN_SUBGROUP", in_subgroup.into()),
                ("OF_SUBGROUPS", of_subgroups.into()),
                ("LANE_BITS", lanes.ilog2().into()),
                ("SUBGROUP", subgroup.into()),
                ("SUBGROUPS", (size / subgroup.max(1)).into()),
                ("PARTS", if of_subgroups { workgroup / subgroup } else { workgroup }.into()),
                ("STEP", if col_major { workgroup / size } else { 1 }.into()),
            ])
            .into_owned()
    }
}
