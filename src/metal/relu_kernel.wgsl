// Load 0 where it is positive, else 0; one element a thread. NaN stays NaN: it is told apart by its bits, since compilers may
// assume that there is none.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (i < p.elements) {
    let x = load_0(i);
    let nan = (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
    store_0(i, select(max(x, 0.0), x, nan));
  }
}
