// Matrix times a few vectors: out[m, n] = sum over k of a[m, k] * b[n, k], m below MT.
//
// A team of LANES threads owns ROWS rows of b and walks them in items of QUADS quads of weights, AHEAD items on their way at once and
// the first before anything waits for the activations. A format says how an item's quads lie in a row (see `quad_of`): those that come
// from the same words belong together, and PARTS parts of an item have scales of their own (SCALED), some with something added (SHIFTED).
// STAGED: a chunk of the activations is kept in workgroup memory; otherwise each thread reads what it needs: all of an item at once, where
// they are stored as halves (DIRECT). MORE: the next round's items are on their way while one is multiplied.
// Several products of one left side may be done at once: PAIR of them row by row in the same teams, or each in workgroups of its own
// (`locate` says in which, and a branch around all loads of a round chooses the weights). NORMED: the left side is normalised on its way
// into workgroup memory; CENTRED: as layer norm does.
// Words: 0 M, 1 N, 2 K, 3 tiles of a batch, 4 workgroups in x, 5 and 6 the start of b in elements, 7 epsilon, 8 and 9 the start of a.

// default
const WORKGROUP: u32 = 128;
const LANES: u32 = 32;
const ROWS: u32 = 1;
const AHEAD: u32 = 3;
const MT: u32 = 1;
const QUADS: u32 = 2;
const STRIPS: u32 = 1;
const SPAN: u32 = 2;
const PARTS: u32 = 1;
const SCALED: u32 = 0;
const SHIFTED: u32 = 0;
const EIGHTS: u32 = 0;
const SECOND: u32 = 1;
const THIRD: u32 = 0;
const AT_ONCE: u32 = 1;
const CHUNK: u32 = 96;
const STAGED: u32 = 1;
const VEC_A: u32 = 1;
const VEC_OUT: u32 = 1;
const PAIR: u32 = 1;
const NORMED: u32 = 0;
const CENTRED: u32 = 1;
const HELD_X: u32 = 1;
const BATCHED: u32 = 1;
const MORE: u32 = 1;
const DIRECT: u32 = 0;
const EIGHTH: u32 = 1;
alias T_0 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> raw_0: array<vec4<u32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(select(x, y, c == 1u)); }
fn scale(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, s: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }
alias Kept = vec4<f32>;
fn keep(x: vec4<f32>) -> Kept { return x; }
fn keep_halves(h: vec2<u32>) -> Kept { return halves(h); }
fn kept(x: Kept) -> vec4<f32> { return x; }
fn team_sum(v: f32) -> f32 { return v; }
fn all_sum(v: f32) -> f32 { return v; }
fn both_sums(v: vec2<f32>) -> vec2<f32> { return v; }
fn gain4(c: u32) -> vec4<f32> { return vec4<f32>(1.0); }
fn shift4(c: u32) -> vec4<f32> { return vec4<f32>(0.0); }
const GAIN: u32 = 0;
const SHIFT: u32 = 0;
fn locate(group: u32) -> u32 { return group; }
fn columns() -> u32 { return word(1u); }
fn tiles_of() -> u32 { return word(3u); }
const PRODUCT: u32 = 0;
fn chosen(p: u32) -> bool { return asked(); }
fn place_in(p: u32, row: u32) -> u32 { return row * (word(2u) / 4u); }
fn first_of(p: u32, at: u32, i: u32) -> vec4<u32> { return bitcast<vec4<u32>>(b_0[at + 2u * i]); }
fn second_of(p: u32, at: u32, i: u32) -> vec4<u32> { return bitcast<vec4<u32>>(b_0[at + 2u * i + 1u]); }
fn third_of(p: u32, at: u32, i: u32) -> vec4<u32> { return vec4<u32>(0u); }
alias Early = u32;
fn early(i: u32) -> Early { return i; }
fn put(p: u32, i: u32, v: f32) { store_0(i, v); }
fn put4(p: u32, i: u32, v: vec4<f32>, e: Early) { store4_0(i, v); }
// end

const TEAMS: u32 = WORKGROUP / LANES;
const EACH: u32 = ROWS / PAIR; // rows of a product in a team
const BLOCK: u32 = TEAMS * EACH;
const FOURS: u32 = max(BLOCK / 4u, 1u); // quads of a block, where they are whole
const WIDTH: u32 = QUADS / STRIPS; // neighbouring quads of an item
const TWINS: u32 = SPAN / WIDTH; // items that share a span of quads
const PAIRS: u32 = QUADS / PARTS / 2u; // pairs of neighbouring quads in a part
// Always true, which a compiler does not know: it moves loads that stand in no branch behind barriers, to where they are used.
fn asked() -> bool { return word(0u) > 0u; }
var<private> thread: u32;
// Odd, so that the quads of an item, which neighbouring threads write, lie in different banks.
const STRIDE: u32 = CHUNK | 1u;
var<workgroup> xs: array<Kept, MT * QUADS * STRIDE>;
var<workgroup> ys: array<f32, MT * BLOCK * PAIR>;

// Four activations of row m, zero outside of the matrix.
fn fetch(batch: u32, m: u32, v: u32) -> vec4<f32> {
  var x = vec4<f32>(0.0);
  if (EIGHTS == 1u) {
    // Never asked for, but a text that names `load` binds its left side once more.
    let e = eight(batch, m, v / 2u * 2u);
    x = halves(select(e.xy, e.zw, v % 2u == 1u));
  } else {
    let rows = word(0u); let size = word(2u);
    let at = (batch * rows + min(m, rows - 1u)) * size;
    let inside = m < rows && 4u * v < size;
    if (VEC_A == 1u) {
      // No branch: loads in one would be waited for one by one.
      x = select(vec4<f32>(0.0), load4_0(at + min(4u * v, size - 4u)), inside);
    } else {
      if (inside) {
        x.x = load_0(at + 4u * v);
        if (4u * v + 1u < size) { x.y = load_0(at + 4u * v + 1u); }
        if (4u * v + 2u < size) { x.z = load_0(at + 4u * v + 2u); }
        if (4u * v + 3u < size) { x.w = load_0(at + 4u * v + 3u); }
      }
    }
  }
  return x;
}

// The place in a row of quad c of item i: STRIPS strips of SPAN quads lie behind each other, and an item has WIDTH quads of each.
fn quad_of(i: u32, c: u32) -> u32 { return i / TWINS * (SPAN * STRIPS) + c / WIDTH * SPAN + i % TWINS * WIDTH + c % WIDTH; }
// The place in workgroup memory of quad v of a chunk: quad c of item i goes to c * STRIDE + i, so that neighbouring lanes read neighbouring quads.
fn place_of(m: u32, v: u32) -> u32 {
  let c = v % (SPAN * STRIPS) / SPAN * WIDTH + v % WIDTH;
  return (m * QUADS + c) * STRIDE + v / (SPAN * STRIPS) * TWINS + v % SPAN / WIDTH;
}

struct Pair { a: vec4<f32>, b: vec4<f32> }
fn halves(h: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)); }
// Eight activations from quad v on, an even one, zero beyond a row's end.
fn eight(batch: u32, m: u32, v: u32) -> vec4<u32> {
  if (EIGHTS == 1u) {
    let size = word(2u);
    let at = (word(8u) + word(9u) + (batch * word(0u) + min(m, word(0u) - 1u)) * size) / 8u;
    return select(vec4<u32>(0u), raw_0[at + min(v, size / 4u - 1u) / 2u], 4u * v < size);
  } else {
    return vec4<u32>(0u);
  }
}
// What quads c and c + 1 of item i are multiplied with; `e`: where it was read already.
fn activations(batch: u32, m: u32, i: u32, c: u32, e: vec4<u32>) -> Pair {
  if (STAGED == 1u) {
    return Pair(kept(xs[(m * QUADS + c) * STRIDE + i]), kept(xs[(m * QUADS + c + 1u) * STRIDE + i]));
  } else {
    if (DIRECT == 1u) {
      return Pair(halves(e.xy), halves(e.zw));
    } else {
      return Pair(fetch(batch, m, quad_of(i, c)), fetch(batch, m, quad_of(i, c + 1u)));
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let group = locate(wid.y * word(4u) + wid.x);
  let tiles = tiles_of();
  var batch = 0u;
  var first = group * BLOCK;
  if (BATCHED == 1u) { batch = group / tiles; first = (group % tiles) * BLOCK; }
  let rows = word(0u); let cols = columns();
  let lane = lid % LANES; let team = lid / LANES;
  let items = (word(2u) + 4u * QUADS - 1u) / (4u * QUADS);
  // Where the rows begin, of the weights in units of the format and of the activations in eights.
  var at: array<u32, ROWS>;
  { // PRODUCT
    if (chosen(PRODUCT)) {
      for (var r = 0u; r < ROWS; r++) {
        at[r] = place_in(PRODUCT + r % PAIR, batch * cols + min(first + team * EACH + r / PAIR, cols - 1u));
      }
    }
  }
  var x_at: array<u32, MT>;
  if (DIRECT == 1u) {
    for (var m = 0u; m < MT; m++) { x_at[m] = (word(8u) + word(9u) + (batch * rows + min(m, rows - 1u)) * word(2u)) / 8u; }
  }
  // The quad of results that this thread writes, and what it is combined with, which is asked for before anything else.
  let m_own = lid / FOURS; let j_own = lid % FOURS * 4u;
  let writes = m_own < rows && lid < MT * FOURS && first + j_own < cols;
  var own: Early;
  if (VEC_OUT == 1u) {
    if (asked()) { own = early((batch * rows + select(0u, m_own, writes)) * cols + first + select(0u, j_own, writes)); }
  }
  var acc: array<f32, ROWS * MT>;
  for (var e = 0u; e < ROWS * MT; e++) { acc[e] = 0.0; }
  var first_held: array<vec4<u32>, ROWS * AHEAD>;
  var second_held: array<vec4<u32>, ROWS * AHEAD>;
  var third_held: array<vec4<u32>, ROWS * AHEAD>;
  var first_next: array<vec4<u32>, ROWS * AHEAD>;
  var second_next: array<vec4<u32>, ROWS * AHEAD>;
  var third_next: array<vec4<u32>, ROWS * AHEAD>;
  var x_held: array<vec4<u32>, MT * EIGHTH>;
  for (var base = 0u; base < items; base += CHUNK) {
    { // PRODUCT
      if (chosen(PRODUCT)) {
        for (var a = 0u; a < AHEAD; a++) {
          let i = min(base + lane + a * LANES, items - 1u);
          for (var r = 0u; r < ROWS; r++) {
            first_held[a * ROWS + r] = first_of(PRODUCT + r % PAIR, at[r], i);
            if (SECOND == 1u) { second_held[a * ROWS + r] = second_of(PRODUCT + r % PAIR, at[r], i); }
            if (THIRD == 1u) { third_held[a * ROWS + r] = third_of(PRODUCT + r % PAIR, at[r], i); }
          }
        }
      }
    }
    var count = items - base;
    if (STAGED == 1u) {
      count = min(CHUNK, count);
      if (base > 0u) { workgroupBarrier(); }
      // Items that are no more are zero.
      let staged = (count + LANES * AHEAD - 1u) / (LANES * AHEAD) * (LANES * AHEAD);
      for (var m = 0u; m < MT; m++) {
        if (NORMED == 1u) {
          // The chunk is the whole row, and stays in registers meanwhile.
          let size = word(2u);
          var x: array<vec4<f32>, HELD_X>;
          var gain: array<vec4<f32>, HELD_X>;
          var shift: array<vec4<f32>, HELD_X>;
          var s = 0.0;
          for (var h = 0u; h < HELD_X; h++) { x[h] = fetch(batch, m, lid + h * WORKGROUP); }
          if (asked()) {
            for (var h = 0u; h < HELD_X; h++) {
              let c = min(4u * (lid + h * WORKGROUP), size - 4u);
              if (GAIN == 1u) { gain[h] = gain4(c); }
              if (SHIFT == 1u) { shift[h] = shift4(c); }
            }
          }
          var centre = 0.0; var variance = 0.0;
          if (CENTRED == 1u) {
            // Both moments at once, counted from an element: nothing cancels but what K roundings are of the variance.
            let origin = fetch(batch, m, 0u).x;
            for (var h = 0u; h < HELD_X; h++) {
              x[h] = select(vec4<f32>(0.0), x[h] - origin, 4u * (lid + h * WORKGROUP) < size);
              centre += (x[h].x + x[h].y) + (x[h].z + x[h].w);
              s += dot(x[h], x[h]);
            }
            let moments = both_sums(vec2<f32>(centre, s)) / f32(size);
            centre = moments.x;
            variance = max(moments.y - centre * centre, 0.0);
          } else {
            for (var h = 0u; h < HELD_X; h++) { s += dot(x[h], x[h]); }
            variance = all_sum(s) / f32(size);
          }
          let scale = inverseSqrt(variance + bitcast<f32>(word(7u)));
          for (var h = 0u; h < HELD_X; h++) {
            let v = lid + h * WORKGROUP;
            if (CENTRED == 1u) { x[h] = select(vec4<f32>(0.0), x[h] - centre, 4u * v < size); }
            x[h] *= scale;
            if (GAIN == 1u) { x[h] *= gain[h]; }
            // Nothing is added beyond the row's end.
            if (SHIFT == 1u) { x[h] = select(vec4<f32>(0.0), x[h] + shift[h], 4u * v < size); }
            if (v < QUADS * staged) { xs[place_of(m, v)] = keep(x[h]); }
          }
        } else {
          // Several on their way at once: each would be waited for otherwise.
          if (EIGHTS == 1u) {
            for (var v = lid; v < QUADS / 2u * staged; v += WORKGROUP * AT_ONCE) {
              var x: array<vec4<u32>, AT_ONCE>;
              for (var n = 0u; n < AT_ONCE; n++) { x[n] = eight(batch, m, QUADS * base + 2u * (v + n * WORKGROUP)); }
              for (var n = 0u; n < AT_ONCE; n++) {
                let q = 2u * (v + n * WORKGROUP);
                if (q < QUADS * staged) { xs[place_of(m, q)] = keep_halves(x[n].xy); xs[place_of(m, q + 1u)] = keep_halves(x[n].zw); }
              }
            }
          } else {
            for (var v = lid; v < QUADS * staged; v += WORKGROUP * AT_ONCE) {
              var x: array<vec4<f32>, AT_ONCE>;
              for (var n = 0u; n < AT_ONCE; n++) { x[n] = fetch(batch, m, QUADS * base + v + n * WORKGROUP); }
              for (var n = 0u; n < AT_ONCE; n++) {
                if (v + n * WORKGROUP < QUADS * staged) { xs[place_of(m, v + n * WORKGROUP)] = keep(x[n]); }
              }
            }
          }
        }
      }
      workgroupBarrier();
    }
    for (var start = lane; start < count; start += LANES * AHEAD) {
      // What comes next is on its way while this is multiplied (MORE), or asked for when its turn comes.
      if (MORE == 1u) {
        { // PRODUCT
          if (start - lane + LANES * AHEAD < count && chosen(PRODUCT)) {
            for (var a = 0u; a < AHEAD; a++) {
              let i = min(base + start + (a + AHEAD) * LANES, items - 1u);
              for (var r = 0u; r < ROWS; r++) {
                first_next[a * ROWS + r] = first_of(PRODUCT + r % PAIR, at[r], i);
                if (SECOND == 1u) { second_next[a * ROWS + r] = second_of(PRODUCT + r % PAIR, at[r], i); }
                if (THIRD == 1u) { third_next[a * ROWS + r] = third_of(PRODUCT + r % PAIR, at[r], i); }
              }
            }
          }
        }
      } else {
        { // PRODUCT
          if (start != lane && chosen(PRODUCT)) {
            for (var a = 0u; a < AHEAD; a++) {
              let i = min(base + start + a * LANES, items - 1u);
              for (var r = 0u; r < ROWS; r++) {
                first_held[a * ROWS + r] = first_of(PRODUCT + r % PAIR, at[r], i);
                if (SECOND == 1u) { second_held[a * ROWS + r] = second_of(PRODUCT + r % PAIR, at[r], i); }
                if (THIRD == 1u) { third_held[a * ROWS + r] = third_of(PRODUCT + r % PAIR, at[r], i); }
              }
            }
          }
        }
      }
      for (var a = 0u; a < AHEAD; a++) {
        let i = start + a * LANES;
        if (DIRECT == 1u) {
          if (asked()) {
            for (var m = 0u; m < MT; m++) {
              for (var q = 0u; q < EIGHTH; q++) { x_held[m * EIGHTH + q] = raw_0[x_at[m] + quad_of(min(i, items - 1u), 2u * q) / 2u]; }
            }
          }
        }
        for (var s = 0u; s < PARTS; s++) {
          var part: array<f32, ROWS * MT>;
          var sums: array<f32, MT>;
          for (var e = 0u; e < ROWS * MT; e++) { part[e] = 0.0; }
          for (var m = 0u; m < MT; m++) { sums[m] = 0.0; }
          for (var h = 0u; h < PAIRS; h++) {
            let c = (s * PAIRS + h) * 2u;
            var w: array<vec4<f32>, 2u * ROWS>;
            for (var r = 0u; r < ROWS; r++) {
              let e = a * ROWS + r;
              w[2u * r] = quad(first_held[e], second_held[e], third_held[e], base + i, c);
              w[2u * r + 1u] = quad(first_held[e], second_held[e], third_held[e], base + i, c + 1u);
            }
            for (var m = 0u; m < MT; m++) {
              let x = activations(batch, m, i, c, x_held[m * EIGHTH + c / 2u]);
              for (var r = 0u; r < ROWS; r++) { part[r * MT + m] += dot(w[2u * r], x.a) + dot(w[2u * r + 1u], x.b); }
              if (SHIFTED == 1u) { let y = x.a + x.b; sums[m] += (y.x + y.y) + (y.z + y.w); }
            }
          }
          for (var r = 0u; r < ROWS; r++) {
            let e = a * ROWS + r;
            let by = scale(first_held[e], second_held[e], third_held[e], base + i, s);
            for (var m = 0u; m < MT; m++) {
              var v = part[r * MT + m];
              if (SCALED == 1u) { v *= by.x; }
              if (SHIFTED == 1u) { v += by.y * sums[m]; }
              // What stands in for an item beyond the last one does not count.
              if (DIRECT == 1u && AHEAD > 1u && i >= items) { v = 0.0; }
              acc[r * MT + m] += v;
            }
          }
        }
      }
      if (MORE == 1u) {
        for (var a = 0u; a < AHEAD; a++) {
          for (var r = 0u; r < ROWS; r++) {
            first_held[a * ROWS + r] = first_next[a * ROWS + r];
            if (SECOND == 1u) { second_held[a * ROWS + r] = second_next[a * ROWS + r]; }
            if (THIRD == 1u) { third_held[a * ROWS + r] = third_next[a * ROWS + r]; }
          }
        }
      }
    }
    if (STAGED == 0u) { break; }
  }
  for (var r = 0u; r < ROWS; r++) {
    for (var m = 0u; m < MT; m++) {
      let v = team_sum(acc[r * MT + m]);
      if (lane == 0u) { ys[(m * PAIR + r % PAIR) * BLOCK + team * EACH + r / PAIR] = v; }
    }
  }
  workgroupBarrier();
  if (VEC_OUT == 1u) {
    if (writes) {
      for (var p = 0u; p < PAIR; p++) {
        let at = (m_own * PAIR + p) * BLOCK + j_own;
        put4(p, (batch * rows + m_own) * cols + first + j_own, vec4<f32>(ys[at], ys[at + 1u], ys[at + 2u], ys[at + 3u]), own);
      }
    }
  } else {
    for (var u = lid; u < MT * BLOCK; u += WORKGROUP) {
      let m = u / BLOCK; let j = u % BLOCK;
      if (m < rows && first + j < cols) {
        for (var p = 0u; p < PAIR; p++) { put(p, (batch * rows + m) * cols + first + j, ys[(m * PAIR + p) * BLOCK + j]); }
      }
    }
  }
}
