// `put8(start, cols, v, low, high)`: stores vector v of a row, eight elements, as far as the row goes. EIGHTS: rows are whole vectors.
#if !EIGHTS
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC}
#endif
fn put8(start: u32, cols: u32, v: u32, low: vec4<f32>, high: vec4<f32>) {
  let c = 8u * v;
#if EIGHTS
  {
    if (c < cols) { store8_0(start + c, low, high); }
  }
#else
  {
    put(start, cols, 2u * v, low);
    put(start, cols, 2u * v + 1u, high);
  }
#endif
}
