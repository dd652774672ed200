// Sixteen bytes a read and a write.
// Limit: memory.
//
// The number of columns is a multiple of 4. RESIDENT: vec4 of elements of a thread. out[r, c] = exp(x[r, c] - top) / sum over c of the same.

const ROW_THREADS: u32 = 256;
var<workgroup> parts: array<f32, ROW_THREADS>;

fn row_max(lane: u32, v: f32) -> f32 {
  parts[lane] = v;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] = max(parts[lane], parts[lane + half]); }
  }
  return workgroupUniformLoad(&parts[0]);
}
fn row_sum(lane: u32, v: f32) -> f32 {
  parts[lane] = v;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  return workgroupUniformLoad(&parts[0]);
}

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let cols = p.cols; let start = group.x * cols;
  var x: array<vec4<f32>, RESIDENT>;
  var most = vec4<f32>(-3.0e38);
  for (var h = 0u; h < RESIDENT; h++) {
    let c = 4u * (lane + h * ROW_THREADS);
    x[h] = select(vec4<f32>(-3.0e38), load4_0(start + min(c, cols - 4u)), c < cols);
    most = max(most, x[h]);
  }
  let top = row_max(lane, max(max(most.x, most.y), max(most.z, most.w)));
  var sums = vec4<f32>();
  for (var h = 0u; h < RESIDENT; h++) { x[h] = exp(x[h] - top); sums += x[h]; }
  let scale = 1.0 / row_sum(lane, (sums.x + sums.y) + (sums.z + sums.w));
  for (var h = 0u; h < RESIDENT; h++) {
    let c = 4u * (lane + h * ROW_THREADS);
    if (c < cols) { store4_0(start + c, x[h] * scale); }
  }
}
