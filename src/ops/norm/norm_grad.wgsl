// The gradient of layer norm's or RMS norm's input: TEAM threads a row; row and gradient stay in registers when HELD quads a thread can
// hold them and are otherwise read again for each of the passes. Gives each row's mean and inverse deviation as well.
//
// With u the normalized row and h the gradient times the weight: (h − mean(h) − u · mean(h · u)) · scale; RMS has no mean(h).
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
@group(0) @binding(3) var<storage, read> b_0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> o_1: array<f32>;
@group(0) @binding(5) var<storage, read_write> o_2: array<f32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> f32 { return b_0[i / 4u][i % 4u]; }
fn load4_1(i: u32) -> vec4<f32> { return b_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn store_1(i: u32, v: f32) { o_1[i] = v; }
fn store_2(i: u32, v: f32) { o_2[i] = v; }
fn team_sum(v: f32) -> f32 { return v; }
fn fetch(start: u32, cols: u32, v: u32) -> vec4<f32> { return load4_0(start + 4u * v); }
fn sum4(x: vec4<f32>) -> f32 { return x.x; }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { store4_0(start + 4u * v, x); }
fn centre(cols: u32, v: u32, x: vec4<f32>, mean: f32) -> vec4<f32> { return x - mean; }
fn gain4(c: u32) -> vec4<f32> { return vec4<f32>(1.0); }
fn gain(c: u32) -> f32 { return 1.0; }
// end

const REST: f32 = 0.0;
const ROWS: u32 = WORKGROUP / TEAM;
var<private> thread: u32;

// Quad v of a row of the gradient times the weight; zero beyond its end.
fn fetch_h(start: u32, cols: u32, v: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
  if (VEC == 1u) {
    if (c < cols) { x = load4_1(start + c) * gain4(c); }
  } else {
    if (c < cols) { x.x = load_1(start + c) * gain(c); }
    if (c + 1u < cols) { x.y = load_1(start + c + 1u) * gain(c + 1u); }
    if (c + 2u < cols) { x.z = load_1(start + c + 2u) * gain(c + 2u); }
    if (c + 3u < cols) { x.w = load_1(start + c + 3u) * gain(c + 3u); }
  }
  return x;
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
  var mean = 0.0; var s = 0.0; var shift = 0.0; var along = 0.0;
  if (HELD > 0u) {
    var x: array<vec4<f32>, max(HELD, 1u)>;
    var g: array<vec4<f32>, max(HELD, 1u)>;
    for (var h = 0u; h < HELD; h++) { x[h] = fetch(start, cols, lane + h * TEAM); g[h] = fetch_h(start, cols, lane + h * TEAM); s += sum4(x[h]); }
    if (RMS == 0u) {
      mean = team_sum(s) * part;
      for (var h = 0u; h < HELD; h++) { x[h] = centre(cols, lane + h * TEAM, x[h], mean); }
    }
    s = 0.0;
    for (var h = 0u; h < HELD; h++) { s += dot(x[h], x[h]); along += dot(x[h], g[h]); shift += sum4(g[h]); }
    let scale = inverseSqrt(team_sum(s) * part + eps);
    along = team_sum(along) * part * scale * scale;
    if (RMS == 0u) { shift = team_sum(shift) * part; } else { shift = 0.0; }
    if (row < rows) {
      for (var h = 0u; h < HELD; h++) { put(start, cols, lane + h * TEAM, (g[h] - shift - x[h] * along) * scale); }
      if (lane == 0u) { store_1(row, mean); store_2(row, scale); }
    }
  } else {
    if (RMS == 0u) {
      for (var v = lane; v < quads; v += TEAM) { s += sum4(fetch(start, cols, v)); }
      mean = team_sum(s) * part;
      s = 0.0;
    }
    for (var v = lane; v < quads; v += TEAM) {
      let x = centre(cols, v, fetch(start, cols, v), mean); let g = fetch_h(start, cols, v);
      s += dot(x, x); along += dot(x, g); shift += sum4(g);
    }
    let scale = inverseSqrt(team_sum(s) * part + eps);
    along = team_sum(along) * part * scale * scale;
    if (RMS == 0u) { shift = team_sum(shift) * part; } else { shift = 0.0; }
    if (row < rows) {
      for (var v = lane; v < quads; v += TEAM) {
        put(start, cols, v, (fetch_h(start, cols, v) - shift - centre(cols, v, fetch(start, cols, v), mean) * along) * scale);
      }
      if (lane == 0u) { store_1(row, mean); store_2(row, scale); }
    }
  }
}
