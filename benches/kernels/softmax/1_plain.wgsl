// A thread for each row, and three walks along it: the largest, the sum, the results.
// Limit: neighbouring threads read rows that lie far apart, and there are few threads.
//
// out[r, c] = exp(x[r, c] - top) / sum over c of the same. Words: 0 rows, 1 columns.

// default
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return x[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let cols = word(1u); let start = id.x * cols;
  if (id.x >= word(0u)) { return; }
  var top = -3.0e38;
  for (var c = 0u; c < cols; c++) { top = max(top, load_0(start + c)); }
  var sum = 0.0;
  for (var c = 0u; c < cols; c++) { sum += exp(load_0(start + c) - top); }
  for (var c = 0u; c < cols; c++) { store_0(start + c, exp(load_0(start + c) - top) / sum); }
}
