// Matrix times one to eight vectors for a weight stored [K, N], read from its buffer: out[m, n] = sum over k of a[m, k] * b[k, n].
//
// COLS neighbouring threads own NQ quads of columns each; WORKGROUP / COLS slices share K, AHEAD rows of it on their way at once.
// Words: 0 M, 1 N, 2 K, 3 tiles of a batch, 4 workgroups in x, 5 and 6 the start of b, 7 and 8 its strides over K and batch, in elements.

// default
const WORKGROUP: u32 = 256;
const COLS: u32 = 2;
const NQ: u32 = 1;
const MT: u32 = 1;
const AHEAD: u32 = 4;
const CHUNK: u32 = 1024;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> raw_1: array<vec4<u32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i]; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn wide(q: vec4<u32>, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(q); }
// end

const SLICES: u32 = WORKGROUP / COLS;
var<workgroup> xs: array<f32, MT * CHUNK>;
var<workgroup> part: array<vec4<f32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u);
  let batch = group / tiles;
  let rows = word(0u); let cols = word(1u); let size = word(2u);
  let n = ((group % tiles) * COLS + lid % COLS) * (4u * NQ);
  let slice = lid / COLS;
  // In units of 16 bytes.
  let stride = word(7u) / (4u * NQ);
  let at = (word(5u) + word(6u) + batch * word(8u) + min(n, cols - 4u * NQ)) / (4u * NQ);
  var acc: array<vec4<f32>, MT * NQ>;
  for (var m = 0u; m < MT * NQ; m++) { acc[m] = vec4<f32>(0.0); }
  var held: array<vec4<u32>, AHEAD>;
  for (var base = 0u; base < size; base += CHUNK) {
    for (var a = 0u; a < AHEAD; a++) { held[a] = raw_1[at + min(base + slice + a * SLICES, size - 1u) * stride]; }
    let count = min(CHUNK, size - base);
    let staged = (count + SLICES * AHEAD - 1u) / (SLICES * AHEAD) * (SLICES * AHEAD);
    if (base > 0u) { workgroupBarrier(); }
    for (var m = 0u; m < MT; m++) {
      for (var k = lid; k < staged; k += WORKGROUP) {
        var x = 0.0;
        if (m < rows && k < count) { x = load_0((batch * rows + m) * size + base + k); }
        xs[m * CHUNK + k] = x;
      }
    }
    workgroupBarrier();
    for (var k = slice; k < count; k += SLICES * AHEAD) {
      if (k != slice) {
        for (var a = 0u; a < AHEAD; a++) { held[a] = raw_1[at + min(base + k + a * SLICES, size - 1u) * stride]; }
      }
      for (var a = 0u; a < AHEAD; a++) {
        for (var c = 0u; c < NQ; c++) {
          let w = wide(held[a], c);
          for (var m = 0u; m < MT; m++) { acc[m * NQ + c] += xs[m * CHUNK + k + a * SLICES] * w; }
        }
      }
    }
  }
  for (var m = 0u; m < MT; m++) {
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
