// How the results of gemv.wgsl leave: sums over the threads of a row, then by quads or one by one.
#unroll
  for (var r = 0u; r < ROWS; r++) {
#unroll
    for (var m = 0u; m < MT; m++) {
      let v = row_sum(acc[r * MT + m]);
      if (lane == 0u) { ys[(m * PAIR + r % PAIR) * BLOCK + row_group * GROUP_ROWS + r / PAIR] = v; }
    }
  }
  workgroupBarrier();
#if VEC_OUT
  {
    if (writes) {
#unroll
      for (var p = 0u; p < PAIR; p++) {
        let at = (m_own * PAIR + p) * BLOCK + j_own;
        put4(p, (batch * rows + m_own) * cols + first + j_own, vec4<f32>(ys[at], ys[at + 1u], ys[at + 2u], ys[at + 3u]), own);
      }
    }
  }
#else
  {
    for (var u = lid; u < MT * BLOCK; u += WORKGROUP) {
      let m = u / BLOCK; let j = u % BLOCK;
      if (m < rows && first + j < cols) {
#unroll
        for (var p = 0u; p < PAIR; p++) { put(p, (batch * rows + m) * cols + first + j, ys[(m * PAIR + p) * BLOCK + j]); }
      }
    }
  }
#endif
