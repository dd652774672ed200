// A subgroup for each result: threads in lockstep add up their parts by one instruction, without memory and without barriers.
// Limit: memory on an H100.
//
// K is a multiple of 8. out[n] = sum over k of x[k] * w[n, k]. Words: 0 N, 1 K.

// default
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> raw_1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load4_0(i: u32) -> vec4<f32> { return x[i / 4u]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
const WORKGROUP: u32 = 128;
const SUBGROUP: u32 = 32;
// end

fn halves(w: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % SUBGROUP; let eights = word(1u) / 8u;
  let own = group.x * (WORKGROUP / SUBGROUP) + thread / SUBGROUP;
  let n = min(own, word(0u) - 1u); // beyond the end the last row again, for nobody: all threads must reach subgroupAdd
  var sum = 0.0;
  for (var v = lane; v < eights; v += SUBGROUP) {
    let w = raw_1[n * eights + v];
    sum += dot(load4_0(8u * v), halves(w.xy)) + dot(load4_0(8u * v + 4u), halves(w.zw));
  }
  sum = subgroupAdd(sum);
  if (lane == 0u && own < word(0u)) { store_0(n, sum); }
}
