// Sum, mean or product over the last axis: ROW_THREADS threads a row, or SPLIT: several workgroups a row.
//
// COL_MAJOR: neighbouring threads take neighbouring rows, for an operand whose rows lie side by side in memory.
// SPLIT: each workgroup leaves its part in common memory and counts itself; the last one adds the parts up, in their order, so that every run
// gives the same bits.

const SUM: u32 = 0;
const MEAN: u32 = 1;
const PROD: u32 = 2;
const ROWS: u32 = WORKGROUP / ROW_THREADS;
var<private> thread: u32;
var<workgroup> arrived: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#include "row_split.wgsl"
  var unit = T_0(0);
  if (OP == PROD) { unit = T_0(1); }
  var a = vec4<T_0>(unit); var b = vec4<T_0>(unit);
  let start = min(row, rows - 1u) * cols;
#if VEC
  {
    let quads = cols / 4u;
    var v = first;
#if SPLIT
    {
      // Eight loads under way at a time: few rows leave few threads to hide the way to memory.
      for (; v + 7u * step < quads; v += 8u * step) {
        let at = start + 4u * v; let far = at + 16u * step;
        let x0 = load4_0(at); let x1 = load4_0(at + 4u * step); let x2 = load4_0(at + 8u * step); let x3 = load4_0(at + 12u * step);
        let y0 = load4_0(far); let y1 = load4_0(far + 4u * step); let y2 = load4_0(far + 8u * step); let y3 = load4_0(far + 12u * step);
        if (OP == PROD) { a *= (x0 * x1) * (x2 * x3); b *= (y0 * y1) * (y2 * y3); } else { a += (x0 + x1) + (x2 + x3); b += (y0 + y1) + (y2 + y3); }
      }
    }
#endif
    for (; v + 3u * step < quads; v += 4u * step) {
      let at = start + 4u * v;
      let x0 = load4_0(at); let x1 = load4_0(at + 4u * step); let x2 = load4_0(at + 8u * step); let x3 = load4_0(at + 12u * step);
      if (OP == PROD) { a *= x0 * x1; b *= x2 * x3; } else { a += x0 + x1; b += x2 + x3; }
    }
    for (; v < quads; v += step) {
      let x = load4_0(start + 4u * v);
      if (OP == PROD) { a *= x; } else { a += x; }
    }
  }
#else
  {
    var c = first;
    for (; c + 3u * step < cols; c += 4u * step) {
      let at = start + c;
      let x = vec4<T_0>(load_0(at), load_0(at + step), load_0(at + 2u * step), load_0(at + 3u * step));
      if (OP == PROD) { a *= x; } else { a += x; }
    }
    for (; c < cols; c += step) {
      let x = load_0(start + c);
      if (OP == PROD) { b.x *= x; } else { b.x += x; }
    }
  }
#endif
  var r = unit;
  if (OP == PROD) { a *= b; r = (a.x * a.y) * (a.z * a.w); } else { a += b; r = (a.x + a.y) + (a.z + a.w); }
  r = row_reduce(r);
#if SPLIT
  {
    let parts = p.parts;
    let own = COUNTERS + min(row, rows - 1u) * parts;
    if (lane == 0u && row < rows) { atomicStore(&scratch[own + part], bitcast<u32>(r)); }
#include "last_to_arrive.wgsl" COUNTER = block, PARTS = parts
    r = unit;
    for (var p = lane; p < parts; p += ROW_THREADS) {
      let x = bitcast<T_0>(atomicLoad(&scratch[own + p]));
      if (OP == PROD) { r *= x; } else { r += x; }
    }
    r = row_reduce(r);
    if (lid == 0u) { atomicStore(&scratch[block], 0u); }
  }
#endif
  if (OP == MEAN) { r = r / T_0(cols); }
  if (lane == 0u && row < rows) { store_0(row, r); }
}

${ROW_REDUCE}
