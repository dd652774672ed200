// A weight in blocks as floats: each thread unpacks an item of it into workgroup memory, from where neighbours store neighbouring eights.
//
// A format says how an item's quads lie and what they are, see gemv.wgsl and quant/items.wgsl.

const PART: u32 = QUADS / PARTS; // quads of a part
var<workgroup> tile: array<vec4<f32>, WORKGROUP * (QUADS + 1u)>;

// Where quad q of a workgroup lies: neighbouring threads write to different banks.
fn local(q: u32) -> u32 { return q + q / QUADS; }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * p.groups_x + wid.x;
  let i = min(group * WORKGROUP + lid, p.items - 1u);
  let at = place(0u);
#include "quant/item.wgsl" OF = "", PLACE = "at, i"
#unroll
  for (var s = 0u; s < PARTS; s++) {
    let by = scale(x, y, z, i, s);
#unroll
    for (var q = 0u; q < PART; q++) {
      let c = s * PART + q;
      // A workgroup has whole spans of items.
      tile[local(quad_of(lid, c))] = fma(quad(x, y, z, i, c), vec4<f32>(by.x), vec4<f32>(by.y));
    }
  }
  workgroupBarrier();
  for (var e = 0u; e < QUADS / 2u; e++) {
    let u = 2u * (lid + e * WORKGROUP);
    let to = 4u * (group * WORKGROUP * QUADS + u);
    if (to < p.count) { store8_0(to, tile[local(u)], tile[local(u + 1u)]); }
  }
}

#include "quant/item_order.wgsl"
#include "quant/items.wgsl" SMALL = p.groups_x
#include "quant/loads.wgsl" N = 0, S = "", START = "p.start + p.offset", K = p.count
