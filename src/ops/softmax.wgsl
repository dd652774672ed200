// Softmax or its logarithm over the last axis: TEAM threads a row, which stays in registers when HELD quads a thread can hold it
// and is otherwise read twice, its maximum and sum found in one pass.
//
// Words: 0 rows, 1 cols, 2 workgroups in x.

// default
const WORKGROUP: u32 = 256;
const TEAM: u32 = 32;
const HELD: u32 = 2;
const LOG: u32 = 0;
const VEC: u32 = 1;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn team_sum(v: f32) -> f32 { return v; }
fn team_max(v: f32) -> f32 { return v; }
// end

const LOWEST: f32 = -3.0e38;
const ROWS: u32 = WORKGROUP / TEAM;
var<private> thread: u32;

// Quad v of a row; elements beyond its end are the lowest.
fn fetch(start: u32, cols: u32, v: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(LOWEST);
  if (VEC == 1u) {
    if (c < cols) { x = load4_0(start + c); }
  } else {
    if (c < cols) { x.x = load_0(start + c); }
    if (c + 1u < cols) { x.y = load_0(start + c + 1u); }
    if (c + 2u < cols) { x.z = load_0(start + c + 2u); }
    if (c + 3u < cols) { x.w = load_0(start + c + 3u); }
  }
  return x;
}
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) {
  let c = 4u * v;
  if (VEC == 1u) {
    if (c < cols) { store4_0(start + c, x); }
  } else {
    if (c < cols) { store_0(start + c, x.x); }
    if (c + 1u < cols) { store_0(start + c + 1u, x.y); }
    if (c + 2u < cols) { store_0(start + c + 2u, x.z); }
    if (c + 3u < cols) { store_0(start + c + 3u, x.w); }
  }
}
fn max4(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn sum4(x: vec4<f32>) -> f32 { return (x.x + x.y) + (x.z + x.w); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let cols = word(1u);
  let lane = lid % TEAM;
  let row = (wid.y * word(2u) + wid.x) * ROWS + lid / TEAM;
  let start = min(row, rows - 1u) * cols;
  let quads = (cols + 3u) / 4u;
  var top = LOWEST; var sum = 0.0;
  if (HELD > 0u) {
    var x: array<vec4<f32>, max(HELD, 1u)>;
    for (var h = 0u; h < HELD; h++) { x[h] = fetch(start, cols, lane + h * TEAM); top = max(top, max4(x[h])); }
    top = team_max(top);
    for (var h = 0u; h < HELD; h++) {
      let e = exp(x[h] - top);
      sum += sum4(e);
      if (LOG == 1u) { x[h] -= top; } else { x[h] = e; }
    }
    sum = team_sum(sum);
    let scale = 1.0 / sum; let shift = log(sum);
    if (row < rows) {
      for (var h = 0u; h < HELD; h++) {
        if (LOG == 1u) { put(start, cols, lane + h * TEAM, x[h] - shift); } else { put(start, cols, lane + h * TEAM, x[h] * scale); }
      }
    }
  } else {
    for (var v = lane; v < quads; v += TEAM) {
      let x = fetch(start, cols, v);
      let t = max(top, max4(x));
      sum = sum * exp(top - t) + sum4(exp(x - t));
      top = t;
    }
    let t = team_max(top);
    sum = team_sum(sum * exp(top - t));
    let scale = 1.0 / sum; let shift = t + log(sum);
    if (row < rows) {
      for (var v = lane; v < quads; v += TEAM) {
        let x = fetch(start, cols, v);
        if (LOG == 1u) { put(start, cols, v, x - shift); } else { put(start, cols, v, exp(x - t) * scale); }
      }
    }
  }
}
