// Packed integers of GGML's block formats as floats. SMALL: a parameter of the kernel that is below 2^31.

// The low four bits of h, one in each byte.
fn spread(h: u32) -> u32 { return ((h & 15u) * 0x00204081u) & 0x01010101u; }
// Small numbers within a word as floats: an integer below 2^23 in the mantissa of 2^23 is that float plus the integer, exactly.
// `less` is taken off in the same step. 2^23 comes out of SMALL, a parameter below 2^31, so that a compiler does not know it: a bitwise
// operation takes one constant only, and would become two.
fn two_23() -> u32 { return 0x4b000000u | (${SMALL} >> 31u); }
fn low_nibbles(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xfu, 0xf00u, 0xfu, 0xf00u)) | vec4<u32>(two_23());
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625), vec4<f32>(-8388608.0, -32768.0, -8388608.0, -32768.0) - less);
}
fn high_nibbles(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xf0u, 0xf000u, 0xf0u, 0xf000u)) | vec4<u32>(two_23());
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(0.0625, 0.000244140625, 0.0625, 0.000244140625), vec4<f32>(-524288.0, -2048.0, -524288.0, -2048.0) - less);
}
fn nibbles(w: u32, high: bool, less: f32) -> vec4<f32> {
  if (high) { return high_nibbles(w, less); }
  return low_nibbles(w, less);
}
fn octets(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xffu, 0xff00u, 0xffu, 0xff00u)) | vec4<u32>(two_23());
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625), vec4<f32>(-8388608.0, -32768.0, -8388608.0, -32768.0) - less);
}
