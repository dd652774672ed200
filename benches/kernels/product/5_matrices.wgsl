// Matrix units: a subgroup multiplies small matrices of halves as one operation, with sums in f32.
// Limit: workgroup memory: each matrix that is read from it takes part in two products only, and nobody multiplies while tiles are fetched.
//
// Four subgroups, each with two by two matrices of EDGE rows and columns. N and K are multiples of 8: operands are read by eights, and eight
// halves lie inside the matrix or outside. out[m, n] = sum over k of a[m, k] * b[k, n]. Words: 0 M, 1 N, 2 K.

enable f16;
enable wgpu_cooperative_matrix;

// default
const WORKGROUP: u32 = 32;
const SUBGROUP: u32 = 8;
const EDGE: u32 = 8;
@group(0) @binding(0) var<storage, read> raw_0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> raw_1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn store4_0(i: u32, v: vec4<f32>) { out[i / 4u] = v; }
// end

const SIDE: u32 = 4u * EDGE; // of the square of results
const DEEP: u32 = 32; // of k in a tile
const LINE_A: u32 = DEEP + 8u; // eight more than there are, so that columns do not meet in one bank of the memory
const LINE_B: u32 = SIDE + 8u;
var<workgroup> a_tile: array<f16, SIDE * LINE_A>; // [m][k]
var<workgroup> b_tile: array<f16, DEEP * LINE_B>; // [k][n]
var<workgroup> strip: array<f32, 4u * EDGE * EDGE>;

fn fetch_a(m: u32, k: u32) -> vec4<u32> {
  let v = raw_0[(min(m, word(0u) - 1u) * word(2u) + min(k, word(2u) - 8u)) / 8u];
  return select(vec4<u32>(), v, k < word(2u));
}
fn fetch_b(k: u32, n: u32) -> vec4<u32> {
  let v = raw_1[(min(k, word(2u) - 1u) * word(1u) + min(n, word(1u) - 8u)) / 8u];
  return select(vec4<u32>(), v, k < word(2u));
}
// Two halves of a word.
fn pair(w: u32) -> vec2<f16> { return vec2<f16>(unpack2x16float(w)); }

// A matrix's elements cannot be touched: it goes through memory, one of each subgroup at a time.
fn put(m: u32, n: u32, start: u32, lane: u32) {
  for (var u = lane; u < EDGE * EDGE / 4u; u += SUBGROUP) {
    let row = m + 4u * u / EDGE; let column = n + 4u * u % EDGE; let s = start + 4u * u;
    if (row < word(0u) && column < word(1u)) {
      store4_0(row * word(1u) + column, vec4<f32>(strip[s], strip[s + 1u], strip[s + 2u], strip[s + 3u]));
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let m0 = group.y * SIDE; let n0 = group.x * SIDE;
  let sub = thread / SUBGROUP;
  let top = sub / 2u * 2u * EDGE; let left = sub % 2u * 2u * EDGE; // the subgroup's place in the square
  var c00 = coop_mat8x8<f32, C>(); var c01 = coop_mat8x8<f32, C>();
  var c10 = coop_mat8x8<f32, C>(); var c11 = coop_mat8x8<f32, C>();
  for (var k0 = 0u; k0 < word(2u); k0 += DEEP) {
    for (var u = 8u * thread; u < SIDE * DEEP; u += 8u * WORKGROUP) {
      let m = u / DEEP; let ka = u % DEEP;
      let x = fetch_a(m0 + m, k0 + ka); let at = m * LINE_A + ka;
      let kb = u / SIDE; let n = u % SIDE;
      let y = fetch_b(k0 + kb, n0 + n); let to = kb * LINE_B + n;
      for (var c = 0u; c < 4u; c++) {
        let p = pair(x[c]); let q = pair(y[c]);
        a_tile[at + 2u * c] = p.x; a_tile[at + 2u * c + 1u] = p.y;
        b_tile[to + 2u * c] = q.x; b_tile[to + 2u * c + 1u] = q.y;
      }
    }
    workgroupBarrier();
    for (var k = 0u; k < DEEP; k += EDGE) {
      let line_a = LINE_A; let line_b = LINE_B;
      let x = top * LINE_A + k; let below = x + EDGE * LINE_A;
      let y = k * LINE_B + left; let beside = y + EDGE;
      // The T of coopLoadT: row by row.
      let a0 = coopLoadT<coop_mat8x8<f16, A>>(&a_tile[x], line_a);
      let a1 = coopLoadT<coop_mat8x8<f16, A>>(&a_tile[below], line_a);
      let b0 = coopLoadT<coop_mat8x8<f16, B>>(&b_tile[y], line_b);
      let b1 = coopLoadT<coop_mat8x8<f16, B>>(&b_tile[beside], line_b);
      c00 = coopMultiplyAdd(a0, b0, c00); c01 = coopMultiplyAdd(a0, b1, c01);
      c10 = coopMultiplyAdd(a1, b0, c10); c11 = coopMultiplyAdd(a1, b1, c11);
    }
    workgroupBarrier();
  }
  let start = sub * EDGE * EDGE; let line = EDGE; let lane = thread % SUBGROUP;
  let m = m0 + top; let n = n0 + left;
  coopStoreT(c00, &strip[start], line);
  workgroupBarrier();
  put(m, n, start, lane);
  workgroupBarrier();
  coopStoreT(c01, &strip[start], line);
  workgroupBarrier();
  put(m, n + EDGE, start, lane);
  workgroupBarrier();
  coopStoreT(c10, &strip[start], line);
  workgroupBarrier();
  put(m + EDGE, n, start, lane);
  workgroupBarrier();
  coopStoreT(c11, &strip[start], line);
  workgroupBarrier();
  put(m + EDGE, n + EDGE, start, lane);
}
