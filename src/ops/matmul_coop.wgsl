// Tiled matrix product by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// SM * SN subgroups, each with FM * FN matrices. Both tiles lie in workgroup memory, and the next are fetched while they are used. An
// operand whose rows are neighbours in memory is TURNED: it is read as [k, row], and its tile lies that way too. A matrix's elements
// cannot be touched: results go through workgroup memory, a row of matrices at a time.
// UNIT: halves in an element of the tiles' memory (4 where a matrix may be loaded through a pointer to vectors).
// Words: 0 M, 1 N, 2 K, 3 tiles in n, 4 workgroups in x, 5 and 6 the start of b in elements, 7 tiles in m.

enable f16;
enable wgpu_cooperative_matrix;

// default
const WORKGROUP: u32 = 128;
const SUBGROUP: u32 = 32;
const SM: u32 = 2;
const SN: u32 = 2;
const FM: u32 = 4;
const FN: u32 = 4;
const EDGE: u32 = 8;
const UNIT: u32 = 1;
const QUADS: u32 = 8;
const QUADS_A: u32 = 4;
const QUADS_B: u32 = 4;
const STEPS: u32 = 4;
const VEC_A: u32 = 1;
const VEC_B: u32 = 1;
const VEC_OUT: u32 = 1;
const RAW_B: u32 = 0;
const TURNED_A: u32 = 0;
const TURNED_B: u32 = 0;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<vec4<f32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> f32 { return b_0[i / 4u][i % 4u]; }
fn load4_1(i: u32) -> vec4<f32> { return b_0[i / 4u]; }
fn weights4(row: u32, v: u32) -> vec4<f32> { return b_0[row * (word(2u) / 4u) + v]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
alias Half = f16;
fn put_x(at: u32, h: vec4<f16>) { xs[at] = h.x; xs[at + 1u] = h.y; xs[at + 2u] = h.z; xs[at + 3u] = h.w; }
fn put_y(at: u32, h: vec4<f16>) { ys[at] = h.x; ys[at + 1u] = h.y; ys[at + 2u] = h.z; ys[at + 3u] = h.w; }
// end

const DEEP: u32 = 4u * QUADS; // of k in a tile
const BM: u32 = SM * FM * EDGE;
const BN: u32 = SN * FN * EDGE;
const WIDE: u32 = FN * EDGE;
const PITCH_A: u32 = select(DEEP, BM, TURNED_A == 1u) + 8u;
const PITCH_B: u32 = select(DEEP, BN, TURNED_B == 1u) + 8u;
const FAST_A: u32 = select(QUADS, BM / 4u, TURNED_A == 1u); // quads of a line of the tile
const FAST_B: u32 = select(QUADS, BN / 4u, TURNED_B == 1u);
var<workgroup> xs: array<Half, select(BM, DEEP, TURNED_A == 1u) * PITCH_A / UNIT>;
var<workgroup> ys: array<Half, select(BN, DEEP, TURNED_B == 1u) * PITCH_B / UNIT>;
var<workgroup> strip: array<f32, SM * SN * EDGE * WIDE>;

// Four elements of line `line`, of `lines`, from `first` on, of `size`.
fn fetch_a(batch: u32, lines: u32, line: u32, size: u32, first: u32) -> vec4<f16> {
  var x = vec4<f32>(0.0);
  if (line < lines) {
    let at = (batch * lines + line) * size + first;
    if (VEC_A == 1u) {
      if (first < size) { x = load4_0(at); }
    } else {
      if (first < size) { x.x = load_0(at); }
      if (first + 1u < size) { x.y = load_0(at + 1u); }
      if (first + 2u < size) { x.z = load_0(at + 2u); }
      if (first + 3u < size) { x.w = load_0(at + 3u); }
    }
  }
  return vec4<f16>(x);
}
fn fetch_b(batch: u32, lines: u32, line: u32, size: u32, first: u32) -> vec4<f16> {
  var x = vec4<f32>(0.0);
  if (line < lines) {
    if (RAW_B == 1u) {
      if (first < size) { x = weights4(batch * lines + line, first / 4u); }
    } else {
      let at = (batch * lines + line) * size + first;
      if (VEC_B == 1u) {
        if (first < size) { x = load4_1(at); }
      } else {
        if (first < size) { x.x = load_1(at); }
        if (first + 1u < size) { x.y = load_1(at + 1u); }
        if (first + 2u < size) { x.z = load_1(at + 2u); }
        if (first + 3u < size) { x.w = load_1(at + 3u); }
      }
    }
  }
  return vec4<f16>(x);
}
// The quad `u` of the tile that begins at row m0 and at k0.
fn tile_a(batch: u32, m0: u32, k0: u32, u: u32) -> vec4<f16> {
  let line = u / FAST_A; let first = u % FAST_A * 4u;
  if (TURNED_A == 1u) { return fetch_a(batch, word(2u), k0 + line, word(0u), m0 + first); } else { return fetch_a(batch, word(0u), m0 + line, word(2u), k0 + first); }
}
fn tile_b(batch: u32, n0: u32, k0: u32, u: u32) -> vec4<f16> {
  let line = u / FAST_B; let first = u % FAST_B * 4u;
  if (TURNED_B == 1u) { return fetch_b(batch, word(2u), k0 + line, word(1u), n0 + first); } else { return fetch_b(batch, word(1u), n0 + line, word(2u), k0 + first); }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u); let downs = word(7u);
  let batch = group / (tiles * downs);
  let rest = group % (tiles * downs);
  let m0 = rest % downs * BM; let n0 = rest / downs * BN;
  let rows = word(0u); let cols = word(1u); let size = word(2u);
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / SN * (FM * EDGE); let wn = sub % SN * (FN * EDGE);
  var acc: array<coop_mat8x8<f32, C>, FM * FN>;
  for (var e = 0u; e < FM * FN; e++) { acc[e] = coop_mat8x8<f32, C>(); }
  var next_a: array<vec4<f16>, QUADS_A>;
  var next_b: array<vec4<f16>, QUADS_B>;
  for (var f = 0u; f < QUADS_A; f++) { next_a[f] = tile_a(batch, m0, 0u, lid + f * WORKGROUP); }
  for (var f = 0u; f < QUADS_B; f++) { next_b[f] = tile_b(batch, n0, 0u, lid + f * WORKGROUP); }
  for (var k0 = 0u; k0 < size; k0 += DEEP) {
    for (var f = 0u; f < QUADS_A; f++) {
      let u = lid + f * WORKGROUP;
      put_x((u / FAST_A * PITCH_A + u % FAST_A * 4u) / UNIT, next_a[f]);
    }
    for (var f = 0u; f < QUADS_B; f++) {
      let u = lid + f * WORKGROUP;
      put_y((u / FAST_B * PITCH_B + u % FAST_B * 4u) / UNIT, next_b[f]);
    }
    workgroupBarrier();
    // Beyond the end there are zeros, which nobody uses.
    for (var f = 0u; f < QUADS_A; f++) { next_a[f] = tile_a(batch, m0, k0 + DEEP, lid + f * WORKGROUP); }
    for (var f = 0u; f < QUADS_B; f++) { next_b[f] = tile_b(batch, n0, k0 + DEEP, lid + f * WORKGROUP); }
    for (var s = 0u; s < STEPS; s++) {
      var x: array<coop_mat8x8<f16, A>, FM>;
      for (var i = 0u; i < FM; i++) {
        let pitch = PITCH_A / UNIT;
        if (TURNED_A == 1u) {
          let at = (s * EDGE * PITCH_A + wm + i * EDGE) / UNIT;
          x[i] = coopLoad<coop_mat8x8<f16, A>>(&xs[at], pitch);
        } else {
          let at = ((wm + i * EDGE) * PITCH_A + s * EDGE) / UNIT;
          x[i] = coopLoadT<coop_mat8x8<f16, A>>(&xs[at], pitch);
        }
      }
      for (var j = 0u; j < FN; j++) {
        var y = coop_mat8x8<f16, B>();
        let pitch = PITCH_B / UNIT;
        if (TURNED_B == 1u) {
          let at = (s * EDGE * PITCH_B + wn + j * EDGE) / UNIT;
          y = coopLoadT<coop_mat8x8<f16, B>>(&ys[at], pitch);
        } else {
          let at = ((wn + j * EDGE) * PITCH_B + s * EDGE) / UNIT;
          y = coopLoad<coop_mat8x8<f16, B>>(&ys[at], pitch);
        }
        for (var i = 0u; i < FM; i++) { acc[i * FN + j] = coopMultiplyAdd(x[i], y, acc[i * FN + j]); }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < FM; i++) {
    for (var j = 0u; j < FN; j++) {
      let value = acc[i * FN + j];
      let at = sub * EDGE * WIDE + j * EDGE;
      let pitch = WIDE;
      coopStoreT(value, &strip[at], pitch);
    }
    workgroupBarrier();
    for (var u = lane; u < EDGE * WIDE / 4u; u += SUBGROUP) {
      let r = u / (WIDE / 4u); let c = u % (WIDE / 4u) * 4u;
      let m = m0 + wm + i * EDGE + r; let n = n0 + wn + c;
      let base = sub * EDGE * WIDE + 4u * u;
      if (m < rows) {
        let at = (batch * rows + m) * cols + n;
        if (VEC_OUT == 1u) {
          if (n < cols) { store4_0(at, vec4<f32>(strip[base], strip[base + 1u], strip[base + 2u], strip[base + 3u])); }
        } else {
          for (var e = 0u; e < 4u; e++) { if (n + e < cols) { store_0(at + e, strip[base + e]); } }
        }
      }
    }
    workgroupBarrier();
  }
}
