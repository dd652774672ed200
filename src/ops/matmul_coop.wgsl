// Tiled matrix product by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// SM * SN subgroups, each with FM * FN matrices. Both tiles lie in workgroup memory, one behind the other, and the next are fetched while they
// are used (matmul_operand.wgsl). A matrix's elements cannot be touched: results go through a strip of memory, one of a subgroup at a time.
// UNIT: halves in an element of that memory, 4 where a matrix may be loaded through a pointer to vectors.
// Words: 0 M, 1 N, 2 K, 3 tiles in n, 4 workgroups in x, 5 and 6 the start of b in elements, 7 tiles in m; 8 to 13 and 14 to 19 the lines of a and b.

enable f16;
enable wgpu_cooperative_matrix;

// default
const WORKGROUP: u32 = 32;
const SUBGROUP: u32 = 8;
const SM: u32 = 2;
const SN: u32 = 2;
const FM: u32 = 4;
const FN: u32 = 4;
const EDGE: u32 = 8;
const UNIT: u32 = 1;
const DEEP: u32 = 32;
const ITEMS_A: u32 = 8;
const ITEMS_B: u32 = 8;
const STEPS: u32 = 4;
const VEC_OUT: u32 = 1;
const TURNED_A: u32 = 0;
const TURNED_B: u32 = 0;
const LONG_A: u32 = DEEP;
const LONG_B: u32 = DEEP;
const PITCH_A: u32 = DEEP + 8u;
const PITCH_B: u32 = DEEP + 8u;
const TILE_A: u32 = 64u * PITCH_A;
const TILE_B: u32 = 64u * PITCH_B;
@group(0) @binding(0) var<storage, read> raw_0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
var<workgroup> tile: array<f16, TILE>;
fn word(n: u32) -> u32 { return words[n]; }
fn base_a(batch: u32) -> u32 { return batch; }
fn base_b(batch: u32) -> u32 { return batch; }
fn eight_a(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn eight_b(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn put(at: u32, e: vec4<u32>) { tile[at] = halves(e.xy).x; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
// end

const TILE: u32 = TILE_A + TILE_B;
const BM: u32 = SM * FM * EDGE;
const BN: u32 = SN * FN * EDGE;
const BAND: u32 = 8; // tiles in m that share a tile of b before the next one's turn
var<workgroup> strip: array<f32, SM * SN * EDGE * EDGE>;

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u); let downs = word(7u);
  let batch = group / (tiles * downs);
  let rest = group % (tiles * downs);
  let band = rest / (BAND * tiles) * BAND; let within = rest % (BAND * tiles);
  let tall = min(BAND, downs - band);
  let m0 = (band + within % tall) * BM; let n0 = within / tall * BN;
  let rows = word(0u); let cols = word(1u); let size = word(2u);
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / SN * (FM * EDGE); let wn = sub % SN * (FN * EDGE);
  var acc: array<coop_mat8x8<f32, C>, FM * FN>;
  for (var e = 0u; e < FM * FN; e++) { acc[e] = coop_mat8x8<f32, C>(); }
  var next_a: array<vec4<u32>, ITEMS_A>;
  var next_b: array<vec4<u32>, ITEMS_B>;
  let from_a = base_a(batch); let from_b = base_b(batch);
  for (var f = 0u; f < ITEMS_A; f++) { next_a[f] = eight_a(from_a, rows, m0, 0u, lid + f * WORKGROUP); }
  for (var f = 0u; f < ITEMS_B; f++) { next_b[f] = eight_b(from_b, cols, n0, 0u, lid + f * WORKGROUP); }
  for (var k0 = 0u; k0 < size; k0 += DEEP) {
    for (var f = 0u; f < ITEMS_A; f++) {
      let u = lid + f * WORKGROUP;
      put((u / (LONG_A / 8u) * PITCH_A + u % (LONG_A / 8u) * 8u) / UNIT, next_a[f]);
    }
    for (var f = 0u; f < ITEMS_B; f++) {
      let u = lid + f * WORKGROUP;
      put((TILE_A + u / (LONG_B / 8u) * PITCH_B + u % (LONG_B / 8u) * 8u) / UNIT, next_b[f]);
    }
    workgroupBarrier();
    if (k0 + DEEP < size) {
      for (var f = 0u; f < ITEMS_A; f++) { next_a[f] = eight_a(from_a, rows, m0, k0 + DEEP, lid + f * WORKGROUP); }
      for (var f = 0u; f < ITEMS_B; f++) { next_b[f] = eight_b(from_b, cols, n0, k0 + DEEP, lid + f * WORKGROUP); }
    }
    for (var s = 0u; s < STEPS; s++) {
      var x: array<coop_mat8x8<f16, A>, FM>;
      for (var i = 0u; i < FM; i++) {
        let pitch = PITCH_A / UNIT;
        if (TURNED_A == 1u) {
          let at = (s * EDGE * PITCH_A + wm + i * EDGE) / UNIT;
          x[i] = coopLoad<coop_mat8x8<f16, A>>(&tile[at], pitch);
        } else {
          let at = ((wm + i * EDGE) * PITCH_A + s * EDGE) / UNIT;
          x[i] = coopLoadT<coop_mat8x8<f16, A>>(&tile[at], pitch);
        }
      }
      for (var j = 0u; j < FN; j++) {
        var y = coop_mat8x8<f16, B>();
        let pitch = PITCH_B / UNIT;
        if (TURNED_B == 1u) {
          let at = (TILE_A + s * EDGE * PITCH_B + wn + j * EDGE) / UNIT;
          y = coopLoadT<coop_mat8x8<f16, B>>(&tile[at], pitch);
        } else {
          let at = (TILE_A + (wn + j * EDGE) * PITCH_B + s * EDGE) / UNIT;
          y = coopLoad<coop_mat8x8<f16, B>>(&tile[at], pitch);
        }
        for (var i = 0u; i < FM; i++) { acc[i * FN + j] = coopMultiplyAdd(x[i], y, acc[i * FN + j]); }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < FM; i++) {
    for (var j = 0u; j < FN; j++) {
      let value = acc[i * FN + j];
      let start = sub * EDGE * EDGE; let pitch = EDGE;
      coopStoreT(value, &strip[start], pitch);
      workgroupBarrier();
      for (var u = lane; u < EDGE * EDGE / 4u; u += SUBGROUP) {
        let m = m0 + wm + i * EDGE + u / (EDGE / 4u); let n = n0 + wn + j * EDGE + u % (EDGE / 4u) * 4u;
        let first = start + 4u * u;
        if (m < rows) {
          let at = (batch * rows + m) * cols + n;
          if (VEC_OUT == 1u) {
            if (n < cols) { store4_0(at, vec4<f32>(strip[first], strip[first + 1u], strip[first + 2u], strip[first + 3u])); }
          } else {
            for (var e = 0u; e < 4u; e++) { if (n + e < cols) { store_0(at + e, strip[first + e]); } }
          }
        }
      }
      workgroupBarrier();
    }
  }
}
