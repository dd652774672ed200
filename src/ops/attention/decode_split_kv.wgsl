// Attention of few queries. A workgroup has ROWS queries that share their keys; each of its groups of LANES threads takes a key at a time,
// SLOTS of them under way, and keeps a softmax of its own as they pass by, so that no thread waits for another before the end. A thread
// has KP vectors of eight elements of a key and VP of its value. Beyond the last key the last one stands in, with weight 0.
//
// Loads that are to be under way together stand in a branch of their own: elsewhere compilers move each to where it is used and wait there.
//
// SPLIT: many keys are shared out among up to PARTS workgroups. Each leaves its sums in common memory and counts itself; the last one joins them,
// in their order, so that every run gives the same bits. MIXED: the queries do not all see the same keys. A grid of blocks, key heads and parts.

const LOWEST: f32 = -3.0e38;
const LOG2E: f32 = 1.44269504; // scores are powers of two
var<private> thread: u32;
const KEY_GROUPS: u32 = WORKGROUP / LANES;
const SUBGROUPS: u32 = WORKGROUP / SUBGROUP;
const QUADS: u32 = 2u * LANES * VP; // of a query's sums
const CELLS: u32 = ROWS * QUADS;
const SLICES: u32 = max(WORKGROUP / CELLS, 1u);
const SETS: u32 = max(SUBGROUPS, SLICES);
const OWN: u32 = CELLS + ROWS; // rows of four words of a part
// Sets of sums, and of each query's largest score and sum of weights in them.
var<workgroup> sums: array<vec4<f32>, SETS * CELLS>;
var<workgroup> tops: array<vec2<f32>, SETS * ROWS>;
var<workgroup> arrived: u32;
// Of several sets: a query's largest score and sum of weights, and a cell of its sums for that largest score.
struct Partial { top: vec2<f32>, x: vec4<f32> }

// Stores a cell's result; the block of queries begins at `row` of the `rows` of its key head, which are those from `before` on.
fn put_cell(cell: u32, before: u32, row: u32, rows: u32, size: u32, j: Partial) {
  let r = cell / QUADS; let c = cell % QUADS;
  if (row + r >= rows) { return; }
#if SUMS
  {
    if (c == 0u) { store_1(before + row + r, j.top.x / LOG2E + log(j.top.y)); }
  }
#endif
  // A query that sees no key gives zeros.
  let x = select(j.x / j.top.y, vec4<f32>(0.0), j.top.y == 0.0);
  put((before + row + r) * size, size, c, x);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = p.rows; let keys = p.keys; let size = p.size; let size_v = p.size_v;
  let head = wid.y; let row = wid.x * ROWS; let part = wid.z; let block = head * p.head_blocks + wid.x;
#if PAGED
  let batch = head / p.heads_kv; let kv_head = head % p.heads_kv;
  valid_keys = valid_of(batch);
#endif
  // The keys that the queries see.
  var first = 0u; var last = 0u;
  var seen: array<vec2<u32>, ROWS>;
#if MIXED
  {
    first = 0xffffffffu;
#unroll
    for (var r = 0u; r < ROWS; r++) {
      seen[r] = keys_of(min(row + r, rows - 1u) % p.queries);
      first = min(first, seen[r].x); last = max(last, seen[r].y);
    }
    first = min(first, last);
  }
#else
  {
    let own = keys_of(0u);
    first = own.x; last = own.y;
  }
#endif
  var parts = 1u; var start = first; var end = last;
#if SPLIT
  {
    let count = last - first;
    let each = select(max(count, 1u), max(p.part_keys, ((count + PARTS - 1u) / PARTS + 7u) / 8u * 8u), count > p.unsplit_keys);
    start = first + part * each;
    end = min(last, start + each);
    if (part > 0u && start >= last) { return; }
    parts = (count + each - 1u) / each;
  }
#endif

  let lane = lid % LANES; let key_group = lid / LANES;
#if PAGED
  let furthest = max(end, 1u) - 1u;
#else
  let furthest = head * keys + max(end, 1u) - 1u;
#endif
  var q_vectors: array<Q, ROWS * KP>; var k: array<K, SLOTS * KP>; var v: array<V, SLOTS * VP>;
  if (size > 0u) {
#unroll
    for (var u = 0u; u < SLOTS; u++) {
#if PAGED
      let at = paged_row(batch, kv_head, min(start + u * KEY_GROUPS + key_group, furthest));
#else
      let at = min(head * keys + start + u * KEY_GROUPS + key_group, furthest);
#endif
#unroll
      for (var c = 0u; c < KP; c++) { k[u * KP + c] = fetch_k(at, lane + c * LANES, size); }
    }
#unroll
    for (var r = 0u; r < ROWS; r++) {
      let at = head * rows + min(row + r, rows - 1u);
#unroll
      for (var c = 0u; c < KP; c++) { q_vectors[r * KP + c] = fetch_q(at, lane + c * LANES, size); }
    }
#unroll
    for (var u = 0u; u < SLOTS; u++) {
#if PAGED
      let at = paged_row(batch, kv_head, min(start + u * KEY_GROUPS + key_group, furthest));
#else
      let at = min(head * keys + start + u * KEY_GROUPS + key_group, furthest);
#endif
#unroll
      for (var c = 0u; c < VP; c++) { v[u * VP + c] = fetch_v(at, lane + c * LANES, size_v); }
    }
  }
  var q: array<vec4<f32>, 2u * ROWS * KP>;
#unroll
  for (var r = 0u; r < ROWS; r++) {
#unroll
    for (var c = 0u; c < KP; c++) {
      var low = low_q(q_vectors[r * KP + c]); var high = high_q(q_vectors[r * KP + c]);
#if RAGGED
      {
        // Elements beyond the end count nothing.
        let at = vec4<u32>(8u * (lane + c * LANES)) + vec4<u32>(0u, 1u, 2u, 3u);
        low = select(vec4<f32>(0.0), low, at < vec4<u32>(size));
        high = select(vec4<f32>(0.0), high, at + vec4<u32>(4u) < vec4<u32>(size));
      }
#endif
      q[2u * (r * KP + c)] = low; q[2u * (r * KP + c) + 1u] = high;
    }
  }
#if CAPPED
  let scale = p.scale;
#else
  let scale = p.scale * LOG2E;
#endif
  var top: array<f32, ROWS>; var sum: array<f32, ROWS>; var acc: array<vec4<f32>, 2u * ROWS * VP>;
#unroll
  for (var r = 0u; r < ROWS; r++) { top[r] = LOWEST; }
  var base = start;
  while (base < end) {
    let next = base + SLOTS * KEY_GROUPS;
    var s: array<f32, ROWS * SLOTS>;
#unroll
    for (var u = 0u; u < SLOTS; u++) {
#unroll
      for (var c = 0u; c < KP; c++) {
        let low = low_k(k[u * KP + c]); let high = high_k(k[u * KP + c]);
#unroll
        for (var r = 0u; r < ROWS; r++) { s[r * SLOTS + u] += dot(q[2u * (r * KP + c)], low) + dot(q[2u * (r * KP + c) + 1u], high); }
      }
    }
    // The next keys, and behind the sums their values, take the places of these.
    if (next < end) {
#unroll
      for (var u = 0u; u < SLOTS; u++) {
#if PAGED
        let at = paged_row(batch, kv_head, min(next + u * KEY_GROUPS + key_group, furthest));
#else
        let at = min(head * keys + next + u * KEY_GROUPS + key_group, furthest);
#endif
#unroll
        for (var c = 0u; c < KP; c++) { k[u * KP + c] = fetch_k(at, lane + c * LANES, size); }
      }
    }
    // Of a query's scores a lane adds up one slot's, so that weights are computed once, and then handed round.
    let j = base + lane % SLOTS * KEY_GROUPS + key_group;
#unroll
    for (var r = 0u; r < ROWS; r++) {
      var x = subgroup_reduce_slots(
#for U in 0..SLOTS - 1
        s[r * SLOTS + ${U}u],
#endfor
        s[r * SLOTS + ${SLOTS - 1}u]) * scale;
#if CAPPED
      x = softcap(x) * LOG2E;
#endif
#if MASKED
      { x += masked((head * rows + min(row + r, rows - 1u)) * keys + min(j, end - 1u)) * LOG2E; }
#endif
      var counts = j < end;
#if MIXED
      { counts = counts && j >= seen[r].x && j < seen[r].y; }
#endif
      x = select(LOWEST, x, counts);
      let m = max(top[r], slots_max(x));
      let prob = select(0.0, exp2(x - m), counts);
      let shrink = exp2(top[r] - m);
      top[r] = m;
      sum[r] = sum[r] * shrink + prob;
#unroll
      for (var c = 0u; c < VP; c++) { acc[2u * (r * VP + c)] *= shrink; acc[2u * (r * VP + c) + 1u] *= shrink; }
#unroll
      for (var u = 0u; u < SLOTS; u++) { s[r * SLOTS + u] = subgroupShuffle(prob, lid % SUBGROUP - lane % SLOTS + u); }
    }
#unroll
    for (var u = 0u; u < SLOTS; u++) {
#unroll
      for (var c = 0u; c < VP; c++) {
        let low = low_v(v[u * VP + c]); let high = high_v(v[u * VP + c]);
#unroll
        for (var r = 0u; r < ROWS; r++) {
          acc[2u * (r * VP + c)] += s[r * SLOTS + u] * low;
          acc[2u * (r * VP + c) + 1u] += s[r * SLOTS + u] * high;
        }
      }
    }
    if (next < end) {
#unroll
      for (var u = 0u; u < SLOTS; u++) {
#if PAGED
        let at = paged_row(batch, kv_head, min(next + u * KEY_GROUPS + key_group, furthest));
#else
        let at = min(head * keys + next + u * KEY_GROUPS + key_group, furthest);
#endif
#unroll
        for (var c = 0u; c < VP; c++) { v[u * VP + c] = fetch_v(at, lane + c * LANES, size_v); }
      }
    }
    base = next;
  }
  // A subgroup's groups are one set.
  let sub = lid / SUBGROUP;
#unroll
  for (var r = 0u; r < ROWS; r++) {
    let m = groups_max(top[r]);
    let e = exp2(top[r] - m);
    let all = groups_sum(slots_sum(sum[r]) * e);
    if (lid % SUBGROUP == 0u) { tops[sub * ROWS + r] = vec2<f32>(m, all); }
#unroll
    for (var c = 0u; c < VP; c++) {
      let low = groups_sum4(acc[2u * (r * VP + c)] * e); let high = groups_sum4(acc[2u * (r * VP + c) + 1u] * e);
      let cell = sub * CELLS + r * QUADS + 2u * (lane + c * LANES);
      if (lid % SUBGROUP < LANES) { sums[cell] = low; sums[cell + 1u] = high; }
    }
  }
  workgroupBarrier();
#if SPLIT
  {
    if (parts > 1u) {
      let own = (block * PARTS + part) * OWN;
      for (var i = lid; i < CELLS; i += WORKGROUP) {
        let j = joined_subs(i);
        store_part(own + i, bitcast<vec4<u32>>(j.x));
        if (i % QUADS == 0u) { store_part(own + CELLS + i / QUADS, bitcast<vec4<u32>>(vec4<f32>(j.top, 0.0, 0.0))); }
      }
      storageBarrier();
      if (lid == 0u) { arrived = arrive(block); }
      if (workgroupUniformLoad(&arrived) != parts - 1u) { return; }
      // Coherent memory is read as it is.
#if COHERENT
      { }
#else
      { storageBarrier(); }
#endif
      if (lid == 0u) { reset(block); }
      // Each slice of the workgroup joins every SLICES-th part.
      for (var i = lid; i < SLICES * CELLS; i += WORKGROUP) {
        let cell = i % CELLS; let slice = i / CELLS; let r = cell / QUADS;
        var t = vec2<f32>(LOWEST, 0.0); var x = vec4<f32>(0.0);
        for (var from_part = slice; from_part < parts; from_part += SLICES * JOINED) {
          var y: array<vec4<u32>, JOINED>; var w: array<vec2<u32>, JOINED>;
          if (size_v > 0u) {
#unroll
            for (var u = 0u; u < JOINED; u++) {
              let other = (block * PARTS + min(from_part + u * SLICES, parts - 1u)) * OWN;
              y[u] = load_part(other + cell);
              w[u] = load_part(other + CELLS + r).xy;
            }
          }
#unroll
          for (var u = 0u; u < JOINED; u++) {
            var o = bitcast<vec2<f32>>(w[u]); var z = bitcast<vec4<f32>>(y[u]);
            if (from_part + u * SLICES >= parts) { o = vec2<f32>(LOWEST, 0.0); z = vec4<f32>(0.0); }
            let m = max(t.x, o.x);
            let a = exp2(t.x - m); let b = exp2(o.x - m);
            t = vec2<f32>(m, t.y * a + o.y * b);
            x = x * a + z * b;
          }
        }
        sums[i] = x;
        if (cell % QUADS == 0u) { tops[slice * ROWS + r] = t; }
      }
      workgroupBarrier();
      for (var i = lid; i < CELLS; i += WORKGROUP) { put_cell(i, head * rows, row, rows, size_v, joined_slices(i)); }
      return;
    }
  }
#endif
  for (var i = lid; i < CELLS; i += WORKGROUP) { put_cell(i, head * rows, row, rows, size_v, joined_subs(i)); }
}

#if PAGED
#include "keys.wgsl" VALID = valid_keys
#include "paged_row.wgsl"
#else
#include "keys.wgsl" VALID = "p.valid"
#endif
#if CAPPED
#include "softcap.wgsl"
#endif
#include "rows_put.wgsl" NAME = put, STORE = 0, VEC = ${VEC_V}
#include "vec16.wgsl" NAME = q, TYPE = Q, LOAD = 0, START = "p.q_start + p.q_offset", RAW = ${RAW_Q}, F16 = ${F16_Q}, QUADS = ${QUADS_Q}, GUARDED = 0
#include "vec16.wgsl" NAME = k, TYPE = K, LOAD = 1, START = "p.k_start + p.k_offset", RAW = ${RAW_K}, F16 = ${F16_K}, QUADS = ${QUADS_K}, GUARDED = 0
#include "vec16.wgsl" NAME = v, TYPE = V, LOAD = 2, START = "p.v_start + p.v_offset", RAW = ${RAW_V}, F16 = ${F16_V}, QUADS = ${QUADS_V}, GUARDED = 0
#include "decode_split_kv_merge.wgsl"
