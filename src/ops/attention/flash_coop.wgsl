// Attention by cooperative matrices, operands in f16, sums in f32, in one pass over the keys (Dao, 2023): a block of one head's queries, held in
// matrices, against keys and values that are staged a tile at a time.
//
// A matrix's elements cannot be touched: scores go through workgroup memory and come back as powers of two, 2^(score - top), in f16. A row's top
// is the largest score of the first tile that it sees: f16 keeps what is 2^15 times as much, and all 11 bits of what is 2^14 times less. Where a
// thread's share of a tile adds up to more than MAX_PART, the workgroup begins again, with tops that are known then.
// Subgroups of matrices stand WARPS_N in a line: each has RM * EDGE rows, and CN of the tile's or KV of the values' matrices across. Powers are taken
// by SHARE threads a row, which have its quads in turn.
// OWN_ROWS: a subgroup has its rows to itself, waits alone for their scores, and leaves out tiles that none of them sees. Else, between two barriers
// matrices are multiplied, of one tile's values and the next one's scores; between the next two, powers are taken, and the tiles that were
// fetched meanwhile are put in place.
// What it does twice or shares with its gradients lies in flash_coop_*.wgsl. Its operands are r1, the queries, c1, the keys, and c2, the values.

enable f16;
enable wgpu_cooperative_matrix;

const TILE: u32 = max(TILE_C1 + TILE_C2, TILE_R1);
const LOWEST: f32 = -3.0e38;
const MAX_PART: f32 = 32768.0;
const LOG2E: f32 = 1.44269504;
const ROWS: u32 = SUBGROUPS / WARPS_N * RM * EDGE;
const COLS: u32 = STEPS * EDGE;
const PITCH_S: u32 = COLS + 8u;
const PITCH_P: u32 = COLS + 8u;
const SHARE: u32 = WORKGROUP / ROWS; // threads of a row
const OWN: u32 = SUBGROUP / SHARE; // rows of a subgroup's threads
const STORE_COLS: u32 = WARPS_N * STORE_FRAGMENTS * EDGE; // of the results that leave at once
const EIGHTS_R: u32 = PITCH_R1 / 8u - 1u; // of a line of a tile
const EIGHTS_K: u32 = PITCH_C1 / 8u - 1u;
const EIGHTS_V: u32 = PITCH_C2 / 8u - 1u;
var<workgroup> factors: array<f32, ROWS>;
var<workgroup> raised: atomic<u32>; // 1 where some row's top was too low

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

// Four scores, which `scale` is for.
fn score4(at: u32) -> vec4<f32> {
#if CAPPED
  let x = scores(at) * p.scale;
  return vec4<f32>(softcap(x.x), softcap(x.y), softcap(x.z), softcap(x.w));
#else
  return scores(at);
#endif
}

// The largest of a thread's share of a row's scores in the tile at `base` that the row sees, times log2(e).
fn largest(row: u32, turn: u32, base: u32, sees: vec2<u32>, scale: f32) -> f32 {
  var most = vec4<f32>(LOWEST);
#unroll UNROLL
  for (var q = 0u; q < QUADS; q++) {
    let c = (q * SHARE + turn) * 4u;
    let key = vec4<u32>(base + c) + vec4<u32>(0u, 1u, 2u, 3u);
    most = select(most, max(most, score4(row * PITCH_S + c) * scale), (key >= vec4<u32>(sees.x)) & (key < vec4<u32>(sees.y)));
  }
  return max(max(most.x, most.y), max(most.z, most.w));
}

// The same of the whole row.
fn highest(row: u32, turn: u32, base: u32, sees: vec2<u32>, scale: f32) -> f32 {
  var top = largest(row, turn, base, sees, scale);
  for (var e = 1u; e < SHARE; e *= 2u) { top = max(top, subgroupShuffleXor(top, e)); }
  return top;
}

// Writes the powers of a thread's share of its row; their sum. `all` its keys may be seen.
// Every score is read before the first power is written: no compiler waits for one and then the other.
fn powers(row: u32, turn: u32, base: u32, sees: vec2<u32>, all: bool, scale: f32, top: f32) -> f32 {
  var x: array<vec4<f32>, QUADS>;
#unroll UNROLL
  for (var q = 0u; q < QUADS; q++) { x[q] = score4(row * PITCH_S + (q * SHARE + turn) * 4u); }
#unroll UNROLL
  for (var q = 0u; q < QUADS; q++) { x[q] = exp2(fma(x[q], vec4<f32>(scale), vec4<f32>(-top))); }
  if (!all) {
#unroll UNROLL
    for (var q = 0u; q < QUADS; q++) {
      let key = vec4<u32>(base + (q * SHARE + turn) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
      x[q] = select(vec4<f32>(0.0), x[q], (key >= vec4<u32>(sees.x)) & (key < vec4<u32>(sees.y)));
    }
  }
  var sum = vec4<f32>(0.0);
#unroll UNROLL
  for (var q = 0u; q < QUADS; q++) {
    put_part((row * PITCH_P + (q * SHARE + turn) * 4u) / UNIT, x[q]);
    sum += x[q];
  }
  return sum.x + sum.y + (sum.z + sum.w);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let heads = p.heads; let heads_kv = p.heads_kv; let queries = p.queries;
#if CAPPED
  let scale = LOG2E;
#else
  let scale = p.scale * LOG2E;
#endif
  let sub = lid / SUBGROUP;
  let wm = sub / WARPS_N * (RM * EDGE); let wn = sub % WARPS_N; // the first row of the subgroup's matrices, and their place in the line
  let row = lid / SHARE; let turn = lid % SHARE;
  let whole = wid.y * p.groups_x + wid.x < p.groups;
  let block = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  // Batch and head. Where blocks differ in keys, the longest of all heads come first: what is left at the end is short.
  let groups = p.groups / p.head_blocks;
  let group = select(block / p.head_blocks, block % groups, CAUSAL == 1u);
  let r0 = (p.head_blocks - 1u - select(block % p.head_blocks, block / groups, CAUSAL == 1u)) * ROWS;
  let begin = keys_of(r0).x; let finish = keys_of(min(r0 + ROWS, queries) - 1u).y;
  let sees = keys_of(min(r0 + row, queries - 1u));
  // What every row of the subgroup's threads sees, and what some row does.
  let high = keys_of(min(r0 + sub * OWN, queries - 1u)); let low = keys_of(min(r0 + sub * OWN + OWN, queries) - 1u);
  let all = vec2<u32>(low.x, high.y); let some = vec2<u32>(high.x, low.y);
  let other = group / heads * heads_kv + group % heads / (heads / heads_kv);
  let start_r1 = batch_start_r1(group); let start_c1 = batch_start_c1(other); let start_c2 = batch_start_c2(other);
  var next_c1: array<vec4<u32>, LOADS_K>;
  var next_c2: array<vec4<u32>, LOADS_V>;
  if (begin < finish) {
#include "flash_coop_fetch.wgsl" FIRST = begin
  }
#include "flash_coop_queries.wgsl"
  var y2: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM * KV>;
  var top = LOWEST; // of the row, times log2(e)
  var sum = 0.0; // of the thread's share of the row's powers
  var again = false;
  loop {
#unroll UNROLL
    for (var e = 0u; e < RM * KV; e++) { y2[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
    sum = 0.0;
    var peak = LOWEST; // of the thread's scores that are too large for this top
#if OWN_ROWS
    {
      for (var base = begin; base < finish; base += COLS) {
        workgroupBarrier();
#include "flash_coop_stage.wgsl" ITEMS = LOADS_K, HIGH = COLS, EIGHTS = EIGHTS_K, AT = 0u, PITCH = PITCH_C1, NEXT = next_c1
#include "flash_coop_stage.wgsl" ITEMS = LOADS_V, HIGH = COLS, EIGHTS = EIGHTS_V, AT = TILE_C1, PITCH = PITCH_C2, NEXT = next_c2
        workgroupBarrier();
        if (base + COLS < finish) {
#include "flash_coop_fetch.wgsl" FIRST = base + COLS
        }
        // A loop of one turn: naga refuses matrices in a branch that threads could differ in, though those of a subgroup agree.
        loop {
          if (subgroup_any(base >= some.y || base + COLS <= some.x)) { break; }
#include "flash_coop_scores.wgsl" X = x1, FRAGMENTS_K = KD, AT = 0u, PITCH = PITCH_C1, LINE = 0u
          subgroup_barrier();
#include "flash_coop_top.wgsl" FIRST = begin
          let part = powers(row, turn, base, sees, base >= all.x && base + COLS <= all.y, scale, top);
          subgroup_barrier();
          if (part > MAX_PART) { peak = max(peak, largest(row, turn, base, sees, scale)); }
          sum += part;
#unroll UNROLL
          for (var j = 0u; j < STEPS; j++) {
#include "flash_coop_add.wgsl" LINE = 0u, AT = TILE_C1, PITCH = PITCH_C2, COUNT = KV, Y = y2, COLUMNS = KV, FIRST = 0u
          }
          break;
        }
      }
    }
#else
    {
      workgroupBarrier();
      if (begin < finish) {
#include "flash_coop_stage.wgsl" ITEMS = LOADS_K, HIGH = COLS, EIGHTS = EIGHTS_K, AT = 0u, PITCH = PITCH_C1, NEXT = next_c1
        if (begin + COLS < finish) {
#unroll UNROLL
          for (var f = 0u; f < LOADS_K; f++) { next_c1[f] = fetch_c1(start_c1, finish, begin + COLS, 0u, lid + f * WORKGROUP); }
        }
      }
      workgroupBarrier();
      for (var base = begin; base < finish; base += COLS) {
#include "flash_coop_scores.wgsl" X = x1, FRAGMENTS_K = KD, AT = 0u, PITCH = PITCH_C1, LINE = 0u
        workgroupBarrier();
#include "flash_coop_stage.wgsl" ITEMS = LOADS_V, HIGH = COLS, EIGHTS = EIGHTS_V, AT = TILE_C1, PITCH = PITCH_C2, NEXT = next_c2
#include "flash_coop_stage.wgsl" ITEMS = LOADS_K, HIGH = COLS, EIGHTS = EIGHTS_K, AT = 0u, PITCH = PITCH_C1, NEXT = next_c1
        if (base + COLS < finish) {
#unroll UNROLL
          for (var f = 0u; f < LOADS_V; f++) { next_c2[f] = fetch_c2(start_c2, finish, base + COLS, 0u, lid + f * WORKGROUP); }
        }
        if (base + 2u * COLS < finish) {
#unroll UNROLL
          for (var f = 0u; f < LOADS_K; f++) { next_c1[f] = fetch_c1(start_c1, finish, base + 2u * COLS, 0u, lid + f * WORKGROUP); }
        }
#include "flash_coop_top.wgsl" FIRST = begin
        let part = powers(row, turn, base, sees, base >= all.x && base + COLS <= all.y, scale, top);
        if (part > MAX_PART) { peak = max(peak, largest(row, turn, base, sees, scale)); }
        sum += part;
        workgroupBarrier();
#unroll UNROLL
        for (var j = 0u; j < STEPS; j++) {
#include "flash_coop_add.wgsl" LINE = 0u, AT = TILE_C1, PITCH = PITCH_C2, COUNT = KV, Y = y2, COLUMNS = KV, FIRST = 0u
        }
      }
    }
#endif
    if (again) { break; }
    if (lid == 0u) { atomicStore(&raised, 0u); }
    workgroupBarrier();
    if (peak > LOWEST) { atomicStore(&raised, 1u); }
    workgroupBarrier();
    if (atomicLoad(&raised) == 0u) { break; }
    for (var e = 1u; e < SHARE; e *= 2u) { peak = max(peak, subgroupShuffleXor(peak, e)); }
    top = max(top, peak);
    again = true;
#include "flash_coop_fetch.wgsl" FIRST = begin
  }
  // The scores are no longer needed.
  workgroupBarrier();
  put_score(row * PITCH_S + turn * 4u, vec4<f32>(sum));
  workgroupBarrier();
  var total = 0.0;
  for (var e = 0u; e < SHARE; e++) { total += scores(row * PITCH_S + e * 4u).x; }
#if SUMS
  {
    if (turn == 0u && whole && r0 + row < queries) { store_1(group * queries + r0 + row, top / LOG2E + log(total)); }
  }
#endif
  let factor = select(0.0, 1.0 / total, total != 0.0);
  if (turn == 0u) { factors[row] = factor; }
#unroll UNROLL
  for (var g = 0u; g < STORES; g++) {
    workgroupBarrier();
#include "flash_coop_store.wgsl" Y = y2, COLUMNS = KV
    workgroupBarrier();
    for (var u = lid; u < ROWS * STORE_COLS / 4u; u += WORKGROUP) {
      let line = u / (STORE_COLS / 4u); let c = u % (STORE_COLS / 4u) * 4u;
      let at = (c / (STORE_FRAGMENTS * EDGE) * KV + g * STORE_FRAGMENTS) * EDGE + c % (STORE_FRAGMENTS * EDGE);
      let v = scores(line * PITCH_S + c) * factors[line];
      if (whole && r0 + line < queries && at < p.size_v) { store4_0((group * queries + r0 + line) * p.size_v + at, v); }
    }
  }
}

#include "keys.wgsl" VALID = "p.valid"
#if CAPPED
#include "softcap.wgsl"
#endif
#include "flash_coop_memory.wgsl"
#include "flash_coop_operand.wgsl" x = r1, X = R1, LOAD = 0, LINES = q, K = p.size, TILE_ROWS = ROWS, TILE_K = "KC * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = c1, X = C1, LOAD = 1, LINES = k, K = p.size, TILE_ROWS = COLS, TILE_K = "KD * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = c2, X = C2, LOAD = 2, LINES = v, K = p.size_v, TILE_ROWS = COLS, TILE_K = "KV * WARPS_N * EDGE", EVEN_K = ${EVEN_V}
