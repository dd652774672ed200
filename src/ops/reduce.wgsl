// Sum, mean or product over the last axis: TEAM threads a row.
//
// ACROSS: neighbouring threads take neighbouring rows, for an operand whose rows lie side by side in memory.
// Words: 0 rows, 1 cols, 2 workgroups in x.

// default
const WORKGROUP: u32 = 256;
const TEAM: u32 = 32;
const OP: u32 = 0;
const VEC: u32 = 1;
const ACROSS: u32 = 0;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<f32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i] = v; }
fn team_reduce(v: f32) -> f32 { return v; }
// end

const SUM: u32 = 0;
const MEAN: u32 = 1;
const PROD: u32 = 2;
const ROWS: u32 = WORKGROUP / TEAM;
var<private> thread: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let cols = word(1u);
  var lane = lid % TEAM; var row = lid / TEAM;
  if (ACROSS == 1u) { lane = lid / ROWS; row = lid % ROWS; }
  row += (wid.y * word(2u) + wid.x) * ROWS;
  var unit = T_0(0);
  if (OP == PROD) { unit = T_0(1); }
  var a = vec4<T_0>(unit); var b = vec4<T_0>(unit);
  let start = min(row, rows - 1u) * cols;
  if (VEC == 1u) {
    let quads = cols / 4u;
    var v = lane;
    for (; v + 3u * TEAM < quads; v += 4u * TEAM) {
      let at = start + 4u * v;
      let x0 = load4_0(at); let x1 = load4_0(at + 4u * TEAM); let x2 = load4_0(at + 8u * TEAM); let x3 = load4_0(at + 12u * TEAM);
      if (OP == PROD) { a *= x0 * x1; b *= x2 * x3; } else { a += x0 + x1; b += x2 + x3; }
    }
    for (; v < quads; v += TEAM) {
      let x = load4_0(start + 4u * v);
      if (OP == PROD) { a *= x; } else { a += x; }
    }
  } else {
    var c = lane;
    for (; c + 3u * TEAM < cols; c += 4u * TEAM) {
      let at = start + c;
      let x = vec4<T_0>(load_0(at), load_0(at + TEAM), load_0(at + 2u * TEAM), load_0(at + 3u * TEAM));
      if (OP == PROD) { a *= x; } else { a += x; }
    }
    for (; c < cols; c += TEAM) {
      let x = load_0(start + c);
      if (OP == PROD) { b.x *= x; } else { b.x += x; }
    }
  }
  var r = unit;
  if (OP == PROD) { a *= b; r = (a.x * a.y) * (a.z * a.w); } else { a += b; r = (a.x + a.y) + (a.z + a.w); }
  r = team_reduce(r);
  if (OP == MEAN) { r = r / T_0(cols); }
  if (lane == 0u && row < rows) { store_0(row, r); }
}
