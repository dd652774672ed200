// How the results of expert_matmul_coop.wgsl leave. A matrix's elements cannot be touched: a matrix at a time is staged in memory of its subgroup.
#unroll UNROLL
      for (var i = 0u; i < FRAGMENTS_M + zero; i++) {
#unroll UNROLL
        for (var j = 0u; j < FRAGMENTS_N + zero; j++) {
          let value = acc[i * FRAGMENTS_N + j];
          coopStoreT(value, &staging[sub * STAGING_SIZE / UNIT], STAGING_PITCH / UNIT);
          subgroup_barrier();
          for (var u = lane; u < STAGING_EIGHTS; u += SUBGROUP) {
            let r = u / (STAGING_COLS / 8u); let c = u % (STAGING_COLS / 8u) * 8u;
            let m = m0 + i * EDGE + r; let n = n0 + wn + j * EDGE + c;
            let at = sub * STAGING_SIZE + r * STAGING_PITCH + c;
            if (m < found && n < p.n) {
              row_start = list[m] * p.n;
#if BIASED
              store_row8(row_start + n, p.n - n, sums(at) + bias4(expert, n), sums(at + 4u) + bias4(expert, n + 4u));
#else
              store_row8(row_start + n, p.n - n, sums(at), sums(at + 4u));
#endif
            }
          }
          subgroup_barrier();
        }
      }
