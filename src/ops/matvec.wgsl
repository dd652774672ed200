// Matrix times a few vectors: out[m, n] = sum over k of a[m, k] * b[n, k], m below MT.
//
// A team of LANES threads owns ROWS rows of b and walks them in items of 8 weights, AHEAD of them on their way at once and the first
// before anything waits for the activations. A format says how an item's two quads lie: PAIR quads apart, as its nibbles do, so that
// both come from one word. STAGED: a chunk of the activations is kept in workgroup memory, for operands that are dear to compute.
// Words: 0 M, 1 N, 2 K, 3 tiles of a batch, 4 workgroups in x, 5 and 6 the start of b in elements.

// default
const WORKGROUP: u32 = 128;
const LANES: u32 = 32;
const ROWS: u32 = 1;
const AHEAD: u32 = 3;
const MT: u32 = 1;
const PAIR: u32 = 4;
const UNIT: u32 = 96;
const CHUNK: u32 = 96;
const STAGED: u32 = 1;
const VEC_A: u32 = 1;
const VEC_OUT: u32 = 1;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<vec4<f32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
alias Held = Pair;
fn hold(row: u32, i: u32) -> Held {
  let at = row * (word(2u) / 4u) + i / PAIR * (2u * PAIR) + i % PAIR;
  return Pair(b_0[at], b_0[at + PAIR]);
}
fn item(h: Held) -> Pair { return h; }
fn team_sum(v: f32) -> f32 { return v; }
// end

struct Pair { lo: vec4<f32>, hi: vec4<f32> }
const TEAMS: u32 = WORKGROUP / LANES;
const BLOCK: u32 = TEAMS * ROWS;
var<private> thread: u32;
var<workgroup> xs: array<vec4<f32>, MT * 2u * CHUNK>;
var<workgroup> ys: array<f32, MT * BLOCK>;

// Four activations of row m, zero outside of the matrix.
fn fetch(batch: u32, m: u32, v: u32) -> vec4<f32> {
  let rows = word(0u); let size = word(2u);
  var x = vec4<f32>(0.0);
  if (m < rows) {
    let at = (batch * rows + m) * size + 4u * v;
    if (VEC_A == 1u) {
      if (4u * v < size) { x = load4_0(at); }
    } else {
      if (4u * v < size) { x.x = load_0(at); }
      if (4u * v + 1u < size) { x.y = load_0(at + 1u); }
      if (4u * v + 2u < size) { x.z = load_0(at + 2u); }
      if (4u * v + 3u < size) { x.w = load_0(at + 3u); }
    }
  }
  return x;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u);
  let batch = group / tiles;
  let first = (group % tiles) * BLOCK;
  let rows = word(0u); let cols = word(1u);
  let lane = lid % LANES; let team = lid / LANES;
  let items = (word(2u) + 7u) / 8u;
  var row: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) { row[r] = batch * cols + min(first + team * ROWS + r, cols - 1u); }
  var acc: array<f32, ROWS * MT>;
  for (var r = 0u; r < ROWS * MT; r++) { acc[r] = 0.0; }
  var held: array<Held, ROWS * AHEAD>;
  for (var base = 0u; base < items; base += CHUNK) {
    for (var a = 0u; a < AHEAD; a++) {
      for (var r = 0u; r < ROWS; r++) { held[a * ROWS + r] = hold(row[r], min(base + lane + a * LANES, items - 1u)); }
    }
    var count = items - base;
    if (STAGED == 1u) {
      count = min(CHUNK, count);
      if (base > 0u) { workgroupBarrier(); }
      // The two quads of item i go to i and CHUNK + i: neighbouring lanes read neighbouring quads. Items that are no more are zero.
      let staged = (count + UNIT - 1u) / UNIT * UNIT;
      for (var m = 0u; m < MT; m++) {
        for (var v = lid; v < 2u * staged; v += WORKGROUP) {
          let half = (v / PAIR) % 2u;
          xs[(m * 2u + half) * CHUNK + v / (2u * PAIR) * PAIR + v % PAIR] = fetch(batch, m, 2u * base + v);
        }
      }
      workgroupBarrier();
    }
    for (var start = lane; start < count; start += LANES * AHEAD) {
      if (start != lane) {
        for (var a = 0u; a < AHEAD; a++) {
          for (var r = 0u; r < ROWS; r++) { held[a * ROWS + r] = hold(row[r], min(base + start + a * LANES, items - 1u)); }
        }
      }
      for (var a = 0u; a < AHEAD; a++) {
        let i = start + a * LANES;
        var w: array<Pair, ROWS>;
        for (var r = 0u; r < ROWS; r++) { w[r] = item(held[a * ROWS + r]); }
        for (var m = 0u; m < MT; m++) {
          var x: Pair;
          if (STAGED == 1u) {
            x = Pair(xs[m * 2u * CHUNK + i], xs[(m * 2u + 1u) * CHUNK + i]);
          } else {
            let v = i / PAIR * (2u * PAIR) + i % PAIR;
            x = Pair(fetch(batch, m, v), fetch(batch, m, v + PAIR));
          }
          for (var r = 0u; r < ROWS; r++) { acc[r * MT + m] += dot(w[r].lo, x.lo) + dot(w[r].hi, x.hi); }
        }
      }
    }
    if (STAGED == 0u) { break; }
  }
  for (var r = 0u; r < ROWS; r++) {
    for (var m = 0u; m < MT; m++) {
      let v = team_sum(acc[r * MT + m]);
      if (lane == 0u) { ys[m * BLOCK + team * ROWS + r] = v; }
    }
  }
  workgroupBarrier();
  if (VEC_OUT == 1u) {
    for (var u = lid; u < MT * BLOCK / 4u; u += WORKGROUP) {
      let m = u / (BLOCK / 4u); let n = first + u % (BLOCK / 4u) * 4u;
      if (m < rows && n < cols) { store4_0((batch * rows + m) * cols + n, vec4<f32>(ys[4u * u], ys[4u * u + 1u], ys[4u * u + 2u], ys[4u * u + 3u])); }
    }
  } else {
    for (var u = lid; u < MT * BLOCK; u += WORKGROUP) {
      let m = u / BLOCK; let n = first + u % BLOCK;
      if (m < rows && n < cols) { store_0((batch * rows + m) * cols + n, ys[u]); }
    }
  }
}
