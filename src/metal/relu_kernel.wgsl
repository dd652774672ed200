// Load 0 where it is positive, else 0; one element a thread. NaN stays NaN: it is told apart by its bits, since compilers may
// assume that there is none.
//
// Words: 0 elements.

// default
const WORKGROUP: u32 = 256;
@group(0) @binding(0) var<storage, read> a_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> o_0: array<f32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i]; }
fn store_0(i: u32, v: f32) { o_0[i] = v; }
// end

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (i < word(0u)) {
    let x = load_0(i);
    let nan = (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
    store_0(i, select(max(x, 0.0), x, nan));
  }
}
