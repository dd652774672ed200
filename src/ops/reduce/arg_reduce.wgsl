// Largest or smallest element of the last axis, or its index: ROW_THREADS threads a row; the first of equals counts, and NaN before all.
//
// Elements are compared as unsigned keys in the same order, so one shader serves every type and NaN needs no comparison of floats.
// SPLIT: several workgroups a row, of which the last to arrive compares their results, as in reduce.wgsl.
// INDEX: the result is the index, otherwise the element. OR_NONE: the index is -1 where the element is NaN.

const FLOAT: u32 = 0;
const SIGNED: u32 = 1;
const NAN: u32 = 0xffffffffu;
const ROWS: u32 = WORKGROUP / ROW_THREADS;
var<private> thread: u32;
var<workgroup> arrived: u32;

// A key that grows with the element (shrinks for MIN); NaN has the largest.
fn key(x: T_0) -> u32 {
  var k = bitcast<u32>(x);
  var nan = false;
  if (KIND == FLOAT) {
    nan = (k & 0x7fffffffu) > 0x7f800000u;
    if (k == 0x80000000u) { k = 0u; } // -0 equals 0
    k = select(k | 0x80000000u, ~k, (k & 0x80000000u) != 0u);
  }
  if (KIND == SIGNED) { k ^= 0x80000000u; }
  if (MIN == 1u) { k = ~k; }
  return select(k, NAN, nan);
}
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y)); }
fn better4(a: vec2<u32>, x: vec4<T_0>, c: u32) -> vec2<u32> {
  let low = better(vec2<u32>(key(x.x), c), vec2<u32>(key(x.y), c + 1u));
  let high = better(vec2<u32>(key(x.z), c + 2u), vec2<u32>(key(x.w), c + 3u));
  return better(a, better(low, high));
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#include "row_split.wgsl"
  let start = min(row, rows - 1u) * cols;
  var best = vec2<u32>(0u, 0xffffffffu);
#if VEC
  {
    let whole = cols & ~3u;
    var c = 4u * first;
    for (; c + 12u * step < whole; c += 16u * step) {
      let x0 = load4_0(start + c); let x1 = load4_0(start + c + 4u * step);
      let x2 = load4_0(start + c + 8u * step); let x3 = load4_0(start + c + 12u * step);
      best = better4(best, x0, c);
      best = better4(best, x1, c + 4u * step);
      best = better4(best, x2, c + 8u * step);
      best = better4(best, x3, c + 12u * step);
    }
    for (; c < whole; c += 4u * step) { best = better4(best, load4_0(start + c), c); }
    if (part == 0u && whole + lane < cols) { best = better(best, vec2<u32>(key(load_0(start + whole + lane)), whole + lane)); }
  }
#else
  {
    for (var c = first; c < cols; c += step) { best = better(best, vec2<u32>(key(load_0(start + c)), c)); }
  }
#endif
  best = row_best(best);
#if SPLIT
  {
    let parts = p.parts;
    let own = COUNTERS + 2u * min(row, rows - 1u) * parts;
    if (lane == 0u && row < rows) {
      atomicStore(&scratch[own + 2u * part], best.x);
      atomicStore(&scratch[own + 2u * part + 1u], best.y);
    }
#include "last_to_arrive.wgsl" COUNTER = block, PARTS = parts
    best = vec2<u32>(0u, 0xffffffffu);
    for (var p = lane; p < parts; p += ROW_THREADS) {
      best = better(best, vec2<u32>(atomicLoad(&scratch[own + 2u * p]), atomicLoad(&scratch[own + 2u * p + 1u])));
    }
    best = row_best(best);
    if (lid == 0u) { atomicStore(&scratch[block], 0u); }
  }
#endif
  if (lane == 0u && row < rows) { finish(row, best); }
}

${ROW_BEST}
fn finish(row: u32, best: vec2<u32>) {
#if OR_NONE
  store_0(row, select(i32(best.y), -1, best.x == NAN));
#elif INDEX
  store_0(row, i32(best.y));
#else
  store_0(row, load_0(row * p.cols + best.y));
#endif
}
