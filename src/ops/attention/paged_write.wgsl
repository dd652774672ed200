// Keys and values of some positions into their pages: load 0 and 1 are `[texts, heads, positions, size]`, load 2 each position's slot. VEC: `size` counts
// quads. Slots of page 0 are padding's: nothing is written.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let size = p.size; let positions = p.positions; let heads = p.heads;
  let i = (wid.y * p.groups_x + wid.x) * WORKGROUP + lid;
  let row = i / size;
  if (row >= p.rows) { return; }
  let text = row / positions / heads; let head = row / positions % heads;
  let slot = u32(load_2(text * positions + row % positions));
  if (slot >= p.slots) { fail(slot); return; }
  if (slot < ${PAGE}u) { return; }
  let to = ((slot / ${PAGE}u * heads + head) * ${PAGE}u + slot % ${PAGE}u) * size + i % size;
  // Values lie behind all keys.
  let values = p.slots * heads * size + to;
#if VEC
  store4_0(4u * to, load4_0(4u * i));
  store4_0(4u * values, load4_1(4u * i));
#else
  store_0(to, load_0(i));
  store_0(values, load_1(i));
#endif
}
