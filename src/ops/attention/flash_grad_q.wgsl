// The gradient of a block of queries of one head, keys and values staged a tile at a time and the scores computed again: four threads have
// THREAD_ROWS queries, each with every fourth quad of them, of their results' gradients and of their own.

#include "flash_tiles.wgsl" D = ks, V = vs

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#include "flash_begin.wgsl"
#include "flash_queries.wgsl"
  var q: array<vec4<f32>, DK * THREAD_ROWS>;
  var g: array<vec4<f32>, DV * THREAD_ROWS>;
  var acc: array<vec4<f32>, DK * THREAD_ROWS>;
  var logs: array<f32, THREAD_ROWS>;
  var delta: array<f32, THREAD_ROWS>;
  var seen: array<vec2<u32>, THREAD_ROWS>;
#unroll
  for (var r = 0u; r < THREAD_ROWS; r++) {
    let t = min(own + r, queries - 1u);
    let row = head * queries + t;
#unroll
    for (var u = 0u; u < DK; u++) { q[r * DK + u] = fetch_q(row * size, size, lane + 4u * u) * scale; acc[r * DK + u] = vec4<f32>(0.0); }
#unroll
    for (var w = 0u; w < DV; w++) { g[r * DV + w] = fetch_g(row * size_v, size_v, lane + 4u * w); }
    logs[r] = f32(load_4(row)); delta[r] = f32(load_5(row)); seen[r] = keys_of(t);
  }
  let begin = keys_of(t0).x; let finish = keys_of(min(t0 + ROWS, queries) - 1u).y;
  for (var base = begin; base < finish; base += TILE) {
    let count = min(TILE, finish - base);
#include "flash_stage.wgsl" D = ks, d = k, V = vs, v = v, FIRST = kv, COUNT = count
#if DROPOUT
    {
      for (var i = lid; i < ROWS * TILE / 4u; i += WORKGROUP) {
        let t = min(t0 + i / (TILE / 4u), queries - 1u);
        kept[i] = keep4((head * queries + t) * keys + base + i % (TILE / 4u) * 4u);
      }
    }
#endif
    workgroupBarrier();
    for (var j = 0u; j < count; j++) {
      var x: array<f32, THREAD_ROWS>;
      var y: array<f32, THREAD_ROWS>;
#unroll
      for (var r = 0u; r < THREAD_ROWS; r++) { x[r] = 0.0; y[r] = 0.0; }
#unroll
      for (var u = 0u; u < DK; u++) {
        let k = ks[j * QD + lane + 4u * u];
#unroll
        for (var r = 0u; r < THREAD_ROWS; r++) { x[r] += dot(q[r * DK + u], k); }
      }
#unroll
      for (var w = 0u; w < DV; w++) {
        let v = vs[j * QV + lane + 4u * w];
#unroll
        for (var r = 0u; r < THREAD_ROWS; r++) { y[r] += dot(g[r * DV + w], v); }
      }
#unroll
      for (var r = 0u; r < THREAD_ROWS; r++) {
        let score = quad_sum(x[r]);
#if DROPOUT
        let slope = quad_sum(y[r]) * keep_factor(kept[(own - t0 + r) * (TILE / 4u) + j / 4u], j % 4u);
#else
        let slope = quad_sum(y[r]);
#endif
        let prob = select(0.0, exp(score - logs[r]), base + j >= seen[r].x && base + j < seen[r].y);
        x[r] = prob * (slope - delta[r]) * scale;
      }
#unroll
      for (var u = 0u; u < DK; u++) {
        let k = ks[j * QD + lane + 4u * u];
#unroll
        for (var r = 0u; r < THREAD_ROWS; r++) { acc[r * DK + u] += x[r] * k; }
      }
    }
  }
#unroll
  for (var r = 0u; r < THREAD_ROWS; r++) {
    if (own + r < queries && wid.y * p.groups_x + wid.x < p.groups) {
#unroll
      for (var u = 0u; u < DK; u++) { put((head * queries + own + r) * size, size, lane + 4u * u, acc[r * DK + u]); }
    }
  }
}

#include "keys.wgsl" VALID = "p.valid"
#if DROPOUT
#include "flash_keep.wgsl"
#endif
#include "rows_fetch.wgsl" NAME = fetch_q, LOAD = 0, VEC = ${VEC_D}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_k, LOAD = 1, VEC = ${VEC_D}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_v, LOAD = 2, VEC = ${VEC_V}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_g, LOAD = 3, VEC = ${VEC_V}, REST = 0.0
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC_D}
${QUAD_SUM}
