// Tiled product of two f16 operands by cooperative matrices of EDGE rows and columns, with f32 sums: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// SM * SN subgroups, each with FM * FN matrices; both tiles lie in workgroup memory row by row along k, and the next are fetched while
// they are used. A matrix's elements cannot be touched: results go through workgroup memory, a row of matrices at a time.
// UNIT: halves in an element of the tiles' memory (4 where a matrix may be loaded through a pointer to vectors).
// Words: 0 M, 1 N, 2 K, 3 tiles in n, 4 workgroups in x, 5 tiles in m.

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
const VEC_A: u32 = 1;
const VEC_B: u32 = 1;
const VEC_OUT: u32 = 1;
const ACROSS_A: u32 = 0;
const ACROSS_B: u32 = 0;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<vec4<f32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> f32 { return b_0[i / 4u][i % 4u]; }
fn load4_1(i: u32) -> vec4<f32> { return b_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
alias Half = f16;
fn put_x(at: u32, h: vec4<f16>) { xs[at] = h.x; xs[at + 1u] = h.y; xs[at + 2u] = h.z; xs[at + 3u] = h.w; }
fn put_y(at: u32, h: vec4<f16>) { ys[at] = h.x; ys[at + 1u] = h.y; ys[at + 2u] = h.z; ys[at + 3u] = h.w; }
// end

const QUADS: u32 = 8; // of k in a tile
const PITCH: u32 = 4u * QUADS + 8u;
const BM: u32 = SM * FM * EDGE;
const BN: u32 = SN * FN * EDGE;
const WIDE: u32 = FN * EDGE;
const QUADS_A: u32 = BM * QUADS / WORKGROUP; // that a thread fetches
const QUADS_B: u32 = BN * QUADS / WORKGROUP;
var<workgroup> xs: array<Half, BM * PITCH / UNIT>;
var<workgroup> ys: array<Half, BN * PITCH / UNIT>;
var<workgroup> strip: array<f32, SM * SN * EDGE * WIDE>;

fn fetch_a(batch: u32, m: u32, v: u32) -> vec4<f16> {
  let rows = word(0u); let size = word(2u);
  var x = vec4<f32>(0.0);
  if (m < rows) {
    let at = (batch * rows + m) * size + 4u * v;
    if (VEC_A == 1u) {
      if (4u * v < size) { x = load4_0(at); }
    } else {
      if (4u * v < size) { x.x = load_0(at); }
      if (4u * v + 1u < size) { x.y = load_0(at + 1u); }
      if (4u * v + 2u < size) { x.z = load_0(at + 2u); }
      if (4u * v + 3u < size) { x.w = load_0(at + 3u); }
    }
  }
  return vec4<f16>(x);
}
fn fetch_b(batch: u32, n: u32, v: u32) -> vec4<f16> {
  let cols = word(1u); let size = word(2u);
  var x = vec4<f32>(0.0);
  if (n < cols) {
    let at = (batch * cols + n) * size + 4u * v;
    if (VEC_B == 1u) {
      if (4u * v < size) { x = load4_1(at); }
    } else {
      if (4u * v < size) { x.x = load_1(at); }
      if (4u * v + 1u < size) { x.y = load_1(at + 1u); }
      if (4u * v + 2u < size) { x.z = load_1(at + 2u); }
      if (4u * v + 3u < size) { x.w = load_1(at + 3u); }
    }
  }
  return vec4<f16>(x);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u); let downs = word(5u);
  let batch = group / (tiles * downs);
  let rest = group % (tiles * downs);
  let m0 = rest % downs * BM; let n0 = rest / downs * BN;
  let rows = word(0u); let cols = word(1u);
  let quads = (word(2u) + 3u) / 4u;
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / SN * (FM * EDGE); let wn = sub % SN * (FN * EDGE);
  var acc: array<coop_mat8x8<f32, C>, FM * FN>;
  for (var e = 0u; e < FM * FN; e++) { acc[e] = coop_mat8x8<f32, C>(); }
  var next_a: array<vec4<f16>, QUADS_A>;
  var next_b: array<vec4<f16>, QUADS_B>;
  for (var f = 0u; f < QUADS_A; f++) {
    let u = lid + f * WORKGROUP;
    var r = u / QUADS; var v = u % QUADS;
    if (ACROSS_A == 1u) { r = u % BM; v = u / BM; }
    next_a[f] = fetch_a(batch, m0 + r, v);
  }
  for (var f = 0u; f < QUADS_B; f++) {
    let u = lid + f * WORKGROUP;
    var r = u / QUADS; var v = u % QUADS;
    if (ACROSS_B == 1u) { r = u % BN; v = u / BN; }
    next_b[f] = fetch_b(batch, n0 + r, v);
  }
  for (var q0 = 0u; q0 < quads; q0 += QUADS) {
    for (var f = 0u; f < QUADS_A; f++) {
      let u = lid + f * WORKGROUP;
      var r = u / QUADS; var v = u % QUADS;
      if (ACROSS_A == 1u) { r = u % BM; v = u / BM; }
      put_x((r * PITCH + 4u * v) / UNIT, next_a[f]);
    }
    for (var f = 0u; f < QUADS_B; f++) {
      let u = lid + f * WORKGROUP;
      var r = u / QUADS; var v = u % QUADS;
      if (ACROSS_B == 1u) { r = u % BN; v = u / BN; }
      put_y((r * PITCH + 4u * v) / UNIT, next_b[f]);
    }
    workgroupBarrier();
    // Beyond the end there are zeros, which nobody uses.
    for (var f = 0u; f < QUADS_A; f++) {
      let u = lid + f * WORKGROUP;
      var r = u / QUADS; var v = u % QUADS;
      if (ACROSS_A == 1u) { r = u % BM; v = u / BM; }
      next_a[f] = fetch_a(batch, m0 + r, q0 + QUADS + v);
    }
    for (var f = 0u; f < QUADS_B; f++) {
      let u = lid + f * WORKGROUP;
      var r = u / QUADS; var v = u % QUADS;
      if (ACROSS_B == 1u) { r = u % BN; v = u / BN; }
      next_b[f] = fetch_b(batch, n0 + r, q0 + QUADS + v);
    }
    for (var s = 0u; s < STEPS; s++) {
      var x: array<coop_mat8x8<f16, A>, FM>;
      for (var i = 0u; i < FM; i++) {
        let at = ((wm + i * EDGE) * PITCH + s * EDGE) / UNIT;
        let pitch = PITCH / UNIT;
        x[i] = coopLoadT<coop_mat8x8<f16, A>>(&xs[at], pitch);
      }
      for (var j = 0u; j < FN; j++) {
        let at = ((wn + j * EDGE) * PITCH + s * EDGE) / UNIT;
        let pitch = PITCH / UNIT;
        let y = coopLoad<coop_mat8x8<f16, B>>(&ys[at], pitch);
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
const STEPS: u32 = 4u * QUADS / EDGE;
