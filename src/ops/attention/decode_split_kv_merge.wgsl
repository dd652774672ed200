// How decode_split_kv.wgsl joins what threads have: within a subgroup, over a workgroup's sets of sums, and over the parts of a block of queries.

// Takes a thread's parts of as many sums as there are slots; the sum over its group of slot `lane % SLOTS`. Each of the first steps halves the
// number of sums that a thread has.
#if SLOTS == 4
fn subgroup_reduce_slots(x0: f32, x1: f32, x2: f32, x3: f32) -> f32 {
  let upper1 = (thread & 2u) != 0u;
  let y1_0 = select(x0, x2, upper1) + subgroupShuffleXor(select(x2, x0, upper1), 2u);
  let y1_1 = select(x1, x3, upper1) + subgroupShuffleXor(select(x3, x1, upper1), 2u);
  let upper0 = (thread & 1u) != 0u;
  let y0_0 = select(y1_0, y1_1, upper0) + subgroupShuffleXor(select(y1_1, y1_0, upper0), 1u);
  var r = y0_0;
#elif SLOTS == 2
fn subgroup_reduce_slots(x0: f32, x1: f32) -> f32 {
  let upper0 = (thread & 1u) != 0u;
  let y0_0 = select(x0, x1, upper0) + subgroupShuffleXor(select(x1, x0, upper0), 1u);
  var r = y0_0;
#else
fn subgroup_reduce_slots(x0: f32) -> f32 {
  var r = x0;
#endif
#for BIT in SLOT_BITS..LANE_BITS
  r += subgroupShuffleXor(r, ${1 << BIT}u);
#endfor
  return r;
}

// Over the slots of a group, and over a subgroup's groups.
#include "subgroup_butterfly.wgsl" NAME = slots_max, TYPE = f32, COMBINE = "max(r, o)", FROM = 0, TO = ${SLOT_BITS}
#include "subgroup_butterfly.wgsl" NAME = slots_sum, TYPE = f32, COMBINE = "r + o", FROM = 0, TO = ${SLOT_BITS}
#include "subgroup_butterfly.wgsl" NAME = groups_max, TYPE = f32, COMBINE = "max(r, o)", FROM = ${LANE_BITS}, TO = ${SUBGROUP_BITS}
#include "subgroup_butterfly.wgsl" NAME = groups_sum, TYPE = f32, COMBINE = "r + o", FROM = ${LANE_BITS}, TO = ${SUBGROUP_BITS}
#include "subgroup_butterfly.wgsl" NAME = groups_sum4, TYPE = vec4<f32>, COMBINE = "r + o", FROM = ${LANE_BITS}, TO = ${SUBGROUP_BITS}

#include "merge_sets.wgsl" NAME = joined_subs, SETS = ${SUBGROUPS}
#if SPLIT
#include "merge_sets.wgsl" NAME = joined_slices, SETS = ${SLICES}

// What workgroups leave for the last of them, and how they count themselves.
#if COHERENT
fn store_part(at: u32, x: vec4<u32>) { scratch4.data[at] = x; }
fn load_part(at: u32) -> vec4<u32> { return scratch4.data[at]; }
fn arrive(block: u32) -> u32 { return atomicAdd(&scratch4.counters[block], 1u); }
fn reset(block: u32) { atomicStore(&scratch4.counters[block], 0u); }
#else
fn store_part(at: u32, x: vec4<u32>) {
  let w = COUNTERS + 4u * at;
  atomicStore(&scratch[w], x.x); atomicStore(&scratch[w + 1u], x.y); atomicStore(&scratch[w + 2u], x.z); atomicStore(&scratch[w + 3u], x.w);
}
fn load_part(at: u32) -> vec4<u32> {
  let w = COUNTERS + 4u * at;
  return vec4<u32>(atomicLoad(&scratch[w]), atomicLoad(&scratch[w + 1u]), atomicLoad(&scratch[w + 2u]), atomicLoad(&scratch[w + 3u]));
}
fn arrive(block: u32) -> u32 { return atomicAdd(&scratch[block], 1u); }
fn reset(block: u32) { atomicStore(&scratch[block], 0u); }
#endif
#endif
#if MASKED
fn masked(i: u32) -> f32 { return load_3(i); }
#endif
