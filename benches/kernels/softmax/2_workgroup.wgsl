// A workgroup for each row: neighbouring threads read neighbouring elements, and combine what they found.
// Limit: the row is read three times, though from caches after the first.
//
// out[r, c] = exp(x[r, c] - top) / sum over c of the same.

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
  var top = -3.0e38;
  for (var c = lane; c < cols; c += ROW_THREADS) { top = max(top, load_0(start + c)); }
  top = row_max(lane, top);
  var sum = 0.0;
  for (var c = lane; c < cols; c += ROW_THREADS) { sum += exp(load_0(start + c) - top); }
  let scale = 1.0 / row_sum(lane, sum);
  for (var c = lane; c < cols; c += ROW_THREADS) { store_0(start + c, exp(load_0(start + c) - top) * scale); }
}
