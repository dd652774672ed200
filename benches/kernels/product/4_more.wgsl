// 64 results a thread: four reads of four numbers serve 64 multiplications, twice as many each.
// Limit: not these reads: on an H100 half as many gain nothing. Everybody still waits while a tile is fetched, element by element.
//
// out[m, n] = sum over k of a[m, k] * b[k, n].

const EDGE: u32 = 128;
const BK: u32 = 8;
const LINE: u32 = EDGE / 4u + 1u;
const HALF: u32 = EDGE / 2u; // a thread's second four rows and columns are so far from its first: neighbours read neighbours
var<workgroup> a_tile: array<vec4<f32>, BK * LINE>;
var<workgroup> b_tile: array<vec4<f32>, BK * LINE>;

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
  // Row by row, the left and the right four columns.
  var l0 = vec4<f32>(); var l1 = vec4<f32>(); var l2 = vec4<f32>(); var l3 = vec4<f32>();
  var l4 = vec4<f32>(); var l5 = vec4<f32>(); var l6 = vec4<f32>(); var l7 = vec4<f32>();
  var r0 = vec4<f32>(); var r1 = vec4<f32>(); var r2 = vec4<f32>(); var r3 = vec4<f32>();
  var r4 = vec4<f32>(); var r5 = vec4<f32>(); var r6 = vec4<f32>(); var r7 = vec4<f32>();
  for (var k0 = 0u; k0 < p.k; k0 += BK) {
    for (var u = lane; u < EDGE * BK; u += 256u) {
      let m = u / BK; let ka = u % BK;
      a_tile[ka * LINE + m / 4u][m % 4u] = fetch_a(m0 + m, k0 + ka);
      let kb = u / EDGE; let n = u % EDGE;
      b_tile[kb * LINE + n / 4u][n % 4u] = fetch_b(k0 + kb, n0 + n);
    }
    workgroupBarrier();
    for (var k = 0u; k < BK; k++) {
      let x = a_tile[k * LINE + own.y]; let z = a_tile[k * LINE + HALF / 4u + own.y];
      let y = b_tile[k * LINE + own.x]; let w = b_tile[k * LINE + HALF / 4u + own.x];
      l0 += x.x * y; l1 += x.y * y; l2 += x.z * y; l3 += x.w * y;
      l4 += z.x * y; l5 += z.y * y; l6 += z.z * y; l7 += z.w * y;
      r0 += x.x * w; r1 += x.y * w; r2 += x.z * w; r3 += x.w * w;
      r4 += z.x * w; r5 += z.y * w; r6 += z.z * w; r7 += z.w * w;
    }
    workgroupBarrier();
  }
  let m = m0 + 4u * own.y; let n = n0 + 4u * own.x;
  put(m, n, l0); put(m + 1u, n, l1); put(m + 2u, n, l2); put(m + 3u, n, l3);
  put(m, n + HALF, r0); put(m + 1u, n + HALF, r1); put(m + 2u, n + HALF, r2); put(m + 3u, n + HALF, r3);
  let h = m + HALF;
  put(h, n, l4); put(h + 1u, n, l5); put(h + 2u, n, l6); put(h + 3u, n, l7);
  put(h, n + HALF, r4); put(h + 1u, n + HALF, r5); put(h + 2u, n + HALF, r6); put(h + 3u, n + HALF, r7);
}
