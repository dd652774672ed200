// out = a · b, square matrices of `p.size` rows, a multiple of 16, b stored as it is or TRANSPOSED.
// Without TILED each thread reads both operands from memory. With it, tiles go through workgroup memory; with AHEAD as well, the next tiles
// are read while these are multiplied.
struct Params { size: u32 }
const EDGE: u32 = 16;
var<workgroup> a_tile: array<f32, EDGE * EDGE>;
var<workgroup> b_tile: array<f32, EDGE * EDGE>;

fn b_at(k: u32, n: u32) -> f32 {
  return load_1(select(k * p.size + n, n * p.size + k, TRANSPOSED == 1u));
}

@compute @workgroup_size(EDGE, EDGE)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>) {
  let size = p.size; let row = id.y * size;
  var sum = 0.0;
  if (TILED == 0u) {
    for (var k = 0u; k < size; k++) { sum += load_0(row + k) * b_at(k, id.x); }
  } else {
    let place = own.y * EDGE + own.x;
    var x = load_0(row + own.x); var y = b_at(own.y, id.x);
    for (var k0 = 0u; k0 < size; k0 += EDGE) {
      a_tile[place] = x; b_tile[place] = y;
      workgroupBarrier();
      // Something is read at the end, too: the first tile again.
      let next = select(k0 + EDGE, 0u, k0 + EDGE == size);
      if (AHEAD == 1u) { x = load_0(row + next + own.x); y = b_at(next + own.y, id.x); }
      for (var k = 0u; k < EDGE; k++) { sum += a_tile[own.y * EDGE + k] * b_tile[k * EDGE + own.x]; }
      workgroupBarrier();
      if (AHEAD == 0u) { x = load_0(row + next + own.x); y = b_at(next + own.y, id.x); }
    }
  }
  store_0(row + id.x, sum);
}
