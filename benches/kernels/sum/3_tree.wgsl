// A workgroup adds up what its threads have, in its own memory: two dispatches are enough, the second of one workgroup.
// Limit: two bytes a read, and each is waited for.
//
// out[g] = what workgroup g found.

const ROW_THREADS: u32 = 256;
var<workgroup> parts: array<f32, ROW_THREADS>;

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  var sum = 0.0;
  for (var i = group.x * ROW_THREADS + lane; i < p.elements; i += ROW_THREADS * p.parts) { sum += load_0(i); }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(group.x, parts[0]); }
}
