// 16 results a thread, in registers: two reads of four numbers from workgroup memory serve 16 multiplications.
// Limit: a read of workgroup memory for every eight multiplications; and everybody waits while a tile is fetched, element by element.
//
// out[m, n] = sum over k of a[m, k] * b[k, n].

const EDGE: u32 = 64; // of the square of results
const BK: u32 = 16; // of k in a tile
const LINE: u32 = EDGE / 4u + 1u; // quads; one more than there are, so that columns do not meet in one bank of the memory
var<workgroup> a_tile: array<vec4<f32>, BK * LINE>; // [k][four of m]
var<workgroup> b_tile: array<vec4<f32>, BK * LINE>; // [k][four of n]

fn fetch_a(m: u32, k: u32) -> f32 {
  let v = load_0(min(m, p.m - 1u) * p.k + min(k, p.k - 1u));
  return select(0.0, v, m < p.m && k < p.k);
}
fn fetch_b(k: u32, n: u32) -> f32 {
  let v = load_1(min(k, p.k - 1u) * p.n + min(n, p.n - 1u));
  return select(0.0, v, k < p.k && n < p.n);
}
fn put(m: u32, n: u32, v: vec4<f32>) {
  for (var c = 0u; c < 4u; c++) {
    if (m < p.m && n + c < p.n) { store_0(m * p.n + n + c, v[c]); }
  }
}

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let m0 = group.y * EDGE; let n0 = group.x * EDGE;
  var r0 = vec4<f32>(); var r1 = vec4<f32>(); var r2 = vec4<f32>(); var r3 = vec4<f32>();
  for (var k0 = 0u; k0 < p.k; k0 += BK) {
    for (var u = lane; u < EDGE * BK; u += 256u) {
      // Neighbouring threads read neighbours: along k in a, along n in b.
      let m = u / BK; let ka = u % BK;
      a_tile[ka * LINE + m / 4u][m % 4u] = fetch_a(m0 + m, k0 + ka);
      let kb = u / EDGE; let n = u % EDGE;
      b_tile[kb * LINE + n / 4u][n % 4u] = fetch_b(k0 + kb, n0 + n);
    }
    workgroupBarrier();
    for (var k = 0u; k < BK; k++) {
      let x = a_tile[k * LINE + own.y]; let y = b_tile[k * LINE + own.x];
      r0 += x.x * y; r1 += x.y * y; r2 += x.z * y; r3 += x.w * y;
    }
    workgroupBarrier();
  }
  let m = m0 + 4u * own.y; let n = n0 + 4u * own.x;
  put(m, n, r0); put(m + 1u, n, r1); put(m + 2u, n, r2); put(m + 3u, n, r3);
}
