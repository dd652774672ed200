// Scale and minimum of sub-block 2 * pair + s of Q4_K and Q5_K: six bits each, packed in 12 bytes, the three words `w`. Those of two neighbours
// lie together, in two bytes. Neighbouring threads want different ones: no branches.
fn scale_min_of(w: vec3<u32>, pair: u32, s: u32) -> vec2<f32> {
  let at = w >> vec3<u32>(16u * (pair & 1u));
  let high = (vec2<u32>(at.z, at.z >> 4u) & vec2<u32>(0x0f0fu)) | ((at.xy >> vec2<u32>(2u)) & vec2<u32>(0x3030u));
  return vec2<f32>((select(high, at.xy, pair < 2u) >> vec2<u32>(8u * s)) & vec2<u32>(63u));
}
