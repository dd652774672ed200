// Each thread adds up a stretch of 256 elements; the sums are added up in the same way until one is left.
// Limit: neighbouring threads read places 512 bytes apart.
//
// out[p] = sum of part p of x.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= p.parts) { return; }
  var sum = 0.0;
  for (var i = 256u * id.x; i < min(256u * id.x + 256u, p.elements); i++) { sum += load_0(i); }
  store_0(id.x, sum);
}
