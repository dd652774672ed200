// A thread takes a block as it lies: four words hold its 32 weights, and the scale is applied once to their sum.
// Limit: the row on the left. Its 64 bytes are read again for every 18 bytes of a weight.
//
// out[n] = sum over k of x[k] * w[n, k].

const ROW_THREADS: u32 = 64;
var<workgroup> parts: array<f32, ROW_THREADS>;

// Blocks are 18 bytes, nine halfwords: the scale, then 32 weights, the first 16 in the low four bits of the bytes. They begin at even
// halfwords or odd ones.
fn half_at(h: u32) -> u32 { return raw_1[h / 2u] >> (h % 2u * 16u); }
fn word_at(h: u32) -> u32 { return select(raw_1[h / 2u], (raw_1[h / 2u] >> 16u) | (raw_1[h / 2u + 1u] << 16u), h % 2u == 1u); }
// Four weights from the low bits of four bytes, without their scale.
fn low(w: u32) -> vec4<f32> { return vec4<f32>(vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(15u)) - 8.0; }

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let n = group.x; let blocks = p.k / 32u;
  var sum = 0.0;
  for (var b = lane; b < blocks; b += ROW_THREADS) {
    let h = 9u * (n * blocks + b);
    var block = 0.0;
    for (var c = 0u; c < 4u; c++) {
      let w = word_at(h + 1u + 2u * c);
      block += dot(load4_0(32u * b + 4u * c), low(w)) + dot(load4_0(32u * b + 16u + 4u * c), low(w >> 4u));
    }
    sum += unpack2x16float(half_at(h)).x * block;
  }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(n, parts[0]); }
}
