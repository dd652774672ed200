// As expert_matmul.wgsl, of many pairs: a workgroup has some rows of one expert's weights, finds the pairs that name it, a SEGMENT of all at a
// time, and reads its weights once for PAIRS of them. In which order they are found changes no result.

const ROW_GROUPS: u32 = WORKGROUP / LANES;
var<private> thread: u32;
var<workgroup> list: array<u32, SEGMENT>;
var<workgroup> count: atomic<u32>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = wid.y * p.groups_x + wid.x;
  let expert = min(group / p.tiles, p.experts - 1u);
  let row = group % p.tiles * ROW_GROUPS + lid / LANES;
  let writes = lid % LANES == 0u && row < p.n && group / p.tiles < p.experts;
  let at = place(expert * p.n + min(row, p.n - 1u));
  let items = (p.k + 4u * QUADS - 1u) / (4u * QUADS);
  for (var base = 0u; base < p.pairs; base += SEGMENT) {
    if (lid == 0u) { atomicStore(&count, 0u); }
    workgroupBarrier();
    for (var i = base + lid; i < min(base + SEGMENT, p.pairs); i += WORKGROUP) {
      // A negative i32 is a large u32.
      let id = u32(load_2(i));
      if (id == expert) { list[atomicAdd(&count, 1u)] = i; }
      if (id >= p.experts) { fail(id); }
    }
    workgroupBarrier();
    let found = atomicLoad(&count);
    for (var first_pair = 0u; first_pair < found; first_pair += PAIRS) {
      var pairs: array<u32, PAIRS>;
      var sums: array<f32, PAIRS>;
#unroll
      for (var j = 0u; j < PAIRS; j++) { pairs[j] = list[min(first_pair + j, found - 1u)]; }
      for (var i = lid % LANES; i < items; i += LANES) {
#include "quant/item.wgsl" OF = "", PLACE = "at, i"
#unroll
        for (var s = 0u; s < PARTS; s++) {
          let by = scale(x, y, z, i, s);
#unroll
          for (var q = 0u; q < PART; q++) {
            let c = s * PART + q;
            let w = fma(quad(x, y, z, i, c), vec4<f32>(by.x), vec4<f32>(by.y));
            let v = quad_of(i, c);
#unroll
            for (var j = 0u; j < PAIRS; j++) { sums[j] += dot(w, x_quad(pairs[j] / p.per, v)); }
          }
        }
      }
#unroll
      for (var j = 0u; j < PAIRS; j++) {
        let sum = row_sum(sums[j]);
#if BIASED
        if (writes && first_pair + j < found) { store_0(pairs[j] * p.n + row, sum + f32(load_3(expert * p.n + row))); }
#else
        if (writes && first_pair + j < found) { store_0(pairs[j] * p.n + row, sum); }
#endif
      }
    }
    workgroupBarrier();
  }
}

#include "expert_operands.wgsl"
#include "weights_loads.wgsl" S = "", N = 1, START = "p.w_start + p.w_offset", K = p.k
