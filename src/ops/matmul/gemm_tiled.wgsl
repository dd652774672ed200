// Tiled matrix product: out[m, n] = sum over k of a[m, k] * b[n, k], in f32.
//
// TX * TY threads, each with RM * RN results, SPLITS times, each for its share of K; the next tiles are fetched while one is used. Both tiles lie
// in workgroup memory as quads along k, a row padded by one quad. Row r of a tile is kept at r % R * T + r / R: a thread's results are neighbours
// and yet neighbouring threads read neighbouring rows.

const QUADS: u32 = 8; // of k in a tile
const PITCH: u32 = QUADS + 1u;
const BM: u32 = TY * RM;
const BN: u32 = TX * RN;
const THREADS: u32 = TX * TY;
const QUADS_A: u32 = BM * QUADS / THREADS; // that a thread fetches
const QUADS_B: u32 = BN * QUADS / THREADS;
var<workgroup> xs: array<vec4<f32>, SPLITS * BM * PITCH>;
var<workgroup> ys: array<vec4<f32>, SPLITS * BN * PITCH>;

// Four elements of row m from quad v on; zeros beyond. No branch: loads that wait for each other are slow.
fn fetch(batch: u32, m: u32, v: u32) -> vec4<f32> {
  let rows = p.m; let size = p.k; let first = 4u * v;
  let there = m < rows && first < size;
  let at = select(0u, (batch * rows + m) * size + first, there);
  var x: vec4<f32>;
#if VEC_A
  {
    x = load4_0(at);
  }
#else
  {
    let more = select(vec3<u32>(0u), vec3<u32>(1u, 2u, 3u), vec3<bool>(first + 1u < size, first + 2u < size, first + 3u < size) & vec3<bool>(there));
    x = vec4<f32>(load_0(at), load_0(at + more.x), load_0(at + more.y), load_0(at + more.z));
    x = select(vec4<f32>(0.0), x, vec4<bool>(true, more.x > 0u, more.y > 0u, more.z > 0u));
  }
#endif
  return select(vec4<f32>(0.0), x, there);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = min(wid.y * p.groups_x + wid.x, p.groups - 1u); // those that are too many do what the last one does
  let tiles = p.tiles_n; let tiles_m = p.tiles_m;
  let batch = group / (tiles * tiles_m);
  let rest = group % (tiles * tiles_m);
  // Tiles of one column of n follow each other: they share the rows of b.
  let m0 = rest % tiles_m * BM; let n0 = rest / tiles_m * BN;
  let rows = p.m; let cols = p.n; let size = p.k;
  let quads = (size + 3u) / 4u;
  let split = lid / THREADS; let me = lid % THREADS;
  let tx = me % TX; let ty = me / TX;
  let x0 = split * BM * PITCH; let y0 = split * BN * PITCH;
  var acc: array<vec4<f32>, RM * RN / 4u>;
#unroll
  for (var e = 0u; e < RM * RN / 4u; e++) { acc[e] = vec4<f32>(0.0); }
  var next_a: array<vec4<f32>, QUADS_A>;
  var next_b: array<vec4<f32>, QUADS_B>;
  for (var start = 0u; start < quads + SPLITS * QUADS; start += SPLITS * QUADS) {
    // The tiles fetched in the round before go to workgroup memory; nobody reads it now.
    if (start > 0u) {
      workgroupBarrier();
#unroll
      for (var f = 0u; f < QUADS_A; f++) {
        let u = me + f * THREADS;
        var r = u / QUADS; var v = u % QUADS;
        if (COL_MAJOR_A == 1u) { r = u % BM; v = u / BM; }
        xs[x0 + (r % RM * TY + r / RM) * PITCH + v] = next_a[f];
      }
#unroll
      for (var f = 0u; f < QUADS_B; f++) {
        let u = me + f * THREADS;
        var r = u / QUADS; var v = u % QUADS;
        if (COL_MAJOR_B == 1u) { r = u % BN; v = u / BN; }
        ys[y0 + (r % RN * TX + r / RN) * PITCH + v] = next_b[f];
      }
      workgroupBarrier();
    }
    if (start < quads) {
      let q0 = start + split * QUADS;
#unroll
      for (var f = 0u; f < QUADS_A; f++) {
        let u = me + f * THREADS;
        var r = u / QUADS; var v = u % QUADS;
        if (COL_MAJOR_A == 1u) { r = u % BM; v = u / BM; }
        next_a[f] = fetch(batch, m0 + r, q0 + v);
      }
#unroll
      for (var f = 0u; f < QUADS_B; f++) {
        let u = me + f * THREADS;
        var r = u / QUADS; var v = u % QUADS;
        if (COL_MAJOR_B == 1u) { r = u % BN; v = u / BN; }
        let w = weights4(batch * cols + min(n0 + r, cols - 1u), min(q0 + v, quads - 1u));
        next_b[f] = select(vec4<f32>(0.0), w, q0 + v < quads);
      }
    }
    if (start > 0u) {
      for (var v = 0u; v < QUADS; v++) {
        var x: array<vec4<f32>, RM>;
#unroll
        for (var i = 0u; i < RM; i++) { x[i] = xs[x0 + (i * TY + ty) * PITCH + v]; }
#unroll
        for (var j = 0u; j < RN; j++) {
          let y = ys[y0 + (j * TX + tx) * PITCH + v];
#unroll
          for (var i = 0u; i < RM; i++) { acc[(i * RN + j) / 4u][(i * RN + j) % 4u] += dot(x[i], y); }
        }
      }
    }
  }
#include "gemm_tiled_store.wgsl"
}

#include "weights_quads.wgsl" N = 1, S = "", START = "p.b_start + p.b_offset", K = p.k, SMALL = p.m
