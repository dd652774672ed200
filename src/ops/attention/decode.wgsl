// Attention of one query and one head per workgroup, with the softmax computed as the keys pass by, a tile of WORKGROUP keys at a time:
// four threads a key for the scores, each with DK quads of it, then DP threads across the value's quads and WORKGROUP / DP keys at
// once for the sum. The first EARLY values are on their way while the scores are computed. Beyond the last key the last one stands in,
// with weight 0, so that no load waits for a condition.
//
// Words: 0 H, 1 Hkv, 2 T, 3 S, 4 D, 5 Dv, 6 valid keys, 7 scale, 8 window, 9 workgroups in x, 10 workgroups.

// default
const WORKGROUP: u32 = 256;
const DP: u32 = 16;
const DK: u32 = 4;
const EARLY: u32 = 8;
const SUMS: u32 = 0;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(5) var<storage, read_write> o_1: array<f32>;
fn word(n: u32) -> u32 { return words[n]; }
fn store_1(i: u32, v: f32) { o_1[i] = v; }
fn masked(i: u32) -> f32 { return 0.0; }
fn key_sum(v: f32) -> f32 { return v; }
fn team_max(v: f32) -> f32 { return v; }
fn fetch_q(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_k(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn fetch_v(start: u32, cols: u32, v: u32) -> vec4<f32> { return a_0[start / 4u + v]; }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, t); }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { o_0[start / 4u + v] = x; }
// end

const LOWEST: f32 = -3.0e38;
const GROUPS: u32 = WORKGROUP / DP;
const PASSES: u32 = 4; // as many threads share a key
var<private> thread: u32;
var<workgroup> xs: array<vec4<f32>, 64>;
var<workgroup> score: array<f32, WORKGROUP>;
var<workgroup> part: array<vec4<f32>, WORKGROUP>;
var<workgroup> weight: array<f32, GROUPS>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let heads = word(0u); let heads_kv = word(1u); let queries = word(2u); let keys = word(3u);
  let size = word(4u); let size_v = word(5u);
  let scale = bitcast<f32>(word(7u));
  let group = min(wid.y * word(9u) + wid.x, word(10u) - 1u);
  let t = group % queries; let h = group / queries % heads; let b = group / queries / heads;
  let kv = (b * heads_kv + h / (heads / heads_kv)) * keys;
  let seen = keys_of(t); let first = seen.x; let last = seen.y;
  let quads = (size + 3u) / 4u; let quads_v = (size_v + 3u) / 4u;
  if (lid < 64u) {
    var x = vec4<f32>(0.0);
    if (lid < quads) { x = fetch_q(group * size, size, lid) * scale; }
    xs[lid] = x;
  }
  workgroupBarrier();
  let lane = lid % 4u;
  let d = lid % DP; let g = lid / DP;
  let dv = min(d, quads_v - 1u);
  var top = LOWEST; var sum = 0.0; var acc = vec4<f32>(0.0);
  for (var base = first; base < last; base += WORKGROUP) {
    let count = min(WORKGROUP, last - base);
    var early: array<vec4<f32>, EARLY>;
    for (var u = 0u; u < EARLY; u++) { early[u] = fetch_v((kv + base + min(g + u * GROUPS, count - 1u)) * size_v, size_v, dv); }
    var s: array<f32, PASSES>;
    var m = top;
    for (var h = 0u; h < PASSES; h++) {
      s[h] = LOWEST;
      let j = h * (WORKGROUP / 4u) + lid / 4u;
      let at = (kv + base + min(j, count - 1u)) * size;
      var x = 0.0;
      for (var u = 0u; u < DK; u++) { x += dot(xs[lane + 4u * u], fetch_k(at, size, min(lane + 4u * u, quads - 1u))); }
      x = key_sum(x);
      if (j < count) { s[h] = x + masked(group * keys + base + j); }
      m = max(m, s[h]);
    }
    m = team_max(m);
    for (var h = 0u; h < PASSES; h++) {
      let j = h * (WORKGROUP / 4u) + lid / 4u;
      if (lane == h) { score[j] = select(0.0, exp(s[h] - m), j < count); }
    }
    let shrink = exp(top - m);
    sum *= shrink;
    acc *= shrink;
    top = m;
    workgroupBarrier();
    for (var u = 0u; u < EARLY; u++) { let p = score[g + u * GROUPS]; sum += p; acc += p * early[u]; }
    for (var j = g + EARLY * GROUPS; j < count; j += 4u * GROUPS) {
      let at = (kv + base) * size_v; let end = count - 1u;
      let v0 = fetch_v(at + j * size_v, size_v, dv); let v1 = fetch_v(at + min(j + GROUPS, end) * size_v, size_v, dv);
      let v2 = fetch_v(at + min(j + 2u * GROUPS, end) * size_v, size_v, dv); let v3 = fetch_v(at + min(j + 3u * GROUPS, end) * size_v, size_v, dv);
      let p = vec4<f32>(score[j], score[j + GROUPS], score[j + 2u * GROUPS], score[j + 3u * GROUPS]);
      sum += (p.x + p.y) + (p.z + p.w);
      acc += (p.x * v0 + p.y * v1) + (p.z * v2 + p.w * v3);
    }
    workgroupBarrier();
  }
  // Every thread of a group has the group's weight; the groups' sums are added by fours.
  part[lid] = acc;
  if (d == 0u) { weight[g] = sum; }
  workgroupBarrier();
  var left = GROUPS;
  for (; left >= 4u; left /= 4u) {
    let o = left / 4u;
    if (g < o) {
      part[lid] = (part[lid] + part[lid + o * DP]) + (part[lid + 2u * o * DP] + part[lid + 3u * o * DP]);
      if (d == 0u) { weight[g] = (weight[g] + weight[g + o]) + (weight[g + 2u * o] + weight[g + 3u * o]); }
    }
    workgroupBarrier();
  }
  acc = part[d]; sum = weight[0];
  for (var o = 1u; o < left; o++) { acc += part[d + o * DP]; sum += weight[o]; }
  if (SUMS == 1u) {
    if (lid == 0u && wid.y * word(9u) + wid.x < word(10u)) { store_1(group, top + log(sum)); }
  }
  if (lid < quads_v && wid.y * word(9u) + wid.x < word(10u)) {
    // A query that sees no key gives zeros.
    let x = select(acc / sum, vec4<f32>(0.0), sum == 0.0);
    put(group * size_v, size_v, lid, x);
  }
}
