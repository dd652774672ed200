//! WGSL functions that combine one value of each thread of a team: by subgroup operations, and through workgroup memory where those end.

use crate::plan::AdapterInfo;

/// How the threads of a workgroup share rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Threads of a workgroup.
    pub workgroup: u32,
    /// Threads of a team, a power of two.
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

impl RowGroup {
    /// A team for rows of `units` loads each, `rows` of them: a thread, a subgroup or a workgroup, so that few threads idle and the GPU is filled.
    pub fn for_rows(rows: usize, units: usize, adapter: &AdapterInfo) -> RowGroup {
        let most = adapter.workgroup_threads.clamp(1, 1024);
        let subgroup = if adapter.subgroup > 0 { adapter.subgroup } else { 32.min(most) };
        let wide = 256.min(most);
        let (workgroup, size) = if units <= 2 && rows >= 64 {
            (wide, 1)
        } else if units <= 8 * subgroup as usize && (rows >= adapter.tuning.rows.subgroup_min_rows || units <= 2 * subgroup as usize) {
            // Few rows: small workgroups spread over more of the GPU.
            ((if rows >= adapter.tuning.rows.multi_row_min_rows { wide } else { wide.min(128) }).max(subgroup), subgroup)
        } else if units >= 8192 && rows <= 64 {
            (most, most)
        } else {
            (wide, wide)
        };
        RowGroup { workgroup, size, col_major: false }
    }
    /// A team for an operand whose rows are neighbours in memory.
    pub fn for_columns(rows: usize, cols: usize, adapter: &AdapterInfo) -> RowGroup {
        let most = adapter.workgroup_threads.clamp(1, 1024);
        let slices = (cols / 8).clamp(1, 32).next_power_of_two() as u32;
        let workgroup = if rows >= 1 << 16 { 256.min(most) } else { (32 * slices).clamp(64, 1024).min(most) };
        RowGroup { workgroup, size: slices.min(workgroup / 8).max(1), col_major: true }
    }
    /// Rows of one workgroup.
    pub fn rows(&self) -> u32 {
        self.workgroup / self.size
    }
    /// WGSL of `fn name(v: ty) -> ty`: every member of a team gets the combination of all. All threads of the workgroup call it.
    ///
    /// The kernel keeps its thread's number in `var<private> thread`.
    pub fn function(&self, name: &str, combine: Combine, adapter: &AdapterInfo) -> String {
        self.function_before(name, combine, "  workgroupBarrier();\n", adapter)
    }
    /// The same for a kernel that has a barrier of its own between any two calls.
    pub fn function_once(&self, name: &str, combine: Combine, adapter: &AdapterInfo) -> String {
        self.function_before(name, combine, "", adapter)
    }
    fn function_before(&self, name: &str, combine: Combine, after: &str, adapter: &AdapterInfo) -> String {
        let Combine { ty, expr, builtin } = combine;
        let (RowGroup { workgroup, size, col_major }, subgroup) = (*self, adapter.subgroup);
        if size == 1 {
            return format!("fn {name}(v: {ty}) -> {ty} {{ return v; }}\n");
        }
        let pair = format!("fn {name}_of(a: {ty}, b: {ty}) -> {ty} {{ return {expr}; }}\n");
        let lanes = |n: u32| match builtin {
            Some(f) if n == subgroup => format!("  r = {f}(r);\n"),
            _ => (0..n.ilog2()).rev().map(|o| format!("  r = {name}_of(r, subgroupShuffleXor(r, {}u));\n", 1 << o)).collect(),
        };
        if !col_major && size <= subgroup {
            return format!("{pair}fn {name}(v: {ty}) -> {ty} {{\n  var r = v;\n{}  return r;\n}}\n", lanes(size));
        }
        if !col_major && subgroup > 1 && size % subgroup == 0 && workgroup % size == 0 {
            let (all, parts) = (workgroup / subgroup, size / subgroup);
            let first = if all == parts { "0u".to_string() } else { format!("thread / {size}u * {parts}u") };
            return format!(
                "{pair}var<workgroup> {name}_parts: array<{ty}, {all}>;\nfn {name}(v: {ty}) -> {ty} {{\n  var r = v;\n{}  \
                 if (thread % {subgroup}u == 0u) {{ {name}_parts[thread / {subgroup}u] = r; }}\n  workgroupBarrier();\n  let first = {first};\n  \
                 r = {name}_parts[first];\n  for (var i = 1u; i < {parts}u; i++) {{ r = {name}_of(r, {name}_parts[first + i]); }}\n{after}  return r;\n}}\n",
                lanes(subgroup)
            );
        }
        // A tree in workgroup memory: members `step` apart, the sum in the team's first.
        let step = if col_major { workgroup / size } else { 1 };
        let (number, first) = if col_major {
            (format!("thread / {step}u"), format!("thread % {step}u"))
        } else {
            (format!("thread % {size}u"), format!("thread / {size}u * {size}u"))
        };
        format!(
            "{pair}var<workgroup> {name}_parts: array<{ty}, {workgroup}>;\nfn {name}(v: {ty}) -> {ty} {{\n  {name}_parts[thread] = v;\n  workgroupBarrier();\n  \
             for (var o = {half}u; o > 0u; o >>= 1u) {{\n    if ({number} < o) {{ {name}_parts[thread] = {name}_of({name}_parts[thread], {name}_parts[thread + o * {step}u]); }}\n    \
             workgroupBarrier();\n  }}\n  let r = {name}_parts[{first}];\n{after}  return r;\n}}\n",
            half = size / 2
        )
    }
}
