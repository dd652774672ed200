// The counts lie in workgroup memory, a byte each and a column of words for each thread, and c·log2 c is looked up in fixed point.
// Limit: two counts are changed one after the other for each position, and each byte is read by itself.
//
// out[i] = entropy of bytes i - 128 .. i + 128, divided by 8.
//
// A count of 256 is 0 and a carry into its neighbour. All others are 0 then, and the next byte leaves before one enters, which undoes it.

const THREADS: u32 = 32;
const ONE: f32 = 1048576.0;
var<workgroup> counts: array<u32, 64u * THREADS>;
// c·log2 c.
var<workgroup> table: array<u32, 257>;
var<private> lane: u32;
var<private> sum: u32;

fn enter(v: u32) {
  let at = v / 4u * THREADS + lane;
  let shift = v % 4u * 8u;
  let c = (counts[at] >> shift) & 255u;
  sum += table[c + 1u] - table[c];
  counts[at] += 1u << shift;
}
fn leave(v: u32) {
  let at = v / 4u * THREADS + lane;
  let shift = v % 4u * 8u;
  counts[at] -= 1u << shift;
  let c = (counts[at] >> shift) & 255u;
  sum -= table[c + 1u] - table[c];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  lane = lid;
  for (var w = 0u; w < 64u; w++) { counts[w * THREADS + lane] = 0u; }
  for (var c = lid; c < 257u; c += THREADS) { table[c] = u32(round(f32(c) * log2(max(f32(c), 1.0)) * ONE)); }
  workgroupBarrier();
  let first = 128u * id.x;
  if (first >= p.bytes) { return; }
  for (var i = first - min(first, 128u); i < min(first + 128u, p.bytes); i++) { enter(u32(load_0(i))); }
  for (var i = first; i < min(first + 128u, p.bytes); i++) {
    let bytes = min(i + 128u, p.bytes) - (i - min(i, 128u));
    store_0(i, f32(table[bytes] - sum) / (8.0 * ONE * f32(bytes)));
    if (i >= 128u) { leave(u32(load_0(i - 128u))); }
    if (i + 128u < p.bytes) { enter(u32(load_0(i + 128u))); }
  }
}
