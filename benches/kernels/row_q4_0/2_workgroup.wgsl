// A workgroup of 64 threads for each result: neighbouring threads read neighbouring weights.
// Limit: decoding. A scale and a byte are still looked up for each weight.
//
// out[n] = sum over k of x[k] * w[n, k].

const ROW_THREADS: u32 = 64;
var<workgroup> parts: array<f32, ROW_THREADS>;

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let n = group.x; let depth = p.k;
  var sum = 0.0;
  for (var k = lane; k < depth; k += ROW_THREADS) { sum += load_0(k) * load_1(n * depth + k); }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(n, parts[0]); }
}
