// 256 threads share what they read: square tiles of both operands are brought to workgroup memory, and each number there is used 16 times.
// Limit: each multiplication still reads two numbers, now from workgroup memory.
//
// out[m, n] = sum over k of a[m, k] * b[k, n].

const EDGE: u32 = 16;
var<workgroup> a_tile: array<f32, EDGE * EDGE>;
var<workgroup> b_tile: array<f32, EDGE * EDGE>;

// Zero beyond the matrix. Something is read in any case: a load under a branch would be waited for at once.
fn fetch_a(m: u32, k: u32) -> f32 {
  let v = load_0(min(m, p.m - 1u) * p.k + min(k, p.k - 1u));
  return select(0.0, v, m < p.m && k < p.k);
}
fn fetch_b(k: u32, n: u32) -> f32 {
  let v = load_1(min(k, p.k - 1u) * p.n + min(n, p.n - 1u));
  return select(0.0, v, k < p.k && n < p.n);
}

@compute @workgroup_size(EDGE, EDGE)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>) {
  let place = own.y * EDGE + own.x;
  var sum = 0.0;
  for (var k0 = 0u; k0 < p.k; k0 += EDGE) {
    a_tile[place] = fetch_a(id.y, k0 + own.x);
    b_tile[place] = fetch_b(k0 + own.y, id.x);
    workgroupBarrier();
    for (var k = 0u; k < EDGE; k++) { sum += a_tile[own.y * EDGE + k] * b_tile[k * EDGE + own.x]; }
    workgroupBarrier();
  }
  if (id.y < p.m && id.x < p.n) { store_0(id.y * p.n + id.x, sum); }
}
