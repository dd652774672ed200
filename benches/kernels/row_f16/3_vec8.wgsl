// Sixteen bytes a read, the most that one has: eight weights.
// Limit: memory on an H100; where barriers are dear (lavapipe), the seven for each result.
//
// K is a multiple of 8. out[n] = sum over k of x[k] * w[n, k].

const ROW_THREADS: u32 = 128;
var<workgroup> parts: array<f32, ROW_THREADS>;

fn halves(w: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let n = group.x; let eights = p.k / 8u;
  var sum = 0.0;
  for (var v = lane; v < eights; v += ROW_THREADS) {
    let w = raw_1[n * eights + v];
    sum += dot(load4_0(8u * v), halves(w.xy)) + dot(load4_0(8u * v + 4u), halves(w.zw));
  }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(n, parts[0]); }
}
