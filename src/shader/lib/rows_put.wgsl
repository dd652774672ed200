// `${NAME}(start, cols, v, x)`: stores quad v of a row in store ${STORE}, as far as the row goes. VEC: rows are whole quads.
fn ${NAME}(start: u32, cols: u32, v: u32, x: vec4<f32>) {
  let c = 4u * v;
#if ${VEC}
  {
    if (c < cols) { store4_${STORE}(start + c, x); }
  }
#else
  {
    if (c < cols) { store_${STORE}(start + c, x.x); }
    if (c + 1u < cols) { store_${STORE}(start + c + 1u, x.y); }
    if (c + 2u < cols) { store_${STORE}(start + c + 2u, x.z); }
    if (c + 3u < cols) { store_${STORE}(start + c + 3u, x.w); }
  }
#endif
}
