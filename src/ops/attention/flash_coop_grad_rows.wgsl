// What the gradients of attention by cooperative matrices begin with: which columns a block of rows sees, and its rows of both operands in matrices.
  // The columns that may be seen: keys up to the last query's, or queries from the one at the block's first key on.
  var begin = 0u; var finish = 0u;
#if BY_KEY
  {
    let valid = min(p.valid, keys); let window = p.window;
    finish = queries;
    if (CAUSAL == 1u && r0 + queries > valid) { begin = min(r0 + queries - valid, queries); }
    if (window > 0u) { finish = min(queries, select(0u, r0 + ROWS + window + queries - valid, r0 + ROWS + window + queries > valid)); }
    if (r0 >= valid) { finish = begin; }
  }
#else
  {
    begin = keys_of(r0).x; finish = keys_of(min(r0 + ROWS, queries) - 1u).y;
  }
#endif
  // The rows, held in matrices.
  var x1: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM * KD>;
  let start_r1 = batch_start_r1(group); let start_r2 = batch_start_r2(group);
  var next_r1: array<vec4<u32>, LOADS_R>;
  var next_r2: array<vec4<u32>, LOADS_R2>;
#unroll UNROLL
  for (var f = 0u; f < LOADS_R; f++) { next_r1[f] = fetch_r1(start_r1, rows, r0, 0u, lid + f * WORKGROUP); }
#unroll UNROLL
  for (var f = 0u; f < LOADS_R2; f++) { next_r2[f] = fetch_r2(start_r2, rows, r0, 0u, lid + f * WORKGROUP); }
#include "flash_coop_stage.wgsl" ITEMS = LOADS_R, HIGH = ROWS, EIGHTS = EIGHTS_R1, AT = 0u, PITCH = PITCH_R1, NEXT = next_r1
  workgroupBarrier();
#include "flash_coop_hold.wgsl" X = x1, FRAGMENTS_K = KD, FIRST = 0u, COUNT = KD, PITCH = PITCH_R1
  workgroupBarrier();
#include "flash_coop_stage.wgsl" ITEMS = LOADS_R2, HIGH = ROWS, EIGHTS = EIGHTS_R2, AT = 0u, PITCH = PITCH_R2, NEXT = next_r2
  workgroupBarrier();
  var x2: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM * KV>;
#include "flash_coop_hold.wgsl" X = x2, FRAGMENTS_K = KV, FIRST = 0u, COUNT = KV, PITCH = PITCH_R2
