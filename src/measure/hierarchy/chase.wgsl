// One thread walks `p.steps` steps along a cycle: each address is what was read before.
// load_0 is the cycle, a line of 128 bytes for each stop; load_1 is where to begin.
struct Params { elements: u32, steps: u32 }
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lid: u32) {
  if (lid != 0u) { return; }
  var at = load_1(0u);
  for (var i = 0u; i < p.steps; i++) { at = load_0(u32(at)); }
  store_0(0u, at);
}
