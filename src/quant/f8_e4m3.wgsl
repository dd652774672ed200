// F8_E4M3: floats of eight bits and a factor. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_f8_e4m3${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(${RAW}[9u * b], ${RAW}[9u * b + 1u], ${RAW}[9u * b + 2u], ${RAW}[9u * b + 3u]); }
fn second_f8_e4m3${S}(b: u32, g: u32) -> vec4<u32> {
  return vec4<u32>(${RAW}[9u * b + 4u], ${RAW}[9u * b + 5u], ${RAW}[9u * b + 6u], ${RAW}[9u * b + 7u]);
}
fn third_f8_e4m3${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(${RAW}[9u * b + 8u], 0u, 0u, 0u); }
#else
fn quad_f8_e4m3${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> {
  let q = (vec4<u32>(select(select(x, y, c > 2u), z, c > 6u)[(c + 1u) & 3u]) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  let m = q & vec4<u32>(127u);
  let small = bitcast<vec4<u32>>(vec4<f32>(m) * 0.001953125);
  let bits = select(select((m << vec4<u32>(20u)) + vec4<u32>(120u << 23u), small, m < vec4<u32>(8u)), vec4<u32>(0x7fc00000u), m == vec4<u32>(127u));
  return bitcast<vec4<f32>>(bits | ((q & vec4<u32>(128u)) << vec4<u32>(24u)));
}
fn scale_f8_e4m3${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(x.x), 0.0); }
#endif
