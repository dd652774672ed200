// Load 0 times load 1, one element a thread.
//
// Words: 0 elements.

// default
const WORKGROUP: u32 = 256;
@group(0) @binding(0) var<storage, read> a_0: array<f32>;
@group(0) @binding(1) var<storage, read> a_1: array<f32>;
@group(0) @binding(2) var<storage, read_write> o_0: array<f32>;
@group(0) @binding(3) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i]; }
fn load_1(i: u32) -> f32 { return a_1[i]; }
fn store_0(i: u32, v: f32) { o_0[i] = v; }
// end

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (i < word(0u)) { store_0(i, load_0(i) * load_1(i)); }
}
