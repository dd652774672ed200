// Matrix units: a subgroup multiplies small matrices of halves as one operation, with sums in f32.
// Limit: workgroup memory: each matrix that is read from it takes part in two products only, and nobody multiplies while tiles are fetched.
//
// Four subgroups, each with two by two matrices of EDGE rows and columns. N and K are multiples of 8: operands are read by eights, and eight
// halves lie inside the matrix or outside. out[m, n] = sum over k of a[m, k] * b[k, n].

enable f16;
enable wgpu_cooperative_matrix;

const EDGE: u32 = ${EDGE}u;
const SIDE: u32 = 4u * EDGE; // of the square of results
const BK: u32 = 32; // of k in a tile
const LINE_A: u32 = BK + 8u; // eight more than there are, so that columns do not meet in one bank of the memory
const LINE_B: u32 = SIDE + 8u;
var<workgroup> a_tile: array<f16, SIDE * LINE_A>; // [m][k]
var<workgroup> b_tile: array<f16, BK * LINE_B>; // [k][n]
var<workgroup> staging: array<f32, 4u * EDGE * EDGE>;

fn fetch_a(m: u32, k: u32) -> vec4<u32> {
  let v = raw_0[(min(m, p.m - 1u) * p.k + min(k, p.k - 8u)) / 8u];
  return select(vec4<u32>(), v, k < p.k);
}
fn fetch_b(k: u32, n: u32) -> vec4<u32> {
  let v = raw_1[(min(k, p.k - 1u) * p.n + min(n, p.n - 8u)) / 8u];
  return select(vec4<u32>(), v, k < p.k);
}
// Two halves of a word.
fn pair(w: u32) -> vec2<f16> { return vec2<f16>(unpack2x16float(w)); }

// A matrix's elements cannot be touched: it goes through memory, one of each subgroup at a time.
fn put(m: u32, n: u32, start: u32, lane: u32) {
  for (var u = lane; u < EDGE * EDGE / 4u; u += SUBGROUP) {
    let row = m + 4u * u / EDGE; let column = n + 4u * u % EDGE; let s = start + 4u * u;
    if (row < p.m && column < p.n) {
      store4_0(row * p.n + column, vec4<f32>(staging[s], staging[s + 1u], staging[s + 2u], staging[s + 3u]));
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let m0 = group.y * SIDE; let n0 = group.x * SIDE;
  let sub = thread / SUBGROUP;
  let top = sub / 2u * 2u * EDGE; let left = sub % 2u * 2u * EDGE; // the subgroup's place in the square
  var c00 = coop_mat${EDGE}x${EDGE}<f32, C>(); var c01 = coop_mat${EDGE}x${EDGE}<f32, C>();
  var c10 = coop_mat${EDGE}x${EDGE}<f32, C>(); var c11 = coop_mat${EDGE}x${EDGE}<f32, C>();
  for (var k0 = 0u; k0 < p.k; k0 += BK) {
    for (var u = 8u * thread; u < SIDE * BK; u += 8u * WORKGROUP) {
      let m = u / BK; let ka = u % BK;
      let x = fetch_a(m0 + m, k0 + ka); let at = m * LINE_A + ka;
      let kb = u / SIDE; let n = u % SIDE;
      let y = fetch_b(k0 + kb, n0 + n); let to = kb * LINE_B + n;
      for (var c = 0u; c < 4u; c++) {
        let a = pair(x[c]); let b = pair(y[c]);
        a_tile[at + 2u * c] = a.x; a_tile[at + 2u * c + 1u] = a.y;
        b_tile[to + 2u * c] = b.x; b_tile[to + 2u * c + 1u] = b.y;
      }
    }
    workgroupBarrier();
    for (var k = 0u; k < BK; k += EDGE) {
      let line_a = LINE_A; let line_b = LINE_B;
      let x = top * LINE_A + k; let below = x + EDGE * LINE_A;
      let y = k * LINE_B + left; let beside = y + EDGE;
      // The T of coopLoadT: row by row.
      let a0 = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&a_tile[x], line_a);
      let a1 = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&a_tile[below], line_a);
      let b0 = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&b_tile[y], line_b);
      let b1 = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&b_tile[beside], line_b);
      c00 = coopMultiplyAdd(a0, b0, c00); c01 = coopMultiplyAdd(a0, b1, c01);
      c10 = coopMultiplyAdd(a1, b0, c10); c11 = coopMultiplyAdd(a1, b1, c11);
    }
    workgroupBarrier();
  }
  let start = sub * EDGE * EDGE; let line = EDGE; let lane = thread % SUBGROUP;
  let m = m0 + top; let n = n0 + left;
  coopStoreT(c00, &staging[start], line);
  workgroupBarrier();
  put(m, n, start, lane);
  workgroupBarrier();
  coopStoreT(c01, &staging[start], line);
  workgroupBarrier();
  put(m, n + EDGE, start, lane);
  workgroupBarrier();
  coopStoreT(c10, &staging[start], line);
  workgroupBarrier();
  put(m + EDGE, n, start, lane);
  workgroupBarrier();
  coopStoreT(c11, &staging[start], line);
  workgroupBarrier();
  put(m + EDGE, n + EDGE, start, lane);
}
