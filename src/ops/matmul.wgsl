// Tiled matrix product: out[m, n] = sum over k of a[m, k] * b[n, k], in f32.
//
// TX * TY threads, each with RM * RN results; both tiles lie in workgroup memory as quads along k, a row padded by one quad. Row r of
// a tile is kept at r % R * T + r / R: a thread's results are neighbours and yet neighbouring threads read neighbouring rows.
// Words: 0 M, 1 N, 2 K, 3 tiles in n, 4 workgroups in x, 5 and 6 the start of b in elements, 7 tiles in m.

// default
const WORKGROUP: u32 = 256;
const TX: u32 = 16;
const TY: u32 = 16;
const RM: u32 = 4;
const RN: u32 = 4;
const VEC_A: u32 = 1;
const VEC_OUT: u32 = 1;
const ACROSS_A: u32 = 0;
const ACROSS_B: u32 = 0;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<vec4<f32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn weights4(row: u32, v: u32) -> vec4<f32> { return b_0[row * (word(2u) / 4u) + v]; }
// end

const QUADS: u32 = 8; // of k in a tile
const PITCH: u32 = QUADS + 1u;
const BM: u32 = TY * RM;
const BN: u32 = TX * RN;
var<workgroup> xs: array<vec4<f32>, BM * PITCH>;
var<workgroup> ys: array<vec4<f32>, BN * PITCH>;

fn fetch(batch: u32, m: u32, v: u32) -> vec4<f32> {
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
  return x;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u); let downs = word(7u);
  let batch = group / (tiles * downs);
  let rest = group % (tiles * downs);
  // Tiles of one column of n follow each other: they share the rows of b.
  let m0 = rest % downs * BM; let n0 = rest / downs * BN;
  let rows = word(0u); let cols = word(1u); let size = word(2u);
  let quads = (size + 3u) / 4u;
  let tx = lid % TX; let ty = lid / TX;
  var acc: array<f32, RM * RN>;
  for (var r = 0u; r < RM * RN; r++) { acc[r] = 0.0; }
  for (var q0 = 0u; q0 < quads; q0 += QUADS) {
    for (var u = lid; u < BM * QUADS; u += WORKGROUP) {
      var r = u / QUADS; var v = u % QUADS;
      if (ACROSS_A == 1u) { r = u % BM; v = u / BM; }
      xs[(r % RM * TY + r / RM) * PITCH + v] = fetch(batch, m0 + r, q0 + v);
    }
    for (var u = lid; u < BN * QUADS; u += WORKGROUP) {
      var r = u / QUADS; var v = u % QUADS;
      if (ACROSS_B == 1u) { r = u % BN; v = u / BN; }
      var w = vec4<f32>(0.0);
      if (q0 + v < quads) { w = weights4(batch * cols + min(n0 + r, cols - 1u), q0 + v); }
      ys[(r % RN * TX + r / RN) * PITCH + v] = w;
    }
    workgroupBarrier();
    for (var v = 0u; v < QUADS; v++) {
      var x: array<vec4<f32>, RM>;
      for (var i = 0u; i < RM; i++) { x[i] = xs[(i * TY + ty) * PITCH + v]; }
      for (var j = 0u; j < RN; j++) {
        let y = ys[(j * TX + tx) * PITCH + v];
        for (var i = 0u; i < RM; i++) { acc[i * RN + j] += dot(x[i], y); }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < RM; i++) {
    let m = m0 + ty * RM + i;
    if (m < rows) {
      let at = (batch * rows + m) * cols;
      if (VEC_OUT == 1u) {
        for (var q = 0u; q < RN / 4u; q++) {
          let n = n0 + tx * RN + 4u * q; let r = i * RN + 4u * q;
          if (n < cols) { store4_0(at + n, vec4<f32>(acc[r], acc[r + 1u], acc[r + 2u], acc[r + 3u])); }
        }
      } else {
        for (var j = 0u; j < RN; j++) {
          let n = n0 + tx * RN + j;
          if (n < cols) { store_0(at + n, acc[i * RN + j]); }
        }
      }
    }
  }
}
