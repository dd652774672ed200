// Rows of a table: out[i, c] = table[index[i], c]. An index outside the table is clamped and reported.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let rows = p.rows; let inner = p.inner; let count = p.count;
  let step = 1u + 3u * VEC;
  let width = inner / step;
  let i = (wid.y * p.groups_x + wid.x) * WORKGROUP + lid;
  let r = i / width;
  if (r < count) {
    let c = (i - r * width) * step;
    // A negative i32 is a large u32.
    var t = u32(load_1(r));
    if (t >= rows) { fail(t); t = select(rows - 1u, 0u, (t & 0x80000000u) != 0u); }
#if VEC
    { store4_0(r * inner + c, load4_0(t * inner + c)); }
#else
    { store_0(r * inner + c, load_0(t * inner + c)); }
#endif
  }
}
