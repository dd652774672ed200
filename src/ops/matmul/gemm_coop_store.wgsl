// How the results of gemm_coop.wgsl leave. A matrix's elements cannot be touched: STAGED_FRAGMENTS of them at a time are staged in memory
// of their subgroup, whose rows then go by eights (EIGHT_OUT), by quads (VEC_OUT), or by what quads lie aligned in memory and one by one at the
// edges (RAGGED). FULL: every column of a tile is there, in eights, and a row beyond the end is the last one again, so nothing branches on a
// thread.
// SPLIT: each of the workgroups that share k leaves its sums in common memory and counts itself, and the last one adds them in their order.
#if FULL
  // What all rows are combined with is read once: a thread has the same columns in each turn, and in each of the staged rows below.
  var same: array<Columns_0, STAGINGS>;
  {
    row_start = 0u;
#unroll UNROLL
    for (var h = 0u; h < STAGINGS; h++) { same[h] = columns8_0(n0 + wn + h * STAGING_COLS + lane % (STAGING_COLS / 8u) * 8u); }
  }
#endif
  let sums_of_splits = COUNTERS + group * SPLITS * (8u * TILE_EIGHTS);
#unroll UNROLL
  for (var i = 0u; i < FRAGMENTS_M; i++) {
#unroll UNROLL
    for (var h = 0u; h < STAGINGS; h++) {
      let start = sub * STAGING_SIZE;
#unroll UNROLL
      for (var j = 0u; j < STAGED_FRAGMENTS; j++) {
        let value = acc[i * FRAGMENTS_N + h * STAGED_FRAGMENTS + j];
        let at = (start + j * EDGE) / UNIT; let pitch = STAGING_PITCH / UNIT;
        coopStoreT(value, &staging[at], pitch);
      }
      subgroup_barrier();
#if RAGGED
      {
        // Rows begin anywhere: the aligned quads of each, two for a thread; what is left of it at both ends follows the last.
        for (var u = lane; u < STAGING_EIGHTS; u += SUBGROUP) {
          let r = u / (STAGING_COLS / 8u); let c = u % (STAGING_COLS / 8u) * 8u;
          let m = m0 + wm + i * EDGE + r; let n = n0 + wn + h * STAGING_COLS + c;
          if (m < rows) {
            row_start = (batch * rows + m) * cols;
            let left = n - c; let first = row_start + left;
            let shift = (0u - first) % 4u;
            for (var q = 0u; q < 2u; q++) {
              let to = shift + c + 4u * q;
              let line = start + r * STAGING_PITCH;
              if (to + 4u <= STAGING_COLS && left + to + 4u <= cols) {
                store4_0(first + to, vec4<f32>(sum(line + to), sum(line + to + 1u), sum(line + to + 2u), sum(line + to + 3u)));
              } else {
                for (var e = 0u; e < 4u; e++) {
                  let x = (to + e) % STAGING_COLS;
                  if (left + x < cols) { store_0(first + x, sum(line + x)); }
                }
              }
            }
          }
        }
        subgroup_barrier();
      }
#else
      {
        // The memory is free for the next matrices before these sums have left.
        var v: array<vec4<f32>, TURNS>; var w: array<vec4<f32>, TURNS>;
#if UNROLL
#unroll
        for (var q = 0u; q < TURNS; q++) {
#else
        // The bound is one that a compiler does not know: it would write the loop out, which takes minutes.
        for (var q = 0u; q < TURNS + (p.n >> 31u); q++) {
#endif
          let u = min(lane + q * SUBGROUP, STAGING_EIGHTS - 1u);
          let at = start + u / (STAGING_COLS / 8u) * STAGING_PITCH + u % (STAGING_COLS / 8u) * 8u;
          v[q] = sums(at); w[q] = sums(at + 4u);
        }
        subgroup_barrier();
#if UNROLL
#unroll
        for (var q = 0u; q < TURNS; q++) {
#else
        // The bound is one that a compiler does not know: it would write the loop out, which takes minutes.
        for (var q = 0u; q < TURNS + (p.n >> 31u); q++) {
#endif
          let u = lane + q * SUBGROUP;
          let m = m0 + wm + i * EDGE + u / (STAGING_COLS / 8u); let n = n0 + wn + h * STAGING_COLS + u % (STAGING_COLS / 8u) * 8u;
#if SPLIT
          {
            let cell = sums_of_splits + split * (8u * TILE_EIGHTS) + ((m - m0) * BN + n - n0) / 8u;
            if (u < STAGING_EIGHTS) {
              atomicStore(&scratch[cell], bitcast<u32>(v[q].x)); atomicStore(&scratch[cell + TILE_EIGHTS], bitcast<u32>(v[q].y));
              atomicStore(&scratch[cell + 2u * TILE_EIGHTS], bitcast<u32>(v[q].z)); atomicStore(&scratch[cell + 3u * TILE_EIGHTS], bitcast<u32>(v[q].w));
              atomicStore(&scratch[cell + 4u * TILE_EIGHTS], bitcast<u32>(w[q].x)); atomicStore(&scratch[cell + 5u * TILE_EIGHTS], bitcast<u32>(w[q].y));
              atomicStore(&scratch[cell + 6u * TILE_EIGHTS], bitcast<u32>(w[q].z)); atomicStore(&scratch[cell + 7u * TILE_EIGHTS], bitcast<u32>(w[q].w));
            }
          }
#else
          {
#if FULL
            {
              row_start = (batch * rows + min(m, rows - 1u)) * cols;
              write8_0(row_start + n, v[q], w[q], same[h]);
            }
#else
            {
              row_start = (batch * rows + m) * cols;
              if (u < STAGING_EIGHTS && m < rows && n < cols) { store_row8(row_start + n, cols - n, v[q], w[q]); }
            }
#endif
          }
#endif
        }
      }
#endif
    }
  }
#if SPLIT
  {
#include "last_to_arrive.wgsl" COUNTER = group, PARTS = SPLITS
    for (var u = lid; u < TILE_EIGHTS; u += WORKGROUP) {
      let m = m0 + u / (BN / 8u); let n = n0 + u % (BN / 8u) * 8u;
      var v = vec4<f32>(); var w = vec4<f32>();
#unroll UNROLL
      for (var part = 0u; part < SPLITS; part++) {
        let cell = sums_of_splits + part * (8u * TILE_EIGHTS) + u;
        let x = vec4<u32>(atomicLoad(&scratch[cell]), atomicLoad(&scratch[cell + TILE_EIGHTS]), atomicLoad(&scratch[cell + 2u * TILE_EIGHTS]), atomicLoad(&scratch[cell + 3u * TILE_EIGHTS]));
        let y = vec4<u32>(atomicLoad(&scratch[cell + 4u * TILE_EIGHTS]), atomicLoad(&scratch[cell + 5u * TILE_EIGHTS]), atomicLoad(&scratch[cell + 6u * TILE_EIGHTS]), atomicLoad(&scratch[cell + 7u * TILE_EIGHTS]));
        v += bitcast<vec4<f32>>(x); w += bitcast<vec4<f32>>(y);
      }
      row_start = (batch * rows + m) * cols;
      if (m < rows && n < cols) { store_row8(row_start + n, cols - n, v, w); }
    }
    if (lid == 0u) { atomicStore(&scratch[group], 0u); }
  }
#endif
