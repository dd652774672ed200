// One operand of a product by cooperative matrices: its tile, eight elements along a line at a time.
//
// A tile is ${TILE_ROWS} rows by ${TILE_K} of k, in lines of k; an operand that is TRANSPOSED, whose rows are neighbours in memory, has lines of rows.
// Nothing here branches on a thread: loads that wait for each other are slow. Beyond the end, rows that are stored in lines of k (RAW, not
// TRANSPOSED) are the last one again, which gemm_coop.wgsl relies on; what others give nobody uses. Of k beyond the end there are zeros, unless
// EVEN_K: k is whole tiles.
// RAW: stored as f16 in lines whose eights are whole, and read 16 bytes at a time. BLOCKS: in a block format. FOLDED: lines are in groups
// that lie apart, and so are the pieces of a line, of 8 << SHIFT elements: heads that were put together again. UNALIGNED: lines begin anywhere,
// and an eight is cut out of the two that hold it. DEFERRED: `finish` does what there is to do with what was read, when it has arrived.
// ${ROWS} and ${K} are the operand's sizes. Of the parameters `LINES_*`, start and offset are in elements, the others in eights, or, where lines are
// UNALIGNED, in elements: outer from one outer batch to the next, each of `inner` batches, stride from one of those to the next, line from one
// line to the next. FOLDED: outer from one group of lines to the next, each of `inner` lines, stride from piece to piece.

#if TRANSPOSED
const LINE_${X}: u32 = ${TILE_ROWS}; // elements of a line of the tile
const PITCH_${X}: u32 = LINE_${X} + 8u;
const TILE_${X}: u32 = ${TILE_K} * PITCH_${X};
#else
const LINE_${X}: u32 = ${TILE_K}; // elements of a line of the tile
const PITCH_${X}: u32 = LINE_${X} + 8u;
const TILE_${X}: u32 = ${TILE_ROWS} * PITCH_${X};
#endif

// Where a batch begins: in eights, in rows of blocks, or in elements.
fn batch_start_${x}(batch: u32) -> u32 {
#if RAW && FOLDED
  return (p.${LINES}_start + p.${LINES}_offset) / 8u;
#elif RAW
  let at = batch / p.${LINES}_inner * p.${LINES}_outer + batch % p.${LINES}_inner * p.${LINES}_stride;
#if UNALIGNED
  return p.${LINES}_start + p.${LINES}_offset + at;
#else
  return (p.${LINES}_start + p.${LINES}_offset) / 8u + at;
#endif
#elif BLOCKS
  return batch * ${ROWS};
#else
  return batch * ${ROWS} * ${K};
#endif
}

#if !RAW
fn quad_${x}(start: u32, line: u32, first: u32, lines: u32, length: u32) -> vec4<f32> {
  let there = line < lines && first < length;
#if BLOCKS
  let x = weights4(start + select(0u, line, there), select(0u, first / 4u, there));
#else
  let at = start + select(0u, line * length + first, there);
#if VEC
  let x = load4_${LOAD}(at);
#else
  let more = select(vec3<u32>(0u), vec3<u32>(1u, 2u, 3u), vec3<bool>(first + 1u < length, first + 2u < length, first + 3u < length) & vec3<bool>(there));
  var x = vec4<f32>(load_${LOAD}(at), load_${LOAD}(at + more.x), load_${LOAD}(at + more.y), load_${LOAD}(at + more.z));
  x = select(vec4<f32>(0.0), x, vec4<bool>(true, more.x > 0u, more.y > 0u, more.z > 0u));
#endif
#endif
  return select(vec4<f32>(0.0), x, there);
}
#endif

// Eight u of the tile at row r0 and at k0; rows from `rows` on are the last one again.
fn fetch_${x}(start: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> {
#include "gemm_coop_place.wgsl"
#if RAW && UNALIGNED
  return raw_${LOAD}[min((start + min(line, lines - 1u) * p.${LINES}_line + first) / 8u, p.${LINES}_last)];
#elif RAW
  // What is there anyway is not looked at: of k, so that a thread's place moves on by a number that is known.
#if TRANSPOSED && EVEN_K
  let l = line;
#else
  let l = min(line, lines - 1u);
#endif
#if !TRANSPOSED && EVEN_K
  let piece = first / 8u;
#else
  let piece = min(first, length - 8u) / 8u;
#endif
#if FOLDED
  let group = l / p.${LINES}_inner * p.${LINES}_outer + l % p.${LINES}_inner * p.${LINES}_line;
  let e = raw_${LOAD}[start + group + (piece >> SHIFT_${X}) * p.${LINES}_stride + (piece & ((1u << SHIFT_${X}) - 1u))];
#else
  let e = raw_${LOAD}[start + l * p.${LINES}_line + piece];
#endif
#if DEFERRED || EVEN_K
  return e;
#else
  return select(vec4<u32>(), e, inside);
#endif
#else
  let lo = quad_${x}(start, line, first, lines, length); let hi = quad_${x}(start, line, first + 4u, lines, length);
  return vec4<u32>(pack2x16float(lo.xy), pack2x16float(lo.zw), pack2x16float(hi.xy), pack2x16float(hi.zw));
#endif
}

#if RAW && UNALIGNED
// What lies behind that eight.
fn fetch_after_${x}(start: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> {
#include "gemm_coop_place.wgsl"
  return raw_${LOAD}[min((start + min(line, lines - 1u) * p.${LINES}_line + first) / 8u + 1u, p.${LINES}_last)];
}
#endif

#if DEFERRED
// The eight, of what was read as it and what lies behind.
fn finish_${x}(start: u32, rows: u32, r0: u32, k0: u32, u: u32, e: vec4<u32>, after: vec4<u32>) -> vec4<u32> {
#if !RAW || EVEN_K && !UNALIGNED
  return e;
#else
#include "gemm_coop_place.wgsl"
#if UNALIGNED
  let at = start + min(line, lines - 1u) * p.${LINES}_line + first;
  let far = (at & 4u) != 0u; let next = (at & 2u) != 0u; let odd = (at & 1u) != 0u;
  let a = select(e, vec4<u32>(e.zw, after.xy), far); let b = select(after.xy, after.zw, far);
  let c = select(a, vec4<u32>(a.yzw, b.x), next); let d = select(b.x, b.y, next);
  let v = select(c, (c >> vec4<u32>(16u)) | (vec4<u32>(c.yzw, d) << vec4<u32>(16u)), odd);
#if EVEN_K
  return v;
#else
  // Of k, as many elements as are left.
#if TRANSPOSED
  let left = select(0u, 8u, inside);
#else
  let left = length - min(first, length);
#endif
  let kept = vec4<u32>(left) - min(vec4<u32>(left), vec4<u32>(0u, 2u, 4u, 6u));
  return v & select(select(vec4<u32>(0u), vec4<u32>(0xffffu), kept == vec4<u32>(1u)), vec4<u32>(0xffffffffu), kept > vec4<u32>(1u));
#endif
#else
  return select(vec4<u32>(), e, inside);
#endif
#endif
}
#endif
