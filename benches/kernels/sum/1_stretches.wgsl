// Each thread adds up a stretch of 256 elements; the sums are added up in the same way until one is left.
// Limit: neighbouring threads read places 512 bytes apart.
//
// out[p] = sum of part p of x. Words: 0 elements, 1 parts.

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
  if (id.x >= word(1u)) { return; }
  var sum = 0.0;
  for (var i = 256u * id.x; i < min(256u * id.x + 256u, word(0u)); i++) { sum += load_0(i); }
  store_0(id.x, sum);
}
