// Places of the largest elements of rows, or of the smallest, in order: ROW_THREADS threads a row, which pass over it once for each place.

const ROWS: u32 = WORKGROUP / ROW_THREADS;
const NAN: u32 = 0xffffffffu;
var<private> thread: u32;

// A key that grows with the element (shrinks for SMALLEST); that of NaN is the largest (smallest).
fn key(x: T_0) -> u32 {
  var k = bitcast<u32>(x);
  let nan = (k & 0x7fffffffu) > 0x7f800000u;
  if (k == 0x80000000u) { k = 0u; } // -0 equals 0
  k = select(select(k | 0x80000000u, ~k, (k & 0x80000000u) != 0u), NAN, nan);
  return select(k, ~k, SMALLEST == 1u);
}
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y)); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let row = (wid.y * p.groups_x + wid.x) * ROWS + lid / ROW_THREADS;
  let start = min(row, p.rows - 1u) * p.n;
  let lane = lid % ROW_THREADS;
  var last = vec2<u32>(0u);
  for (var round = 0u; round < p.k; round++) {
    var best = vec2<u32>(0u, 0xffffffffu);
    for (var c = lane; c < p.n; c += ROW_THREADS) {
      let at = vec2<u32>(key(load_0(start + c)), c);
      // What comes behind the places that are found.
      if (round == 0u || at.x < last.x || (at.x == last.x && at.y > last.y)) { best = better(best, at); }
    }
    last = row_best(best);
    if (lane == 0u && row < p.rows) {
      store_0(row * p.k + round, i32(last.y));
#if ELEMENTS
      store_1(row * p.k + round, load_0(start + last.y));
#endif
    }
  }
}
${BEST}
