// Sixteen bytes a read, and four reads of a thread under way at once.
// Limit: memory.
//
// The number of elements is a multiple of 4.

fn chain(x: vec4<f32>) -> vec4<f32> {
  let r = max(x * 1.5 + 0.25, vec4<f32>());
  return clamp(tanh(r * r + 0.125) * 2.0, vec4<f32>(0.25), vec4<f32>(1.5));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let n = p.elements; let last = n - 4u;
  // A workgroup apart from each other, so that neighbouring threads read neighbours each time.
  let i0 = ((group.y * groups.x + group.x) * 1024u + lane) * 4u;
  let i1 = i0 + 1024u; let i2 = i1 + 1024u; let i3 = i2 + 1024u;
  let x0 = load4_0(min(i0, last)); let x1 = load4_0(min(i1, last)); let x2 = load4_0(min(i2, last)); let x3 = load4_0(min(i3, last));
  if (i0 < n) { store4_0(i0, chain(x0)); }
  if (i1 < n) { store4_0(i1, chain(x1)); }
  if (i2 < n) { store4_0(i2, chain(x2)); }
  if (i3 < n) { store4_0(i3, chain(x3)); }
}
