// Element `e` of the blocks in the words `${VIEW}`, of a format whose values are codes, by the readers of items (quant/coded.wgsl).

#include "quant/coded_bytes.wgsl" RAW = "${VIEW}", S = "_e${ID}"
#include "quant/${FORMAT}.wgsl" PART = 1, RAW = "${VIEW}", S = "_e${ID}"
#include "quant/coded.wgsl" T = "_e${ID}"
fn d${ID}(e: u32) -> f32 {
  let b = e / ${BLOCK_SIZE}u; let g = e % ${BLOCK_SIZE}u / 32u; let i = e % 32u;
#include "quant/item.wgsl" OF = "_${FORMAT}_e${ID}", PLACE = "b, g"
  let by = scale_${FORMAT}_e${ID}(x, y, z, g, i / ${32 / CODED_PARTS}u);
  return fma(quad_${FORMAT}_e${ID}(x, y, z, g, i / 4u)[i & 3u], by.x, by.y);
}
