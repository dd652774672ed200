// Places of the largest elements of rows, or of the smallest, in order: ROW_THREADS threads a row, at least as many as places, which pass over it once
// for each place. HELD: elements of a row that each thread keeps, 0 where it reads them in every pass. ELEMENTS: those at the places are a second
// result, or their softmax (SOFTMAX).

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
// The better of the best so far and an element that comes behind the place that was found last.
fn next(best: vec2<u32>, at: vec2<u32>, last: vec2<u32>, round: u32) -> vec2<u32> {
  let behind = round == 0u || at.x < last.x || (at.x == last.x && at.y > last.y);
  return select(best, better(best, at), behind);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let row = (wid.y * p.groups_x + wid.x) * ROWS + lid / ROW_THREADS;
  let start = min(row, p.rows - 1u) * p.n;
  let lane = lid % ROW_THREADS;
#if HELD
  var held: array<u32, HELD>;
#unroll
  for (var h = 0u; h < HELD; h++) {
    let c = lane + h * ROW_THREADS;
    // Places beyond the row's end have key 0, which loses every tie by its place.
    held[h] = select(0u, key(load_0(start + min(c, p.n - 1u))), c < p.n);
  }
#endif
  var first = 0u; var own = 0u;
  var last = vec2<u32>(0u);
  for (var round = 0u; round < p.k; round++) {
    var best = vec2<u32>(0u, 0xffffffffu);
#if HELD
#unroll
    for (var h = 0u; h < HELD; h++) { best = next(best, vec2<u32>(held[h], lane + h * ROW_THREADS), last, round); }
#else
    for (var c = lane; c < p.n; c += ROW_THREADS) { best = next(best, vec2<u32>(key(load_0(start + c)), c), last, round); }
#endif
    last = row_best(best);
    if (round == 0u) { first = last.y; }
    if (round == lane) { own = last.y; }
  }
  let writes = lane < p.k && row < p.rows;
  if (writes) { store_0(row * p.k + lane, i32(own)); }
#if SOFTMAX
  // The first is the largest.
  let e = select(0.0, exp(f32(load_0(start + own)) - f32(load_0(start + first))), lane < p.k);
  let total = row_sum(e);
  if (writes) { store_1(row * p.k + lane, T_0(e / total)); }
#elif ELEMENTS
  if (writes) { store_1(row * p.k + lane, load_0(start + own)); }
#endif
}
${BEST}
#if SOFTMAX
${SUM}
#endif
