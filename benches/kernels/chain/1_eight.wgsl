// A dispatch for each operation.
// Limit: eight times as many bytes go to memory and back as the result needs.
//
// OPERATION: which of the eight.

fn apply(x: f32) -> f32 {
  switch OPERATION {
    case 1u: { return x * 1.5; }
    case 2u: { return x + 0.25; }
    case 3u: { return max(x, 0.0); }
    case 4u: { return x * x; }
    case 5u: { return x + 0.125; }
    case 6u: { return tanh(x); }
    case 7u: { return x * 2.0; }
    default: { return clamp(x, 0.25, 1.5); }
  }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = (group.y * groups.x + group.x) * 256u + lane;
  if (i < p.elements) { store_0(i, apply(load_0(i))); }
}
