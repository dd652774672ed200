// 1 / (1 + exp(-x)) of load 0, one element a thread. The exponential is taken of -|x|, so that it cannot overflow.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (i < p.elements) {
    let x = load_0(i);
    let e = exp(-abs(x));
    store_0(i, select(1.0, e, x < 0.0) / (1.0 + e));
  }
}
