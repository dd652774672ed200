// Attention of a block of queries of one head, keys and values staged a tile at a time, with the softmax computed as they pass by: four threads
// have THREAD_ROWS queries, each with every fourth quad of them and of their sums. For many queries; decode.wgsl is for few.

const LOWEST: f32 = -3.0e38;
#include "flash_tiles.wgsl" D = ks, V = vs

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#include "flash_begin.wgsl"
#include "flash_queries.wgsl"
#if PAGED
  valid_keys = valid_of(b);
  let kv_head = h / (heads / heads_kv);
#endif
  var q: array<vec4<f32>, DK * THREAD_ROWS>;
  var acc: array<vec4<f32>, DV * THREAD_ROWS>;
  var top: array<f32, THREAD_ROWS>;
  var sum: array<f32, THREAD_ROWS>;
  var seen: array<vec2<u32>, THREAD_ROWS>;
#unroll
  for (var r = 0u; r < THREAD_ROWS; r++) {
    let t = min(own + r, queries - 1u);
#unroll
    for (var u = 0u; u < DK; u++) { q[r * DK + u] = fetch_q((head * queries + t) * size, size, lane + 4u * u) * scale; }
#unroll
    for (var w = 0u; w < DV; w++) { acc[r * DV + w] = vec4<f32>(0.0); }
    top[r] = LOWEST; sum[r] = 0.0; seen[r] = keys_of(t);
  }
  let begin = keys_of(t0).x; let finish = keys_of(min(t0 + ROWS, queries) - 1u).y;
  for (var base = begin; base < finish; base += TILE) {
    let count = min(TILE, finish - base);
#if PAGED
    workgroupBarrier();
    for (var i = lid; i < TILE * QD; i += WORKGROUP) { ks[i] = fetch_k(paged_row(b, kv_head, base + min(i / QD, count - 1u)) * size, size, i % QD); }
    for (var i = lid; i < TILE * QV; i += WORKGROUP) { vs[i] = fetch_v(paged_row(b, kv_head, base + min(i / QV, count - 1u)) * size_v, size_v, i % QV); }
#else
#include "flash_stage.wgsl" D = ks, d = k, V = vs, v = v, FIRST = kv, COUNT = count
#endif
#if DROPOUT
    {
      for (var i = lid; i < ROWS * TILE / 4u; i += WORKGROUP) {
        let t = min(t0 + i / (TILE / 4u), queries - 1u);
        kept[i] = keep4((head * queries + t) * keys + base + i % (TILE / 4u) * 4u);
      }
    }
#endif
    workgroupBarrier();
    for (var j = 0u; j < TILE; j += 4u) {
      // Four keys at a time: sums are corrected once for them.
      var s: array<vec4<f32>, THREAD_ROWS>;
#unroll
      for (var r = 0u; r < THREAD_ROWS; r++) { s[r] = vec4<f32>(0.0); }
#unroll
      for (var u = 0u; u < DK; u++) {
        let c = lane + 4u * u;
        let k0 = ks[j * QD + c]; let k1 = ks[(j + 1u) * QD + c]; let k2 = ks[(j + 2u) * QD + c]; let k3 = ks[(j + 3u) * QD + c];
#unroll
        for (var r = 0u; r < THREAD_ROWS; r++) {
          let x = q[r * DK + u];
          s[r] += vec4<f32>(dot(x, k0), dot(x, k1), dot(x, k2), dot(x, k3));
        }
      }
      let key = vec4<u32>(base + j) + vec4<u32>(0u, 1u, 2u, 3u);
#unroll
      for (var r = 0u; r < THREAD_ROWS; r++) {
        var x = vec4<f32>(quad_sum(s[r].x), quad_sum(s[r].y), quad_sum(s[r].z), quad_sum(s[r].w));
#if CAPPED
        x = vec4<f32>(softcap(x.x), softcap(x.y), softcap(x.z), softcap(x.w));
#endif
        let inside = (key >= vec4<u32>(seen[r].x)) & (key < vec4<u32>(min(seen[r].y, base + count)));
        let row = (head * queries + min(own + r, queries - 1u)) * keys;
#if MASKED
        {
          x += vec4<f32>(masked(row + min(key.x, keys - 1u)), masked(row + min(key.y, keys - 1u)), masked(row + min(key.z, keys - 1u)), masked(row + min(key.w, keys - 1u)));
        }
#endif
        x = select(vec4<f32>(LOWEST), x, inside);
        let m = max(top[r], max(max(x.x, x.y), max(x.z, x.w)));
        let probs = select(vec4<f32>(0.0), exp(x - m), inside);
        let shrink = exp(top[r] - m);
        top[r] = m;
        sum[r] = sum[r] * shrink + ((probs.x + probs.y) + (probs.z + probs.w));
#unroll
        for (var w = 0u; w < DV; w++) { acc[r * DV + w] *= shrink; }
        s[r] = probs;
#if DROPOUT
        { s[r] *= keep_factors(kept[(own - t0 + r) * (TILE / 4u) + j / 4u]); }
#endif
      }
#unroll
      for (var w = 0u; w < DV; w++) {
        let c = lane + 4u * w;
        let v0 = vs[j * QV + c]; let v1 = vs[(j + 1u) * QV + c]; let v2 = vs[(j + 2u) * QV + c]; let v3 = vs[(j + 3u) * QV + c];
#unroll
        for (var r = 0u; r < THREAD_ROWS; r++) {
          let probs = s[r];
          acc[r * DV + w] += (probs.x * v0 + probs.y * v1) + (probs.z * v2 + probs.w * v3);
        }
      }
    }
  }
#include "flash_tiled_store.wgsl"
}

#if PAGED
#include "keys.wgsl" VALID = valid_keys
#include "paged_row.wgsl"
#else
#include "keys.wgsl" VALID = "p.valid"
#endif
#if DROPOUT
#include "flash_keep.wgsl"
#endif
#if CAPPED
#include "softcap.wgsl"
#endif
#include "rows_fetch.wgsl" NAME = fetch_q, LOAD = 0, VEC = ${VEC_D}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_k, LOAD = 1, VEC = ${VEC_D}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_v, LOAD = 2, VEC = ${VEC_V}, REST = 0.0
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC_V}
${QUAD_SUM}
#if MASKED
fn masked(i: u32) -> f32 { return load_3(i); }
#endif
