// Attention by cooperative matrices, operands in f16, sums in f32, in one pass over the keys (Dao, 2023), where a lane can name its elements of a
// matrix (coop_elements.wgsl): scores, tops and powers of two stay in registers, and a subgroup has its RM * EDGE rows to itself. A row's top rises as
// keys come; what was summed until then is scaled.
// Its operands are r1, the queries, c1, the keys, and c2, the values, staged as in flash_coop.wgsl.

enable f16;
enable wgpu_cooperative_matrix;

const TILE: u32 = max(TILE_C1 + TILE_C2, TILE_R1);
const LOWEST: f32 = -3.0e38;
const LOG2E: f32 = 1.44269504;
const ROWS: u32 = SUBGROUPS * RM * EDGE;
const COLS: u32 = STEPS * EDGE;
const EIGHTS_R: u32 = PITCH_R1 / 8u - 1u; // of a line of a tile
const EIGHTS_K: u32 = PITCH_C1 / 8u - 1u;
const EIGHTS_V: u32 = PITCH_C2 / 8u - 1u;

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }
// What a subgroup agrees on, said so that compilers see it and do not prepare for threads that part.
fn subgroup_any(v: bool) -> bool { return subgroupAny(v); }
// Of the lanes that share a row.
fn row_largest(v: f32) -> f32 { var r = v; ${ROW_MAX} return r; }
fn row_total(v: f32) -> f32 { var r = v; ${ROW_SUM} return r; }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let heads = p.heads; let heads_kv = p.heads_kv; let queries = p.queries;
#if CAPPED
  let scale = LOG2E;
#else
  let scale = p.scale * LOG2E;
#endif
  let sub = lid / SUBGROUP; let wm = sub * (RM * EDGE);
  let whole = wid.y * p.groups_x + wid.x < p.groups;
  let block = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  // Where blocks differ in keys, the longest of all heads come first.
  let groups = p.groups / p.head_blocks;
  let group = select(block / p.head_blocks, block % groups, CAUSAL == 1u);
  let r0 = (p.head_blocks - 1u - select(block % p.head_blocks, block / groups, CAUSAL == 1u)) * ROWS;
  let begin = keys_of(r0).x; let finish = keys_of(min(r0 + ROWS, queries) - 1u).y;
  // The keys that each of the lane's rows sees, and that some row of the subgroup sees and every one does.
  var sees: array<vec2<u32>, RM * LANE_ROWS>;
#unroll UNROLL
  for (var i = 0u; i < RM; i++) {
#unroll UNROLL
    for (var r = 0u; r < LANE_ROWS; r++) {
      sees[i * LANE_ROWS + r] = keys_of(min(r0 + wm + i * EDGE + element_row(lid, element_of(r, 0u)), queries - 1u));
    }
  }
  let high = keys_of(min(r0 + wm, queries - 1u)); let low = keys_of(min(r0 + wm + RM * EDGE, queries) - 1u);
  let some = vec2<u32>(high.x, low.y); let every = vec2<u32>(low.x, high.y);
  let other = group / heads * heads_kv + group % heads / (heads / heads_kv);
  let start_r1 = batch_start_r1(group); let start_c1 = batch_start_c1(other); let start_c2 = batch_start_c2(other);
  var next_c1: array<vec4<u32>, LOADS_K>;
  var next_c2: array<vec4<u32>, LOADS_V>;
  if (begin < finish) {
#include "flash_coop_fetch.wgsl" FIRST = begin
  }
#include "flash_coop_queries.wgsl"
  var y2: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM * KV>;
  var top: array<f32, RM * LANE_ROWS>; // of each row, times log2(e)
  var sum: array<f32, RM * LANE_ROWS>; // of the lane's share of each row's powers
#unroll UNROLL
  for (var e = 0u; e < RM * KV; e++) { y2[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
#unroll UNROLL
  for (var e = 0u; e < RM * LANE_ROWS; e++) { top[e] = LOWEST; sum[e] = 0.0; }
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
      var s: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM * CN>;
#unroll UNROLL
      for (var e = 0u; e < RM * CN; e++) { s[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
#unroll UNROLL
      for (var d = 0u; d < KD; d++) {
#unroll UNROLL
        for (var j = 0u; j < CN; j++) {
          let at = (j * EDGE * PITCH_C1 + d * EDGE) / UNIT; let pitch = PITCH_C1 / UNIT;
          let c = coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
          for (var i = 0u; i < RM; i++) { s[i * CN + j] = coopMultiplyAdd(x1[i * KD + d], c, s[i * CN + j]); }
        }
      }
      var x: array<array<f32, ELEMENTS>, RM * CN>;
#unroll UNROLL
      for (var e = 0u; e < RM * CN; e++) { x[e] = elements(s[e], lid); }
#if CAPPED
#unroll UNROLL
      for (var e = 0u; e < RM * CN; e++) {
#unroll UNROLL
        for (var k = 0u; k < ELEMENTS; k++) { x[e][k] = softcap(x[e][k] * p.scale); }
      }
#endif
      // Scores that a row does not see.
      if (subgroup_any(base < every.x || base + COLS > every.y)) {
#unroll UNROLL
        for (var i = 0u; i < RM; i++) {
#unroll UNROLL
          for (var j = 0u; j < CN; j++) {
#unroll UNROLL
            for (var r = 0u; r < LANE_ROWS; r++) {
#unroll UNROLL
              for (var n = 0u; n < ROW_ELEMENTS; n++) {
                let k = element_of(r, n);
                let key = base + j * EDGE + element_column(lid, k);
                let seen = sees[i * LANE_ROWS + r];
                x[i * CN + j][k] = select(LOWEST, x[i * CN + j][k], key >= seen.x && key < seen.y);
              }
            }
          }
        }
      }
      var shift: array<f32, RM * LANE_ROWS>;
#unroll UNROLL
      for (var i = 0u; i < RM; i++) {
        var factor: array<f32, LANE_ROWS>;
#unroll UNROLL
        for (var r = 0u; r < LANE_ROWS; r++) {
          var most = LOWEST;
#unroll UNROLL
          for (var j = 0u; j < CN; j++) {
#unroll UNROLL
            for (var n = 0u; n < ROW_ELEMENTS; n++) { most = max(most, x[i * CN + j][element_of(r, n)]); }
          }
          // A row that has seen nothing so far has nothing to scale, and one that sees nothing in this tile keeps its top.
          let largest = row_largest(most);
          let higher = max(top[i * LANE_ROWS + r], select(largest * scale, LOWEST, largest == LOWEST));
          factor[r] = exp2(top[i * LANE_ROWS + r] - higher);
          top[i * LANE_ROWS + r] = higher;
          // What a row does not see has power 0, also where it has seen nothing at all.
          shift[i * LANE_ROWS + r] = select(higher, 0.0, higher == LOWEST);
          sum[i * LANE_ROWS + r] *= factor[r];
        }
#unroll UNROLL
        for (var d = 0u; d < KV; d++) { y2[i * KV + d] = scaled(y2[i * KV + d], factor, lid); }
      }
#unroll UNROLL
      for (var j = 0u; j < CN; j++) {
        var fragments: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM>;
#unroll UNROLL
        for (var i = 0u; i < RM; i++) {
          var powers: array<f32, ELEMENTS>;
#unroll UNROLL
          for (var r = 0u; r < LANE_ROWS; r++) {
#unroll UNROLL
            for (var n = 0u; n < ROW_ELEMENTS; n++) {
              let k = element_of(r, n);
              powers[k] = exp2(fma(x[i * CN + j][k], scale, -shift[i * LANE_ROWS + r]));
              sum[i * LANE_ROWS + r] += powers[k];
            }
          }
          fragments[i] = matrix_of_halves(powers, lid);
        }
#unroll UNROLL
        for (var d = 0u; d < KV; d++) {
          let at = (TILE_C1 + j * EDGE * PITCH_C2 + d * EDGE) / UNIT; let pitch = PITCH_C2 / UNIT;
          let c = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
          for (var i = 0u; i < RM; i++) { y2[i * KV + d] = coopMultiplyAdd(fragments[i], c, y2[i * KV + d]); }
        }
      }
      break;
    }
  }
#unroll UNROLL
  for (var i = 0u; i < RM; i++) {
    var v: array<array<f32, ELEMENTS>, KV>;
#unroll UNROLL
    for (var d = 0u; d < KV; d++) { v[d] = elements(y2[i * KV + d], lid); }
#unroll UNROLL
    for (var r = 0u; r < LANE_ROWS; r++) {
      let row = r0 + wm + i * EDGE + element_row(lid, element_of(r, 0u));
      let there = whole && row < queries;
      let total = row_total(sum[i * LANE_ROWS + r]);
#if SUMS
      if (there && element_column(lid, 0u) == 0u) { store_1(group * queries + row, top[i * LANE_ROWS + r] / LOG2E + log(total)); }
#endif
      let by = select(0.0, 1.0 / total, total != 0.0);
      let row_start = (group * queries + row) * p.size_v;
#include "coop_elements_store.wgsl" ROW = r, COUNT = KV, V = v, BY = by, K = 0, AT = row_start, FIRST = 0u, COLUMNS = p.size_v, THERE = there
    }
  }
}

// A matrix whose rows are multiplied.
fn scaled(matrix: coop_mat${EDGE}x${EDGE}<f32, C>, by: array<f32, LANE_ROWS>, lid: u32) -> coop_mat${EDGE}x${EDGE}<f32, C> {
  var v = elements(matrix, lid);
  var factor = by;
#unroll UNROLL
  for (var r = 0u; r < LANE_ROWS; r++) {
#unroll UNROLL
    for (var n = 0u; n < ROW_ELEMENTS; n++) { v[element_of(r, n)] *= factor[r]; }
  }
  return matrix_of(v, lid);
}

#include "keys.wgsl" VALID = "p.valid"
#if CAPPED
#include "softcap.wgsl"
#endif
#include "subgroup_barrier.wgsl"
#if COOP_VECTORS
#include "coop_tile_vectors.wgsl"
#else
#include "coop_tile_scalars.wgsl"
#endif
#include "coop_elements.wgsl" SUBGROUPS = SUBGROUPS, MAKE = 1
#include "flash_coop_operand.wgsl" x = r1, X = R1, LOAD = 0, LINES = q, K = p.size, TILE_ROWS = ROWS, TILE_K = "KC * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = c1, X = C1, LOAD = 1, LINES = k, K = p.size, TILE_ROWS = COLS, TILE_K = "KD * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = c2, X = C2, LOAD = 2, LINES = v, K = p.size_v, TILE_ROWS = COLS, TILE_K = "KV * EDGE", EVEN_K = ${EVEN_V}
