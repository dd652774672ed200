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
fn fetch(start: u32, cols: u32, v: u32) -> vec4<f32> { return load4_0(start + 4u * v); }
fn sum4(x: vec4<f32>) -> f32 { return x.x; }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { store4_0(start + 4u * v, x); }
fn max4(x: vec4<f32>) -> f32 { return x.x; }
// end

const LOWEST: f32 = -3.0e38;
const REST: f32 = LOWEST;
const ROWS: u32 = WORKGROUP / TEAM;
var<private> thread: u32;

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
