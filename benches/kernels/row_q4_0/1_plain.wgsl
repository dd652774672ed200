// A thread for each result, each weight decoded by itself.
// Limit: threads read rows that lie far apart, and for every four bits a scale and a byte are looked up.
//
// out[n] = sum over k of x[k] * w[n, k]. load_1 decodes one weight, in a way generated for the format. Words: 0 N, 1 K.

// default
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return x[i]; }
fn load_1(i: u32) -> f32 { return w[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x; let depth = word(1u);
  if (n >= word(0u)) { return; }
  var sum = 0.0;
  for (var k = 0u; k < depth; k++) { sum += load_0(k) * load_1(n * depth + k); }
  store_0(n, sum);
}
