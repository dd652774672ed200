// x times the weights of the expert that each pair names, of which no other's are read: LANES threads for each element of a
// row of results, by items of the weights.
//
// A format says how an item's quads lie and what they are, see gemv.wgsl and quant/items.wgsl. PREFETCH items of each product are on their way at once.
// RAW_X: x is read where it lies, 16 bytes (X_QUADS quads) at a time, which are halves (EIGHTS) or floats. PRODUCTS: two products of the same pairs,
// of which the second's store may read what the first's has written. BIASED: an expert's bias is added. SUMMED: the products of a row's pairs are
// multiplied by the pairs' factors and added up, so that the threads of a row share the items of all of its pairs.

const ROW_GROUPS: u32 = WORKGROUP / LANES;
var<private> thread: u32;

fn expert_of(pair: u32) -> u32 {
  // A negative i32 is a large u32.
  let expert = u32(load_2(pair));
  if (expert >= p.experts) { fail(expert); }
  return min(expert, p.experts - 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = wid.y * p.groups_x + wid.x;
  let result = min(group / p.tiles, p.pairs / p.summed - 1u);
  let own_row = group % p.tiles * ROW_GROUPS + lid / LANES;
  let row = min(own_row, p.n - 1u);
  let lane = lid % LANES;
  let writes = lane == 0u && own_row < p.n && group / p.tiles < p.pairs / p.summed;
  let items = (p.k + 4u * QUADS - 1u) / (4u * QUADS);
  // Of all pairs of the result.
  let slots = items * p.summed;
#if !SUMMED
  let expert = expert_of(result);
#endif
#for P in 0..PRODUCTS
  var sum_${P} = 0.0;
#endfor
  for (var base = lane; base < slots; base += LANES * PREFETCH) {
    var item: array<u32, PREFETCH>;
    var m: array<u32, PREFETCH>;
#if SUMMED
    var weights_row: array<u32, PREFETCH>;
    var factor: array<f32, PREFETCH>;
#unroll
    for (var a = 0u; a < PREFETCH; a++) {
      let slot = min(base + a * LANES, slots - 1u);
      let pair = result * p.summed + slot / items;
      item[a] = slot % items;
      m[a] = pair / p.per;
      weights_row[a] = expert_of(pair) * p.n + row;
      factor[a] = f32(load_${FACTORS}(pair));
    }
#else
#unroll
    for (var a = 0u; a < PREFETCH; a++) { item[a] = min(base + a * LANES, slots - 1u); m[a] = result / p.per; }
#endif
#for P in 0..PRODUCTS
    var first_now_${P}: array<vec4<u32>, PREFETCH>;
    var second_now_${P}: array<vec4<u32>, PREFETCH>;
    var third_now_${P}: array<vec4<u32>, PREFETCH>;
#unroll
    for (var a = 0u; a < PREFETCH; a++) {
#if SUMMED
      let at = place_p${P}(weights_row[a]);
#else
      let at = place_p${P}(expert * p.n + row);
#endif
#include "quant/item.wgsl" OF = _p${P}, PLACE = "at, item[a]"
      first_now_${P}[a] = x;
      second_now_${P}[a] = y;
      third_now_${P}[a] = z;
    }
#endfor
#unroll
    for (var a = 0u; a < PREFETCH; a++) {
      let i = item[a];
      var quads: array<vec4<f32>, QUADS>;
#if RAW_X
      let x_at = (p.x_start + p.x_offset + m[a] * p.k) / (4u * X_QUADS);
#unroll
      for (var h = 0u; h < X_ROWS; h++) {
        let e = raw_0[x_at + quad_of(i, X_QUADS * h) / X_QUADS];
#if EIGHTS
        quads[2u * h] = halves(e.xy);
        quads[2u * h + 1u] = halves(e.zw);
#else
        quads[h] = bitcast<vec4<f32>>(e);
#endif
      }
#else
#unroll
      for (var c = 0u; c < QUADS; c++) { quads[c] = x_quad(m[a], quad_of(i, c)); }
#endif
#for P in 0..PRODUCTS
      var of_item_${P} = 0.0;
#unroll
      for (var s = 0u; s < PARTS; s++) {
        var products = vec4<f32>(); var total = vec4<f32>();
#unroll
        for (var q = 0u; q < PART; q++) {
          let c = s * PART + q;
          products += quad(first_now_${P}[a], second_now_${P}[a], third_now_${P}[a], i, c) * quads[c];
          total += quads[c];
        }
        let by = scale(first_now_${P}[a], second_now_${P}[a], third_now_${P}[a], i, s);
        of_item_${P} += by.x * dot(products, vec4<f32>(1.0));
#if SHIFTED
        of_item_${P} += by.y * dot(total, vec4<f32>(1.0));
#endif
      }
#if SUMMED
      of_item_${P} *= factor[a];
#endif
      // What stands in for an item beyond the last one does not count.
      if (base + a * LANES < slots) { sum_${P} += of_item_${P}; }
#endfor
    }
  }
#if SUMMED
#if BIASED
  for (var j = lane; j < p.summed; j += LANES) {
    let pair = result * p.summed + j;
    sum_0 += f32(load_3(expert_of(pair) * p.n + row)) * f32(load_${FACTORS}(pair));
  }
#endif
  sum_0 = row_sum(sum_0);
  if (writes) { store_0(result * p.n + row, sum_0); }
#else
#for P in 0..PRODUCTS
  sum_${P} = row_sum(sum_${P});
#endfor
#if BIASED
  sum_0 += f32(load_3(expert * p.n + row));
#if PRODUCTS > 1
  sum_1 += f32(load_${BIAS_1}(expert * p.n + row));
#endif
#endif
  if (writes) {
    store_0(result * p.n + row, sum_0);
#if PRODUCTS > 1
    store_1(result * p.n + row, sum_1);
#endif
  }
#endif
}

fn halves(h: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)); }
#include "expert_operands.wgsl"
#include "weights_loads.wgsl" S = _p0, N = 1, START = "p.w_start + p.w_offset", K = p.k
#if PRODUCTS > 1
#include "weights_loads.wgsl" S = _p1, N = ${WEIGHTS_1}, START = "p.w_start_1 + p.w_offset_1", K = p.k
#endif
