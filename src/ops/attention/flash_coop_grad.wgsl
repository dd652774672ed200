// The gradients of attention by cooperative matrices, operands in f16, sums in f32 (Dao, 2023): a block of one head's rows, held in matrices,
// against columns that are staged a tile at a time; scores go through workgroup memory, since a matrix's elements cannot be touched.
//
// Rows are queries and columns keys, or (BY_KEY) the other way round; each query's log-sum-exp is known.
// AHEAD: the next columns are fetched while these are used.
// Operands: r1 and c1 make the scores; r2 and c2 the products of values and gradients.
// Subgroups of matrices stand SN in a line: each has RM * EDGE rows, and CN of the tile's matrices across, or YD and YV of the results'. Scores are
// taken up by rows of threads, OWN of them in a subgroup. ALONE: those are its own rows, so that it waits alone for its scores, and leaves out
// tiles that have nothing to do with its rows.
// What they share with attention itself are the parts in attention_coop_parts.txt.
// Words: 0 H, 1 Hkv, 2 T, 3 S, 4 D, 5 Dv, 6 valid keys, 7 scale, 8 window, 9 workgroups in x, 10 blocks of a head, 11 workgroups, then six for
// each of q, k, v and the gradient.

enable f16;
enable wgpu_cooperative_matrix;

// default
const WORKGROUP: u32 = 32;
const SUBGROUP: u32 = 8;
const EDGE: u32 = 8;
const UNIT: u32 = 1;
const PARTS: u32 = 2;
const STRIPS: u32 = 2;
const SUBS: u32 = 4;
const SN: u32 = 1;
const RM: u32 = 1;
const CN: u32 = 4;
const STEPS: u32 = 4;
const YD: u32 = 8;
const YV: u32 = 8;
const KD: u32 = 8;
const KV: u32 = 8;
const KY: u32 = 16;
const PER: u32 = 4;
const GROUPS: u32 = 4;
const TIMES: u32 = 8;
const ITEMS_R: u32 = 8;
const ITEMS_R2: u32 = 8;
const ITEMS_K: u32 = 8;
const ITEMS_V: u32 = 8;
const AHEAD: u32 = 1;
const AT_ONCE: u32 = 0;
const BY_KEY: u32 = 0;
const ALONE: u32 = 0;
const CAUSAL: u32 = 1;
const PITCH_R1: u32 = 72;
const PITCH_C1: u32 = 72;
const PITCH_R2: u32 = 72;
const PITCH_C2: u32 = 72;
const TILE_R1: u32 = 2304;
const TILE_C1: u32 = 2304;
const TILE_R2: u32 = 2304;
const TILE_C2: u32 = 2304;
@group(0) @binding(0) var<storage, read> raw_0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> o_1: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> words: array<u32>;
@group(0) @binding(4) var<storage, read> l_4: array<f32>;
@group(0) @binding(5) var<storage, read> l_5: array<f32>;
var<workgroup> tile: array<f16, TILE>;
var<workgroup> parts: array<f16, PARTS * ROWS * PITCH_P>;
var<workgroup> strip: array<f32, STRIPS * ROWS * PITCH_S>;
fn word(n: u32) -> u32 { return words[n]; }
fn base_r1(batch: u32) -> u32 { return batch; }
fn base_c1(batch: u32) -> u32 { return batch; }
fn base_r2(batch: u32) -> u32 { return batch; }
fn base_c2(batch: u32) -> u32 { return batch; }
fn eight_r1(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn eight_c1(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn eight_r2(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn eight_c2(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> { return raw_0[base + r0 + k0 + u]; }
fn put(at: u32, e: vec4<u32>) { tile[at] = halves(e.xy).x; }
fn put_part(at: u32, v: vec4<f32>) { parts[at] = f16(v.x); }
fn scores(at: u32) -> vec4<f32> { return vec4<f32>(strip[at]); }
fn load_4(i: u32) -> f32 { return l_4[i]; }
fn load_5(i: u32) -> f32 { return l_5[i]; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn store4_1(i: u32, v: vec4<f32>) { o_1[i / 4u] = v; }
fn keys_of(t: u32) -> vec2<u32> { return vec2<u32>(0u, t); }
fn subgroup_barrier() { workgroupBarrier(); }
fn agreed(v: bool) -> bool { return v; }
// end

const TILE: u32 = max(TILE_C1 + TILE_C2, max(TILE_R1, TILE_R2));
const ROWS: u32 = SUBS / SN * RM * EDGE;
const OWN: u32 = ROWS / SUBS; // rows of a subgroup's threads
const COLS: u32 = STEPS * EDGE;
const PITCH_S: u32 = COLS + 8u;
const PITCH_P: u32 = COLS + 8u;
const KNOWN: u32 = select(ROWS, COLS, BY_KEY == 1u);
const LOG2E: f32 = 1.44269504;
const EIGHTS_R1: u32 = PITCH_R1 / 8u - 1u; // of a line of a tile
const EIGHTS_R2: u32 = PITCH_R2 / 8u - 1u;
const EIGHTS_K: u32 = PITCH_C1 / 8u - 1u;
const EIGHTS_V: u32 = PITCH_C2 / 8u - 1u;
const ACROSS: u32 = COLS / 4u; // threads of a row, a quad each
const LINES: u32 = SUBGROUP / ACROSS; // rows that a subgroup's threads have at once
const WIDE: u32 = SN * PER * EDGE; // of the results that leave at once
var<workgroup> sums: array<vec2<f32>, KNOWN>; // of each query: the log-sum-exp, to base 2, and the sum of result times gradient
var<workgroup> seen: array<vec2<u32>, KNOWN>; // of each query: the keys that it sees

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let heads = word(0u); let heads_kv = word(1u); let queries = word(2u); let keys = word(3u);
  let scale = bitcast<f32>(word(7u));
  let sharing = heads / heads_kv;
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let mine = sub / SN * (RM * EDGE); let across = sub % SN; // the first row of the subgroup's matrices, and their place in the line
  let own = sub * OWN; // the first row of its threads
  let block = min(wid.y * word(9u) + wid.x, word(11u) - 1u);
  let group = block / word(10u); // batch and head of the rows
  // The blocks with the most columns come first.
  let r0 = select(word(10u) - 1u - block % word(10u), block % word(10u), BY_KEY == 1u) * ROWS;
  let rows = select(queries, keys, BY_KEY == 1u);
  let valid = min(word(6u), keys); let window = word(8u);
  // The columns that may be seen: keys up to the last query's, or queries from the one at the block's first key on.
  var begin = 0u; var finish = 0u;
  if (BY_KEY == 1u) {
    finish = queries;
    if (CAUSAL == 1u && r0 + queries > valid) { begin = min(r0 + queries - valid, queries); }
    if (window > 0u) { finish = min(queries, select(0u, r0 + ROWS + window + queries - valid, r0 + ROWS + window + queries > valid)); }
    if (r0 >= valid) { finish = begin; }
  } else {
    begin = keys_of(r0).x; finish = keys_of(min(r0 + ROWS, queries) - 1u).y;
  }
  // The rows, held in matrices.
  var x1: array<coop_mat8x8<f16, A>, RM * KD>;
  let at_r1 = base_r1(group); let at_r2 = base_r2(group);
  var next_r1: array<vec4<u32>, ITEMS_R>;
  var next_r2: array<vec4<u32>, ITEMS_R2>;
  for (var f = 0u; f < ITEMS_R; f++) { next_r1[f] = eight_r1(at_r1, rows, r0, 0u, lid + f * WORKGROUP); }
  for (var f = 0u; f < ITEMS_R2; f++) { next_r2[f] = eight_r2(at_r2, rows, r0, 0u, lid + f * WORKGROUP); }
  // part stage: items = ITEMS_R, high = ROWS, eights = EIGHTS_R1, at = 0u, pitch = PITCH_R1, next = next_r1
  workgroupBarrier();
  // part hold: x = x1, deep = KD, first = 0u, count = KD, pitch = PITCH_R1
  workgroupBarrier();
  // part stage: items = ITEMS_R2, high = ROWS, eights = EIGHTS_R2, at = 0u, pitch = PITCH_R2, next = next_r2
  workgroupBarrier();
  var x2: array<coop_mat8x8<f16, A>, RM * KV>;
  // part hold: x = x2, deep = KV, first = 0u, count = KV, pitch = PITCH_R2
  if (BY_KEY == 0u) {
    for (var i = lid; i < ROWS; i += WORKGROUP) {
      let t = min(r0 + i, queries - 1u);
      seen[i] = keys_of(t);
      sums[i] = vec2<f32>(f32(load_4(group * queries + t)) * LOG2E, f32(load_5(group * queries + t)));
    }
  }
  // Sums by columns of c1's width, then (BY_KEY) of c2's.
  var y: array<coop_mat8x8<f32, C>, RM * KY>;
  for (var e = 0u; e < RM * KY; e++) { y[e] = coop_mat8x8<f32, C>(); }
  var next_c1: array<vec4<u32>, ITEMS_K>;
  var next_c2: array<vec4<u32>, ITEMS_V>;
  var next_known = vec2<f32>(0.0); // of a query of the next tile
  for (var n = 0u; n < select(1u, sharing, BY_KEY == 1u); n++) {
    // Batch and head of the columns.
    var other = group / heads * heads_kv + group % heads / sharing;
    if (BY_KEY == 1u) { other = group / heads_kv * heads + group % heads_kv * sharing + n; }
    let at_c1 = base_c1(other); let at_c2 = base_c2(other);
    if (AHEAD == 1u) {
      if (begin < finish) {
        // part fetch: first = begin
        if (BY_KEY == 1u) {
          let at = other * queries + min(begin + lid, finish - 1u);
          next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
        }
      }
    }
    for (var base = begin; base < finish; base += COLS) {
      if (AT_ONCE == 1u) {
        // part fetch: first = base
        if (BY_KEY == 1u) {
          let at = other * queries + min(base + lid, finish - 1u);
          next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
        }
      }
      workgroupBarrier();
      // part stage: items = ITEMS_K, high = COLS, eights = EIGHTS_K, at = 0u, pitch = PITCH_C1, next = next_c1
      // part stage: items = ITEMS_V, high = COLS, eights = EIGHTS_V, at = TILE_C1, pitch = PITCH_C2, next = next_c2
      if (BY_KEY == 1u) {
        if (lid < COLS) {
          sums[lid] = next_known;
          seen[lid] = select(vec2<u32>(0u), keys_of(base + lid), base + lid < finish);
        }
      }
      workgroupBarrier();
      if (AHEAD == 1u) {
        if (base + COLS < finish) {
          // part fetch: first = base + COLS
          if (BY_KEY == 1u) {
            let at = other * queries + min(base + COLS + lid, finish - 1u);
            next_known = vec2<f32>(f32(load_4(at)) * LOG2E, f32(load_5(at)));
          }
        }
      }
      // A loop of one turn: see attention_coop.wgsl.
      loop {
        if (ALONE == 1u) {
          // Whether no row of the subgroup sees a column of the tile, or is seen by one.
          let first = r0 + own;
          if (BY_KEY == 1u) {
            if (agreed(keys_of(base + COLS - 1u).y <= first || keys_of(base).x >= first + OWN)) { break; }
          } else {
            if (agreed(base >= keys_of(min(first + OWN, queries) - 1u).y || base + COLS <= keys_of(min(first, queries - 1u)).x)) { break; }
          }
        }
        // part scores: x = x1, deep = KD, at = 0u, pitch = PITCH_C1, line = 0u
        // part scores: x = x2, deep = KV, at = TILE_C1, pitch = PITCH_C2, line = ROWS
        subgroup_barrier();
        let c = lane % ACROSS * 4u;
        var p: array<vec4<f32>, TIMES>;
        var slope: array<vec4<f32>, TIMES>;
        for (var q = 0u; q < TIMES; q++) {
          let row = own + q * LINES + lane / ACROSS;
          p[q] = scores(row * PITCH_S + c);
          slope[q] = scores((ROWS + row) * PITCH_S + c);
        }
        if (BY_KEY == 1u) {
          // Whether all keys of the subgroup are seen by all queries of the tile.
          let all = keys_of(base).y >= r0 + own + OWN && keys_of(base + COLS - 1u).x <= r0 + own && base + COLS <= finish;
          let a = sums[c]; let b = sums[c + 1u]; let e = sums[c + 2u]; let f = sums[c + 3u];
          let first = vec4<u32>(seen[c].x, seen[c + 1u].x, seen[c + 2u].x, seen[c + 3u].x);
          let last = vec4<u32>(seen[c].y, seen[c + 1u].y, seen[c + 2u].y, seen[c + 3u].y);
          for (var q = 0u; q < TIMES; q++) {
            let key = vec4<u32>(r0 + own + q * LINES + lane / ACROSS);
            p[q] = exp2(fma(p[q], vec4<f32>(scale * LOG2E), -vec4<f32>(a.x, b.x, e.x, f.x)));
            if (!all) { p[q] = select(vec4<f32>(0.0), p[q], (key >= first) & (key < last)); }
            slope[q] = p[q] * (slope[q] - vec4<f32>(a.y, b.y, e.y, f.y)) * scale;
          }
        } else {
          let key = vec4<u32>(base + c) + vec4<u32>(0u, 1u, 2u, 3u);
          let all = base >= seen[own + OWN - 1u].x && base + COLS <= seen[own].y;
          for (var q = 0u; q < TIMES; q++) {
            let row = own + q * LINES + lane / ACROSS;
            let known = sums[row]; let sees = seen[row];
            p[q] = exp2(fma(p[q], vec4<f32>(scale * LOG2E), vec4<f32>(-known.x)));
            if (!all) { p[q] = select(vec4<f32>(0.0), p[q], (key >= vec4<u32>(sees.x)) & (key < vec4<u32>(sees.y))); }
            slope[q] = p[q] * (slope[q] - known.y) * scale;
          }
        }
        for (var q = 0u; q < TIMES; q++) {
          let row = own + q * LINES + lane / ACROSS;
          put_part((row * PITCH_P + c) / UNIT, slope[q]);
          if (BY_KEY == 1u) { put_part(((ROWS + row) * PITCH_P + c) / UNIT, p[q]); }
        }
        subgroup_barrier();
        for (var j = 0u; j < STEPS; j++) {
          // By the columns of the scores: the gradient of what made them.
          // part add: line = 0u, at = 0u, pitch = PITCH_C1, count = YD, y = y, wide = KY, first = 0u
          if (BY_KEY == 1u) {
            // part add: line = ROWS, at = TILE_C1, pitch = PITCH_C2, count = YV, y = y, wide = KY, first = YD
          }
        }
        break;
      }
    }
  }
  let whole = wid.y * word(9u) + wid.x < word(11u);
  for (var g = 0u; g < GROUPS; g++) {
    workgroupBarrier();
    // part leave: y = y, wide = KY
    workgroupBarrier();
    for (var u = lid; u < ROWS * WIDE / 4u; u += WORKGROUP) {
      let line = u / (WIDE / 4u); let c = u % (WIDE / 4u) * 4u;
      let row = r0 + line; let place = c / (PER * EDGE); let within = g * PER * EDGE + c % (PER * EDGE);
      let v = scores(line * PITCH_S + c);
      if (whole && row < rows) {
        let at = place * YD * EDGE + within;
        if (BY_KEY == 1u) {
          let of_value = place * YV * EDGE + within - YD * EDGE;
          if (g * PER >= YD) {
            if (of_value < word(5u)) { store4_1((group * rows + row) * word(5u) + of_value, v); }
          } else {
            if (at < word(4u)) { store4_0((group * rows + row) * word(4u) + at, v); }
          }
        } else {
          if (at < word(4u)) { store4_0((group * rows + row) * word(4u) + at, v); }
        }
      }
    }
  }
}
