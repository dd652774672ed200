// Loss and logarithm of Σ e^logit of each row of logits: ROW_THREADS threads a row, GROUP_ROWS rows a row group, which stay in registers where
// they fit the RESIDENT vectors of eight of each thread; otherwise maximum and sum are found in one pass.
// BACKWARD: (e^(logit − that logarithm) − [HOT and the class is the target]) · gradient of the row's loss.

const LOWEST: f32 = -3.0e38;
const REST: f32 = LOWEST;
const ROW_GROUPS: u32 = WORKGROUP / ROW_THREADS;
const PREFETCH: u32 = ${PREFETCH}; // vectors that a row that is not resident has under way for a thread
var<private> thread: u32;

// What a target says: its class, as far as there is one, and 1 where it counts. A negative i32 is a large u32.
fn class_of(hit: u32, cols: u32) -> vec2<u32> {
  return vec2<u32>(min(hit, cols - 1u), u32(IGNORES == 0u || hit != p.ignored));
}
fn is_bad(hit: u32, cols: u32) -> bool { return hit >= cols && (IGNORES == 0u || hit != p.ignored); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = p.rows; let cols = p.cols;
  let lane = lid % ROW_THREADS;
  let base = ((wid.y * p.groups_x + wid.x) * ROW_GROUPS + lid / ROW_THREADS) * GROUP_ROWS;
#if BACKWARD
  {
    let own = min(base, rows - 1u);
    let wanted = u32(load_1(own));
    if (is_bad(wanted, cols) && base < rows && lane == 0u) { fail(wanted); }
    let hit = class_of(wanted, cols);
    let g = select(0.0, f32(load_3(own)), hit.y == 1u);
    let shift = f32(load_2(own));
    if (base < rows) {
      for (var v = lane; v < (cols + 3u) / 4u; v += ROW_THREADS) {
        let hot = select(vec4<f32>(0.0), vec4<f32>(f32(HOT)), vec4<u32>(4u * v) + vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(hit.x));
        let x = (exp(fetch(own * cols, cols, v) - shift) - hot) * g;
        put(own * cols, cols, v, select(vec4<f32>(0.0), x, hit.y == 1u));
      }
    }
  }
#else
  {
    // All is on its way before anything is looked at: loads stay in a branch, while others are moved to where they are used.
    var hits: array<u32, GROUP_ROWS>; var hot: array<f32, GROUP_ROWS>;
    var x: array<X, max(GROUP_ROWS * RESIDENT, 1u)>;
    if (cols > 0u) {
#unroll
      for (var r = 0u; r < GROUP_ROWS; r++) { hits[r] = u32(load_1(min(base + r, rows - 1u))); }
#unroll
      for (var r = 0u; r < GROUP_ROWS; r++) {
#unroll
        for (var h = 0u; h < RESIDENT; h++) { x[r * RESIDENT + h] = fetch_x(min(base + r, rows - 1u), lane + h * ROW_THREADS, cols); }
      }
    }
    if (rows > 0u) {
#unroll
      for (var r = 0u; r < GROUP_ROWS; r++) { hot[r] = f32(load_0(min(base + r, rows - 1u) * cols + class_of(hits[r], cols).x)); }
    }
#unroll
    for (var r = 0u; r < GROUP_ROWS; r++) {
      let row = min(base + r, rows - 1u);
      var top = LOWEST; var sum = 0.0;
      if (RESIDENT > 0u) {
        var most = vec4<f32>(LOWEST);
#unroll
        for (var h = 0u; h < RESIDENT; h++) { most = max(most, max(low_x(x[r * RESIDENT + h]), high_x(x[r * RESIDENT + h]))); }
        top = row_max(max4(most));
#unroll
        for (var h = 0u; h < RESIDENT; h++) {
          sum += select(0.0, sum4(exp(low_x(x[r * RESIDENT + h]) - top) + exp(high_x(x[r * RESIDENT + h]) - top)), within(h, lane, cols));
        }
        sum = row_sum(sum);
      } else {
        let both = row_max_sum(row, lane, cols); top = both.x; sum = both.y;
      }
      let all = top + log(sum);
      if (base + r < rows && lane == 0u) {
        if (is_bad(hits[r], cols)) { fail(hits[r]); }
        store_0(row, select(0.0, all - hot[r], class_of(hits[r], cols).y == 1u));
        store_1(row, all);
      }
    }
  }
#endif
}

#if BACKWARD
#include "rows_fetch.wgsl" NAME = fetch, LOAD = 0, VEC = ${VEC}, REST = REST
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC}
#else
#include "row_sum4.wgsl"
#include "row_within.wgsl"
#include "row_max_sum.wgsl"
#include "vec16.wgsl" NAME = x, TYPE = X, LOAD = 0, START = "p.x_start + p.x_offset"
${ROW_SUM}
${ROW_MAX}
#endif
