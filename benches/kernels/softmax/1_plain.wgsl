// A thread for each row, and three walks along it: the largest, the sum, the results.
// Limit: neighbouring threads read rows that lie far apart, and there are few threads.
//
// out[r, c] = exp(x[r, c] - top) / sum over c of the same.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let cols = p.cols; let start = id.x * cols;
  if (id.x >= p.rows) { return; }
  var top = -3.0e38;
  for (var c = 0u; c < cols; c++) { top = max(top, load_0(start + c)); }
  var sum = 0.0;
  for (var c = 0u; c < cols; c++) { sum += exp(load_0(start + c) - top); }
  for (var c = 0u; c < cols; c++) { store_0(start + c, exp(load_0(start + c) - top) / sum); }
}
