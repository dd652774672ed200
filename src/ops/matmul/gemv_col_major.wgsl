// Matrix times one to eight vectors where b's rows are neighbours in memory (a weight stored [K, N]): out[m, n] = sum over k of a[m, k] * b[n, k].
//
// COLS neighbouring threads take neighbouring n, so that their reads coalesce; WORKGROUP / COLS slices share K.

const SLICES: u32 = WORKGROUP / COLS;
var<workgroup> xs: array<f32, MT * CHUNK>;
var<workgroup> part: array<f32, MT * WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * p.groups_x + wid.x;
  let tiles = p.tiles;
  let batch = group / tiles;
  let rows = p.m; let cols = p.n; let size = p.k;
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
