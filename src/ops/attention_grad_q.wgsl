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
const CAUSAL: u32 = 1;
const VEC_D: u32 = 1;
const VEC_V: u32 = 1;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> c_0: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> d_0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> e_0: array<f32>;
@group(0) @binding(5) var<storage, read> f_0: array<f32>;
@group(0) @binding(6) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> f32 { return b_0[i / 4u][i % 4u]; }
fn load4_1(i: u32) -> vec4<f32> { return b_0[i / 4u]; }
fn load_2(i: u32) -> f32 { return c_0[i / 4u][i % 4u]; }
fn load4_2(i: u32) -> vec4<f32> { return c_0[i / 4u]; }
fn load_3(i: u32) -> f32 { return d_0[i / 4u][i % 4u]; }
fn load4_3(i: u32) -> vec4<f32> { return d_0[i / 4u]; }
fn load_4(i: u32) -> f32 { return e_0[i]; }
fn load_5(i: u32) -> f32 { return f_0[i]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn quad_sum(v: f32) -> f32 { return v; }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, t); }
// end

const ROWS: u32 = WORKGROUP / 4u * PER;
const QD: u32 = 4u * DK; // quads of a staged row
const QV: u32 = 4u * DV;
var<private> thread: u32;
var<workgroup> ks: array<vec4<f32>, TILE * QD>;
var<workgroup> vs: array<vec4<f32>, TILE * QV>;

fn fetch_q(at: u32, v: u32, size: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
  if (VEC_D == 1u) {
    if (c < size) { x = load4_0(at + c); }
  } else {
    if (c < size) { x.x = load_0(at + c); }
    if (c + 1u < size) { x.y = load_0(at + c + 1u); }
    if (c + 2u < size) { x.z = load_0(at + c + 2u); }
    if (c + 3u < size) { x.w = load_0(at + c + 3u); }
  }
  return x;
}
fn fetch_k(at: u32, v: u32, size: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
  if (VEC_D == 1u) {
    if (c < size) { x = load4_1(at + c); }
  } else {
    if (c < size) { x.x = load_1(at + c); }
    if (c + 1u < size) { x.y = load_1(at + c + 1u); }
    if (c + 2u < size) { x.z = load_1(at + c + 2u); }
    if (c + 3u < size) { x.w = load_1(at + c + 3u); }
  }
  return x;
}
fn fetch_v(at: u32, v: u32, size: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
  if (VEC_V == 1u) {
    if (c < size) { x = load4_2(at + c); }
  } else {
    if (c < size) { x.x = load_2(at + c); }
    if (c + 1u < size) { x.y = load_2(at + c + 1u); }
    if (c + 2u < size) { x.z = load_2(at + c + 2u); }
    if (c + 3u < size) { x.w = load_2(at + c + 3u); }
  }
  return x;
}
fn fetch_g(at: u32, v: u32, size: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
  if (VEC_V == 1u) {
    if (c < size) { x = load4_3(at + c); }
  } else {
    if (c < size) { x.x = load_3(at + c); }
    if (c + 1u < size) { x.y = load_3(at + c + 1u); }
    if (c + 2u < size) { x.z = load_3(at + c + 2u); }
    if (c + 3u < size) { x.w = load_3(at + c + 3u); }
  }
  return x;
}
fn put(at: u32, v: u32, size: u32, x: vec4<f32>) {
  let c = 4u * v;
  if (VEC_D == 1u) {
    if (c < size) { store4_0(at + c, x); }
  } else {
    if (c < size) { store_0(at + c, x.x); }
    if (c + 1u < size) { store_0(at + c + 1u, x.y); }
    if (c + 2u < size) { store_0(at + c + 2u, x.z); }
    if (c + 3u < size) { store_0(at + c + 3u, x.w); }
  }
}

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
    for (var u = 0u; u < DK; u++) { q[r * DK + u] = fetch_q(row * size, lane + 4u * u, size) * scale; acc[r * DK + u] = vec4<f32>(0.0); }
    for (var w = 0u; w < DV; w++) { g[r * DV + w] = fetch_g(row * size_v, lane + 4u * w, size_v); }
    logs[r] = f32(load_4(row)); delta[r] = f32(load_5(row)); seen[r] = keys_of(t);
  }
  let begin = keys_of(t0).x; let finish = keys_of(min(t0 + ROWS, queries) - 1u).y;
  for (var base = begin; base < finish; base += TILE) {
    let count = min(TILE, finish - base);
    workgroupBarrier();
    for (var i = lid; i < TILE * QD; i += WORKGROUP) { ks[i] = fetch_k((kv + base + min(i / QD, count - 1u)) * size, i % QD, size); }
    for (var i = lid; i < TILE * QV; i += WORKGROUP) { vs[i] = fetch_v((kv + base + min(i / QV, count - 1u)) * size_v, i % QV, size_v); }
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
      for (var u = 0u; u < DK; u++) { put((head * queries + own + r) * size, lane + 4u * u, size, acc[r * DK + u]); }
    }
  }
}
