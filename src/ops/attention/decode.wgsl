// Attention of one query and one head per workgroup, with the softmax computed as the keys pass by, a tile of WORKGROUP keys at a time:
// four threads a key for the scores, each with DK quads of it, then DP threads across the value's quads and WORKGROUP / DP keys at
// once for the sum. The first PREFETCH values are on their way while the scores are computed. Beyond the last key the last one stands in,
// with weight 0, so that no load waits for a condition.

const LOWEST: f32 = -3.0e38;
const GROUPS: u32 = WORKGROUP / DP;
const PASSES: u32 = ${PASSES}; // as many threads share a key
var<private> thread: u32;
var<workgroup> xs: array<vec4<f32>, 64>;
var<workgroup> score: array<f32, WORKGROUP>;
var<workgroup> part: array<vec4<f32>, WORKGROUP>;
var<workgroup> weight: array<f32, GROUPS>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let heads = p.heads; let heads_kv = p.heads_kv; let queries = p.queries; let keys = p.keys;
  let size = p.size; let size_v = p.size_v;
  let scale = p.scale;
  let group = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
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
    var prefetched: array<vec4<f32>, PREFETCH>;
#unroll
    for (var u = 0u; u < PREFETCH; u++) { prefetched[u] = fetch_v((kv + base + min(g + u * GROUPS, count - 1u)) * size_v, size_v, dv); }
    var s: array<f32, PASSES>;
    var m = top;
#unroll
    for (var h = 0u; h < PASSES; h++) {
      s[h] = LOWEST;
      let j = h * (WORKGROUP / 4u) + lid / 4u;
      let at = (kv + base + min(j, count - 1u)) * size;
      var x = 0.0;
#unroll
      for (var u = 0u; u < DK; u++) { x += dot(xs[lane + 4u * u], fetch_k(at, size, min(lane + 4u * u, quads - 1u))); }
      x = key_sum(x);
#if CAPPED
      x = softcap(x);
#endif
      if (j < count) { s[h] = x + masked(group * keys + base + j); }
      m = max(m, s[h]);
    }
    m = workgroup_max(m);
#unroll
    for (var h = 0u; h < PASSES; h++) {
      let j = h * (WORKGROUP / 4u) + lid / 4u;
      if (lane == h) { score[j] = select(0.0, exp(s[h] - m), j < count); }
    }
    let shrink = exp(top - m);
    sum *= shrink;
    acc *= shrink;
    top = m;
    workgroupBarrier();
#unroll
    for (var u = 0u; u < PREFETCH; u++) { let prob = score[g + u * GROUPS]; sum += prob; acc += prob * prefetched[u]; }
    for (var j = g + PREFETCH * GROUPS; j < count; j += 4u * GROUPS) {
      let at = (kv + base) * size_v; let end = count - 1u;
      let v0 = fetch_v(at + j * size_v, size_v, dv); let v1 = fetch_v(at + min(j + GROUPS, end) * size_v, size_v, dv);
      let v2 = fetch_v(at + min(j + 2u * GROUPS, end) * size_v, size_v, dv); let v3 = fetch_v(at + min(j + 3u * GROUPS, end) * size_v, size_v, dv);
      let probs = vec4<f32>(score[j], score[j + GROUPS], score[j + 2u * GROUPS], score[j + 3u * GROUPS]);
      sum += (probs.x + probs.y) + (probs.z + probs.w);
      acc += (probs.x * v0 + probs.y * v1) + (probs.z * v2 + probs.w * v3);
    }
    workgroupBarrier();
  }
  // Every thread of a group has the group's weight; the groups' sums are added as vec4.
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
#if SUMS
  {
    if (lid == 0u && wid.y * p.groups_x + wid.x < p.groups) { store_1(group, top + log(sum)); }
  }
#endif
  if (lid < quads_v && wid.y * p.groups_x + wid.x < p.groups) {
    // A query that sees no key gives zeros.
    let x = select(acc / sum, vec4<f32>(0.0), sum == 0.0);
    put(group * size_v, size_v, lid, x);
  }
}

#include "keys.wgsl" VALID = "p.valid"
#if CAPPED
#include "softcap.wgsl"
#endif
#include "rows_fetch_inside.wgsl" NAME = fetch_q, LOAD = 0, VEC = ${VEC_D}
#include "rows_fetch_inside.wgsl" NAME = fetch_k, LOAD = 1, VEC = ${VEC_D}
#include "rows_fetch_inside.wgsl" NAME = fetch_v, LOAD = 2, VEC = ${VEC_V}
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC_V}
${KEY_SUM}
${WORKGROUP_MAX}
#if MASKED
fn masked(i: u32) -> f32 { return load_3(i); }
#else
fn masked(i: u32) -> f32 { return 0.0; }
#endif
