// Loss and logarithm of Σ e^logit of each row of logits: TEAM threads a row, PER rows a team, which stay in registers when HELD packets of
// eight a thread can hold them; otherwise maximum and sum are found in one pass.
// BACKWARD: (e^(logit − that logarithm) − [HOT and the class is the target]) · gradient of the row's loss.
//
// Words: 0 rows, 1 cols, 2 workgroups in x, 3 the target that counts nothing.

// default
const WORKGROUP: u32 = 256;
const TEAM: u32 = 32;
const HELD: u32 = 2;
const PER: u32 = 2;
const BACKWARD: u32 = 0;
const IGNORES: u32 = 1;
const HOT: u32 = 1;
const VEC: u32 = 1;
alias T_0 = f32;
alias T_1 = i32;
alias X = vec4<u32>;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<i32>;
@group(0) @binding(4) var<storage, read> c_0: array<f32>;
@group(0) @binding(5) var<storage, read> d_0: array<f32>;
@group(0) @binding(6) var<storage, read_write> o_1: array<f32>;
@group(0) @binding(7) var<storage, read> raw_0: array<vec4<u32>>;
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
fn fetch(start: u32, cols: u32, v: u32) -> vec4<f32> { return load4_0(start + 4u * v); }
fn sum4(x: vec4<f32>) -> f32 { return x.x; }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { store4_0(start + 4u * v, x); }
fn max4(x: vec4<f32>) -> f32 { return x.x; }
fn fetch_x(row: u32, v: u32, size: u32) -> X { return raw_0[row * (size / 8u) + v]; }
fn low_x(p: X) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn high_x(p: X) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn within(h: u32, lane: u32, cols: u32) -> bool { return true; }
fn top_sum(row: u32, lane: u32, cols: u32) -> vec2<f32> { return vec2<f32>(0.0); }
// end

const LOWEST: f32 = -3.0e38;
const REST: f32 = LOWEST;
const TEAMS: u32 = WORKGROUP / TEAM;
const AHEAD: u32 = 4; // packets that a row which is not held has under way for a thread
var<private> thread: u32;

// What a target says: its class, as far as there is one, and 1 where it counts. A negative i32 is a large u32.
fn class_of(hit: u32, cols: u32) -> vec2<u32> {
  return vec2<u32>(min(hit, cols - 1u), u32(IGNORES == 0u || hit != word(3u)));
}
fn is_bad(hit: u32, cols: u32) -> bool { return hit >= cols && (IGNORES == 0u || hit != word(3u)); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let cols = word(1u);
  let lane = lid % TEAM;
  let base = ((wid.y * word(2u) + wid.x) * TEAMS + lid / TEAM) * PER;
  if (BACKWARD == 1u) {
    let own = min(base, rows - 1u);
    let wanted = u32(load_1(own));
    if (is_bad(wanted, cols) && base < rows && lane == 0u) { fail(wanted); }
    let hit = class_of(wanted, cols);
    let g = select(0.0, f32(load_3(own)), hit.y == 1u);
    let shift = f32(load_2(own));
    if (base < rows) {
      for (var v = lane; v < (cols + 3u) / 4u; v += TEAM) {
        let hot = select(vec4<f32>(0.0), vec4<f32>(f32(HOT)), vec4<u32>(4u * v) + vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(hit.x));
        let x = (exp(fetch(own * cols, cols, v) - shift) - hot) * g;
        put(own * cols, cols, v, select(vec4<f32>(0.0), x, hit.y == 1u));
      }
    }
  } else {
    // All is on its way before anything is looked at: loads stay in a branch, while others are moved to where they are used.
    var hits: array<u32, PER>; var hot: array<f32, PER>;
    var x: array<X, max(PER * HELD, 1u)>;
    if (cols > 0u) {
      for (var r = 0u; r < PER; r++) { hits[r] = u32(load_1(min(base + r, rows - 1u))); }
      for (var r = 0u; r < PER; r++) {
        for (var h = 0u; h < HELD; h++) { x[r * HELD + h] = fetch_x(min(base + r, rows - 1u), lane + h * TEAM, cols); }
      }
    }
    if (rows > 0u) {
      for (var r = 0u; r < PER; r++) { hot[r] = f32(load_0(min(base + r, rows - 1u) * cols + class_of(hits[r], cols).x)); }
    }
    for (var r = 0u; r < PER; r++) {
      let row = min(base + r, rows - 1u);
      var top = LOWEST; var sum = 0.0;
      if (HELD > 0u) {
        var most = vec4<f32>(LOWEST);
        for (var h = 0u; h < HELD; h++) { most = max(most, max(low_x(x[r * HELD + h]), high_x(x[r * HELD + h]))); }
        top = team_max(max4(most));
        for (var h = 0u; h < HELD; h++) {
          sum += select(0.0, sum4(exp(low_x(x[r * HELD + h]) - top) + exp(high_x(x[r * HELD + h]) - top)), within(h, lane, cols));
        }
        sum = team_sum(sum);
      } else {
        let both = top_sum(row, lane, cols); top = both.x; sum = both.y;
      }
      let all = top + log(sum);
      if (base + r < rows && lane == 0u) {
        if (is_bad(hits[r], cols)) { fail(hits[r]); }
        store_0(row, select(0.0, all - hot[r], class_of(hits[r], cols).y == 1u));
        store_1(row, all);
      }
    }
  }
}
