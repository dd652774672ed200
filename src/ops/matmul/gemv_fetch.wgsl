// Asks for PREFETCH items of each row, of which number a is item ${ITEM}, in a branch of its own for each product: loads in one are under way
// together.
#for PRODUCT in 0..SEPARATE
    {
      if (${WHEN}chosen(${PRODUCT}u)) {
#unroll
        for (var a = 0u; a < PREFETCH; a++) {
          let i = min(${ITEM}, items - 1u);
#unroll
          for (var r = 0u; r < ROWS; r++) {
            first_${TO}[a * ROWS + r] = first_of(${PRODUCT}u + r % PAIR, at[r], i);
#if SECOND
            { second_${TO}[a * ROWS + r] = second_of(${PRODUCT}u + r % PAIR, at[r], i); }
#endif
#if THIRD
            { third_${TO}[a * ROWS + r] = third_of(${PRODUCT}u + r % PAIR, at[r], i); }
#endif
          }
        }
      }
    }
#endfor
