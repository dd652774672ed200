// 16 results a thread, in registers: two reads of four numbers from workgroup memory serve 16 multiplications.
// Limit: a read of workgroup memory for every eight multiplications; and everybody waits while a tile is fetched, element by element.
//
// out[m, n] = sum over k of a[m, k] * b[k, n]. Words: 0 M, 1 N, 2 K.

// default
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a[i]; }
fn load_1(i: u32) -> f32 { return b[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

const EDGE: u32 = 64; // of the square of results
const DEEP: u32 = 16; // of k in a tile
const LINE: u32 = EDGE / 4u + 1u; // quads; one more than there are, so that columns do not meet in one bank of the memory
var<workgroup> a_tile: array<vec4<f32>, DEEP * LINE>; // [k][four of m]
var<workgroup> b_tile: array<vec4<f32>, DEEP * LINE>; // [k][four of n]

fn fetch_a(m: u32, k: u32) -> f32 {
  let v = load_0(min(m, word(0u) - 1u) * word(2u) + min(k, word(2u) - 1u));
  return select(0.0, v, m < word(0u) && k < word(2u));
}
fn fetch_b(k: u32, n: u32) -> f32 {
  let v = load_1(min(k, word(2u) - 1u) * word(1u) + min(n, word(1u) - 1u));
  return select(0.0, v, k < word(2u) && n < word(1u));
}
fn put(m: u32, n: u32, v: vec4<f32>) {
  for (var c = 0u; c < 4u; c++) {
    if (m < word(0u) && n + c < word(1u)) { store_0(m * word(1u) + n + c, v[c]); }
  }
}

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let m0 = group.y * EDGE; let n0 = group.x * EDGE;
  var r0 = vec4<f32>(); var r1 = vec4<f32>(); var r2 = vec4<f32>(); var r3 = vec4<f32>();
  for (var k0 = 0u; k0 < word(2u); k0 += DEEP) {
    for (var u = lane; u < EDGE * DEEP; u += 256u) {
      // Neighbouring threads read neighbours: along k in a, along n in b.
      let m = u / DEEP; let ka = u % DEEP;
      a_tile[ka * LINE + m / 4u][m % 4u] = fetch_a(m0 + m, k0 + ka);
      let kb = u / EDGE; let n = u % EDGE;
      b_tile[kb * LINE + n / 4u][n % 4u] = fetch_b(k0 + kb, n0 + n);
    }
    workgroupBarrier();
    for (var k = 0u; k < DEEP; k++) {
      let x = a_tile[k * LINE + own.y]; let y = b_tile[k * LINE + own.x];
      r0 += x.x * y; r1 += x.y * y; r2 += x.z * y; r3 += x.w * y;
    }
    workgroupBarrier();
  }
  let m = m0 + 4u * own.y; let n = n0 + 4u * own.x;
  put(m, n, r0); put(m + 1u, n, r1); put(m + 2u, n, r2); put(m + 3u, n, r3);
}
