// Quad v less the mean, where there are elements.
fn centre(cols: u32, v: u32, x: vec4<f32>, mean: f32) -> vec4<f32> {
  return select(vec4<f32>(0.0), x - mean, vec4<u32>(4u * v) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(cols));
}
