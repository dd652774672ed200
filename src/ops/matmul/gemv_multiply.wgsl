// How gemv.wgsl multiplies the items that it has with the activations.
#unroll
      for (var a = 0u; a < PREFETCH; a++) {
        let i = start + a * LANES;
#if DIRECT
        {
          if (always()) {
#unroll
            for (var m = 0u; m < MT; m++) {
#unroll
              for (var q = 0u; q < X_ROWS; q++) { x_now[m * X_ROWS + q] = raw_0[x_at[m] + quad_of(min(i, items - 1u), X_QUADS * q) / X_QUADS]; }
            }
          }
        }
#endif
#unroll
        for (var s = 0u; s < PARTS; s++) {
          var part: array<f32, ROWS * MT>;
          var sums: array<f32, MT>;
#unroll
          for (var e = 0u; e < ROWS * MT; e++) { part[e] = 0.0; }
#unroll
          for (var m = 0u; m < MT; m++) { sums[m] = 0.0; }
#unroll
          for (var h = 0u; h < PAIRS; h++) {
            let c = (s * PAIRS + h) * 2u;
            var w: array<vec4<f32>, 2u * ROWS>;
#unroll
            for (var r = 0u; r < ROWS; r++) {
              let e = a * ROWS + r;
              w[2u * r] = quad(first_now[e], second_now[e], third_now[e], base + i, c);
              w[2u * r + 1u] = quad(first_now[e], second_now[e], third_now[e], base + i, c + 1u);
            }
#unroll
            for (var m = 0u; m < MT; m++) {
              let x = activations(batch, m, i, c, x_now[m * X_ROWS + c / X_QUADS], x_now[m * X_ROWS + (c + 1u) / X_QUADS]);
#unroll
              for (var r = 0u; r < ROWS; r++) { part[r * MT + m] += dot(w[2u * r], x.a) + dot(w[2u * r + 1u], x.b); }
#if SHIFTED
              { let y = x.a + x.b; sums[m] += (y.x + y.y) + (y.z + y.w); }
#endif
            }
          }
#unroll
          for (var r = 0u; r < ROWS; r++) {
            let e = a * ROWS + r;
            let by = scale(first_now[e], second_now[e], third_now[e], base + i, s);
#unroll
            for (var m = 0u; m < MT; m++) {
              var v = part[r * MT + m];
#if SCALED
              { v *= by.x; }
#endif
#if SHIFTED
              { v += by.y * sums[m]; }
#endif
              // What stands in for an item beyond the last one does not count.
              if (DIRECT == 1u && PREFETCH > 1u && i >= items) { v = 0.0; }
              acc[r * MT + m] += v;
            }
          }
        }
      }
