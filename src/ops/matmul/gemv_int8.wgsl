// One row times long weights in blocks: out[n] = sum over k of a[k] * b[n, k].
//
// A thread keeps the activations of an item, and the workgroup iterates over its rows of b with them, ROWS at a time in STEPS steps, the
// next rows' items on their way while these are multiplied. The threads of a subgroup add up what they have of a row, subgroups do at the
// end. Activations are integers of 16 bits, in two bytes with a sign each, times a scale of each item's: four weights, which are bytes as
// well, are multiplied at once. What an activation is wrong by is at most 2^-16 of its item's largest; NaN and infinity make NaN.
//
// Formats, several products of one left side and a left side that is normalised on its way: as in gemv.wgsl.

const GROUP_ROWS: u32 = ROWS / PAIR; // rows of a product in a step
const BLOCK: u32 = GROUP_ROWS * STEPS;
const SUBGROUPS: u32 = WORKGROUP / SUBGROUP;
const EIGHTS: u32 = QUADS / 2u;
const PART: u32 = QUADS / PARTS; // quads of a part
const TOP: f32 = 32512.0; // of an item's integers
// Sums of a subgroup's threads, of each row of each product.
var<workgroup> ys: array<f32, SUBGROUPS * PAIR * BLOCK>;
var<private> acc: array<f32, ROWS>;
var<private> thread: u32;

// Always true, which a compiler does not know: loads in its branches stay there, together.
fn always() -> bool { return p.m > 0u; }
fn halves(h: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)); }
#include "quant/item_order.wgsl"
fn largest(x: vec4<f32>) -> f32 { let a = abs(x); return max(max(a.x, a.y), max(a.z, a.w)); }
fn sum_of(x: vec4<f32>) -> f32 { return (x.x + x.y) + (x.z + x.w); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let start = locate(wid.y * p.groups_x + wid.x) * BLOCK;
  let cols = columns(); let size = p.k;
  let items = size / (4u * QUADS);
  // The quad of results that this thread writes, and what it is combined with.
  var own: EpilogueReads;
  let writes = lid < BLOCK / 4u && start + 4u * lid < cols;
#if VEC_OUT
  {
    if (always()) { own = read_epilogue(start + select(0u, 4u * lid, writes)); }
  }
#endif
  for (var base = 0u; base < items; base += WORKGROUP) {
    let i = min(base + lid, items - 1u);
    var first_now: array<vec4<u32>, ROWS>; var first_next: array<vec4<u32>, ROWS>;
    var second_now: array<vec4<u32>, ROWS>; var second_next: array<vec4<u32>, ROWS>;
    var third_now: array<vec4<u32>, ROWS>; var third_next: array<vec4<u32>, ROWS>;
    var raw: array<vec4<u32>, EIGHTS>; var origin = 0.0;
    var gain: array<vec4<f32>, QUADS>; var shift: array<vec4<f32>, QUADS>;
    if (always()) {
#unroll
      for (var q = 0u; q < EIGHTS; q++) { raw[q] = raw_0[(p.a_start + p.a_offset) / 8u + quad_of(i, 2u * q) / 2u]; }
#if CENTRED
      { origin = halves(raw_0[(p.a_start + p.a_offset) / 8u].xy).x; }
#endif
#if GAIN
      {
#unroll
        for (var c = 0u; c < QUADS; c++) { gain[c] = gain4(4u * quad_of(i, c)); }
      }
#endif
#if SHIFT
      {
#unroll
        for (var c = 0u; c < QUADS; c++) { shift[c] = shift4(4u * quad_of(i, c)); }
      }
#endif
    }
#include "gemv_int8_fetch.wgsl" TO = now, WHEN = "", ROW = "start + r / PAIR"
    // An item beyond the last one counts nothing.
    let inside = base + lid < items;
    var x: array<vec4<f32>, QUADS>;
#unroll
    for (var q = 0u; q < EIGHTS; q++) {
      let e = select(vec4<u32>(0u), raw[q], inside);
      x[2u * q] = halves(e.xy); x[2u * q + 1u] = halves(e.zw);
    }
#if NORMED
    {
      // The whole row is in the workgroup's threads; both moments at once, as in gemv.wgsl.
      var s = vec4<f32>(0.0); var centre = 0.0; var variance = 0.0;
#if CENTRED
      {
        var y = vec4<f32>(0.0);
#unroll
        for (var c = 0u; c < QUADS; c++) {
          x[c] = select(vec4<f32>(0.0), x[c] - origin, inside);
          y += x[c];
          s += x[c] * x[c];
        }
        let moments = both_sums(vec2<f32>(sum_of(y), sum_of(s))) / f32(size);
        centre = moments.x;
        variance = max(moments.y - centre * centre, 0.0);
      }
#else
      {
#unroll
        for (var c = 0u; c < QUADS; c++) { s += x[c] * x[c]; }
        variance = all_sum(sum_of(s)) / f32(size);
      }
#endif
      let by = inverseSqrt(variance + p.eps);
#unroll
      for (var c = 0u; c < QUADS; c++) {
#if CENTRED
        { x[c] = select(vec4<f32>(0.0), x[c] - centre, inside); }
#endif
        x[c] *= by;
#if GAIN
        { x[c] *= gain[c]; }
#endif
#if SHIFT
        { x[c] = select(vec4<f32>(0.0), x[c] + shift[c], inside); }
#endif
      }
    }
#endif
    var most = 0.0; var all = vec4<f32>(0.0);
#unroll
    for (var c = 0u; c < QUADS; c++) { most = max(most, largest(x[c])); all += x[c]; }
    // NaN and infinity show in the sum; the constant is one that compilers take for a number.
    let unit = select(bitcast<f32>(0x7fc00000u | (size >> 31u)), most / TOP, abs(sum_of(all)) < 3.0e38);
    let by = select(0.0, TOP / most, most > 0.0);
    var high: array<u32, QUADS>; var low: array<u32, QUADS>;
#unroll
    for (var c = 0u; c < QUADS; c++) {
      // Added to 3 * 2^22, an integer is what the mantissa's last bits say; 128 more, so that the lower byte has a sign once its first bit
      // is flipped.
      let u = bitcast<vec4<u32>>(fma(x[c], vec4<f32>(by), vec4<f32>(12583040.0)));
      let even = (u.x & 0xffffu) | (u.z << 16u); let odd = (u.y & 0xffffu) | (u.w << 16u);
      high[c] = ((even >> 8u) & 0x00ff00ffu) | (odd & 0xff00ff00u);
      low[c] = ((even & 0x00ff00ffu) | ((odd << 8u) & 0xff00ff00u)) ^ 0x80808080u;
    }
    var total: array<i32, PARTS>;
#unroll
    for (var s = 0u; s < PARTS; s++) {
      var h = 0; var l = 0;
#unroll
      for (var c = 0u; c < PART; c++) {
        h += dot4I8Packed(0x01010101u, high[s * PART + c]);
        l += dot4I8Packed(0x01010101u, low[s * PART + c]);
      }
      total[s] = 256 * h + l;
    }
    for (var step = 0u; step < STEPS; step++) {
#include "gemv_int8_fetch.wgsl" TO = next, WHEN = "step + 1u < STEPS && ", ROW = "start + (step + 1u) * GROUP_ROWS + r / PAIR"
#unroll
      for (var r = 0u; r < ROWS; r++) {
        var v = 0.0;
#unroll
        for (var s = 0u; s < PARTS; s++) {
          var h = 0; var l = 0;
#unroll
          for (var c = 0u; c < PART; c++) {
            let w = packed(first_now[r], second_now[r], third_now[r], i, s * PART + c);
            h += dot4I8Packed(w, high[s * PART + c]);
            l += dot4I8Packed(w, low[s * PART + c]);
          }
          let by = scale(first_now[r], second_now[r], third_now[r], i, s);
          v += by.x * f32(256 * h + l - ${LESS} * total[s]);
#if SHIFTED
          { v += by.y * f32(total[s]); }
#endif
        }
        acc[r] = v * unit;
      }
      // Each row's sum is with the threads whose number says the row now.
      let y = rows_sum(lid);
      let r = lid % SUBGROUP;
      if (r < ROWS) {
        let at = (lid / SUBGROUP * PAIR + r % PAIR) * BLOCK + step * GROUP_ROWS + r / PAIR;
        if (base == 0u) { ys[at] = y; } else { ys[at] += y; }
      }
#unroll
      for (var r = 0u; r < ROWS; r++) {
        first_now[r] = first_next[r];
#if SECOND
        { second_now[r] = second_next[r]; }
#endif
#if THIRD
        { third_now[r] = third_next[r]; }
#endif
      }
    }
  }
  workgroupBarrier();
#unroll
  for (var p = 0u; p < PAIR; p++) {
#if VEC_OUT
    {
      if (writes) {
        var v = vec4<f32>(0.0);
        for (var s = 0u; s < SUBGROUPS; s++) {
          let at = (s * PAIR + p) * BLOCK + 4u * lid;
          v += vec4<f32>(ys[at], ys[at + 1u], ys[at + 2u], ys[at + 3u]);
        }
        put4(p, start + 4u * lid, v, own);
      }
    }
#else
    {
      if (lid < BLOCK && start + lid < cols) {
        var v = 0.0;
        for (var s = 0u; s < SUBGROUPS; s++) { v += ys[(s * PAIR + p) * BLOCK + lid]; }
        put(p, start + lid, v);
      }
    }
#endif
  }
}

#include "weights_items.wgsl" SMALL = p.m
#for P in 0..PRODUCTS
#include "weights_loads.wgsl" S = _p${P}, N = (${P} + 1), START = "p.b_start_${P} + p.b_offset_${P}", K = p.k
#endfor
#include "gemv_products.wgsl"

// The sum over a subgroup of `acc` of each of two rows: even threads hand odd ones what they have of the second row, and get the first's; then all
// threads of a row add up theirs. Thread `lid` has row lid % ROWS.
fn rows_sum(lid: u32) -> f32 {
  let odd0 = (lid & 1u) != 0u;
  let r0_0 = select(acc[0], acc[1], odd0) + subgroupShuffleXor(select(acc[1], acc[0], odd0), 1u);
  var r = r0_0;
#for BIT in 1..SUBGROUP_BITS
  r += subgroupShuffleXor(r, ${1 << BIT}u);
#endfor
  return r;
}
#include "gemv_norm.wgsl"
