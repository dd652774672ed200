// Element `e` of the blocks in the words `${VIEW}`, of a format whose values are codes, by the readers of items (quant/coded.wgsl).

#include "quant/coded_bytes.wgsl" RAW = "${VIEW}", S = "_e${ID}"
#include "quant/${FORMAT}.wgsl" PART = 1, RAW = "${VIEW}", S = "_e${ID}"
#include "quant/coded.wgsl" T = "_e${ID}"
fn d${ID}(e: u32) -> f32 {
  let b = e / ${LEN}u; let g = e % ${LEN}u / 32u; let i = e % 32u;
  let x = first_${FORMAT}_e${ID}(b, g);
  var y = vec4<u32>(0u); var z = vec4<u32>(0u);
#if PLANES > 1
  y = second_${FORMAT}_e${ID}(b, g);
#endif
#if PLANES > 2
  z = third_${FORMAT}_e${ID}(b, g);
#endif
  let by = scale_${FORMAT}_e${ID}(x, y, z, g, i / ${32 / PARTS}u);
  return fma(quad_${FORMAT}_e${ID}(x, y, z, g, i / 4u)[i & 3u], by.x, by.y);
}
