// The block's queries in matrices, staged a part of their columns at a time.
  // The queries, held in matrices.
  var x1: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM * KD>;
#unroll UNROLL
  for (var g = 0u; g < CHUNKS; g++) {
    var next_r1: array<vec4<u32>, LOADS_R>;
#unroll UNROLL
    for (var f = 0u; f < LOADS_R; f++) { next_r1[f] = fetch_r1(start_r1, queries, r0, g * KC * EDGE, lid + f * WORKGROUP); }
    workgroupBarrier();
#include "flash_coop_stage.wgsl" ITEMS = LOADS_R, HIGH = ROWS, EIGHTS = EIGHTS_R, AT = 0u, PITCH = PITCH_R1, NEXT = next_r1
    workgroupBarrier();
#include "flash_coop_hold.wgsl" X = x1, FRAGMENTS_K = KD, FIRST = g * KC, COUNT = KC, PITCH = PITCH_R1
  }
