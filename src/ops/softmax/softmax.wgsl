// Softmax or its logarithm over the last axis: TEAM threads a row, which stays in registers when HELD packets of eight a thread can hold it
// and is otherwise read twice, its maximum and sum found in one pass. A team has PER rows at once, so that more loads are under way.
//
// KEPT: so do the exponentials, which are computed again otherwise. Words: 0 rows, 1 cols, 2 workgroups in x.

// default
const WORKGROUP: u32 = 256;
const TEAM: u32 = 32;
const HELD: u32 = 2;
const PER: u32 = 2;
const KEPT: u32 = 1;
const LOG: u32 = 0;
const VEC: u32 = 1;
const EIGHTS: u32 = 1;
alias T_0 = f32;
alias X = vec4<u32>;
@group(0) @binding(0) var<storage, read> raw_0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn store8_0(i: u32, v: vec4<f32>, w: vec4<f32>) { o_0[i / 4u] = v; o_0[i / 4u + 1u] = w; }
fn team_sum(v: f32) -> f32 { return v; }
fn team_max(v: f32) -> f32 { return v; }
fn fetch_x(row: u32, v: u32, size: u32) -> X { return raw_0[row * (size / 8u) + v]; }
fn low_x(p: X) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn high_x(p: X) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn within(h: u32, lane: u32, cols: u32) -> bool { return true; }
fn sum4(x: vec4<f32>) -> f32 { return x.x; }
fn put8(start: u32, cols: u32, v: u32, low: vec4<f32>, high: vec4<f32>) { store8_0(start + 8u * v, low, high); }
fn max4(x: vec4<f32>) -> f32 { return x.x; }
fn top_sum(row: u32, lane: u32, cols: u32) -> vec2<f32> { return vec2<f32>(0.0); }
// end

const LOWEST: f32 = -3.0e38;
const REST: f32 = LOWEST;
const TEAMS: u32 = WORKGROUP / TEAM;
const AHEAD: u32 = 4; // packets that a row which is not held has under way for a thread
var<private> thread: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let cols = word(1u);
  let lane = lid % TEAM;
  let base = ((wid.y * word(2u) + wid.x) * TEAMS + lid / TEAM) * PER;
  if (HELD > 0u) {
    var x: array<X, max(PER * HELD, 1u)>;
    for (var r = 0u; r < PER; r++) {
      for (var h = 0u; h < HELD; h++) { x[r * HELD + h] = fetch_x(min(base + r, rows - 1u), lane + h * TEAM, cols); }
    }
    for (var r = 0u; r < PER; r++) {
      var most = vec4<f32>(LOWEST);
      for (var h = 0u; h < HELD; h++) { most = max(most, max(low_x(x[r * HELD + h]), high_x(x[r * HELD + h]))); }
      let top = team_max(max4(most));
      var e: array<vec4<f32>, max(2u * HELD, 1u)>;
      var sum = 0.0;
      for (var h = 0u; h < HELD; h++) {
        let low = exp(low_x(x[r * HELD + h]) - top); let high = exp(high_x(x[r * HELD + h]) - top);
        sum += select(0.0, sum4(low + high), within(h, lane, cols));
        if (KEPT == 1u) { e[2u * h] = low; e[2u * h + 1u] = high; }
      }
      sum = team_sum(sum);
      let scale = 1.0 / sum; let shift = log(sum);
      if (base + r < rows) {
        for (var h = 0u; h < HELD; h++) {
          let v = lane + h * TEAM;
          if (LOG == 1u) {
            put8((base + r) * cols, cols, v, low_x(x[r * HELD + h]) - top - shift, high_x(x[r * HELD + h]) - top - shift);
          } else {
            if (KEPT == 1u) {
              put8((base + r) * cols, cols, v, e[2u * h] * scale, e[2u * h + 1u] * scale);
            } else {
              put8((base + r) * cols, cols, v, exp(low_x(x[r * HELD + h]) - top) * scale, exp(high_x(x[r * HELD + h]) - top) * scale);
            }
          }
        }
      }
    }
  } else {
    let row = min(base, rows - 1u);
    let packets = (cols + 7u) / 8u;
    let all = top_sum(row, lane, cols); let t = all.x; let sum = all.y;
    let scale = 1.0 / sum; let shift = t + log(sum);
    if (base < rows) {
      for (var v = lane; v < packets; v += TEAM) {
        let x = fetch_x(row, v, cols);
        if (LOG == 1u) {
          put8(row * cols, cols, v, low_x(x) - shift, high_x(x) - shift);
        } else {
          put8(row * cols, cols, v, exp(low_x(x) - t) * scale, exp(high_x(x) - t) * scale);
        }
      }
    }
  }
}
