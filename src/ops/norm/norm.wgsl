// Layer norm or RMS norm over the last axis: ROW_THREADS threads a row, which stays in registers where it fits the RESIDENT vectors of eight of
// each thread and is otherwise read again for each of the passes. A row group has GROUP_ROWS rows at once, which share what they are multiplied
// with. The variance is the mean of squared distances, never a difference of squares.

const REST: f32 = 0.0;
const ROW_GROUPS: u32 = WORKGROUP / ROW_THREADS;
const PREFETCH: u32 = ${PREFETCH}; // vectors that a row that is not resident has under way for a thread
var<private> thread: u32;

// Σ (x − mean)² over a vector's elements, as far as the row goes.
fn squares(low: vec4<f32>, high: vec4<f32>, mean: f32, v: u32, cols: u32) -> f32 {
  var a = low - mean; var b = high - mean;
  if (EIGHTS == 0u) {
    let c = vec4<u32>(8u * v) + vec4<u32>(0u, 1u, 2u, 3u);
    a = select(vec4<f32>(0.0), a, c < vec4<u32>(cols));
    b = select(vec4<f32>(0.0), b, c + vec4<u32>(4u) < vec4<u32>(cols));
  }
  return dot(a, a) + dot(b, b);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = p.rows; let cols = p.cols; let eps = p.eps;
  let lane = lid % ROW_THREADS;
  let base = ((wid.y * p.groups_x + wid.x) * ROW_GROUPS + lid / ROW_THREADS) * GROUP_ROWS;
  let part = 1.0 / f32(cols);
  if (RESIDENT > 0u) {
    var x: array<X, max(GROUP_ROWS * RESIDENT, 1u)>;
    var mean: array<f32, GROUP_ROWS>; var scale: array<f32, GROUP_ROWS>;
#unroll
    for (var r = 0u; r < GROUP_ROWS; r++) {
#unroll
      for (var h = 0u; h < RESIDENT; h++) { x[r * RESIDENT + h] = fetch_x(min(base + r, rows - 1u), lane + h * ROW_THREADS, cols); }
    }
#unroll
    for (var r = 0u; r < GROUP_ROWS; r++) {
      if (RMS == 0u) {
        var s = 0.0;
#unroll
        for (var h = 0u; h < RESIDENT; h++) {
          s += select(0.0, sum4(low_x(x[r * RESIDENT + h]) + high_x(x[r * RESIDENT + h])), within(h, lane, cols));
        }
        mean[r] = row_sum(s) * part;
      }
      var s = 0.0;
#unroll
      for (var h = 0u; h < RESIDENT; h++) {
        s += select(0.0, squares(low_x(x[r * RESIDENT + h]), high_x(x[r * RESIDENT + h]), mean[r], lane + h * ROW_THREADS, cols), within(h, lane, cols));
      }
      scale[r] = inverseSqrt(row_sum(s) * part + eps);
    }
#unroll
    for (var h = 0u; h < RESIDENT; h++) {
      let v = lane + h * ROW_THREADS;
      let a = gain4(8u * v, cols); let b = gain4(8u * v + 4u, cols); let c = shift4(8u * v, cols); let d = shift4(8u * v + 4u, cols);
#unroll
      for (var r = 0u; r < GROUP_ROWS; r++) {
        let low = (low_x(x[r * RESIDENT + h]) - mean[r]) * scale[r] * a + c; let high = (high_x(x[r * RESIDENT + h]) - mean[r]) * scale[r] * b + d;
        if (base + r < rows) { put8((base + r) * cols, cols, v, low, high); }
      }
    }
  } else {
    let row = min(base, rows - 1u);
    let vectors = (cols + 7u) / 8u;
    var mean = 0.0; var s = 0.0;
    if (RMS == 0u) {
      for (var v = lane; v < vectors; v += PREFETCH * ROW_THREADS) {
        var x: array<X, PREFETCH>;
#unroll
        for (var h = 0u; h < PREFETCH; h++) { x[h] = fetch_x(row, min(v + h * ROW_THREADS, vectors - 1u), cols); }
#unroll
        for (var h = 0u; h < PREFETCH; h++) { s += select(0.0, sum4(low_x(x[h]) + high_x(x[h])), v + h * ROW_THREADS < vectors); }
      }
      mean = row_sum(s) * part;
      s = 0.0;
    }
    for (var v = lane; v < vectors; v += PREFETCH * ROW_THREADS) {
      var x: array<X, PREFETCH>;
#unroll
      for (var h = 0u; h < PREFETCH; h++) { x[h] = fetch_x(row, min(v + h * ROW_THREADS, vectors - 1u), cols); }
#unroll
      for (var h = 0u; h < PREFETCH; h++) {
        s += select(0.0, squares(low_x(x[h]), high_x(x[h]), mean, v + h * ROW_THREADS, cols), v + h * ROW_THREADS < vectors);
      }
    }
    let scale = inverseSqrt(row_sum(s) * part + eps);
    if (base < rows) {
      for (var v = lane; v < vectors; v += ROW_THREADS) {
        let x = fetch_x(row, v, cols);
        let low = (low_x(x) - mean) * scale * gain4(8u * v, cols) + shift4(8u * v, cols);
        let high = (high_x(x) - mean) * scale * gain4(8u * v + 4u, cols) + shift4(8u * v + 4u, cols);
        put8(row * cols, cols, v, low, high);
      }
    }
  }
}

#include "row_sum4.wgsl"
#include "row_within.wgsl"
#include "rows_put8.wgsl"
#include "vec16.wgsl" NAME = x, TYPE = X, LOAD = 0, START = "p.x_start + p.x_offset"
${ROW_SUM}
#include "norm_operand.wgsl" NAME = gain4, GIVEN = WEIGHT, LOAD = 1, NONE = 1.0
#include "norm_operand.wgsl" NAME = shift4, GIVEN = BIAS, LOAD = ${BIAS_LOAD}, NONE = 0.0
