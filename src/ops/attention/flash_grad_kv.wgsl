// The gradients of a block of keys and values of one key head: the queries of all heads that share it, their results' gradients and sums
// staged a tile at a time, the scores computed again. Four threads have PER keys, each with every fourth quad of them.
//
// Words: 0 H, 1 Hkv, 2 T, 3 S, 4 D, 5 Dv, 6 valid keys, 7 scale, 8 window, 9 workgroups in x, 10 blocks of a head, 11 workgroups.

// default
const WORKGROUP: u32 = 128;
const DK: u32 = 4;
const DV: u32 = 4;
const PER: u32 = 1;
const TILE: u32 = 16;
const CAUSAL: u32 = 1;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> e_0: array<f32>;
@group(0) @binding(5) var<storage, read> f_0: array<f32>;
@group(0) @binding(6) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> o_1: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_4(i: u32) -> f32 { return e_0[i]; }
fn load_5(i: u32) -> f32 { return f_0[i]; }
fn quad_sum(v: f32) -> f32 { return v; }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, t); }
fn fetch_q(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_k(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_v(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_g(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn put_k(start: u32, cols: u32, v: u32, x: vec4<f32>) { o_0[start / 4u + v] = x; }
fn put_v(start: u32, cols: u32, v: u32, x: vec4<f32>) { o_1[start / 4u + v] = x; }
// end

const ROWS: u32 = WORKGROUP / 4u * PER;
const QD: u32 = 4u * DK; // quads of a staged row
const QV: u32 = 4u * DV;
var<private> thread: u32;
var<workgroup> qs: array<vec4<f32>, TILE * QD>;
var<workgroup> gs: array<vec4<f32>, TILE * QV>;
var<workgroup> sums: array<vec2<f32>, TILE>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let heads = word(0u); let heads_kv = word(1u); let queries = word(2u); let keys = word(3u);
  let size = word(4u); let size_v = word(5u);
  let scale = bitcast<f32>(word(7u));
  let block = min(wid.y * word(9u) + wid.x, word(11u) - 1u);
  let lane = lid % 4u;
  let sharing = heads / heads_kv;
  let kv = block / word(10u); // batch and key head
  let s0 = block % word(10u) * ROWS;
  let own = s0 + lid / 4u * PER;
  var k: array<vec4<f32>, DK * PER>;
  var v: array<vec4<f32>, DV * PER>;
  var dk: array<vec4<f32>, DK * PER>;
  var dv: array<vec4<f32>, DV * PER>;
  for (var r = 0u; r < PER; r++) {
    let row = kv * keys + min(own + r, keys - 1u);
    for (var u = 0u; u < DK; u++) { k[r * DK + u] = fetch_k(row * size, size, lane + 4u * u) * scale; dk[r * DK + u] = vec4<f32>(0.0); }
    for (var w = 0u; w < DV; w++) { v[r * DV + w] = fetch_v(row * size_v, size_v, lane + 4u * w); dv[r * DV + w] = vec4<f32>(0.0); }
  }
  // The queries that may see a key of the block: from the one at its first key on, and up to the window's width behind its last.
  let valid = min(word(6u), keys); let window = word(8u);
  var begin = 0u; var finish = queries;
  if (CAUSAL == 1u && s0 + queries > valid) { begin = min(s0 + queries - valid, queries); }
  if (window > 0u) { finish = min(queries, select(0u, s0 + ROWS + window + queries - valid, s0 + ROWS + window + queries > valid)); }
  if (s0 >= valid) { finish = begin; }
  for (var n = 0u; n < sharing; n++) {
    let head = kv / heads_kv * heads + kv % heads_kv * sharing + n;
    for (var base = begin; base < finish; base += TILE) {
      let count = min(TILE, finish - base);
      workgroupBarrier();
      for (var i = lid; i < TILE * QD; i += WORKGROUP) { qs[i] = fetch_q((head * queries + base + min(i / QD, count - 1u)) * size, size, i % QD); }
      for (var i = lid; i < TILE * QV; i += WORKGROUP) { gs[i] = fetch_g((head * queries + base + min(i / QV, count - 1u)) * size_v, size_v, i % QV); }
      for (var i = lid; i < TILE; i += WORKGROUP) {
        let row = head * queries + base + min(i, count - 1u);
        sums[i] = vec2<f32>(f32(load_4(row)), f32(load_5(row)));
      }
      workgroupBarrier();
      for (var j = 0u; j < count; j++) {
        var x: array<f32, PER>;
        var y: array<f32, PER>;
        for (var r = 0u; r < PER; r++) { x[r] = 0.0; y[r] = 0.0; }
        for (var u = 0u; u < DK; u++) {
          let q = qs[j * QD + lane + 4u * u];
          for (var r = 0u; r < PER; r++) { x[r] += dot(k[r * DK + u], q); }
        }
        for (var w = 0u; w < DV; w++) {
          let g = gs[j * QV + lane + 4u * w];
          for (var r = 0u; r < PER; r++) { y[r] += dot(v[r * DV + w], g); }
        }
        let seen = keys_of(base + j);
        let known = sums[j];
        for (var r = 0u; r < PER; r++) {
          let score = quad_sum(x[r]);
          let slope = quad_sum(y[r]);
          let p = select(0.0, exp(score - known.x), own + r >= seen.x && own + r < seen.y);
          x[r] = p * (slope - known.y) * scale;
          y[r] = p;
        }
        for (var u = 0u; u < DK; u++) {
          let q = qs[j * QD + lane + 4u * u];
          for (var r = 0u; r < PER; r++) { dk[r * DK + u] += x[r] * q; }
        }
        for (var w = 0u; w < DV; w++) {
          let g = gs[j * QV + lane + 4u * w];
          for (var r = 0u; r < PER; r++) { dv[r * DV + w] += y[r] * g; }
        }
      }
    }
  }
  for (var r = 0u; r < PER; r++) {
    if (own + r < keys && wid.y * word(9u) + wid.x < word(11u)) {
      let row = kv * keys + own + r;
      for (var u = 0u; u < DK; u++) { put_k(row * size, size, lane + 4u * u, dk[r * DK + u]); }
      for (var w = 0u; w < DV; w++) { put_v(row * size_v, size_v, lane + 4u * w, dv[r * DV + w]); }
    }
  }
}
