// Neighbouring threads add neighbouring elements, and all of them go on by as many as there are threads.
// Limit: two bytes a read; and several dispatches, each waiting for the one before.
//
// out[p] = sum of elements p, p + parts, p + 2 parts, … of x.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= p.parts) { return; }
  var sum = 0.0;
  for (var i = id.x; i < p.elements; i += p.parts) { sum += load_0(i); }
  store_0(id.x, sum);
}
