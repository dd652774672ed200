// Attention of few queries. A workgroup has ROWS queries that share their keys; each of its teams of LANES threads takes a key at a time,
// SLOTS of them under way, and keeps a softmax of its own as they pass by, so that no thread waits for another before the end. A thread
// has KP packets of eight elements of a key and VP of its value. Beyond the last key the last one stands in, with weight 0.
//
// Loads that are to be under way together stand in a branch of their own: elsewhere compilers move each to where it is used and wait there.
//
// SPLIT: many keys are shared out among up to PARTS workgroups. Each leaves its sums in common memory and counts itself; the last one joins
// them, in their order, so that every run gives the same bits. MIXED: the queries do not all see the same keys.
//
// Words: 0 queries of a key head, 1 blocks of them, 2 T, 3 S, 4 D, 5 Dv, 6 valid keys, 7 scale, 8 window, 9 keys that are never shared out,
// 10 keys of a part at least. A grid of blocks, key heads and parts.

// default
const WORKGROUP: u32 = 256;
const SUBGROUP: u32 = 32;
const LANES: u32 = 16;
const ROWS: u32 = 4;
const SLOTS: u32 = 4;
const KP: u32 = 1;
const VP: u32 = 1;
const PARTS: u32 = 16;
const JOINED: u32 = 4;
const COHERENT: u32 = 1;
const SCORES: f32 = 0.0;
const MASKED: u32 = 0;
const SUMS: u32 = 0;
const SPLIT: u32 = 1;
const MIXED: u32 = 1;
const RAGGED: u32 = 0;
alias Q = vec4<u32>;
alias K = vec4<u32>;
alias V = vec4<u32>;
@group(0) @binding(0) var<storage, read> raw_0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> raw_1: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> raw_2: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> o_1: array<f32>;
@group(0) @binding(6) var<storage, read_write> scratch: array<vec4<u32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn store_1(i: u32, v: f32) { o_1[i] = v; }
fn masked(i: u32) -> f32 { return 0.0; }
fn fetch_q(row: u32, v: u32, size: u32) -> Q { return raw_0[row * (size / 8u) + v]; }
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) { o_0[start / 4u + v] = x; }
fn fetch_k(row: u32, v: u32, size: u32) -> K { return raw_1[row * (size / 8u) + v]; }
fn fetch_v(row: u32, v: u32, size: u32) -> V { return raw_2[row * (size / 8u) + v]; }
fn low_q(p: Q) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn high_q(p: Q) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn low_k(p: K) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn high_k(p: K) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn low_v(p: V) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn high_v(p: V) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn slot_sum(x: f32) -> f32 { return x; }
fn slots_max(v: f32) -> f32 { return v; }
fn slots_sum(v: f32) -> f32 { return v; }
fn teams_max(v: f32) -> f32 { return v; }
fn teams_sum(v: f32) -> f32 { return v; }
fn teams_sum4(v: vec4<f32>) -> vec4<f32> { return v; }
fn leave(at: u32, x: vec4<u32>) { scratch[at] = x; }
fn left(at: u32) -> vec4<u32> { return scratch[at]; }
fn arrive(block: u32) -> u32 { return 0u; }
fn reset(block: u32) { }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, words[6]); }
fn joined_subs(cell: u32) -> Joined { return Joined(tops[cell / QUADS], sums[cell]); }
fn joined_slices(cell: u32) -> Joined { return Joined(tops[cell / QUADS], sums[cell]); }
// end

const LOWEST: f32 = -3.0e38;
const LOG2E: f32 = 1.44269504; // scores are powers of two
var<private> thread: u32;
const TEAMS: u32 = WORKGROUP / LANES;
const SUBS: u32 = WORKGROUP / SUBGROUP;
const QUADS: u32 = 2u * LANES * VP; // of a query's sums
const CELLS: u32 = ROWS * QUADS;
const SLICES: u32 = max(WORKGROUP / CELLS, 1u);
const SETS: u32 = max(SUBS, SLICES);
const OWN: u32 = CELLS + ROWS; // rows of four words of a part
// Sets of sums, and of each query's largest score and sum of weights in them.
var<workgroup> sums: array<vec4<f32>, SETS * CELLS>;
var<workgroup> tops: array<vec2<f32>, SETS * ROWS>;
var<workgroup> arrived: u32;
// Of several sets: a query's largest score and sum of weights, and a cell of its sums for that largest score.
struct Joined { top: vec2<f32>, x: vec4<f32> }

// Stores a cell's result; the block of queries begins at `row` of the `rows` of its key head, which are those from `before` on.
fn put_cell(cell: u32, before: u32, row: u32, rows: u32, size: u32, j: Joined) {
  let r = cell / QUADS; let c = cell % QUADS;
  if (row + r >= rows) { return; }
  if (SUMS == 1u) {
    if (c == 0u) { store_1(before + row + r, j.top.x / LOG2E + log(j.top.y)); }
  }
  // A query that sees no key gives zeros.
  let x = select(j.x / j.top.y, vec4<f32>(0.0), j.top.y == 0.0);
  put((before + row + r) * size, size, c, x);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let rows = word(0u); let keys = word(3u); let size = word(4u); let size_v = word(5u);
  let head = wid.y; let row = wid.x * ROWS; let part = wid.z; let block = head * word(1u) + wid.x;
  // The keys that the queries see.
  var first = 0u; var last = 0u;
  var seen: array<vec2<u32>, ROWS>;
  if (MIXED == 1u) {
    first = 0xffffffffu;
    for (var r = 0u; r < ROWS; r++) {
      seen[r] = keys_of(min(row + r, rows - 1u) % word(2u));
      first = min(first, seen[r].x); last = max(last, seen[r].y);
    }
    first = min(first, last);
  } else {
    let own = keys_of(0u);
    first = own.x; last = own.y;
  }
  var parts = 1u; var start = first; var end = last;
  if (SPLIT == 1u) {
    let count = last - first;
    let each = select(max(count, 1u), max(word(10u), ((count + PARTS - 1u) / PARTS + 7u) / 8u * 8u), count > word(9u));
    start = first + part * each;
    end = min(last, start + each);
    if (part > 0u && start >= last) { return; }
    parts = (count + each - 1u) / each;
  }

  let lane = lid % LANES; let team = lid / LANES;
  let furthest = head * keys + max(end, 1u) - 1u;
  var held: array<Q, ROWS * KP>; var k: array<K, SLOTS * KP>; var v: array<V, SLOTS * VP>;
  if (size > 0u) {
    for (var u = 0u; u < SLOTS; u++) {
      let at = min(head * keys + start + u * TEAMS + team, furthest);
      for (var c = 0u; c < KP; c++) { k[u * KP + c] = fetch_k(at, lane + c * LANES, size); }
    }
    for (var r = 0u; r < ROWS; r++) {
      let at = head * rows + min(row + r, rows - 1u);
      for (var c = 0u; c < KP; c++) { held[r * KP + c] = fetch_q(at, lane + c * LANES, size); }
    }
    for (var u = 0u; u < SLOTS; u++) {
      let at = min(head * keys + start + u * TEAMS + team, furthest);
      for (var c = 0u; c < VP; c++) { v[u * VP + c] = fetch_v(at, lane + c * LANES, size_v); }
    }
  }
  var q: array<vec4<f32>, 2u * ROWS * KP>;
  for (var r = 0u; r < ROWS; r++) {
    for (var c = 0u; c < KP; c++) {
      var low = low_q(held[r * KP + c]); var high = high_q(held[r * KP + c]);
      if (RAGGED == 1u) {
        // Elements beyond the end count nothing.
        let at = vec4<u32>(8u * (lane + c * LANES)) + vec4<u32>(0u, 1u, 2u, 3u);
        low = select(vec4<f32>(0.0), low, at < vec4<u32>(size));
        high = select(vec4<f32>(0.0), high, at + vec4<u32>(4u) < vec4<u32>(size));
      }
      q[2u * (r * KP + c)] = low; q[2u * (r * KP + c) + 1u] = high;
    }
  }
  let scale = bitcast<f32>(word(7u)) * LOG2E;
  var top: array<f32, ROWS>; var sum: array<f32, ROWS>; var acc: array<vec4<f32>, 2u * ROWS * VP>;
  for (var r = 0u; r < ROWS; r++) { top[r] = LOWEST; }
  var base = start;
  while (base < end) {
    let next = base + SLOTS * TEAMS;
    var s: array<f32, ROWS * SLOTS>;
    for (var u = 0u; u < SLOTS; u++) {
      for (var c = 0u; c < KP; c++) {
        let low = low_k(k[u * KP + c]); let high = high_k(k[u * KP + c]);
        for (var r = 0u; r < ROWS; r++) { s[r * SLOTS + u] += dot(q[2u * (r * KP + c)], low) + dot(q[2u * (r * KP + c) + 1u], high); }
      }
    }
    // The next keys, and behind the sums their values, take the places of these.
    if (next < end) {
      for (var u = 0u; u < SLOTS; u++) {
        let at = min(head * keys + next + u * TEAMS + team, furthest);
        for (var c = 0u; c < KP; c++) { k[u * KP + c] = fetch_k(at, lane + c * LANES, size); }
      }
    }
    // Of a query's scores a lane adds up one slot's, so that weights are computed once, and then handed round.
    let j = base + lane % SLOTS * TEAMS + team;
    for (var r = 0u; r < ROWS; r++) {
      var x = slot_sum(SCORES) * scale;
      if (MASKED == 1u) { x += masked((head * rows + min(row + r, rows - 1u)) * keys + min(j, end - 1u)) * LOG2E; }
      var counts = j < end;
      if (MIXED == 1u) { counts = counts && j >= seen[r].x && j < seen[r].y; }
      x = select(LOWEST, x, counts);
      let m = max(top[r], slots_max(x));
      let p = select(0.0, exp2(x - m), counts);
      let shrink = exp2(top[r] - m);
      top[r] = m;
      sum[r] = sum[r] * shrink + p;
      for (var c = 0u; c < VP; c++) { acc[2u * (r * VP + c)] *= shrink; acc[2u * (r * VP + c) + 1u] *= shrink; }
      for (var u = 0u; u < SLOTS; u++) { s[r * SLOTS + u] = subgroupShuffle(p, lid % SUBGROUP - lane % SLOTS + u); }
    }
    for (var u = 0u; u < SLOTS; u++) {
      for (var c = 0u; c < VP; c++) {
        let low = low_v(v[u * VP + c]); let high = high_v(v[u * VP + c]);
        for (var r = 0u; r < ROWS; r++) {
          acc[2u * (r * VP + c)] += s[r * SLOTS + u] * low;
          acc[2u * (r * VP + c) + 1u] += s[r * SLOTS + u] * high;
        }
      }
    }
    if (next < end) {
      for (var u = 0u; u < SLOTS; u++) {
        let at = min(head * keys + next + u * TEAMS + team, furthest);
        for (var c = 0u; c < VP; c++) { v[u * VP + c] = fetch_v(at, lane + c * LANES, size_v); }
      }
    }
    base = next;
  }
  // A subgroup's teams are one set.
  let sub = lid / SUBGROUP;
  for (var r = 0u; r < ROWS; r++) {
    let m = teams_max(top[r]);
    let e = exp2(top[r] - m);
    let all = teams_sum(slots_sum(sum[r]) * e);
    if (lid % SUBGROUP == 0u) { tops[sub * ROWS + r] = vec2<f32>(m, all); }
    for (var c = 0u; c < VP; c++) {
      let low = teams_sum4(acc[2u * (r * VP + c)] * e); let high = teams_sum4(acc[2u * (r * VP + c) + 1u] * e);
      let cell = sub * CELLS + r * QUADS + 2u * (lane + c * LANES);
      if (lid % SUBGROUP < LANES) { sums[cell] = low; sums[cell + 1u] = high; }
    }
  }
  workgroupBarrier();
  if (SPLIT == 1u) {
    if (parts > 1u) {
      let own = (block * PARTS + part) * OWN;
      for (var i = lid; i < CELLS; i += WORKGROUP) {
        let j = joined_subs(i);
        leave(own + i, bitcast<vec4<u32>>(j.x));
        if (i % QUADS == 0u) { leave(own + CELLS + i / QUADS, bitcast<vec4<u32>>(vec4<f32>(j.top, 0.0, 0.0))); }
      }
      storageBarrier();
      if (lid == 0u) { arrived = arrive(block); }
      if (workgroupUniformLoad(&arrived) != parts - 1u) { return; }
      // Coherent memory is read as it is.
      if (COHERENT == 1u) { } else { storageBarrier(); }
      if (lid == 0u) { reset(block); }
      // Each slice of the workgroup joins every SLICES-th part.
      for (var i = lid; i < SLICES * CELLS; i += WORKGROUP) {
        let cell = i % CELLS; let slice = i / CELLS; let r = cell / QUADS;
        var t = vec2<f32>(LOWEST, 0.0); var x = vec4<f32>(0.0);
        for (var p = slice; p < parts; p += SLICES * JOINED) {
          var y: array<vec4<u32>, JOINED>; var w: array<vec2<u32>, JOINED>;
          if (size_v > 0u) {
            for (var u = 0u; u < JOINED; u++) {
              let other = (block * PARTS + min(p + u * SLICES, parts - 1u)) * OWN;
              y[u] = left(other + cell);
              w[u] = left(other + CELLS + r).xy;
            }
          }
          for (var u = 0u; u < JOINED; u++) {
            var o = bitcast<vec2<f32>>(w[u]); var z = bitcast<vec4<f32>>(y[u]);
            if (p + u * SLICES >= parts) { o = vec2<f32>(LOWEST, 0.0); z = vec4<f32>(0.0); }
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
  for (var i = lid; i < CELLS; i += WORKGROUP) { put_cell(i, head * rows, row, rows, size_v, joined_subs(i)); }
}
