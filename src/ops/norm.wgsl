// Layer norm or RMS norm over the last axis: TEAM threads a row, which stays in registers when HELD quads a thread can hold it and
// is otherwise read again for each of the passes. The variance is the mean of squared distances, never a difference of squares.
//
// Words: 0 rows, 1 cols, 2 workgroups in x, 3 epsilon.

// default
const WORKGROUP: u32 = 256;
const TEAM: u32 = 32;
const HELD: u32 = 2;
const RMS: u32 = 0;
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
fn fetch(start: u32, cols: u32, v: u32) -> vec4<f32> { return load4_0(start + 4u * v); }
fn sum4(x: vec4<f32>) -> f32 { return x.x; }
fn centre(cols: u32, v: u32, x: vec4<f32>, mean: f32) -> vec4<f32> { return x - mean; }
fn affine4(c: u32, x: vec4<f32>) -> vec4<f32> { return x; }
fn affine(c: u32, x: f32) -> f32 { return x; }
// end

const REST: f32 = 0.0;
const ROWS: u32 = WORKGROUP / TEAM;
var<private> thread: u32;

// Stores quad v of a row, times the weight and plus the bias.
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) {
  let c = 4u * v;
  if (VEC == 1u) {
    if (c < cols) { store4_0(start + c, affine4(c, x)); }
  } else {
    if (c < cols) { store_0(start + c, affine(c, x.x)); }
    if (c + 1u < cols) { store_0(start + c + 1u, affine(c + 1u, x.y)); }
    if (c + 2u < cols) { store_0(start + c + 2u, affine(c + 2u, x.z)); }
    if (c + 3u < cols) { store_0(start + c + 3u, affine(c + 3u, x.w)); }
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let cols = word(1u); let eps = bitcast<f32>(word(3u));
  let lane = lid % TEAM;
  let row = (wid.y * word(2u) + wid.x) * ROWS + lid / TEAM;
  let start = min(row, rows - 1u) * cols;
  let quads = (cols + 3u) / 4u;
  let part = 1.0 / f32(cols);
  var mean = 0.0; var s = 0.0;
  if (HELD > 0u) {
    var x: array<vec4<f32>, max(HELD, 1u)>;
    for (var h = 0u; h < HELD; h++) { x[h] = fetch(start, cols, lane + h * TEAM); s += sum4(x[h]); }
    if (RMS == 0u) {
      mean = team_sum(s) * part;
      for (var h = 0u; h < HELD; h++) { x[h] = centre(cols, lane + h * TEAM, x[h], mean); }
    }
    s = 0.0;
    for (var h = 0u; h < HELD; h++) { s += dot(x[h], x[h]); }
    let scale = inverseSqrt(team_sum(s) * part + eps);
    if (row < rows) {
      for (var h = 0u; h < HELD; h++) { put(start, cols, lane + h * TEAM, x[h] * scale); }
    }
  } else {
    if (RMS == 0u) {
      for (var v = lane; v < quads; v += TEAM) { s += sum4(fetch(start, cols, v)); }
      mean = team_sum(s) * part;
      s = 0.0;
    }
    for (var v = lane; v < quads; v += TEAM) { let x = centre(cols, v, fetch(start, cols, v), mean); s += dot(x, x); }
    let scale = inverseSqrt(team_sum(s) * part + eps);
    if (row < rows) {
      for (var v = lane; v < quads; v += TEAM) { put(start, cols, v, centre(cols, v, fetch(start, cols, v), mean) * scale); }
    }
  }
}
