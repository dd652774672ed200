// The gradients of attention by cooperative matrices, operands in f16, sums in f32 (Dao, 2023): a block of one head's rows, held in matrices,
// against columns that are staged a tile at a time; scores go through workgroup memory, since a matrix's elements cannot be touched.
//
// Rows are queries and columns keys, or (BY_KEY) the other way round; each query's log-sum-exp is known.
// PREFETCH: the next columns are fetched while these are used.
// Operands: r1 and c1 make the scores; r2 and c2 the products of values and gradients.
// Subgroups of matrices stand WARPS_N in a line: each has RM * EDGE rows, and CN of the tile's matrices across, or YD and YV of the results'. Scores are
// taken up by rows of threads, OWN of them in a subgroup. OWN_ROWS: those are its own rows, so that it waits alone for its scores, and leaves out
// tiles that have nothing to do with its rows.
// What they share with attention itself lies in flash_coop_*.wgsl.

enable f16;
enable wgpu_cooperative_matrix;

const TILE: u32 = max(TILE_C1 + TILE_C2, max(TILE_R1, TILE_R2));
const ROWS: u32 = SUBGROUPS / WARPS_N * RM * EDGE;
const OWN: u32 = ROWS / SUBGROUPS; // rows of a subgroup's threads
const COLS: u32 = STEPS * EDGE;
const PITCH_S: u32 = COLS + 8u;
const PITCH_P: u32 = COLS + 8u;
const KNOWN: u32 = select(ROWS, COLS, BY_KEY == 1u);
const LOG2E: f32 = 1.44269504;
const EIGHTS_R1: u32 = PITCH_R1 / 8u - 1u; // of a line of a tile
const EIGHTS_R2: u32 = PITCH_R2 / 8u - 1u;
const EIGHTS_K: u32 = PITCH_C1 / 8u - 1u;
const EIGHTS_V: u32 = PITCH_C2 / 8u - 1u;
const ROW_THREADS: u32 = COLS / 4u; // threads of a row, a quad each
const LINES: u32 = SUBGROUP / ROW_THREADS; // rows that a subgroup's threads have at once
const STORE_COLS: u32 = WARPS_N * STORE_FRAGMENTS * EDGE; // of the results that leave at once
var<workgroup> sums: array<vec2<f32>, KNOWN>; // of each query: the log-sum-exp, to base 2, and the sum of result times gradient
var<workgroup> seen: array<vec2<u32>, KNOWN>; // of each query: the keys that it sees

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let heads = p.heads; let heads_kv = p.heads_kv; let queries = p.queries; let keys = p.keys;
  let scale = p.scale;
  let sharing = heads / heads_kv;
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / WARPS_N * (RM * EDGE); let wn = sub % WARPS_N; // the first row of the subgroup's matrices, and their place in the line
  let own = sub * OWN; // the first row of its threads
  let block = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  let group = block / p.head_blocks; // batch and head of the rows
  // The blocks with the most columns come first.
  let r0 = select(p.head_blocks - 1u - block % p.head_blocks, block % p.head_blocks, BY_KEY == 1u) * ROWS;
  let rows = select(queries, keys, BY_KEY == 1u);
#include "flash_coop_grad_rows.wgsl"
  if (BY_KEY == 0u) {
    for (var i = lid; i < ROWS; i += WORKGROUP) {
      let t = min(r0 + i, queries - 1u);
      seen[i] = keys_of(t);
      sums[i] = vec2<f32>(f32(load_4(group * queries + t)) * LOG2E, f32(load_5(group * queries + t)));
    }
  }
  // Sums by columns of c1's width, then (BY_KEY) of c2's.
  var y: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM * KY>;
#unroll UNROLL
  for (var e = 0u; e < RM * KY; e++) { y[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
  var next_c1: array<vec4<u32>, LOADS_K>;
  var next_c2: array<vec4<u32>, LOADS_V>;
  var next_known = vec2<f32>(0.0); // of a query of the next tile
  for (var n = 0u; n < select(1u, sharing, BY_KEY == 1u); n++) {
    // Batch and head of the columns.
    var other = group / heads * heads_kv + group % heads / sharing;
#if BY_KEY
    { other = group / heads_kv * heads + group % heads_kv * sharing + n; }
#endif
    let start_c1 = batch_start_c1(other); let start_c2 = batch_start_c2(other);
#if PREFETCH
    {
      if (begin < finish) {
#include "flash_coop_fetch.wgsl" FIRST = begin
#if BY_KEY
        {
          let at = other * queries + min(begin + lid, finish - 1u);
          next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
        }
#endif
      }
    }
#endif
    for (var base = begin; base < finish; base += COLS) {
#if !PREFETCH
      {
#include "flash_coop_fetch.wgsl" FIRST = base
#if BY_KEY
        {
          let at = other * queries + min(base + lid, finish - 1u);
          next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
        }
#endif
      }
#endif
      workgroupBarrier();
#include "flash_coop_stage.wgsl" ITEMS = LOADS_K, HIGH = COLS, EIGHTS = EIGHTS_K, AT = 0u, PITCH = PITCH_C1, NEXT = next_c1
#include "flash_coop_stage.wgsl" ITEMS = LOADS_V, HIGH = COLS, EIGHTS = EIGHTS_V, AT = TILE_C1, PITCH = PITCH_C2, NEXT = next_c2
#if BY_KEY
      {
        if (lid < COLS) {
          sums[lid] = next_known;
          seen[lid] = select(vec2<u32>(0u), keys_of(base + lid), base + lid < finish);
        }
      }
#endif
      workgroupBarrier();
#if PREFETCH
      {
        if (base + COLS < finish) {
#include "flash_coop_fetch.wgsl" FIRST = base + COLS
#if BY_KEY
          {
            let at = other * queries + min(base + COLS + lid, finish - 1u);
            next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
          }
#endif
        }
      }
#endif
      // A loop of one turn: see flash_coop.wgsl.
      loop {
#if OWN_ROWS
        {
          // Whether no row of the subgroup sees a column of the tile, or is seen by one.
          let first = r0 + own;
#if BY_KEY
          {
            if (subgroup_any(keys_of(base + COLS - 1u).y <= first || keys_of(base).x >= first + OWN)) { break; }
          }
#else
          {
            if (subgroup_any(base >= keys_of(min(first + OWN, queries) - 1u).y || base + COLS <= keys_of(min(first, queries - 1u)).x)) { break; }
          }
#endif
        }
#endif
#include "flash_coop_scores.wgsl" X = x1, FRAGMENTS_K = KD, AT = 0u, PITCH = PITCH_C1, LINE = 0u
#include "flash_coop_scores.wgsl" X = x2, FRAGMENTS_K = KV, AT = TILE_C1, PITCH = PITCH_C2, LINE = ROWS
        subgroup_barrier();
        let c = lane % ROW_THREADS * 4u;
        var probs: array<vec4<f32>, TIMES>;
        var slope: array<vec4<f32>, TIMES>;
#unroll UNROLL
        for (var q = 0u; q < TIMES; q++) {
          let row = own + q * LINES + lane / ROW_THREADS;
          probs[q] = scores(row * PITCH_S + c);
          slope[q] = scores((ROWS + row) * PITCH_S + c);
        }
#if BY_KEY
        {
          // Whether all keys of the subgroup are seen by all queries of the tile.
          let all = keys_of(base).y >= r0 + own + OWN && keys_of(base + COLS - 1u).x <= r0 + own && base + COLS <= finish;
          let a = sums[c]; let b = sums[c + 1u]; let e = sums[c + 2u]; let f = sums[c + 3u];
          let first = vec4<u32>(seen[c].x, seen[c + 1u].x, seen[c + 2u].x, seen[c + 3u].x);
          let last = vec4<u32>(seen[c].y, seen[c + 1u].y, seen[c + 2u].y, seen[c + 3u].y);
#unroll UNROLL
          for (var q = 0u; q < TIMES; q++) {
            let key = vec4<u32>(r0 + own + q * LINES + lane / ROW_THREADS);
            probs[q] = exp2(fma(probs[q], vec4<f32>(scale * LOG2E), -vec4<f32>(a.x, b.x, e.x, f.x)));
            if (!all) { probs[q] = select(vec4<f32>(0.0), probs[q], (key >= first) & (key < last)); }
            slope[q] = probs[q] * (slope[q] - vec4<f32>(a.y, b.y, e.y, f.y)) * scale;
          }
        }
#else
        {
          let key = vec4<u32>(base + c) + vec4<u32>(0u, 1u, 2u, 3u);
          let all = base >= seen[own + OWN - 1u].x && base + COLS <= seen[own].y;
#unroll UNROLL
          for (var q = 0u; q < TIMES; q++) {
            let row = own + q * LINES + lane / ROW_THREADS;
            let known = sums[row]; let sees = seen[row];
            probs[q] = exp2(fma(probs[q], vec4<f32>(scale * LOG2E), vec4<f32>(-known.x)));
            if (!all) { probs[q] = select(vec4<f32>(0.0), probs[q], (key >= vec4<u32>(sees.x)) & (key < vec4<u32>(sees.y))); }
            slope[q] = probs[q] * (slope[q] - known.y) * scale;
          }
        }
#endif
#unroll UNROLL
        for (var q = 0u; q < TIMES; q++) {
          let row = own + q * LINES + lane / ROW_THREADS;
          put_part((row * PITCH_P + c) / UNIT, slope[q]);
#if BY_KEY
          { put_part(((ROWS + row) * PITCH_P + c) / UNIT, probs[q]); }
#endif
        }
        subgroup_barrier();
#unroll UNROLL
        for (var j = 0u; j < STEPS; j++) {
          // By the columns of the scores: the gradient of what made them.
#include "flash_coop_add.wgsl" LINE = 0u, AT = 0u, PITCH = PITCH_C1, COUNT = YD, Y = y, COLUMNS = KY, FIRST = 0u
#if BY_KEY
          {
#include "flash_coop_add.wgsl" LINE = ROWS, AT = TILE_C1, PITCH = PITCH_C2, COUNT = YV, Y = y, COLUMNS = KY, FIRST = YD
          }
#endif
        }
        break;
      }
    }
  }
  let whole = wid.y * p.groups_x + wid.x < p.groups;
#unroll UNROLL
  for (var g = 0u; g < STORES; g++) {
    workgroupBarrier();
#include "flash_coop_store.wgsl" Y = y, COLUMNS = KY
    workgroupBarrier();
    for (var u = lid; u < ROWS * STORE_COLS / 4u; u += WORKGROUP) {
      let line = u / (STORE_COLS / 4u); let c = u % (STORE_COLS / 4u) * 4u;
      let row = r0 + line; let place = c / (STORE_FRAGMENTS * EDGE); let within = g * STORE_FRAGMENTS * EDGE + c % (STORE_FRAGMENTS * EDGE);
      let v = scores(line * PITCH_S + c);
      if (whole && row < rows) {
        let at = place * YD * EDGE + within;
#if BY_KEY
        {
          let of_value = place * YV * EDGE + within - YD * EDGE;
          if (g * STORE_FRAGMENTS >= YD) {
            if (of_value < p.size_v) { store4_1((group * rows + row) * p.size_v + of_value, v); }
          } else {
            if (at < p.size) { store4_0((group * rows + row) * p.size + at, v); }
          }
        }
#else
        {
          if (at < p.size) { store4_0((group * rows + row) * p.size + at, v); }
        }
#endif
      }
    }
  }
}

#include "keys.wgsl" VALID = "p.valid"
#include "flash_coop_memory.wgsl"
#include "flash_coop_grad_operands.wgsl"
