// Both tiles of expert_matmul_coop.wgsl from column ${COLUMN} on are asked for: eights of x, and items of weights as they are stored.
#unroll UNROLL
for (var f = 0u; f < LOADS_A; f++) { next_a[f] = eight_x(row_a[f], ${COLUMN} + (lid + f * WORKGROUP) % EIGHTS * 8u); }
#unroll UNROLL
for (var f = 0u; f < LOADS_B + zero; f++) {
  let i = item_of(${COLUMN} / ITEM_COLUMNS + (lid + f * WORKGROUP) % ITEMS);
#include "quant/item.wgsl" OF = "", PLACE = "row_b[f], i"
  next_b[f] = x;
#if PLANES > 1
  second_b[f] = y;
#endif
#if PLANES > 2
  third_b[f] = z;
#endif
}
