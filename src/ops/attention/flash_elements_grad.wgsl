// The gradients of attention by cooperative matrices, operands in f16, sums in f32 (Dao, 2023), where a lane can name its elements of a matrix
// (coop_elements.wgsl): a block of one head's rows, RM * EDGE of each subgroup, held in matrices, against columns that are staged a tile at a time.
// Scores and slopes of EDGE columns at a time become left operands in registers.
//
// Rows are queries and columns keys, or (BY_KEY) the other way round; each query's log-sum-exp is known.
// PREFETCH: the next columns are fetched while these are used.
// Operands: r1 and c1 make the scores; r2 and c2 the products of values and gradients.

enable f16;
enable wgpu_cooperative_matrix;

const TILE: u32 = max(TILE_C1 + TILE_C2, max(TILE_R1, TILE_R2));
const ROWS: u32 = SUBGROUPS * RM * EDGE;
const COLS: u32 = STEPS * EDGE;
const LOG2E: f32 = 1.44269504;
const EIGHTS_R1: u32 = PITCH_R1 / 8u - 1u; // of a line of a tile
const EIGHTS_R2: u32 = PITCH_R2 / 8u - 1u;
const EIGHTS_K: u32 = PITCH_C1 / 8u - 1u;
const EIGHTS_V: u32 = PITCH_C2 / 8u - 1u;
#if BY_KEY
var<workgroup> sums: array<vec2<f32>, COLS>; // of each query: the log-sum-exp, to base 2, and the sum of result times gradient
var<workgroup> seen: array<vec2<u32>, COLS>; // of each query: the keys that it sees
#endif

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }
// What a subgroup agrees on, said so that compilers see it and do not prepare for threads that part.
fn subgroup_any(v: bool) -> bool { return subgroupAny(v); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let heads = p.heads; let heads_kv = p.heads_kv; let queries = p.queries; let keys = p.keys;
  let scale = p.scale;
  let sharing = heads / heads_kv;
  let wm = lid / SUBGROUP * (RM * EDGE);
  let block = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  let group = block / p.head_blocks; // batch and head of the rows
  // The blocks with the most columns come first.
  let r0 = select(p.head_blocks - 1u - block % p.head_blocks, block % p.head_blocks, BY_KEY == 1u) * ROWS;
  let first = r0 + wm; // of the subgroup
  let rows = select(queries, keys, BY_KEY == 1u);
#include "flash_coop_grad_rows.wgsl"
#if !BY_KEY
  // Of each of the lane's rows: the keys that it sees, the log-sum-exp to base 2, and the sum of result times gradient.
  var sees: array<vec2<u32>, RM * LANE_ROWS>;
  var known: array<vec2<f32>, RM * LANE_ROWS>;
#unroll UNROLL
  for (var i = 0u; i < RM; i++) {
#unroll UNROLL
    for (var r = 0u; r < LANE_ROWS; r++) {
      let t = min(first + i * EDGE + element_row(lid, element_of(r, 0u)), queries - 1u);
      sees[i * LANE_ROWS + r] = keys_of(t);
      known[i * LANE_ROWS + r] = vec2<f32>(f32(load_4(group * queries + t)) * LOG2E, f32(load_5(group * queries + t)));
    }
  }
#endif
  // Sums by columns of c1's width, then (BY_KEY) of c2's.
  var y: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM * KY>;
#unroll UNROLL
  for (var e = 0u; e < RM * KY; e++) { y[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
  var next_c1: array<vec4<u32>, LOADS_K>;
  var next_c2: array<vec4<u32>, LOADS_V>;
  var next_known = vec2<f32>(0.0); // of a query of the next tile
  for (var n = 0u; n < select(1u, sharing, BY_KEY == 1u); n++) {
    // Batch and head of the columns.
#if BY_KEY
    let other = group / heads_kv * heads + group % heads_kv * sharing + n;
#else
    let other = group / heads * heads_kv + group % heads / sharing;
#endif
    let start_c1 = batch_start_c1(other); let start_c2 = batch_start_c2(other);
#if PREFETCH
    if (begin < finish) {
#include "flash_elements_fetch.wgsl" FIRST = begin
    }
#endif
    for (var base = begin; base < finish; base += COLS) {
#if !PREFETCH
#include "flash_elements_fetch.wgsl" FIRST = base
#endif
      workgroupBarrier();
#include "flash_coop_stage.wgsl" ITEMS = LOADS_K, HIGH = COLS, EIGHTS = EIGHTS_K, AT = 0u, PITCH = PITCH_C1, NEXT = next_c1
#include "flash_coop_stage.wgsl" ITEMS = LOADS_V, HIGH = COLS, EIGHTS = EIGHTS_V, AT = TILE_C1, PITCH = PITCH_C2, NEXT = next_c2
#if BY_KEY
      if (lid < COLS) {
        sums[lid] = next_known;
        seen[lid] = select(vec2<u32>(0u), keys_of(base + lid), base + lid < finish);
      }
#endif
      workgroupBarrier();
#if PREFETCH
      if (base + COLS < finish) {
#include "flash_elements_fetch.wgsl" FIRST = "base + COLS"
      }
#endif
      // What some row of the subgroup sees, or is seen by, in this tile, and what all do.
#if BY_KEY
      let some = keys_of(base + COLS - 1u).y > first && keys_of(base).x < first + RM * EDGE;
      let all = keys_of(base).y >= first + RM * EDGE && keys_of(base + COLS - 1u).x <= first && base + COLS <= finish;
#else
      let high = keys_of(min(first, queries - 1u)); let low = keys_of(min(first + RM * EDGE, queries) - 1u);
      let some = base < low.y && base + COLS > high.x;
      let all = base >= low.x && base + COLS <= high.y;
#endif
      // A loop of one turn: see flash_elements.wgsl.
      loop {
        if (subgroup_any(!some)) { break; }
#unroll UNROLL
        for (var j = 0u; j < STEPS; j++) {
          var s: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM>;
          var t: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM>;
#unroll UNROLL
          for (var i = 0u; i < RM; i++) { s[i] = coop_mat${EDGE}x${EDGE}<f32, C>(); t[i] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
#unroll UNROLL
          for (var d = 0u; d < KD; d++) {
            let at = (j * EDGE * PITCH_C1 + d * EDGE) / UNIT; let pitch = PITCH_C1 / UNIT;
            let c = coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
            for (var i = 0u; i < RM; i++) { s[i] = coopMultiplyAdd(x1[i * KD + d], c, s[i]); }
          }
#unroll UNROLL
          for (var d = 0u; d < KV; d++) {
            let at = (TILE_C1 + j * EDGE * PITCH_C2 + d * EDGE) / UNIT; let pitch = PITCH_C2 / UNIT;
            let c = coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
            for (var i = 0u; i < RM; i++) { t[i] = coopMultiplyAdd(x2[i * KV + d], c, t[i]); }
          }
          var slopes: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM>;
#if BY_KEY
          var powers: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM>;
#endif
#unroll UNROLL
          for (var i = 0u; i < RM; i++) {
            var prob = elements(s[i], lid);
            var slope = elements(t[i], lid);
#unroll UNROLL
            for (var r = 0u; r < LANE_ROWS; r++) {
#unroll UNROLL
              for (var e = 0u; e < ROW_ELEMENTS; e++) {
                let k = element_of(r, e);
#if BY_KEY
                let of_query = sums[j * EDGE + element_column(lid, k)];
#else
                let of_query = known[i * LANE_ROWS + r];
#endif
                prob[k] = exp2(fma(prob[k], scale * LOG2E, -of_query.x));
                slope[k] = (slope[k] - of_query.y) * scale;
              }
            }
            if (subgroup_any(!all)) {
#unroll UNROLL
              for (var r = 0u; r < LANE_ROWS; r++) {
#unroll UNROLL
                for (var e = 0u; e < ROW_ELEMENTS; e++) {
                  let k = element_of(r, e);
#if BY_KEY
                  let key = first + i * EDGE + element_row(lid, k);
                  let by = seen[j * EDGE + element_column(lid, k)];
#else
                  let key = base + j * EDGE + element_column(lid, k);
                  let by = sees[i * LANE_ROWS + r];
#endif
                  prob[k] = select(0.0, prob[k], key >= by.x && key < by.y);
                }
              }
            }
#unroll UNROLL
            for (var k = 0u; k < ELEMENTS; k++) { slope[k] *= prob[k]; }
            slopes[i] = matrix_of_halves(slope, lid);
#if BY_KEY
            powers[i] = matrix_of_halves(prob, lid);
#endif
          }
          // By the columns of the scores: the gradient of what made them.
#unroll UNROLL
          for (var d = 0u; d < KD; d++) {
            let at = (j * EDGE * PITCH_C1 + d * EDGE) / UNIT; let pitch = PITCH_C1 / UNIT;
            let c = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
            for (var i = 0u; i < RM; i++) { y[i * KY + d] = coopMultiplyAdd(slopes[i], c, y[i * KY + d]); }
          }
#if BY_KEY
#unroll UNROLL
          for (var d = 0u; d < KV; d++) {
            let at = (TILE_C1 + j * EDGE * PITCH_C2 + d * EDGE) / UNIT; let pitch = PITCH_C2 / UNIT;
            let c = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
            for (var i = 0u; i < RM; i++) { y[i * KY + KD + d] = coopMultiplyAdd(powers[i], c, y[i * KY + KD + d]); }
          }
#endif
        }
        break;
      }
    }
  }
  let whole = wid.y * p.groups_x + wid.x < p.groups;
#unroll UNROLL
  for (var i = 0u; i < RM; i++) {
    var v: array<array<f32, ELEMENTS>, KD>;
#unroll UNROLL
    for (var d = 0u; d < KD; d++) { v[d] = elements(y[i * KY + d], lid); }
#if BY_KEY
    var w: array<array<f32, ELEMENTS>, KV>;
#unroll UNROLL
    for (var d = 0u; d < KV; d++) { w[d] = elements(y[i * KY + KD + d], lid); }
#endif
#unroll UNROLL
    for (var r = 0u; r < LANE_ROWS; r++) {
      let row = first + i * EDGE + element_row(lid, element_of(r, 0u));
      let there = whole && row < rows;
      let row_start = (group * rows + row) * p.size;
#include "coop_elements_store.wgsl" ROW = r, COUNT = KD, V = v, BY = "1.0", K = 0, AT = row_start, FIRST = 0u, COLUMNS = p.size, THERE = there
#if BY_KEY
      let value_start = (group * rows + row) * p.size_v;
#include "coop_elements_store.wgsl" ROW = r, COUNT = KV, V = w, BY = "1.0", K = 1, AT = value_start, FIRST = 0u, COLUMNS = p.size_v, THERE = there
#endif
    }
  }
}

#include "keys.wgsl" VALID = "p.valid"
#include "subgroup_barrier.wgsl"
#if COOP_VECTORS
#include "coop_tile_vectors.wgsl"
#else
#include "coop_tile_scalars.wgsl"
#endif
#include "coop_elements.wgsl" SUBGROUPS = SUBGROUPS, MAKE = 1
#include "flash_coop_grad_operands.wgsl"
