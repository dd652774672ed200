// A workgroup adds up what its threads have, in its own memory: two dispatches are enough, the second of one workgroup.
// Limit: two bytes a read, and each is waited for.
//
// out[g] = what workgroup g found. Words: 0 elements, 1 workgroups.

// default
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return x[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

const ROW_THREADS: u32 = 256;
var<workgroup> parts: array<f32, ROW_THREADS>;

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  var sum = 0.0;
  for (var i = group.x * ROW_THREADS + lane; i < word(0u); i += ROW_THREADS * word(1u)) { sum += load_0(i); }
  parts[lane] = sum;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  if (lane == 0u) { store_0(group.x, parts[0]); }
}
