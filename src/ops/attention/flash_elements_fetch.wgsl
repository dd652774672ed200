// The columns from ${FIRST} on and (BY_KEY) what is known of their queries.
#include "flash_coop_fetch.wgsl" FIRST = "${FIRST}"
#if BY_KEY
{
  let at = other * queries + min(${FIRST} + lid, finish - 1u);
  next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
}
#endif
