// The gradients of a block of keys and values of one key head: the queries of all heads that share it, their results' gradients and sums
// staged a tile at a time, the scores computed again. Four threads have THREAD_ROWS keys, each with every fourth quad of them.

#include "flash_tiles.wgsl" D = qs, V = gs
var<workgroup> sums: array<vec2<f32>, TILE>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#include "flash_begin.wgsl"
  let sharing = heads / heads_kv;
  let kv = block / p.head_blocks; // batch and key head
  let s0 = block % p.head_blocks * ROWS;
  let own = s0 + lid / 4u * THREAD_ROWS;
  var k: array<vec4<f32>, DK * THREAD_ROWS>;
  var v: array<vec4<f32>, DV * THREAD_ROWS>;
  var dk: array<vec4<f32>, DK * THREAD_ROWS>;
  var dv: array<vec4<f32>, DV * THREAD_ROWS>;
#unroll
  for (var r = 0u; r < THREAD_ROWS; r++) {
    let row = kv * keys + min(own + r, keys - 1u);
#unroll
    for (var u = 0u; u < DK; u++) { k[r * DK + u] = fetch_k(row * size, size, lane + 4u * u) * scale; dk[r * DK + u] = vec4<f32>(0.0); }
#unroll
    for (var w = 0u; w < DV; w++) { v[r * DV + w] = fetch_v(row * size_v, size_v, lane + 4u * w); dv[r * DV + w] = vec4<f32>(0.0); }
  }
  // The queries that may see a key of the block: from the one at its first key on, and up to the window's width behind its last.
  let valid = min(p.valid, keys); let window = p.window;
  var begin = 0u; var finish = queries;
  if (CAUSAL == 1u && s0 + queries > valid) { begin = min(s0 + queries - valid, queries); }
  if (window > 0u) { finish = min(queries, select(0u, s0 + ROWS + window + queries - valid, s0 + ROWS + window + queries > valid)); }
  if (s0 >= valid) { finish = begin; }
  for (var n = 0u; n < sharing; n++) {
    let head = kv / heads_kv * heads + kv % heads_kv * sharing + n;
    for (var base = begin; base < finish; base += TILE) {
      let count = min(TILE, finish - base);
#include "flash_stage.wgsl" D = qs, d = q, V = gs, v = g, FIRST = "head * queries", COUNT = count
      for (var i = lid; i < TILE; i += WORKGROUP) {
        let row = head * queries + base + min(i, count - 1u);
        sums[i] = vec2<f32>(f32(load_4(row)), f32(load_5(row)));
      }
#if DROPOUT
      {
        for (var i = lid; i < ROWS * TILE / 4u; i += WORKGROUP) {
          let t = base + min(i / (ROWS / 4u), count - 1u);
          kept[i] = keep4((head * queries + t) * keys + s0 + i % (ROWS / 4u) * 4u);
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
          let q = qs[j * QD + lane + 4u * u];
#unroll
          for (var r = 0u; r < THREAD_ROWS; r++) { x[r] += dot(k[r * DK + u], q); }
        }
#unroll
        for (var w = 0u; w < DV; w++) {
          let g = gs[j * QV + lane + 4u * w];
#unroll
          for (var r = 0u; r < THREAD_ROWS; r++) { y[r] += dot(v[r * DV + w], g); }
        }
        let seen = keys_of(base + j);
        let known = sums[j];
#unroll
        for (var r = 0u; r < THREAD_ROWS; r++) {
          let score = quad_sum(x[r]);
#if DROPOUT
          let keep = keep_factor(kept[(j * ROWS + own - s0 + r) / 4u], (own - s0 + r) % 4u);
          let slope = quad_sum(y[r]) * keep;
#else
          let slope = quad_sum(y[r]);
#endif
          let prob = select(0.0, exp(score - known.x), own + r >= seen.x && own + r < seen.y);
          x[r] = prob * (slope - known.y) * scale;
#if DROPOUT
          y[r] = prob * keep;
#else
          y[r] = prob;
#endif
        }
#unroll
        for (var u = 0u; u < DK; u++) {
          let q = qs[j * QD + lane + 4u * u];
#unroll
          for (var r = 0u; r < THREAD_ROWS; r++) { dk[r * DK + u] += x[r] * q; }
        }
#unroll
        for (var w = 0u; w < DV; w++) {
          let g = gs[j * QV + lane + 4u * w];
#unroll
          for (var r = 0u; r < THREAD_ROWS; r++) { dv[r * DV + w] += y[r] * g; }
        }
      }
    }
  }
#include "flash_grad_kv_store.wgsl"
}

#include "keys.wgsl" VALID = "p.valid"
#if DROPOUT
#include "flash_keep.wgsl"
#endif
#include "rows_fetch.wgsl" NAME = fetch_q, LOAD = 0, VEC = ${VEC_D}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_k, LOAD = 1, VEC = ${VEC_D}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_v, LOAD = 2, VEC = ${VEC_V}, REST = 0.0
#include "rows_fetch.wgsl" NAME = fetch_g, LOAD = 3, VEC = ${VEC_V}, REST = 0.0
#include "rows_put.wgsl" NAME = put_k, STORE = 0, VEC = ${VEC_D}
#include "rows_put.wgsl" NAME = put_v, STORE = 1, VEC = ${VEC_V}
${QUAD_SUM}
