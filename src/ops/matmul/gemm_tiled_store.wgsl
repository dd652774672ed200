// How the results of gemm_tiled.wgsl leave: RM rows of RN columns of a thread.

  // The splits' shares are added by the first.
  for (var s = 1u; s < SPLITS; s++) {
    workgroupBarrier();
    if (split == s) {
#unroll
      for (var e = 0u; e < RM * RN / 4u; e++) { xs[e * THREADS + me] = acc[e]; }
    }
    workgroupBarrier();
    if (split == 0u) {
#unroll
      for (var e = 0u; e < RM * RN / 4u; e++) { acc[e] += xs[e * THREADS + me]; }
    }
  }
  if (split > 0u) { return; }
#unroll
  for (var i = 0u; i < RM; i++) {
    let m = m0 + ty * RM + i;
    if (m < rows) {
      let at = (batch * rows + m) * cols;
#if VEC_OUT
      {
#unroll
        for (var q = 0u; q < RN / 4u; q++) {
          let n = n0 + tx * RN + 4u * q;
          if (n < cols) { store4_0(at + n, acc[i * RN / 4u + q]); }
        }
      }
#else
      {
#unroll
        for (var j = 0u; j < RN; j++) {
          let n = n0 + tx * RN + j;
          if (n < cols) { store_0(at + n, acc[(i * RN + j) / 4u][(i * RN + j) % 4u]); }
        }
      }
#endif
    }
  }
