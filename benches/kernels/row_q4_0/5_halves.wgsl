// Four bits become a number without arithmetic: put into a half between 1024 and 2048, q is 1024 + q; 1032 times the row's sum is taken off once a block.
// Limit: not known: on an H100 a third of the bandwidth is still missing.
//
// out[n] = sum over k of x[k] * w[n, k].

const ROW_THREADS: u32 = 64;
var<workgroup> parts: array<vec4<f32>, ROW_THREADS>;

// Blocks are 18 bytes, nine halfwords: the scale, then 32 weights, the first 16 in the low four bits of the bytes. They begin at even
// halfwords or odd ones.
fn half_at(h: u32) -> u32 { return raw_1[h / 2u] >> (h % 2u * 16u); }
fn word_at(h: u32) -> u32 { return select(raw_1[h / 2u], (raw_1[h / 2u] >> 16u) | (raw_1[h / 2u + 1u] << 16u), h % 2u == 1u); }
// Four weights from the low bits of four bytes, each 1032 too large and without its scale.
fn low(w: u32) -> vec4<f32> {
  let even = unpack2x16float((w & 0x000f000fu) | 0x64006400u);
  let odd = unpack2x16float(((w >> 8u) & 0x000f000fu) | 0x64006400u);
  return vec4<f32>(even.x, odd.x, even.y, odd.y);
}

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let n = 4u * group.x; let blocks = p.k / 32u;
  // Beyond the end the last row again, for nobody.
  let h0 = min(vec4<u32>(n, n + 1u, n + 2u, n + 3u), vec4<u32>(p.n - 1u)) * (9u * blocks);
  var sum = vec4<f32>();
  for (var b = lane; b < blocks; b += ROW_THREADS) {
    let h = h0 + 9u * b;
    var block = vec4<f32>();
    var ones = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
      let x = load4_0(32u * b + 4u * c); let y = load4_0(32u * b + 16u + 4u * c);
      let at = h + 1u + 2u * c;
      let w = vec4<u32>(word_at(at.x), word_at(at.y), word_at(at.z), word_at(at.w)); let u = w >> vec4<u32>(4u);
      ones += x + y;
      block += vec4<f32>(dot(x, low(w.x)), dot(x, low(w.y)), dot(x, low(w.z)), dot(x, low(w.w)));
      block += vec4<f32>(dot(y, low(u.x)), dot(y, low(u.y)), dot(y, low(u.z)), dot(y, low(u.w)));
    }
    block -= 1032.0 * dot(ones, vec4<f32>(1.0));
    let s = vec4<u32>(half_at(h.x), half_at(h.y), half_at(h.z), half_at(h.w));
    sum += block * vec4<f32>(unpack2x16float(s.x).x, unpack2x16float(s.y).x, unpack2x16float(s.z).x, unpack2x16float(s.w).x);
  }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) {
    for (var r = 0u; r < 4u; r++) {
      if (n + r < p.n) { store_0(n + r, parts[0][r]); }
    }
  }
}
