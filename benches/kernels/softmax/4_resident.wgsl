// The row stays in the threads' registers: it is read once. How many registers that takes is decided when the text is generated.
// Limit: memory on an H100.
//
// RESIDENT: vec4 of elements of a thread. out[r, c] = exp(x[r, c] - top) / sum over c of the same.

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
  var x: array<f32, 4u * RESIDENT>;
  var top = -3.0e38;
  for (var h = 0u; h < 4u * RESIDENT; h++) {
    let c = lane + h * ROW_THREADS;
    // Beyond the end what counts for nothing.
    x[h] = select(-3.0e38, load_0(start + min(c, cols - 1u)), c < cols);
    top = max(top, x[h]);
  }
  top = row_max(lane, top);
  var sum = 0.0;
  for (var h = 0u; h < 4u * RESIDENT; h++) { x[h] = exp(x[h] - top); sum += x[h]; }
  let scale = 1.0 / row_sum(lane, sum);
  for (var h = 0u; h < 4u * RESIDENT; h++) {
    let c = lane + h * ROW_THREADS;
    if (c < cols) { store_0(start + c, x[h] * scale); }
  }
}
