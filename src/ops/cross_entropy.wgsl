// Loss and logarithm of Σ e^logit of each row of logits: TEAM threads a row, maximum and sum found in one pass.
// BACKWARD: (e^(logit − that logarithm) − [HOT and the class is the target]) · gradient of the row's loss.
//
// Words: 0 rows, 1 cols, 2 workgroups in x, 3 the target that counts nothing.

// default
const WORKGROUP: u32 = 256;
const TEAM: u32 = 32;
const BACKWARD: u32 = 0;
const IGNORES: u32 = 1;
const HOT: u32 = 1;
const VEC: u32 = 1;
alias T_0 = f32;
alias T_1 = i32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<i32>;
@group(0) @binding(4) var<storage, read> c_0: array<f32>;
@group(0) @binding(5) var<storage, read> d_0: array<f32>;
@group(0) @binding(6) var<storage, read_write> o_1: array<f32>;
fn word(n: u32) -> u32 { return words[n]; }
fn fail(code: u32) { }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> i32 { return b_0[i]; }
fn load_2(i: u32) -> f32 { return c_0[i]; }
fn load_3(i: u32) -> f32 { return d_0[i]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn store_1(i: u32, v: f32) { o_1[i] = v; }
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
fn max4(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn sum4(x: vec4<f32>) -> f32 { return (x.x + x.y) + (x.z + x.w); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let cols = word(1u);
  let lane = lid % TEAM;
  let row = (wid.y * word(2u) + wid.x) * ROWS + lid / TEAM;
  let own = min(row, rows - 1u);
  let start = own * cols;
  let quads = (cols + 3u) / 4u;
  // A negative i32 is a large u32.
  var hit = u32(load_1(own));
  let ignored = IGNORES == 1u && hit == word(3u);
  if (!ignored && hit >= cols) {
    if (row < rows && lane == 0u) { fail(hit); }
    hit = select(cols - 1u, 0u, (hit & 0x80000000u) != 0u);
  }
  if (BACKWARD == 1u) {
    let g = select(f32(load_3(own)), 0.0, ignored);
    let shift = f32(load_2(own));
    if (row < rows) {
      for (var v = lane; v < quads; v += TEAM) {
        let c = 4u * v;
        let hot = select(vec4<f32>(0.0), vec4<f32>(f32(HOT)), vec4<u32>(c) + vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(hit));
        var x = (exp(fetch(start, cols, v) - shift) - hot) * g;
        x = select(x, vec4<f32>(0.0), ignored);
        if (VEC == 1u) {
          store4_0(start + c, x);
        } else {
          store_0(start + c, x.x);
          if (c + 1u < cols) { store_0(start + c + 1u, x.y); }
          if (c + 2u < cols) { store_0(start + c + 2u, x.z); }
          if (c + 3u < cols) { store_0(start + c + 3u, x.w); }
        }
      }
    }
  } else {
    var top = LOWEST; var sum = 0.0;
    for (var v = lane; v < quads; v += TEAM) {
      let x = fetch(start, cols, v);
      let t = max(top, max4(x));
      sum = sum * exp(top - t) + sum4(exp(x - t));
      top = t;
    }
    let t = team_max(top);
    sum = team_sum(sum * exp(top - t));
    let all = t + log(sum);
    if (row < rows && lane == 0u) {
      store_0(row, select(all - f32(load_0(start + min(hit, cols - 1u))), 0.0, ignored));
      store_1(row, all);
    }
  }
}
