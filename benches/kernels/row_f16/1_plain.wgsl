// A thread for each result: it walks one row of the weight.
// Limit: neighbouring threads read rows that lie far apart, so that a piece of memory is fetched for each of them and used for a little of it.
//
// out[n] = sum over k of x[k] * w[n, k].

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x; let depth = p.k;
  if (n >= p.n) { return; }
  var sum = 0.0;
  for (var k = 0u; k < depth; k++) { sum += load_0(k) * load_1(n * depth + k); }
  store_0(n, sum);
}
