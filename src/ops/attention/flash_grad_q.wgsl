// The gradient of a block of queries of one head, keys and values staged a tile at a time and the scores computed again: four threads have
// PER queries, each with every fourth quad of them, of their results' gradients and of their own.
//
// Words: 0 H, 1 Hkv, 2 T, 3 S, 4 D, 5 Dv, 6 valid keys, 7 scale, 8 window, 9 workgroups in x, 10 blocks of a head, 11 workgroups.

// default
const WORKGROUP: u32 = 128;
const DK: u32 = 4;
const DV: u32 = 4;
const PER: u32 = 1;
const TILE: u32 = 16;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> e_0: array<f32>;
@group(0) @binding(5) var<storage, read> f_0: array<f32>;
@group(0) @binding(6) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_4(i: u32) -> f32 { return e_0[i]; }
fn load_5(i: u32) -> f32 { return f_0[i]; }
fn quad_sum(v: f32) -> f32 { return v; }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, t); }
fn fetch_q(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_k(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_v(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_g(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { o_0[start / 4u + v] = x; }
// end

const ROWS: u32 = WORKGROUP / 4u * PER;
const QD: u32 = 4u * DK; // quads of a staged row
const QV: u32 = 4u * DV;
var<private> thread: u32;
var<workgroup> ks: array<vec4<f32>, TILE * QD>;
var<workgroup> vs: array<vec4<f32>, TILE * QV>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let heads = word(0u); let heads_kv = word(1u); let queries = word(2u); let keys = word(3u);
  let size = word(4u); let size_v = word(5u);
  let scale = bitcast<f32>(word(7u));
  let block = min(wid.y * word(9u) + wid.x, word(11u) - 1u);
  let lane = lid % 4u;
  let head = block / word(10u);
  let h = head % heads; let b = head / heads;
  let kv = (b * heads_kv + h / (heads / heads_kv)) * keys;
  let t0 = block % word(10u) * ROWS;
  let own = t0 + lid / 4u * PER;
  var q: array<vec4<f32>, DK * PER>;
  var g: array<vec4<f32>, DV * PER>;
  var acc: array<vec4<f32>, DK * PER>;
  var logs: array<f32, PER>;
  var delta: array<f32, PER>;
  var seen: array<vec2<u32>, PER>;
  for (var r = 0u; r < PER; r++) {
    let t = min(own + r, queries - 1u);
    let row = head * queries + t;
    for (var u = 0u; u < DK; u++) { q[r * DK + u] = fetch_q(row * size, size, lane + 4u * u) * scale; acc[r * DK + u] = vec4<f32>(0.0); }
    for (var w = 0u; w < DV; w++) { g[r * DV + w] = fetch_g(row * size_v, size_v, lane + 4u * w); }
    logs[r] = f32(load_4(row)); delta[r] = f32(load_5(row)); seen[r] = keys_of(t);
  }
  let begin = keys_of(t0).x; let finish = keys_of(min(t0 + ROWS, queries) - 1u).y;
  for (var base = begin; base < finish; base += TILE) {
    let count = min(TILE, finish - base);
    workgroupBarrier();
    for (var i = lid; i < TILE * QD; i += WORKGROUP) { ks[i] = fetch_k((kv + base + min(i / QD, count - 1u)) * size, size, i % QD); }
    for (var i = lid; i < TILE * QV; i += WORKGROUP) { vs[i] = fetch_v((kv + base + min(i / QV, count - 1u)) * size_v, size_v, i % QV); }
    workgroupBarrier();
    for (var j = 0u; j < count; j++) {
      var x: array<f32, PER>;
      var y: array<f32, PER>;
      for (var r = 0u; r < PER; r++) { x[r] = 0.0; y[r] = 0.0; }
      for (var u = 0u; u < DK; u++) {
        let k = ks[j * QD + lane + 4u * u];
        for (var r = 0u; r < PER; r++) { x[r] += dot(q[r * DK + u], k); }
      }
      for (var w = 0u; w < DV; w++) {
        let v = vs[j * QV + lane + 4u * w];
        for (var r = 0u; r < PER; r++) { y[r] += dot(g[r * DV + w], v); }
      }
      for (var r = 0u; r < PER; r++) {
        let score = quad_sum(x[r]);
        let slope = quad_sum(y[r]);
        let p = select(0.0, exp(score - logs[r]), base + j >= seen[r].x && base + j < seen[r].y);
        x[r] = p * (slope - delta[r]) * scale;
      }
      for (var u = 0u; u < DK; u++) {
        let k = ks[j * QD + lane + 4u * u];
        for (var r = 0u; r < PER; r++) { acc[r * DK + u] += x[r] * k; }
      }
    }
  }
  for (var r = 0u; r < PER; r++) {
    if (own + r < queries && wid.y * word(9u) + wid.x < word(11u)) {
      for (var u = 0u; u < DK; u++) { put((head * queries + own + r) * size, size, lane + 4u * u, acc[r * DK + u]); }
    }
  }
}
