// A thread for each result: the definition, written down.
// Limit: each multiplication reads two numbers from memory or its caches.
//
// out[m, n] = sum over k of a[m, k] * b[k, n]. Words: 0 M, 1 N, 2 K.

// default
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a[i]; }
fn load_1(i: u32) -> f32 { return b[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let rows = word(0u); let cols = word(1u); let depth = word(2u);
  if (id.y >= rows || id.x >= cols) { return; }
  var sum = 0.0;
  for (var k = 0u; k < depth; k++) { sum += load_0(id.y * depth + k) * load_1(k * cols + id.x); }
  store_0(id.y * cols + id.x, sum);
}
