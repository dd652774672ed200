// x times the weights of the expert that each pair names: LANES threads for each row of the weights, of which no other expert's is read.
//
// A format says how an item's quads lie and what they are, see gemv.wgsl and quant/items.wgsl. PRODUCTS: two products of the same pairs, of which the
// second's store may read what the first's has written. BIASED: an expert's bias is added. SUMMED: the products of a row's pairs are multiplied by
// the pairs' factors and added up.

const ROW_GROUPS: u32 = WORKGROUP / LANES;
var<private> thread: u32;

#for P in 0..PRODUCTS
// This thread's part of the sum over row `row` of an expert's weights of product ${P} and row `m` of x.
fn product_${P}(expert: u32, row: u32, m: u32, lid: u32) -> f32 {
  let at = place_p${P}(expert * p.n + row);
  let items = (p.k + 4u * QUADS - 1u) / (4u * QUADS);
  var sum = 0.0;
  for (var i = lid % LANES; i < items; i += LANES) {
#include "quant/item.wgsl" OF = _p${P}, PLACE = "at, i"
#unroll
    for (var s = 0u; s < PARTS; s++) {
      var products = vec4<f32>(); var total = vec4<f32>();
#unroll
      for (var q = 0u; q < PART; q++) {
        let c = s * PART + q;
        let a = x_quad(m, quad_of(i, c));
        products += quad(x, y, z, i, c) * a;
        total += a;
      }
      let by = scale(x, y, z, i, s);
      let one = vec4<f32>(1.0);
      sum += by.x * dot(products, one) + by.y * dot(total, one);
    }
  }
  return sum;
}
#endfor

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = wid.y * p.groups_x + wid.x;
  let result = min(group / p.tiles, p.pairs / p.summed - 1u);
  let own_row = group % p.tiles * ROW_GROUPS + lid / LANES;
  let row = min(own_row, p.n - 1u);
  let writes = lid % LANES == 0u && own_row < p.n && group / p.tiles < p.pairs / p.summed;
#if SUMMED
  var all = 0.0;
  for (var j = 0u; j < p.summed; j++) {
    let pair = result * p.summed + j;
#else
    let pair = result;
#endif
    // A negative i32 is a large u32.
    var expert = u32(load_2(pair));
    if (expert >= p.experts) { fail(expert); expert = p.experts - 1u; }
    let m = pair / p.per;
    var sum = product_0(expert, row, m, lid);
#if SUMMED
#if BIASED
    if (lid % LANES == 0u) { sum += f32(load_3(expert * p.n + row)); }
#endif
    all += sum * f32(load_${FACTORS}(pair));
  }
  all = row_sum(all);
  if (writes) { store_0(result * p.n + row, all); }
#else
    sum = row_sum(sum);
#if BIASED
    sum += f32(load_3(expert * p.n + row));
#endif
#if PRODUCTS > 1
    var second = row_sum(product_1(expert, row, m, lid));
#if BIASED
    second += f32(load_${BIAS_1}(expert * p.n + row));
#endif
#endif
    if (writes) {
      store_0(pair * p.n + row, sum);
#if PRODUCTS > 1
      store_1(pair * p.n + row, second);
#endif
    }
#endif
}

#include "expert_operands.wgsl"
#include "weights_loads.wgsl" S = _p0, N = 1, START = "p.w_start + p.w_offset", K = p.k
#if PRODUCTS > 1
#include "weights_loads.wgsl" S = _p1, N = ${WEIGHTS_1}, START = "p.w_start_1 + p.w_offset_1", K = p.k
#endif
