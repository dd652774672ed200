// Memory of the tiles where a matrix may be loaded through a pointer to vectors. Compilers see that halves become halves again.
var<workgroup> tile: array<vec4<f16>, TILE / 4u>;
fn put(at: u32, e: vec4<u32>) { tile[at] = halves(e.xy); tile[at + 1u] = halves(e.zw); }
