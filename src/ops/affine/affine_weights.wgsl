// Quads of x, and weights k..k + 8 of row n, where k is a multiple of 8. Of x there are zeros beyond a row, of weights anything finite.

fn x_quad(m: u32, k: u32) -> vec4<f32> {
  let base = m * p.k;
#if VEC_X
  if (k < p.k) { return vec4<f32>(load4_0(base + k)); }
  return vec4<f32>();
#else
  var x = vec4<f32>();
  if (k < p.k) { x.x = f32(load_0(base + k)); }
  if (k + 1u < p.k) { x.y = f32(load_0(base + k + 1u)); }
  if (k + 2u < p.k) { x.z = f32(load_0(base + k + 2u)); }
  if (k + 3u < p.k) { x.w = f32(load_0(base + k + 3u)); }
  return x;
#endif
}

// Bytes i..i + 4 of row n; the last one of the row for those beyond it.
fn bytes4(n: u32, i: u32) -> vec4<i32> {
  let base = n * p.row_bytes;
  let last = p.row_bytes - 1u;
#if VEC_W
  return vec4<i32>(load4_1(base + min(i, last - 3u)));
#else
  let at = vec4<u32>(base) + min(vec4<u32>(i) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
  return vec4<i32>(load_1(at.x), load_1(at.y), load_1(at.z), load_1(at.w));
#endif
}

fn decoded(n: u32, k: u32, q: vec4<i32>) -> vec4<f32> {
  let last = p.k - 1u;
#if WHOLE_QUADS
  let g = n * p.row_groups + min(k, last) / p.group;
  return vec4<f32>(q - vec4<i32>(load_3(g))) * f32(load_2(g));
#else
  let g = vec4<u32>(n * p.row_groups) + min(vec4<u32>(k) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last)) / p.group;
  let zeros = vec4<i32>(load_3(g.x), load_3(g.y), load_3(g.z), load_3(g.w));
  return vec4<f32>(q - zeros) * vec4<f32>(vec4(load_2(g.x), load_2(g.y), load_2(g.z), load_2(g.w)));
#endif
}

struct Eight { a: vec4<f32>, b: vec4<f32> }

fn weights(n: u32, k: u32) -> Eight {
#if FOUR_BITS
  let bytes = bytes4(n, k / 2u);
  let low = ((bytes & vec4<i32>(15)) ^ vec4<i32>(8)) - 8;
  let high = (((bytes >> vec4<u32>(4u)) & vec4<i32>(15)) ^ vec4<i32>(8)) - 8;
  return Eight(decoded(n, k, vec4<i32>(low.x, high.x, low.y, high.y)), decoded(n, k + 4u, vec4<i32>(low.z, high.z, low.w, high.w)));
#else
  return Eight(decoded(n, k, bytes4(n, k)), decoded(n, k + 4u, bytes4(n, k + 4u)));
#endif
}
