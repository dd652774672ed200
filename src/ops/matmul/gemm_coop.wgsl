// Tiled matrix product by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// SM * SN subgroups, each with FM * FN matrices. Both tiles lie in workgroup memory, one behind the other, and the next are fetched while they
// are used (matmul_operand.wgsl). A matrix's elements cannot be touched: ACROSS of them at a time leave through a strip of memory of their
// subgroup, whose rows then go by eights (EIGHT_OUT), by quads (VEC_OUT), or by what quads lie aligned in memory and one by one at the
// edges (RAGGED). FULL: every column of a tile is there, in eights, and a row beyond the end is the last one again, so nothing branches on a
// thread.
// AHEAD: a step's matrices are loaded while those of the step before are multiplied, of which STEPS is an even number; once the last step's
// are there, the next tile takes the place of this one amid the multiplying.
// SPLIT: PARTS workgroups share k; each leaves its sums in common memory and counts itself, and the last one adds them in their order.
// The parts are in matmul_coop_parts.txt.
// UNIT: halves, and sums, in an element of workgroup memory, 4 where a matrix may be moved through a pointer to vectors.
// Words: 0 M, 1 N, 2 K, 3 tiles in n, 4 workgroups in x, 5 and 6 the start of b in elements, 7 tiles in m; 8 to 13 and 14 to 19 the lines of
// a and b; 20 what a part has of k; 21 and 22 the last eight of a and b; 23 workgroups, of which the grid may have more.

enable f16;
enable wgpu_cooperative_matrix;

// default
const WORKGROUP: u32 = 32;
const SUBGROUP: u32 = 8;
const SM: u32 = 2;
const SN: u32 = 2;
const FM: u32 = 4;
const FN: u32 = 4;
const HALF: u32 = 2;
const OTHERS: u32 = 2;
const ACROSS: u32 = 4;
const EDGE: u32 = 8;
const UNIT: u32 = 1;
const DEEP: u32 = 32;
const ITEMS_A: u32 = 8;
const ITEMS_B: u32 = 8;
const STEPS: u32 = 4;
const PARTS: u32 = 2;
const SPLIT: u32 = 1;
const AHEAD: u32 = 1;
const COUNTERS: u32 = 1024;
const EIGHT_OUT: u32 = 0;
const VEC_OUT: u32 = 1;
const RAGGED: u32 = 0;
const FULL: u32 = 0;
const STRIPS: u32 = 1;
const TURNS: u32 = 4;
const LOOSE_A: u32 = 0;
const LOOSE_B: u32 = 0;
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
@group(0) @binding(3) var<storage, read_write> scratch: array<atomic<u32>>;
var<workgroup> tile: array<f16, TILE>;
var<workgroup> strip: array<f32, SM * SN * STRIP>;
fn word(n: u32) -> u32 { return words[n]; }
fn subgroup_barrier() { workgroupBarrier(); }
fn base_a(batch: u32) -> u32 { return batch; }
fn base_b(batch: u32) -> u32 { return batch; }
fn eight_a(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn eight_b(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn beyond_a(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn beyond_b(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn ready_a(base: u32, rows: u32, r0: u32, k0: u32, u: u32, e: vec4<u32>, more: vec4<u32>) -> vec4<u32> { return e; }
fn ready_b(base: u32, rows: u32, r0: u32, k0: u32, u: u32, e: vec4<u32>, more: vec4<u32>) -> vec4<u32> { return e; }
fn put(at: u32, e: vec4<u32>) { tile[at] = halves(e.xy).x; }
fn sum(at: u32) -> f32 { return strip[at]; }
fn sums(at: u32) -> vec4<f32> { return vec4<f32>(strip[at], strip[at + 1u], strip[at + 2u], strip[at + 3u]); }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn store8_0(i: u32, v: vec4<f32>, w: vec4<f32>) { o_0[i / 4u] = v; o_0[i / 4u + 1u] = w; }
struct Columns_0 { nothing: u32 }
fn columns8_0(i: u32) -> Columns_0 { return Columns_0(i); }
fn write8_0(i: u32, v: vec4<f32>, w: vec4<f32>, c: Columns_0) { store8_0(i, v, w); }
// end

const TILE: u32 = TILE_A + TILE_B - 8u; // nothing pads the last line
const BM: u32 = SM * FM * EDGE;
const BN: u32 = SN * FN * EDGE;
const BAND: u32 = 8; // tiles in m that share a tile of b before the next one's turn
const WIDE: u32 = ACROSS * EDGE; // columns of a strip
const PITCH: u32 = WIDE + 4u;
const STRIP: u32 = EDGE * PITCH;
const EIGHTS: u32 = EDGE * WIDE / 8u; // of a strip
const MORE_A: u32 = select(1u, ITEMS_A, LOOSE_A == 1u);
const MORE_B: u32 = select(1u, ITEMS_B, LOOSE_B == 1u);
const CELLS: u32 = BM * BN / 8u; // eights of a tile
var<workgroup> arrived: u32;
var<private> row_start: u32;

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

// The eight of a tile that a thread takes at its turn: where lines have four, the second four of eight neighbours take the line four below,
// not the next one, whose places are in some of the same banks.
fn seat(u: u32, long: u32) -> u32 { return select(u, (u & ~28u) | ((u & 4u) << 2u) | ((u & 24u) >> 1u), long == 32u); }

// The matrices of a step at a row of each tile.
fn left(s: u32, row: u32) -> coop_mat8x8<f16, A> {
  if (TURNED_A == 1u) {
    return coopLoad<coop_mat8x8<f16, A>>(&tile[(s * EDGE * PITCH_A + row) / UNIT], PITCH_A / UNIT);
  } else {
    return coopLoadT<coop_mat8x8<f16, A>>(&tile[(row * PITCH_A + s * EDGE) / UNIT], PITCH_A / UNIT);
  }
}

fn right(s: u32, row: u32) -> coop_mat8x8<f16, B> {
  if (TURNED_B == 1u) {
    return coopLoadT<coop_mat8x8<f16, B>>(&tile[(TILE_A + s * EDGE * PITCH_B + row) / UNIT], PITCH_B / UNIT);
  } else {
    return coopLoad<coop_mat8x8<f16, B>>(&tile[(TILE_A + row * PITCH_B + s * EDGE) / UNIT], PITCH_B / UNIT);
  }
}

// Eight results of a row, of which `there` are columns.
fn leave(i: u32, there: u32, v: vec4<f32>, w: vec4<f32>) {
  if (EIGHT_OUT == 1u) {
    store8_0(i, v, w);
  } else {
    if (VEC_OUT == 1u) {
      store4_0(i, v);
      if (there > 4u) { store4_0(i + 4u, w); }
    } else {
      if (there > 0u) { store_0(i, v.x); } if (there > 1u) { store_0(i + 1u, v.y); }
      if (there > 2u) { store_0(i + 2u, v.z); } if (there > 3u) { store_0(i + 3u, v.w); }
      if (there > 4u) { store_0(i + 4u, w.x); } if (there > 5u) { store_0(i + 5u, w.y); }
      if (there > 6u) { store_0(i + 6u, w.z); } if (there > 7u) { store_0(i + 7u, w.w); }
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  // Those that are too many do what the last one does; where k is shared there are none.
  var group = min(wid.y * word(4u) + wid.x, word(23u) - 1u);
  let tiles = word(3u); let downs = word(7u);
  var begin = 0u; var size = word(2u);
  let block = group / PARTS; let part = group % PARTS;
  if (SPLIT == 1u) {
    group = block;
    begin = part * word(20u); size = min(begin + word(20u), size);
  }
  let batch = group / (tiles * downs);
  let rest = group % (tiles * downs);
  let band = rest / (BAND * tiles) * BAND; let within = rest % (BAND * tiles);
  let tall = min(BAND, downs - band);
  let m0 = (band + within % tall) * BM; let n0 = within / tall * BN;
  let rows = word(0u); let cols = word(1u);
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / SN * (FM * EDGE); let wn = sub % SN * (FN * EDGE);
  var acc: array<coop_mat8x8<f32, C>, FM * FN>;
  for (var e = 0u; e < FM * FN; e++) { acc[e] = coop_mat8x8<f32, C>(); }
  var next_a: array<vec4<u32>, ITEMS_A>;
  var next_b: array<vec4<u32>, ITEMS_B>;
  var more_a: array<vec4<u32>, MORE_A>;
  var more_b: array<vec4<u32>, MORE_B>;
  let from_a = base_a(batch); let from_b = base_b(batch);
  // part fetch: k = begin
  if (AHEAD == 1u) {
    var x: array<coop_mat8x8<f16, A>, 2u * FM>;
    var y: array<coop_mat8x8<f16, B>, 2u * FN>;
    // part stage: k = begin
    if (begin + DEEP < size) {
      // part fetch: k = begin + DEEP
    }
    workgroupBarrier();
    for (var i = 0u; i < FM; i++) { x[i] = left(0u, wm + i * EDGE); }
    for (var j = 0u; j < FN; j++) { y[j] = right(0u, wn + j * EDGE); }
    for (var k0 = begin; k0 < size; k0 += DEEP) {
      for (var s = 0u; s < STEPS; s++) {
        let t = (s + 1u) % STEPS;
        for (var i = 0u; i < FM; i++) { x[t % 2u * FM + i] = left(t, wm + i * EDGE); }
        for (var j = 0u; j < FN; j++) { y[t % 2u * FN + j] = right(t, wn + j * EDGE); }
        let free = s + 2u == STEPS;
        if (free) { workgroupBarrier(); }
        for (var j = 0u; j < HALF; j++) {
          for (var i = 0u; i < FM; i++) { acc[i * FN + j] = coopMultiplyAdd(x[s % 2u * FM + i], y[s % 2u * FN + j], acc[i * FN + j]); }
        }
        if (free) {
          // part stage: k = k0 + DEEP
          if (k0 + 2u * DEEP < size) {
            // part fetch: k = k0 + 2u * DEEP
          }
        }
        for (var h = 0u; h < OTHERS; h++) {
          let j = HALF + h;
          for (var i = 0u; i < FM; i++) { acc[i * FN + j] = coopMultiplyAdd(x[s % 2u * FM + i], y[s % 2u * FN + j], acc[i * FN + j]); }
        }
        if (free) { workgroupBarrier(); }
      }
    }
  } else {
    for (var k0 = begin; k0 < size; k0 += DEEP) {
      // part stage: k = k0
      workgroupBarrier();
      if (k0 + DEEP < size) {
        // part fetch: k = k0 + DEEP
      }
      for (var s = 0u; s < STEPS; s++) {
        var x: array<coop_mat8x8<f16, A>, FM>;
        for (var i = 0u; i < FM; i++) { x[i] = left(s, wm + i * EDGE); }
        for (var j = 0u; j < FN; j++) {
          let y = right(s, wn + j * EDGE);
          for (var i = 0u; i < FM; i++) { acc[i * FN + j] = coopMultiplyAdd(x[i], y, acc[i * FN + j]); }
        }
      }
      workgroupBarrier();
    }
  }
  // What all rows are combined with is read once: a thread has the same columns in each turn of a strip, and in each strip below it.
  var same: array<Columns_0, STRIPS>;
  if (FULL == 1u) {
    row_start = 0u;
    for (var h = 0u; h < STRIPS; h++) { same[h] = columns8_0(n0 + wn + h * WIDE + lane % (WIDE / 8u) * 8u); }
  }
  let own = COUNTERS + group * PARTS * (8u * CELLS);
  for (var i = 0u; i < FM; i++) {
    for (var h = 0u; h < STRIPS; h++) {
      let start = sub * STRIP;
      for (var j = 0u; j < ACROSS; j++) {
        let value = acc[i * FN + h * ACROSS + j];
        let at = (start + j * EDGE) / UNIT; let pitch = PITCH / UNIT;
        coopStoreT(value, &strip[at], pitch);
      }
      subgroup_barrier();
      if (RAGGED == 1u) {
        // Rows begin anywhere: the aligned quads of each, two for a thread; what is left of it at both ends follows the last.
        for (var u = lane; u < EIGHTS; u += SUBGROUP) {
          let r = u / (WIDE / 8u); let c = u % (WIDE / 8u) * 8u;
          let m = m0 + wm + i * EDGE + r; let n = n0 + wn + h * WIDE + c;
          if (m < rows) {
            row_start = (batch * rows + m) * cols;
            let left = n - c; let first = row_start + left;
            let shift = (0u - first) % 4u;
            for (var q = 0u; q < 2u; q++) {
              let to = shift + c + 4u * q;
              let line = start + r * PITCH;
              if (to + 4u <= WIDE && left + to + 4u <= cols) {
                store4_0(first + to, vec4<f32>(sum(line + to), sum(line + to + 1u), sum(line + to + 2u), sum(line + to + 3u)));
              } else {
                for (var e = 0u; e < 4u; e++) {
                  let x = (to + e) % WIDE;
                  if (left + x < cols) { store_0(first + x, sum(line + x)); }
                }
              }
            }
          }
        }
        subgroup_barrier();
      } else {
        // The strip is free for the next matrices before these sums have left.
        var v: array<vec4<f32>, TURNS>; var w: array<vec4<f32>, TURNS>;
        for (var q = 0u; q < TURNS; q++) {
          let u = min(lane + q * SUBGROUP, EIGHTS - 1u);
          let at = start + u / (WIDE / 8u) * PITCH + u % (WIDE / 8u) * 8u;
          v[q] = sums(at); w[q] = sums(at + 4u);
        }
        subgroup_barrier();
        for (var q = 0u; q < TURNS; q++) {
          let u = lane + q * SUBGROUP;
          let m = m0 + wm + i * EDGE + u / (WIDE / 8u); let n = n0 + wn + h * WIDE + u % (WIDE / 8u) * 8u;
          if (SPLIT == 1u) {
            let cell = own + part * (8u * CELLS) + ((m - m0) * BN + n - n0) / 8u;
            if (u < EIGHTS) {
              atomicStore(&scratch[cell], bitcast<u32>(v[q].x)); atomicStore(&scratch[cell + CELLS], bitcast<u32>(v[q].y));
              atomicStore(&scratch[cell + 2u * CELLS], bitcast<u32>(v[q].z)); atomicStore(&scratch[cell + 3u * CELLS], bitcast<u32>(v[q].w));
              atomicStore(&scratch[cell + 4u * CELLS], bitcast<u32>(w[q].x)); atomicStore(&scratch[cell + 5u * CELLS], bitcast<u32>(w[q].y));
              atomicStore(&scratch[cell + 6u * CELLS], bitcast<u32>(w[q].z)); atomicStore(&scratch[cell + 7u * CELLS], bitcast<u32>(w[q].w));
            }
          } else {
            if (FULL == 1u) {
              row_start = (batch * rows + min(m, rows - 1u)) * cols;
              write8_0(row_start + n, v[q], w[q], same[h]);
            } else {
              row_start = (batch * rows + m) * cols;
              if (u < EIGHTS && m < rows && n < cols) { leave(row_start + n, cols - n, v[q], w[q]); }
            }
          }
        }
      }
    }
  }
  if (SPLIT == 1u) {
    storageBarrier();
    if (lid == 0u) { arrived = atomicAdd(&scratch[group], 1u); }
    if (workgroupUniformLoad(&arrived) != PARTS - 1u) { return; }
    storageBarrier();
    for (var u = lid; u < CELLS; u += WORKGROUP) {
      let m = m0 + u / (BN / 8u); let n = n0 + u % (BN / 8u) * 8u;
      var v = vec4<f32>(); var w = vec4<f32>();
      for (var p = 0u; p < PARTS; p++) {
        let cell = own + p * (8u * CELLS) + u;
        let x = vec4<u32>(atomicLoad(&scratch[cell]), atomicLoad(&scratch[cell + CELLS]), atomicLoad(&scratch[cell + 2u * CELLS]), atomicLoad(&scratch[cell + 3u * CELLS]));
        let y = vec4<u32>(atomicLoad(&scratch[cell + 4u * CELLS]), atomicLoad(&scratch[cell + 5u * CELLS]), atomicLoad(&scratch[cell + 6u * CELLS]), atomicLoad(&scratch[cell + 7u * CELLS]));
        v += bitcast<vec4<f32>>(x); w += bitcast<vec4<f32>>(y);
      }
      row_start = (batch * rows + m) * cols;
      if (m < rows && n < cols) { leave(row_start + n, cols - n, v, w); }
    }
    if (lid == 0u) { atomicStore(&scratch[group], 0u); }
  }
}
