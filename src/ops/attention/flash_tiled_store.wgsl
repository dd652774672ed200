// How the results of flash_tiled.wgsl leave: of each query the values' weighted sum over its weights' sum, and with SUMS the logarithm of that.
#unroll
  for (var r = 0u; r < THREAD_ROWS; r++) {
    let t = own + r;
    if (t < queries && wid.y * p.groups_x + wid.x < p.groups) {
      // A query that sees no key gives zeros.
      let part = select(1.0 / sum[r], 0.0, sum[r] == 0.0);
#unroll
      for (var w = 0u; w < DV; w++) { put((head * queries + t) * size_v, size_v, lane + 4u * w, acc[r * DV + w] * part); }
#if SUMS
      {
        if (lane == 0u) { store_1(head * queries + t, top[r] + log(sum[r])); }
      }
#endif
    }
  }
