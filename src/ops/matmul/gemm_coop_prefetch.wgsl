// The products of gemm_coop.wgsl where a step's matrices are loaded while those of the step before are multiplied: x and y hold those of two steps.
    var x: array<coop_mat${EDGE}x${EDGE}<f16, A>, 2u * FRAGMENTS_M>;
    var y: array<coop_mat${EDGE}x${EDGE}<f16, B>, 2u * FRAGMENTS_N>;
#include "gemm_coop_stage.wgsl" K = "begin"
    if (begin + BK < size) {
#include "gemm_coop_fetch.wgsl" K = "begin + BK"
    }
    workgroupBarrier();
#unroll UNROLL
    for (var i = 0u; i < FRAGMENTS_M; i++) { x[i] = fragment_a(0u, wm + i * EDGE); }
#unroll UNROLL
    for (var j = 0u; j < FRAGMENTS_N; j++) { y[j] = fragment_b(0u, wn + j * EDGE); }
    for (var k0 = begin; k0 < size; k0 += BK) {
#unroll UNROLL
      for (var s = 0u; s < STEPS; s++) {
        let t = (s + 1u) % STEPS;
#unroll UNROLL
        for (var i = 0u; i < FRAGMENTS_M; i++) { x[t % 2u * FRAGMENTS_M + i] = fragment_a(t, wm + i * EDGE); }
#unroll UNROLL
        for (var j = 0u; j < FRAGMENTS_N; j++) { y[t % 2u * FRAGMENTS_N + j] = fragment_b(t, wn + j * EDGE); }
        let free = s + 2u == STEPS;
        if (free) { workgroupBarrier(); }
#unroll UNROLL
        for (var j = 0u; j < HALF; j++) {
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[s % 2u * FRAGMENTS_M + i], y[s % 2u * FRAGMENTS_N + j], acc[i * FRAGMENTS_N + j]); }
        }
        if (free) {
#include "gemm_coop_stage.wgsl" K = "k0 + BK"
          if (k0 + 2u * BK < size) {
#include "gemm_coop_fetch.wgsl" K = "k0 + 2u * BK"
          }
        }
#unroll UNROLL
        for (var h = 0u; h < OTHERS; h++) {
          let j = HALF + h;
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[s % 2u * FRAGMENTS_M + i], y[s % 2u * FRAGMENTS_N + j], acc[i * FRAGMENTS_N + j]); }
        }
        if (free) { workgroupBarrier(); }
      }
    }
