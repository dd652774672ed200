// A thread for each result: the definition, written down.
// Limit: each multiplication reads two numbers from memory or its caches.
//
// out[m, n] = sum over k of a[m, k] * b[k, n].

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let rows = p.m; let cols = p.n; let depth = p.k;
  if (id.y >= rows || id.x >= cols) { return; }
  var sum = 0.0;
  for (var k = 0u; k < depth; k++) { sum += load_0(id.y * depth + k) * load_1(k * cols + id.x); }
  store_0(id.y * cols + id.x, sum);
}
