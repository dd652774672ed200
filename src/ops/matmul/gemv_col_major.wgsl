// Matrix times one to eight vectors where b's rows are neighbours in memory (a weight stored [K, N]): out[m, n] = sum over k of a[m, k] * b[n, k].
//
// COLS neighbouring threads take neighbouring n, so that their reads coalesce; WORKGROUP / COLS slices share K.
// Words: 0 M, 1 N, 2 K, 3 tiles of a batch, 4 workgroups in x.

// default
const WORKGROUP: u32 = 256;
const COLS: u32 = 32;
const MT: u32 = 1;
const CHUNK: u32 = 512;
alias T_0 = f32;
alias T_1 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> o_0: array<f32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<f32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i]; }
fn load_1(i: u32) -> f32 { return b_0[i % word(2u) * word(1u) + i / word(2u)]; }
fn store_0(i: u32, v: f32) { o_0[i] = v; }
// end

const SLICES: u32 = WORKGROUP / COLS;
var<workgroup> xs: array<f32, MT * CHUNK>;
var<workgroup> part: array<f32, MT * WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(4u) + wid.x;
  let tiles = word(3u);
  let batch = group / tiles;
  let rows = word(0u); let cols = word(1u); let size = word(2u);
  let n = (group % tiles) * COLS + lid % COLS;
  let slice = lid / COLS;
  let row = (batch * cols + min(n, cols - 1u)) * size;
  var acc: array<f32, MT>;
  for (var m = 0u; m < MT; m++) { acc[m] = 0.0; }
  for (var base = 0u; base < size; base += CHUNK) {
    let count = min(CHUNK, size - base);
    if (base > 0u) { workgroupBarrier(); }
    for (var m = 0u; m < MT; m++) {
      for (var k = lid; k < count; k += WORKGROUP) {
        var x = 0.0;
        if (m < rows) { x = load_0((batch * rows + m) * size + base + k); }
        xs[m * CHUNK + k] = x;
      }
    }
    workgroupBarrier();
    var k = slice;
    for (; k + 3u * SLICES < count; k += 4u * SLICES) {
      let at = row + base + k;
      let b0 = load_1(at); let b1 = load_1(at + SLICES); let b2 = load_1(at + 2u * SLICES); let b3 = load_1(at + 3u * SLICES);
      for (var m = 0u; m < MT; m++) {
        let x = m * CHUNK + k;
        acc[m] += (b0 * xs[x] + b1 * xs[x + SLICES]) + (b2 * xs[x + 2u * SLICES] + b3 * xs[x + 3u * SLICES]);
      }
    }
    for (; k < count; k += SLICES) {
      let b0 = load_1(row + base + k);
      for (var m = 0u; m < MT; m++) { acc[m] += b0 * xs[m * CHUNK + k]; }
    }
  }
  for (var m = 0u; m < MT; m++) { part[m * WORKGROUP + lid] = acc[m]; }
  workgroupBarrier();
  for (var u = lid; u < MT * COLS; u += WORKGROUP) {
    let m = u / COLS; let c = (group % tiles) * COLS + u % COLS;
    if (m < rows && c < cols) {
      var v = 0.0;
      for (var s = 0u; s < SLICES; s++) { v += part[m * WORKGROUP + s * COLS + u % COLS]; }
      store_0((batch * rows + m) * cols + c, v);
    }
  }
}
