// A workgroup of 64 threads for each result: neighbouring threads read neighbouring weights.
// Limit: decoding. A scale and a byte are still looked up for each weight.
//
// out[n] = sum over k of x[k] * w[n, k]. Words: 0 N, 1 K.

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

const ROW_THREADS: u32 = 64;
var<workgroup> parts: array<f32, ROW_THREADS>;

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let n = group.x; let depth = word(1u);
  var sum = 0.0;
  for (var k = lane; k < depth; k += ROW_THREADS) { sum += load_0(k) * load_1(n * depth + k); }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(n, parts[0]); }
}
