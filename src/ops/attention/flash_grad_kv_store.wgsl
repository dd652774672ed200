// How the results of flash_grad_kv.wgsl leave: the gradients of each key and value of a thread.
#unroll
  for (var r = 0u; r < THREAD_ROWS; r++) {
    if (own + r < keys && wid.y * p.groups_x + wid.x < p.groups) {
      let row = kv * keys + own + r;
#unroll
      for (var u = 0u; u < DK; u++) { put_k(row * size, size, lane + 4u * u, dk[r * DK + u]); }
#unroll
      for (var w = 0u; w < DV; w++) { put_v(row * size_v, size_v, lane + 4u * w, dv[r * DV + w]); }
    }
  }
