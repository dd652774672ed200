// A thread for each result, each weight decoded by itself.
// Limit: threads read rows that lie far apart, and for every four bits a scale and a byte are looked up.
//
// out[n] = sum over k of x[k] * w[n, k]. load_1 decodes one weight, in a way generated for the format.

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x; let depth = p.k;
  if (n >= p.n) { return; }
  var sum = 0.0;
  for (var k = 0u; k < depth; k++) { sum += load_0(k) * load_1(n * depth + k); }
  store_0(n, sum);
}
