// Attention of a block of queries of one head, keys and values staged a tile at a time, with the softmax computed as they pass by: four threads
// have PER queries, each with every fourth quad of them and of their sums. For many queries; attention.wgsl is for few.
//
// Words: 0 H, 1 Hkv, 2 T, 3 S, 4 D, 5 Dv, 6 valid keys, 7 scale, 8 window, 9 workgroups in x, 10 blocks of a head, 11 workgroups.

// default
const WORKGROUP: u32 = 128;
const DK: u32 = 4;
const DV: u32 = 4;
const PER: u32 = 1;
const TILE: u32 = 16;
const MASKED: u32 = 0;
const SUMS: u32 = 1;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> o_1: array<f32>;
@group(0) @binding(5) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn store_1(i: u32, v: f32) { o_1[i] = v; }
fn quad_sum(v: f32) -> f32 { return v; }
fn masked(i: u32) -> f32 { return 0.0; }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, t); }
fn fetch_q(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_k(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_v(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { o_0[start / 4u + v] = x; }
// end

const LOWEST: f32 = -3.0e38;
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
  var acc: array<vec4<f32>, DV * PER>;
  var top: array<f32, PER>;
  var sum: array<f32, PER>;
  var seen: array<vec2<u32>, PER>;
  for (var r = 0u; r < PER; r++) {
    let t = min(own + r, queries - 1u);
    for (var u = 0u; u < DK; u++) { q[r * DK + u] = fetch_q((head * queries + t) * size, size, lane + 4u * u) * scale; }
    for (var w = 0u; w < DV; w++) { acc[r * DV + w] = vec4<f32>(0.0); }
    top[r] = LOWEST; sum[r] = 0.0; seen[r] = keys_of(t);
  }
  let begin = keys_of(t0).x; let finish = keys_of(min(t0 + ROWS, queries) - 1u).y;
  for (var base = begin; base < finish; base += TILE) {
    let count = min(TILE, finish - base);
    workgroupBarrier();
    for (var i = lid; i < TILE * QD; i += WORKGROUP) { ks[i] = fetch_k((kv + base + min(i / QD, count - 1u)) * size, size, i % QD); }
    for (var i = lid; i < TILE * QV; i += WORKGROUP) { vs[i] = fetch_v((kv + base + min(i / QV, count - 1u)) * size_v, size_v, i % QV); }
    workgroupBarrier();
    for (var j = 0u; j < TILE; j += 4u) {
      // Four keys at a time: sums are corrected once for them.
      var s: array<vec4<f32>, PER>;
      for (var r = 0u; r < PER; r++) { s[r] = vec4<f32>(0.0); }
      for (var u = 0u; u < DK; u++) {
        let c = lane + 4u * u;
        let k0 = ks[j * QD + c]; let k1 = ks[(j + 1u) * QD + c]; let k2 = ks[(j + 2u) * QD + c]; let k3 = ks[(j + 3u) * QD + c];
        for (var r = 0u; r < PER; r++) {
          let x = q[r * DK + u];
          s[r] += vec4<f32>(dot(x, k0), dot(x, k1), dot(x, k2), dot(x, k3));
        }
      }
      let key = vec4<u32>(base + j) + vec4<u32>(0u, 1u, 2u, 3u);
      for (var r = 0u; r < PER; r++) {
        var x = vec4<f32>(quad_sum(s[r].x), quad_sum(s[r].y), quad_sum(s[r].z), quad_sum(s[r].w));
        let inside = (key >= vec4<u32>(seen[r].x)) & (key < vec4<u32>(min(seen[r].y, base + count)));
        let row = (head * queries + min(own + r, queries - 1u)) * keys;
        if (MASKED == 1u) {
          x += vec4<f32>(masked(row + min(key.x, keys - 1u)), masked(row + min(key.y, keys - 1u)), masked(row + min(key.z, keys - 1u)), masked(row + min(key.w, keys - 1u)));
        }
        x = select(vec4<f32>(LOWEST), x, inside);
        let m = max(top[r], max(max(x.x, x.y), max(x.z, x.w)));
        let p = select(vec4<f32>(0.0), exp(x - m), inside);
        let shrink = exp(top[r] - m);
        top[r] = m;
        sum[r] = sum[r] * shrink + ((p.x + p.y) + (p.z + p.w));
        for (var w = 0u; w < DV; w++) { acc[r * DV + w] *= shrink; }
        s[r] = p;
      }
      for (var w = 0u; w < DV; w++) {
        let c = lane + 4u * w;
        let v0 = vs[j * QV + c]; let v1 = vs[(j + 1u) * QV + c]; let v2 = vs[(j + 2u) * QV + c]; let v3 = vs[(j + 3u) * QV + c];
        for (var r = 0u; r < PER; r++) {
          let p = s[r];
          acc[r * DV + w] += (p.x * v0 + p.y * v1) + (p.z * v2 + p.w * v3);
        }
      }
    }
  }
  for (var r = 0u; r < PER; r++) {
    let t = own + r;
    if (t < queries && wid.y * word(9u) + wid.x < word(11u)) {
      // A query that sees no key gives zeros.
      let part = select(1.0 / sum[r], 0.0, sum[r] == 0.0);
      for (var w = 0u; w < DV; w++) { put((head * queries + t) * size_v, size_v, lane + 4u * w, acc[r * DV + w] * part); }
      if (SUMS == 1u) {
        if (lane == 0u) { store_1(head * queries + t, top[r] + log(sum[r])); }
      }
    }
  }
}
