// `${NAME}(start, cols, v)`: quad v of a row of load ${LOAD}, whose first element is `start`, for a v of which the row has elements, so that no
// load waits for a condition; zeros beyond its end. VEC: rows are whole quads.
fn ${NAME}(start: u32, cols: u32, v: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(0.0);
#if ${VEC}
  {
    x = load4_${LOAD}(start + c);
  }
#else
  {
    x.x = load_${LOAD}(start + c);
    if (c + 1u < cols) { x.y = load_${LOAD}(start + c + 1u); }
    if (c + 2u < cols) { x.z = load_${LOAD}(start + c + 2u); }
    if (c + 3u < cols) { x.w = load_${LOAD}(start + c + 3u); }
  }
#endif
  return x;
}
