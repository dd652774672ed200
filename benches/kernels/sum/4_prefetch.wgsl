// Four elements a read, and four reads under way before the first is used.
// Limit: the second dispatch begins when the last workgroup of the first has ended.
//
// The number of elements is a multiple of 4. out[g] = what workgroup g found.

const ROW_THREADS: u32 = 256;
var<workgroup> parts: array<f32, ROW_THREADS>;

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
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(group.x, parts[0]); }
}
