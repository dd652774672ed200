// `${NAME}(c, cols)`: the quad from column c on of load ${LOAD}, a row, or of ${NONE} where the step has no such load.
fn ${NAME}(c: u32, cols: u32) -> vec4<f32> {
#if !${GIVEN}
  return vec4<f32>(${NONE});
#elif VEC
  return load4_${LOAD}(min(c, cols - 4u));
#else
  return vec4<f32>(
    load_${LOAD}(min(c + 0u, cols - 1u)), load_${LOAD}(min(c + 1u, cols - 1u)),
    load_${LOAD}(min(c + 2u, cols - 1u)), load_${LOAD}(min(c + 3u, cols - 1u)));
#endif
}
