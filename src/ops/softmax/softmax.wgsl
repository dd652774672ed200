// Softmax or its logarithm over the last axis: ROW_THREADS threads a row, which stays in registers where it fits the RESIDENT vectors of eight of
// each thread and is otherwise read twice, its maximum and sum found in one pass. A row group has GROUP_ROWS rows at once, so that more loads are
// under way.
//
// RESIDENT_EXP: so do the exponentials, which are computed again otherwise. LOG: the logarithm.

const LOWEST: f32 = -3.0e38;
const REST: f32 = LOWEST;
const ROW_GROUPS: u32 = WORKGROUP / ROW_THREADS;
const PREFETCH: u32 = ${PREFETCH}; // vectors that a row that is not resident has under way for a thread
var<private> thread: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = p.rows; let cols = p.cols;
  let lane = lid % ROW_THREADS;
  let base = ((wid.y * p.groups_x + wid.x) * ROW_GROUPS + lid / ROW_THREADS) * GROUP_ROWS;
  if (RESIDENT > 0u) {
    var x: array<X, max(GROUP_ROWS * RESIDENT, 1u)>;
#unroll
    for (var r = 0u; r < GROUP_ROWS; r++) {
#unroll
      for (var h = 0u; h < RESIDENT; h++) { x[r * RESIDENT + h] = fetch_x(min(base + r, rows - 1u), lane + h * ROW_THREADS, cols); }
    }
#unroll
    for (var r = 0u; r < GROUP_ROWS; r++) {
      var most = vec4<f32>(LOWEST);
#unroll
      for (var h = 0u; h < RESIDENT; h++) { most = max(most, max(low_x(x[r * RESIDENT + h]), high_x(x[r * RESIDENT + h]))); }
      let top = row_max(max4(most));
      var e: array<vec4<f32>, max(2u * RESIDENT, 1u)>;
      var sum = 0.0;
#unroll
      for (var h = 0u; h < RESIDENT; h++) {
        let low = exp(low_x(x[r * RESIDENT + h]) - top); let high = exp(high_x(x[r * RESIDENT + h]) - top);
        sum += select(0.0, sum4(low + high), within(h, lane, cols));
#if RESIDENT_EXP
        { e[2u * h] = low; e[2u * h + 1u] = high; }
#endif
      }
      sum = row_sum(sum);
      let scale = 1.0 / sum; let shift = log(sum);
      if (base + r < rows) {
#unroll
        for (var h = 0u; h < RESIDENT; h++) {
          let v = lane + h * ROW_THREADS;
#if LOG
          { put8((base + r) * cols, cols, v, low_x(x[r * RESIDENT + h]) - top - shift, high_x(x[r * RESIDENT + h]) - top - shift); }
#elif RESIDENT_EXP
          { { put8((base + r) * cols, cols, v, e[2u * h] * scale, e[2u * h + 1u] * scale); } }
#else
          { { put8((base + r) * cols, cols, v, exp(low_x(x[r * RESIDENT + h]) - top) * scale, exp(high_x(x[r * RESIDENT + h]) - top) * scale); } }
#endif
        }
      }
    }
  } else {
    let row = min(base, rows - 1u);
    let vectors = (cols + 7u) / 8u;
    let all = row_max_sum(row, lane, cols); let t = all.x; let sum = all.y;
    let scale = 1.0 / sum; let shift = t + log(sum);
    if (base < rows) {
      for (var v = lane; v < vectors; v += ROW_THREADS) {
        let x = fetch_x(row, v, cols);
#if LOG
        { put8(row * cols, cols, v, low_x(x) - shift, high_x(x) - shift); }
#else
        { put8(row * cols, cols, v, exp(low_x(x) - t) * scale, exp(high_x(x) - t) * scale); }
#endif
      }
    }
  }
}

#include "row_sum4.wgsl"
#include "row_within.wgsl"
#include "rows_put8.wgsl"
#include "row_max_sum.wgsl"
#include "vec16.wgsl" NAME = x, TYPE = X, LOAD = 0, START = "p.x_start + p.x_offset"
${ROW_SUM}
${ROW_MAX}
