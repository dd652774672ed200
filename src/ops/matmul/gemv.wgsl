// Matrix times a few vectors: out[m, n] = sum over k of a[m, k] * b[n, k], m below MT.
//
// A row group of LANES threads owns ROWS rows of b and iterates over them in items of QUADS quads of weights, PREFETCH items on their way
// at once and the first before anything waits for the activations. A format says how an item's quads lie in a row (see `quad_of`): those
// that come from the same words belong together, and PARTS parts of an item have scales of their own (SCALED), some with something added
// (SHIFTED).
// STAGED: a chunk of the activations is staged in workgroup memory; otherwise each thread reads what it needs: all of an item at once, where
// they are stored as halves or floats whose rows can be read X_QUADS quads, 16 bytes, at a time (DIRECT). DOUBLE_BUFFER: the next round's items are on their way while one is multiplied.
// Several products of one left side may be done at once: PAIR of them row by row in the same row groups, or each in workgroups of its own
// (`locate` says in which, and a branch around all loads of a round chooses the weights). NORMED: the left side is normalised on its way
// into workgroup memory; CENTRED: as layer norm does.

const ROW_GROUPS: u32 = WORKGROUP / LANES;
const GROUP_ROWS: u32 = ROWS / PAIR; // rows of a product in a row group
const BLOCK: u32 = ROW_GROUPS * GROUP_ROWS;
const FOURS: u32 = max(BLOCK / 4u, 1u); // quads of a block, where they are whole
const PAIRS: u32 = QUADS / PARTS / 2u; // pairs of neighbouring quads in a part
// Always true, which a compiler does not know: it moves loads that stand in no branch behind barriers, to where they are used.
fn always() -> bool { return p.m > 0u; }
var<private> thread: u32;
// Odd, so that the quads of an item, which neighbouring threads write, lie in different banks.
const STRIDE: u32 = CHUNK | 1u;
var<workgroup> xs: array<Staged, MT * QUADS * STRIDE>;
var<workgroup> ys: array<f32, MT * BLOCK * PAIR>;

// Four activations of row m, zero outside of the matrix.
fn fetch(batch: u32, m: u32, v: u32) -> vec4<f32> {
  var x = vec4<f32>(0.0);
#if EIGHTS
  {
    // Never asked for, but a kernel that names `load` binds its left side once more.
    let e = eight(batch, m, v / 2u * 2u);
    x = halves(select(e.xy, e.zw, v % 2u == 1u));
  }
#elif !DIRECT
  {
    let rows = p.m; let size = p.k;
    let at = (batch * rows + min(m, rows - 1u)) * size;
    let inside = m < rows && 4u * v < size;
#if VEC_A
    {
      // No branch: loads in one would be waited for one by one.
      x = select(vec4<f32>(0.0), load4_0(at + min(4u * v, size - 4u)), inside);
    }
#else
    {
      if (inside) {
        x.x = load_0(at + 4u * v);
        if (4u * v + 1u < size) { x.y = load_0(at + 4u * v + 1u); }
        if (4u * v + 2u < size) { x.z = load_0(at + 4u * v + 2u); }
        if (4u * v + 3u < size) { x.w = load_0(at + 4u * v + 3u); }
      }
    }
#endif
  }
#endif
  return x;
}

#include "quant/item_order.wgsl"
// The place in workgroup memory of quad v of a chunk: quad c of item i goes to c * STRIDE + i, so that neighbouring lanes read neighbouring quads.
fn place_of(m: u32, v: u32) -> u32 {
  let c = v % (SPAN * RUNS) / SPAN * WIDTH + v % WIDTH;
  return (m * QUADS + c) * STRIDE + v / (SPAN * RUNS) * SPAN_ITEMS + v % SPAN / WIDTH;
}

struct Pair { a: vec4<f32>, b: vec4<f32> }
fn halves(h: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)); }
// Eight activations from quad v on, an even one, zero beyond a row's end.
fn eight(batch: u32, m: u32, v: u32) -> vec4<u32> {
#if EIGHTS
  {
    let size = p.k;
    let at = (p.a_start + p.a_offset + (batch * p.m + min(m, p.m - 1u)) * size) / 8u;
    return select(vec4<u32>(0u), raw_0[at + min(v, size / 4u - 1u) / 2u], 4u * v < size);
  }
#else
  {
    return vec4<u32>(0u);
  }
#endif
}
// What quads c and c + 1 of item i are multiplied with; `e` and `f`: the 16 bytes with either, where they were read already.
fn activations(batch: u32, m: u32, i: u32, c: u32, e: vec4<u32>, f: vec4<u32>) -> Pair {
#if STAGED
  {
    return Pair(from_staged(xs[(m * QUADS + c) * STRIDE + i]), from_staged(xs[(m * QUADS + c + 1u) * STRIDE + i]));
  }
#else
  {
#if DIRECT && EIGHTS
    {
      return Pair(halves(e.xy), halves(e.zw));
    }
#elif DIRECT
    {
      return Pair(bitcast<vec4<f32>>(e), bitcast<vec4<f32>>(f));
    }
#else
    {
      return Pair(fetch(batch, m, quad_of(i, c)), fetch(batch, m, quad_of(i, c + 1u)));
    }
#endif
  }
#endif
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = locate(wid.y * p.groups_x + wid.x);
  let tiles = tiles_of();
  var batch = 0u;
  var first = group * BLOCK;
#if BATCHED
  { batch = group / tiles; first = (group % tiles) * BLOCK; }
#endif
  let rows = p.m; let cols = columns();
  let lane = lid % LANES; let row_group = lid / LANES;
  let items = (p.k + 4u * QUADS - 1u) / (4u * QUADS);
  // Where the rows begin, of the weights in units of the format and of the activations in 16 bytes.
  var at: array<u32, ROWS>;
#for PRODUCT in 0..SEPARATE
  {
    if (chosen(${PRODUCT}u)) {
#unroll
      for (var r = 0u; r < ROWS; r++) {
        at[r] = place_in(${PRODUCT}u + r % PAIR, batch * cols + min(first + row_group * GROUP_ROWS + r / PAIR, cols - 1u));
      }
    }
  }
#endfor
  var x_at: array<u32, MT>;
#if DIRECT
  {
#unroll
    for (var m = 0u; m < MT; m++) { x_at[m] = (p.a_start + p.a_offset + (batch * rows + min(m, rows - 1u)) * p.k) / (4u * X_QUADS); }
  }
#endif
  // The quad of results that this thread writes, and what it is combined with, which is asked for before anything else.
  let m_own = lid / FOURS; let j_own = lid % FOURS * 4u;
  let writes = m_own < rows && lid < MT * FOURS && first + j_own < cols;
  var own: EpilogueReads;
#if VEC_OUT
  {
    if (always()) { own = read_epilogue((batch * rows + select(0u, m_own, writes)) * cols + first + select(0u, j_own, writes)); }
  }
#endif
  var acc: array<f32, ROWS * MT>;
#unroll
  for (var e = 0u; e < ROWS * MT; e++) { acc[e] = 0.0; }
  var first_now: array<vec4<u32>, ROWS * PREFETCH>;
  var second_now: array<vec4<u32>, ROWS * PREFETCH>;
  var third_now: array<vec4<u32>, ROWS * PREFETCH>;
  var first_next: array<vec4<u32>, ROWS * PREFETCH>;
  var second_next: array<vec4<u32>, ROWS * PREFETCH>;
  var third_next: array<vec4<u32>, ROWS * PREFETCH>;
  var x_now: array<vec4<u32>, MT * X_ROWS>;
  for (var base = 0u; base < items; base += CHUNK) {
#include "gemv_fetch.wgsl" TO = now, WHEN = "", ITEM = "base + lane + a * LANES"
    var count = items - base;
#include "gemv_stage.wgsl"
    for (var start = lane; start < count; start += LANES * PREFETCH) {
      // What comes next is on its way while this is multiplied (DOUBLE_BUFFER), or asked for when its turn comes.
#if DOUBLE_BUFFER
      {
#include "gemv_fetch.wgsl" TO = next, WHEN = "start - lane + LANES * PREFETCH < count && ", ITEM = "base + start + (a + PREFETCH) * LANES"
      }
#else
      {
#include "gemv_fetch.wgsl" TO = now, WHEN = "start != lane && ", ITEM = "base + start + a * LANES"
      }
#endif
#include "gemv_multiply.wgsl"
#if DOUBLE_BUFFER
      {
#unroll
        for (var a = 0u; a < PREFETCH; a++) {
#unroll
          for (var r = 0u; r < ROWS; r++) {
            first_now[a * ROWS + r] = first_next[a * ROWS + r];
#if SECOND
            { second_now[a * ROWS + r] = second_next[a * ROWS + r]; }
#endif
#if THIRD
            { third_now[a * ROWS + r] = third_next[a * ROWS + r]; }
#endif
          }
        }
      }
#endif
    }
    if (STAGED == 0u) { break; }
  }
#include "gemv_store.wgsl"
}

#include "weights_items.wgsl" SMALL = p.m
#for P in 0..PRODUCTS
#include "weights_loads.wgsl" S = _p${P}, N = (${P} + 1), START = "p.b_start_${P} + p.b_offset_${P}", K = p.k
#endfor
#include "gemv_products.wgsl"

// How activations are staged.
#if PACKED
alias Staged = vec2<u32>;
fn to_staged(x: vec4<f32>) -> Staged { return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw)); }
fn halves_to_staged(h: vec2<u32>) -> Staged { return h; }
fn from_staged(x: Staged) -> vec4<f32> { return halves(x); }
#else
alias Staged = vec4<f32>;
fn to_staged(x: vec4<f32>) -> Staged { return x; }
fn halves_to_staged(h: vec2<u32>) -> Staged { return halves(h); }
fn from_staged(x: Staged) -> vec4<f32> { return x; }
#endif
${ROW_SUM}
#include "gemv_norm.wgsl"
