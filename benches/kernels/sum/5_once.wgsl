// One dispatch: each workgroup counts itself, and the last one adds up what all have left behind, in their order.
// Limit: memory.
//
// The number of elements is a multiple of 4. Word 0 of scratch is zero before and after; from word COUNTERS on it holds anything.
// out[0] = the sum.

const ROW_THREADS: u32 = 256;
const COUNTERS: u32 = 1024;
var<workgroup> parts: array<f32, ROW_THREADS>;
var<workgroup> arrived: u32;

// The sum of a value of each thread, which thread 0 gets.
fn row_sum(lane: u32, v: f32) -> f32 {
  parts[lane] = v;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  return parts[0];
}

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let step = 4u * ROW_THREADS * p.parts;
  var i = 4u * (group.x * ROW_THREADS + lane);
  var quads = vec4<f32>();
  for (; i + 3u * step < p.elements; i += 4u * step) {
    let x0 = load4_0(i); let x1 = load4_0(i + step); let x2 = load4_0(i + 2u * step); let x3 = load4_0(i + 3u * step);
    quads += (x0 + x1) + (x2 + x3);
  }
  for (; i < p.elements; i += step) { quads += load4_0(i); }
  let sum = (quads.x + quads.y) + (quads.z + quads.w);
  let own = row_sum(lane, sum);
  if (lane == 0u) { atomicStore(&scratch[COUNTERS + group.x], bitcast<u32>(own)); }
  storageBarrier();
  if (lane == 0u) { arrived = atomicAdd(&scratch[0], 1u); }
  if (workgroupUniformLoad(&arrived) != p.parts - 1u) { return; }
  storageBarrier();
  var all = 0.0;
  for (var g = lane; g < p.parts; g += ROW_THREADS) { all += bitcast<f32>(atomicLoad(&scratch[COUNTERS + g])); }
  all = row_sum(lane, all);
  if (lane == 0u) {
    atomicStore(&scratch[0], 0u);
    store_0(0u, all);
  }
}
