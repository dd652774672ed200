// How the results of gemm_coop.wgsl leave where a lane can name its elements of a matrix (coop_elements.wgsl): no workgroup memory, no barrier.
#unroll UNROLL
  for (var i = 0u; i < FRAGMENTS_M; i++) {
    var v: array<array<f32, ELEMENTS>, FRAGMENTS_N>;
#unroll UNROLL
    for (var j = 0u; j < FRAGMENTS_N; j++) { v[j] = elements(acc[i * FRAGMENTS_N + j], lid); }
#unroll UNROLL
    for (var r = 0u; r < LANE_ROWS; r++) {
      let m = m0 + wm + i * EDGE + element_row(lid, element_of(r, 0u));
      row_start = (batch * rows + min(m, rows - 1u)) * cols;
#include "coop_elements_store.wgsl" ROW = r, COUNT = FRAGMENTS_N, V = v, BY = "1.0", K = 0, AT = row_start, FIRST = "n0 + wn", COLUMNS = cols, THERE = "m < rows"
    }
  }
