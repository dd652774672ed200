// out = a transposed, square matrices of `p.size` rows, a multiple of 16. TILED goes through workgroup memory, so that neighbouring threads
// both read and write neighbours; without it they write a column.
struct Params { size: u32 }
const EDGE: u32 = 16;
var<workgroup> tile: array<f32, EDGE * (EDGE + 1u)>;

@compute @workgroup_size(EDGE, EDGE)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>) {
  let size = p.size;
  let x = load_0(id.y * size + id.x);
  if (TILED == 1u) {
    tile[own.y * (EDGE + 1u) + own.x] = x;
    workgroupBarrier();
    store_0((wid.x * EDGE + own.y) * size + wid.y * EDGE + own.x, tile[own.x * (EDGE + 1u) + own.y]);
  } else {
    store_0(id.x * size + id.y, x);
  }
}
