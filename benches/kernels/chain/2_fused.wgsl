// All eight in one dispatch: what is between them stays in a register.
// Limit: four bytes a read, one read a thread.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * 256u + lane;
  if (i >= p.elements) { return; }
  let r = max(load_0(i) * 1.5 + 0.25, 0.0);
  store_0(i, clamp(tanh(r * r + 0.125) * 2.0, 0.25, 1.5));
}
