// x times the weights of the expert that each pair names: LANES threads for each row of the weights, of which no other expert's is read.
//
// A format says how an item's quads lie and what they are, see gemv.wgsl and quant/items.wgsl.

const ROW_GROUPS: u32 = WORKGROUP / LANES;
var<private> thread: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = wid.y * p.groups_x + wid.x;
  let pair = min(group / p.tiles, p.pairs - 1u);
  let row = group % p.tiles * ROW_GROUPS + lid / LANES;
  // A negative i32 is a large u32.
  var expert = u32(load_2(pair));
  if (expert >= p.experts) { fail(expert); expert = p.experts - 1u; }
  let at = place(expert * p.n + min(row, p.n - 1u));
  let m = pair / p.per;
  let items = (p.k + 4u * QUADS - 1u) / (4u * QUADS);
  var sum = 0.0;
  for (var i = lid % LANES; i < items; i += LANES) {
#include "quant/item.wgsl" OF = "", PLACE = "at, i"
#unroll
    for (var s = 0u; s < PARTS; s++) {
      var products = vec4<f32>(); var total = vec4<f32>();
#unroll
      for (var q = 0u; q < PART; q++) {
        let c = s * PART + q;
        let a = x4(m, quad_of(i, c));
        products += quad(x, y, z, i, c) * a;
        total += a;
      }
      let by = scale(x, y, z, i, s);
      let one = vec4<f32>(1.0);
      sum += by.x * dot(products, one) + by.y * dot(total, one);
    }
  }
  sum = row_sum(sum);
  if (lid % LANES == 0u && row < p.n && group / p.tiles < p.pairs) { store_0(pair * p.n + row, sum); }
}

#include "expert_operands.wgsl"
