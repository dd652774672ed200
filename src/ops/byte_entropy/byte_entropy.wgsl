// The entropy of the window around each byte. A thread slides its window along `chunk` bytes of a row. The window's histogram lies in
// workgroup memory: COUNT_BITS bits a count, and a column of words for each thread. With f(c) = c·log2 c in fixed point, `whole` is f(bytes
// in the window), `sum` is Σ f(count), and the entropy is (whole − sum) / bytes. Load 1 holds f(c + 1) − f(c), so that a byte that enters
// or leaves costs one look-up.
//
// A count of 2^COUNT_BITS overflows: 0 and a carry into its neighbour. All other counts are 0 then, and the next byte leaves before one
// enters, which undoes it.

const PER_WORD: u32 = 32u / COUNT_BITS;
const MASK: u32 = (1u << COUNT_BITS) - 1u;
const WORDS: u32 = 256u / PER_WORD;
var<workgroup> counts: array<u32, WORDS * WORKGROUP>;
var<private> lane: u32;
var<private> bytes: u32;
var<private> whole: u32;
var<private> sum: u32;

#if TABLE
var<workgroup> table: array<u32, ${TABLE}>;
fn step_at(c: u32) -> u32 { return table[c]; }
#else
fn step_at(c: u32) -> u32 { return load_1(c); }
#endif

fn enter(byte: u32) {
  let at = byte / PER_WORD * WORKGROUP + lane;
  let shift = byte % PER_WORD * COUNT_BITS;
  let word = counts[at];
  sum += step_at((word >> shift) & MASK);
  counts[at] = word + (1u << shift);
}
fn leave(byte: u32) {
  let at = byte / PER_WORD * WORKGROUP + lane;
  let shift = byte % PER_WORD * COUNT_BITS;
  let word = counts[at] - (1u << shift);
  sum -= step_at((word >> shift) & MASK);
  counts[at] = word;
}
fn grow(byte: u32) {
  whole += step_at(bytes);
  bytes += 1u;
  enter(byte);
}
fn shrink(byte: u32) {
  bytes -= 1u;
  whole -= step_at(bytes);
  leave(byte);
}

fn entropy() -> f32 { return f32(whole - sum) * p.scale / f32(bytes); }

// From the window of position i to the next.
fn slide(i: u32, end: u32, old: u32, fresh: u32) {
  if (i + 1u >= end) { return; }
  let leaves = i >= p.below;
  let enters = i + p.above < p.cols;
  if (leaves && enters) {
    leave(old);
    enter(fresh);
  } else if (leaves) {
    shrink(old);
  } else if (enters) {
    grow(fresh);
  }
}

// Bytes i..i + 4 of the row that begins at `base`; anything for those outside of it, which may lie before it.
fn four(base: u32, i: u32) -> vec4<u32> {
  let cols = p.cols;
#if VEC
  if (i < cols && cols - i >= 4u) { return vec4<u32>(load4_0(base + i)) & vec4<u32>(255u); }
#endif
  var four = vec4<u32>();
  if (i < cols) { four.x = u32(load_0(base + i)) & 255u; }
  if (i + 1u < cols) { four.y = u32(load_0(base + i + 1u)) & 255u; }
  if (i + 2u < cols) { four.z = u32(load_0(base + i + 2u)) & 255u; }
  if (i + 3u < cols) { four.w = u32(load_0(base + i + 3u)) & 255u; }
  return four;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  lane = lid;
  for (var w = 0u; w < WORDS; w++) { counts[w * WORKGROUP + lid] = 0u; }
#if TABLE
  for (var c = lid; c < p.steps; c += WORKGROUP) { table[c] = load_1(c); }
  workgroupBarrier();
#endif
  let item = (wid.y * p.groups_x + wid.x) * WORKGROUP + lid;
  if (item >= p.rows * p.chunks) { return; }
  let base = item / p.chunks * p.cols;
  let first = item % p.chunks * p.chunk;
  let end = min(first + p.chunk, p.cols);
  let filled = min(first + p.above, p.cols);
  for (var i = first - min(first, p.below); i < filled; i += 4u) {
    let b = four(base, i);
    grow(b.x);
    if (i + 1u < filled) { grow(b.y); }
    if (i + 2u < filled) { grow(b.z); }
    if (i + 3u < filled) { grow(b.w); }
  }
  for (var i = first; i < end; i += 4u) {
    let old = four(base, i - p.below);
    let fresh = four(base, i + p.above);
    var h: vec4<f32>;
    h.x = entropy();
    slide(i, end, old.x, fresh.x);
    h.y = entropy();
    slide(i + 1u, end, old.y, fresh.y);
    h.z = entropy();
    slide(i + 2u, end, old.z, fresh.z);
    h.w = entropy();
    slide(i + 3u, end, old.w, fresh.w);
#if VEC
    if (i + 4u <= end) {
      store4_0(base + i, h);
      continue;
    }
#endif
    store_0(base + i, h.x);
    if (i + 1u < end) { store_0(base + i + 1u, h.y); }
    if (i + 2u < end) { store_0(base + i + 2u, h.z); }
    if (i + 3u < end) { store_0(base + i + 3u, h.w); }
  }
}
