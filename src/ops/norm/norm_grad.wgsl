// The gradient of layer norm's or RMS norm's input: ROW_THREADS threads a row; row and gradient stay in registers where they fit the RESIDENT
// quads of each thread and are otherwise read again for each of the passes. Gives each row's mean and inverse deviation as well.
//
// With u the normalized row and h the gradient times the weight: (h − mean(h) − u · mean(h · u)) · scale; RMS has no mean(h).

const REST: f32 = 0.0;
const ROWS: u32 = WORKGROUP / ROW_THREADS;
var<private> thread: u32;

// Quad v of a row of the gradient times the weight; zero beyond its end.
fn fetch_h(start: u32, cols: u32, v: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
#if VEC
  {
    if (c < cols) { x = load4_1(start + c) * gain4(c); }
  }
#else
  {
    if (c < cols) { x.x = load_1(start + c) * gain(c); }
    if (c + 1u < cols) { x.y = load_1(start + c + 1u) * gain(c + 1u); }
    if (c + 2u < cols) { x.z = load_1(start + c + 2u) * gain(c + 2u); }
    if (c + 3u < cols) { x.w = load_1(start + c + 3u) * gain(c + 3u); }
  }
#endif
  return x;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = p.rows; let cols = p.cols; let eps = p.eps;
  let lane = lid % ROW_THREADS;
  let row = (wid.y * p.groups_x + wid.x) * ROWS + lid / ROW_THREADS;
  let start = min(row, rows - 1u) * cols;
  let quads = (cols + 3u) / 4u;
  let part = 1.0 / f32(cols);
  var mean = 0.0; var s = 0.0; var shift = 0.0; var along = 0.0;
  if (RESIDENT > 0u) {
    var x: array<vec4<f32>, max(RESIDENT, 1u)>;
    var g: array<vec4<f32>, max(RESIDENT, 1u)>;
#unroll
    for (var h = 0u; h < RESIDENT; h++) { x[h] = fetch(start, cols, lane + h * ROW_THREADS); g[h] = fetch_h(start, cols, lane + h * ROW_THREADS); s += sum4(x[h]); }
    if (RMS == 0u) {
      mean = row_sum(s) * part;
#unroll
      for (var h = 0u; h < RESIDENT; h++) { x[h] = centre(cols, lane + h * ROW_THREADS, x[h], mean); }
    }
    s = 0.0;
#unroll
    for (var h = 0u; h < RESIDENT; h++) { s += dot(x[h], x[h]); along += dot(x[h], g[h]); shift += sum4(g[h]); }
    let scale = inverseSqrt(row_sum(s) * part + eps);
    along = row_sum(along) * part * scale * scale;
    if (RMS == 0u) { shift = row_sum(shift) * part; } else { shift = 0.0; }
    if (row < rows) {
#unroll
      for (var h = 0u; h < RESIDENT; h++) { put(start, cols, lane + h * ROW_THREADS, (g[h] - shift - x[h] * along) * scale); }
      if (lane == 0u) { store_1(row, mean); store_2(row, scale); }
    }
  } else {
    if (RMS == 0u) {
      for (var v = lane; v < quads; v += ROW_THREADS) { s += sum4(fetch(start, cols, v)); }
      mean = row_sum(s) * part;
      s = 0.0;
    }
    for (var v = lane; v < quads; v += ROW_THREADS) {
      let x = centre(cols, v, fetch(start, cols, v), mean); let g = fetch_h(start, cols, v);
      s += dot(x, x); along += dot(x, g); shift += sum4(g);
    }
    let scale = inverseSqrt(row_sum(s) * part + eps);
    along = row_sum(along) * part * scale * scale;
    if (RMS == 0u) { shift = row_sum(shift) * part; } else { shift = 0.0; }
    if (row < rows) {
      for (var v = lane; v < quads; v += ROW_THREADS) {
        put(start, cols, v, (fetch_h(start, cols, v) - shift - centre(cols, v, fetch(start, cols, v), mean) * along) * scale);
      }
      if (lane == 0u) { store_1(row, mean); store_2(row, scale); }
    }
  }
}

#include "rows_fetch.wgsl" NAME = fetch, LOAD = 0, VEC = ${VEC}, REST = REST
#include "row_sum4.wgsl"
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC}
#include "row_centre.wgsl"
${ROW_SUM}
#if VEC
#if WEIGHT
fn gain4(c: u32) -> vec4<f32> { return load4_2(c); }
#else
fn gain4(c: u32) -> vec4<f32> { return vec4<f32>(1.0); }
#endif
#elif WEIGHT
fn gain(c: u32) -> f32 { return load_2(c); }
#else
fn gain(c: u32) -> f32 { return 1.0; }
#endif
