// Memory of the tiles where a matrix is loaded through a pointer to halves.
var<workgroup> tile: array<f16, TILE>;
fn put(at: u32, e: vec4<u32>) {
  let a = halves(e.xy); let b = halves(e.zw);
  tile[at] = a.x; tile[at + 1u] = a.y; tile[at + 2u] = a.z; tile[at + 3u] = a.w;
  tile[at + 4u] = b.x; tile[at + 5u] = b.y; tile[at + 6u] = b.z; tile[at + 7u] = b.w;
}
