// All eight in one dispatch: what is between them stays in a register.
// Limit: four bytes a read, one read a thread.
//
// Words: 0 elements.

// default
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return x[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * 256u + lane;
  if (i >= word(0u)) { return; }
  let r = max(load_0(i) * 1.5 + 0.25, 0.0);
  store_0(i, clamp(tanh(r * r + 0.125) * 2.0, 0.25, 1.5));
}
