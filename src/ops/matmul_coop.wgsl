// Tiled matrix product by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// SM * SN subgroups, each with FM * FN matrices. Both tiles lie in workgroup memory, and the next are fetched while they are used. An
// operand whose rows are neighbours in memory is TURNED: it is read as [k, row], and its tile lies that way too. A matrix's elements
// cannot be touched: results go through workgroup memory, a row of matrices at a time.
// UNIT: halves in an element of the tiles' memory (4 where a matrix may be loaded through a pointer to vectors).
// An operand that is HALVES is stored as f16 in lines whose eights are whole, and read 16 bytes at a time.
// Words: 0 M, 1 N, 2 K, 3 tiles in n, 4 workgroups in x, 5 and 6 the start of b in elements, 7 tiles in m; then for a and for b, in eights of
// elements: 8, 13 the start, 9, 14 from one outer batch to the next, 10, 15 how many inner ones each has, 11, 16 from one of those to the
// next, 12, 17 from one line to the next.

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
const HALVES_A: u32 = 0;
const HALVES_B: u32 = 0;
const EIGHTS_A: u32 = 2;
const EIGHTS_B: u32 = 2;
@group(0) @binding(4) var<storage, read> raw_0: array<Halves8>;
@group(0) @binding(5) var<storage, read> raw_1: array<Halves8>;
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

struct Halves8 { a: vec4<f16>, b: vec4<f16> }
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

// Four elements of line `line`, of `lines`, from `first` on, of `size`; zeros beyond. No branch: loads that wait for each other are slow.
fn fetch_a(batch: u32, lines: u32, line: u32, size: u32, first: u32) -> vec4<f16> {
  if (HALVES_A == 1u) {
    return vec4<f16>();
  } else {
    let there = line < lines && first < size;
    let at = select(0u, (batch * lines + line) * size + first, there);
    var x: vec4<f32>;
    if (VEC_A == 1u) {
      x = load4_0(at);
    } else {
      let more = select(vec3<u32>(0u), vec3<u32>(1u, 2u, 3u), vec3<bool>(first + 1u < size, first + 2u < size, first + 3u < size) & vec3<bool>(there));
      x = vec4<f32>(load_0(at), load_0(at + more.x), load_0(at + more.y), load_0(at + more.z));
      x = select(vec4<f32>(0.0), x, vec4<bool>(true, more.x > 0u, more.y > 0u, more.z > 0u));
    }
    return vec4<f16>(select(vec4<f32>(0.0), x, there));
  }
}
fn fetch_b(batch: u32, lines: u32, line: u32, size: u32, first: u32) -> vec4<f16> {
  if (HALVES_B == 1u) {
    return vec4<f16>();
  } else {
    let there = line < lines && first < size;
    let at = select(0u, (batch * lines + line) * size + first, there);
    var x: vec4<f32>;
    if (RAW_B == 1u) {
      x = weights4(select(0u, batch * lines + line, there), select(0u, first / 4u, there));
    } else {
      if (VEC_B == 1u) {
        x = load4_1(at);
      } else {
        let more = select(vec3<u32>(0u), vec3<u32>(1u, 2u, 3u), vec3<bool>(first + 1u < size, first + 2u < size, first + 3u < size) & vec3<bool>(there));
        x = vec4<f32>(load_1(at), load_1(at + more.x), load_1(at + more.y), load_1(at + more.z));
        x = select(vec4<f32>(0.0), x, vec4<bool>(true, more.x > 0u, more.y > 0u, more.z > 0u));
      }
    }
    return vec4<f16>(select(vec4<f32>(0.0), x, there));
  }
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

// Eight elements of the tile, its `u`th, of an operand that is halves; `base` is where the batch begins.
fn halves_a(base: u32, m0: u32, k0: u32, u: u32) -> Halves8 {
  if (HALVES_A == 1u) {
    let line = u / (FAST_A / 2u) + select(m0, k0, TURNED_A == 1u);
    let first = u % (FAST_A / 2u) * 8u + select(k0, m0, TURNED_A == 1u);
    let there = line < word(select(0u, 2u, TURNED_A == 1u)) && first < word(select(2u, 0u, TURNED_A == 1u));
    let h = raw_0[select(0u, base + line * word(12u) + first / 8u, there)];
    return Halves8(select(vec4<f16>(), h.a, there), select(vec4<f16>(), h.b, there));
  } else {
    return Halves8();
  }
}
fn halves_b(base: u32, n0: u32, k0: u32, u: u32) -> Halves8 {
  if (HALVES_B == 1u) {
    let line = u / (FAST_B / 2u) + select(n0, k0, TURNED_B == 1u);
    let first = u % (FAST_B / 2u) * 8u + select(k0, n0, TURNED_B == 1u);
    let there = line < word(select(1u, 2u, TURNED_B == 1u)) && first < word(select(2u, 1u, TURNED_B == 1u));
    let h = raw_1[select(0u, base + line * word(17u) + first / 8u, there)];
    return Halves8(select(vec4<f16>(), h.a, there), select(vec4<f16>(), h.b, there));
  } else {
    return Halves8();
  }
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
  var base_a = 0u; var base_b = 0u;
  if (HALVES_A == 1u) { base_a = word(8u) + batch / word(10u) * word(9u) + batch % word(10u) * word(11u); }
  if (HALVES_B == 1u) { base_b = word(13u) + batch / word(15u) * word(14u) + batch % word(15u) * word(16u); }
  if (HALVES_A == 1u) {
    for (var f = 0u; f < EIGHTS_A; f++) {
      let h = halves_a(base_a, m0, 0u, lid + f * WORKGROUP);
      next_a[2u * f] = h.a; next_a[2u * f + 1u] = h.b;
    }
  } else {
    for (var f = 0u; f < QUADS_A; f++) { next_a[f] = tile_a(batch, m0, 0u, lid + f * WORKGROUP); }
  }
  if (HALVES_B == 1u) {
    for (var f = 0u; f < EIGHTS_B; f++) {
      let h = halves_b(base_b, n0, 0u, lid + f * WORKGROUP);
      next_b[2u * f] = h.a; next_b[2u * f + 1u] = h.b;
    }
  } else {
    for (var f = 0u; f < QUADS_B; f++) { next_b[f] = tile_b(batch, n0, 0u, lid + f * WORKGROUP); }
  }
  for (var k0 = 0u; k0 < size; k0 += DEEP) {
    if (HALVES_A == 1u) {
      for (var f = 0u; f < EIGHTS_A; f++) {
        let u = lid + f * WORKGROUP;
        let at = (u / (FAST_A / 2u) * PITCH_A + u % (FAST_A / 2u) * 8u) / UNIT;
        put_x(at, next_a[2u * f]); put_x(at + 4u / UNIT, next_a[2u * f + 1u]);
      }
    } else {
      for (var f = 0u; f < QUADS_A; f++) {
        let u = lid + f * WORKGROUP;
        put_x((u / FAST_A * PITCH_A + u % FAST_A * 4u) / UNIT, next_a[f]);
      }
    }
    if (HALVES_B == 1u) {
      for (var f = 0u; f < EIGHTS_B; f++) {
        let u = lid + f * WORKGROUP;
        let at = (u / (FAST_B / 2u) * PITCH_B + u % (FAST_B / 2u) * 8u) / UNIT;
        put_y(at, next_b[2u * f]); put_y(at + 4u / UNIT, next_b[2u * f + 1u]);
      }
    } else {
      for (var f = 0u; f < QUADS_B; f++) {
        let u = lid + f * WORKGROUP;
        put_y((u / FAST_B * PITCH_B + u % FAST_B * 4u) / UNIT, next_b[f]);
      }
    }
    workgroupBarrier();
    // Beyond the end there are zeros, which nobody uses.
    if (HALVES_A == 1u) {
      for (var f = 0u; f < EIGHTS_A; f++) {
        let h = halves_a(base_a, m0, k0 + DEEP, lid + f * WORKGROUP);
        next_a[2u * f] = h.a; next_a[2u * f + 1u] = h.b;
      }
    } else {
      for (var f = 0u; f < QUADS_A; f++) { next_a[f] = tile_a(batch, m0, k0 + DEEP, lid + f * WORKGROUP); }
    }
    if (HALVES_B == 1u) {
      for (var f = 0u; f < EIGHTS_B; f++) {
        let h = halves_b(base_b, n0, k0 + DEEP, lid + f * WORKGROUP);
        next_b[2u * f] = h.a; next_b[2u * f + 1u] = h.b;
      }
    } else {
      for (var f = 0u; f < QUADS_B; f++) { next_b[f] = tile_b(batch, n0, k0 + DEEP, lid + f * WORKGROUP); }
    }
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
