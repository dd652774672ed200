// Asks for the thread's item of each of the ROWS rows, of which number r is row ${ROW}, as gemv_fetch.wgsl does.
#for PRODUCT in 0..SEPARATE
    {
      if (${WHEN}chosen(${PRODUCT}u)) {
#unroll
        for (var r = 0u; r < ROWS; r++) {
          let at = place_in(${PRODUCT}u + r % PAIR, min(${ROW}, cols - 1u));
          first_${TO}[r] = first_of(${PRODUCT}u + r % PAIR, at, i);
#if SECOND
          { second_${TO}[r] = second_of(${PRODUCT}u + r % PAIR, at, i); }
#endif
#if THIRD
          { third_${TO}[r] = third_of(${PRODUCT}u + r % PAIR, at, i); }
#endif
        }
      }
    }
#endfor
