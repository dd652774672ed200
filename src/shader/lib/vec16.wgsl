// Rows of load ${LOAD} in vectors of eight elements: `fetch_${NAME}(row, v, size)` is vector v of a row of `size` elements as it is stored, and
// `low_${NAME}`, `high_${NAME}` are its quads. No load waits for a condition.
//
// RAW: rows of the buffer, from element ${START} on, are whole vectors of halves (F16, otherwise bf16), each one access of 16 bytes. Otherwise
// QUADS: rows are whole quads. GUARDED: REST stands beyond a row's end, but in vectors that lie there as a whole.
#if ${RAW}
alias ${TYPE} = vec4<u32>;
fn fetch_${NAME}(row: u32, v: u32, size: u32) -> ${TYPE} {
  return raw_${LOAD}[(${START}) / 8u + row * (size / 8u) + min(v, size / 8u - 1u)];
}
#if ${F16}
fn low_${NAME}(p: ${TYPE}) -> vec4<f32> { return vec4<f32>(unpack2x16float(p.x), unpack2x16float(p.y)); }
fn high_${NAME}(p: ${TYPE}) -> vec4<f32> { return vec4<f32>(unpack2x16float(p.z), unpack2x16float(p.w)); }
#else
fn low_${NAME}(p: ${TYPE}) -> vec4<f32> { return bitcast<vec4<f32>>(vec4<u32>(p.x << 16u, p.x & 0xffff0000u, p.y << 16u, p.y & 0xffff0000u)); }
fn high_${NAME}(p: ${TYPE}) -> vec4<f32> { return bitcast<vec4<f32>>(vec4<u32>(p.z << 16u, p.z & 0xffff0000u, p.w << 16u, p.w & 0xffff0000u)); }
#endif
#else
struct ${TYPE} { low: vec4<f32>, high: vec4<f32> }
fn quad_${NAME}(row: u32, c: u32, size: u32) -> vec4<f32> {
  return
#if ${GUARDED}
    select(vec4<f32>(REST),
#endif
#if ${QUADS}
    load4_${LOAD}(row * size + min(c, size - 4u))
#else
    vec4<f32>(
      load_${LOAD}(row * size + min(c + 0u, size - 1u)), load_${LOAD}(row * size + min(c + 1u, size - 1u)),
      load_${LOAD}(row * size + min(c + 2u, size - 1u)), load_${LOAD}(row * size + min(c + 3u, size - 1u)))
#endif
#if ${GUARDED}
    , vec4<u32>(c) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(size))
#endif
    ;
}
fn fetch_${NAME}(row: u32, v: u32, size: u32) -> ${TYPE} { return ${TYPE}(quad_${NAME}(row, 8u * v, size), quad_${NAME}(row, 8u * v + 4u, size)); }
fn low_${NAME}(p: ${TYPE}) -> vec4<f32> { return p.low; }
fn high_${NAME}(p: ${TYPE}) -> vec4<f32> { return p.high; }
#endif
