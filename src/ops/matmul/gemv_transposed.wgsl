// Matrix times one to eight vectors for a weight stored [K, N], read from its buffer: out[m, n] = sum over k of a[m, k] * b[k, n].
//
// COLS neighbouring threads own NQ quads of columns each; WORKGROUP / COLS slices share K, PREFETCH rows of it on their way at once.

const SLICES: u32 = WORKGROUP / COLS;
var<workgroup> xs: array<f32, MT * CHUNK>;
var<workgroup> part: array<vec4<f32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * p.groups_x + wid.x;
  let tiles = p.tiles;
  let batch = group / tiles;
  let rows = p.m; let cols = p.n; let size = p.k;
  let n = ((group % tiles) * COLS + lid % COLS) * (4u * NQ);
  let slice = lid / COLS;
  // In units of 16 bytes.
  let stride = p.b_stride_k / (4u * NQ);
  let at = (p.b_start + p.b_offset + batch * p.b_stride_batch + min(n, cols - 4u * NQ)) / (4u * NQ);
  var acc: array<vec4<f32>, MT * NQ>;
  for (var m = 0u; m < MT * NQ; m++) { acc[m] = vec4<f32>(0.0); }
  var now: array<vec4<u32>, PREFETCH>;
  for (var base = 0u; base < size; base += CHUNK) {
#unroll
    for (var a = 0u; a < PREFETCH; a++) { now[a] = raw_1[at + min(base + slice + a * SLICES, size - 1u) * stride]; }
    let count = min(CHUNK, size - base);
    let staged = (count + SLICES * PREFETCH - 1u) / (SLICES * PREFETCH) * (SLICES * PREFETCH);
    if (base > 0u) { workgroupBarrier(); }
#unroll
    for (var m = 0u; m < MT; m++) {
      for (var k = lid; k < staged; k += WORKGROUP) {
        var x = 0.0;
        if (m < rows && k < count) { x = load_0((batch * rows + m) * size + base + k); }
        xs[m * CHUNK + k] = x;
      }
    }
    workgroupBarrier();
    for (var k = slice; k < count; k += SLICES * PREFETCH) {
      if (k != slice) {
#unroll
        for (var a = 0u; a < PREFETCH; a++) { now[a] = raw_1[at + min(base + k + a * SLICES, size - 1u) * stride]; }
      }
#unroll
      for (var a = 0u; a < PREFETCH; a++) {
#unroll
        for (var c = 0u; c < NQ; c++) {
          let w = wide(now[a], c);
#unroll
          for (var m = 0u; m < MT; m++) { acc[m * NQ + c] += xs[m * CHUNK + k + a * SLICES] * w; }
        }
      }
    }
  }
#unroll
  for (var m = 0u; m < MT; m++) {
#unroll
    for (var c = 0u; c < NQ; c++) {
      workgroupBarrier();
      part[lid] = acc[m * NQ + c];
      workgroupBarrier();
      var left = SLICES;
      for (; left >= 4u; left /= 4u) {
        let o = left / 4u * COLS;
        if (lid < o) { part[lid] = (part[lid] + part[lid + o]) + (part[lid + 2u * o] + part[lid + 3u * o]); }
        workgroupBarrier();
      }
      if (slice == 0u && m < rows && n < cols) {
        var v = part[lid];
        for (var s = 1u; s < left; s++) { v += part[lid + s * COLS]; }
        store4_0((batch * rows + m) * cols + n + 4u * c, v);
      }
    }
  }
}

// Quad c of the 16 bytes q.
#if HALVES
#include "wide_halves.wgsl" NAME = wide2
fn wide(q: vec4<u32>, c: u32) -> vec4<f32> { return wide2(select(q.xy, q.zw, c == 1u)); }
#else
fn wide(q: vec4<u32>, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(q); }
#endif
