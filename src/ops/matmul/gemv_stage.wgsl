// How gemv.wgsl stages a chunk of the activations in workgroup memory, normalised on the way where they are (NORMED).
#if STAGED
    {
      count = min(CHUNK, count);
      if (base > 0u) { workgroupBarrier(); }
      // Items past the end are zero.
      let staged = (count + LANES * PREFETCH - 1u) / (LANES * PREFETCH) * (LANES * PREFETCH);
#unroll
      for (var m = 0u; m < MT; m++) {
#if NORMED
        {
          // The chunk is the whole row, and stays in registers meanwhile.
          let size = p.k;
          var x: array<vec4<f32>, RESIDENT_X>;
          var gain: array<vec4<f32>, RESIDENT_X>;
          var shift: array<vec4<f32>, RESIDENT_X>;
          var s = 0.0;
#unroll
          for (var h = 0u; h < RESIDENT_X; h++) { x[h] = fetch(batch, m, lid + h * WORKGROUP); }
          if (always()) {
#unroll
            for (var h = 0u; h < RESIDENT_X; h++) {
              let c = min(4u * (lid + h * WORKGROUP), size - 4u);
#if GAIN
              { gain[h] = gain4(c); }
#endif
#if SHIFT
              { shift[h] = shift4(c); }
#endif
            }
          }
          var centre = 0.0; var variance = 0.0;
#if CENTRED
          {
            // Both moments at once, counted from an element: nothing cancels but what K roundings are of the variance.
            let origin = fetch(batch, m, 0u).x;
#unroll
            for (var h = 0u; h < RESIDENT_X; h++) {
              x[h] = select(vec4<f32>(0.0), x[h] - origin, 4u * (lid + h * WORKGROUP) < size);
              centre += (x[h].x + x[h].y) + (x[h].z + x[h].w);
              s += dot(x[h], x[h]);
            }
            let moments = both_sums(vec2<f32>(centre, s)) / f32(size);
            centre = moments.x;
            variance = max(moments.y - centre * centre, 0.0);
          }
#else
          {
#unroll
            for (var h = 0u; h < RESIDENT_X; h++) { s += dot(x[h], x[h]); }
            variance = all_sum(s) / f32(size);
          }
#endif
          let scale = inverseSqrt(variance + p.eps);
#unroll
          for (var h = 0u; h < RESIDENT_X; h++) {
            let v = lid + h * WORKGROUP;
#if CENTRED
            { x[h] = select(vec4<f32>(0.0), x[h] - centre, 4u * v < size); }
#endif
            x[h] *= scale;
#if GAIN
            { x[h] *= gain[h]; }
#endif
            // Nothing is added beyond the row's end.
#if SHIFT
            { x[h] = select(vec4<f32>(0.0), x[h] + shift[h], 4u * v < size); }
#endif
            if (v < QUADS * staged) { xs[place_of(m, v)] = to_staged(x[h]); }
          }
        }
#else
        {
          // Several on their way at once: each would be waited for otherwise.
#if EIGHTS
          {
            for (var v = lid; v < QUADS / 2u * staged; v += WORKGROUP * AT_ONCE) {
              var x: array<vec4<u32>, AT_ONCE>;
#unroll
              for (var n = 0u; n < AT_ONCE; n++) { x[n] = eight(batch, m, QUADS * base + 2u * (v + n * WORKGROUP)); }
#unroll
              for (var n = 0u; n < AT_ONCE; n++) {
                let q = 2u * (v + n * WORKGROUP);
                if (q < QUADS * staged) { xs[place_of(m, q)] = halves_to_staged(x[n].xy); xs[place_of(m, q + 1u)] = halves_to_staged(x[n].zw); }
              }
            }
          }
#else
          {
            for (var v = lid; v < QUADS * staged; v += WORKGROUP * AT_ONCE) {
              var x: array<vec4<f32>, AT_ONCE>;
#unroll
              for (var n = 0u; n < AT_ONCE; n++) { x[n] = fetch(batch, m, QUADS * base + v + n * WORKGROUP); }
#unroll
              for (var n = 0u; n < AT_ONCE; n++) {
                if (v + n * WORKGROUP < QUADS * staged) { xs[place_of(m, v + n * WORKGROUP)] = to_staged(x[n]); }
              }
            }
          }
#endif
        }
#endif
      }
      workgroupBarrier();
    }
#endif
