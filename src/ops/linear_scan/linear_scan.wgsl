// A recurrence over tokens t: S ← a·S + k·uᵀ, y = Sᵀ·q, where u is v, or with DELTA β·(v − (a·S)ᵀ·k).
//
// Loads: 0 q, 1 k, 2 v, 3 decay a, 4 S before the first token, 5 β. Stores: 0 y, 1 S behind the last token.
//
// A workgroup has COLUMNS columns of one head's S. SLICES threads share a column, each with ROWS consecutive rows of it in registers.

var<workgroup> parts: array<f32, COLUMNS * SLICES>;

// The sum of x over the threads of a column.
fn column_sum(x: f32, lid: u32) -> f32 {
  parts[lid] = x;
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < SLICES; i++) { sum += parts[i * COLUMNS + lid % COLUMNS]; }
  workgroupBarrier();
  return sum;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let rows = p.rows; let columns = p.columns; let heads = p.heads; let key_heads = p.key_heads; let tokens = p.tokens;
  let item = wid.y * p.groups_x + wid.x;
  let head = item / p.pieces;
  let column = item % p.pieces * COLUMNS + lid % COLUMNS;
  let here = head < p.count && column < columns;
  let h = head % heads;
  let key_head = h / (heads / key_heads);
  let first = lid / COLUMNS * ROWS;
  let state = (head * rows + first) * columns + column;
  var s: array<f32, ROWS>;
  var k: array<f32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    s[r] = 0.0;
    k[r] = 0.0;
    if (here && first + r < rows) { s[r] = load_4(state + r * columns); }
  }
  for (var t = 0u; t < tokens; t++) {
    let token = head / heads * tokens + t;
    let key = (token * key_heads + key_head) * rows + first;
    let value = token * heads + h;
    var u = 0.0;
    var a = 0.0;
    if (here) {
      u = load_2(value * columns + column);
#if BY_ROW
#else
      a = load_3(value);
#endif
    }
    var found = 0.0;
    for (var r = 0u; r < ROWS; r++) {
      if (here && first + r < rows) {
#if BY_ROW
        a = load_3(value * rows + first + r);
#endif
        k[r] = load_1(key + r);
        s[r] *= a;
        found += k[r] * s[r];
      }
    }
#if DELTA
    let all = column_sum(found, lid);
    if (here) { u = load_5(value) * (u - all); }
#endif
    var y = 0.0;
    for (var r = 0u; r < ROWS; r++) {
      if (here && first + r < rows) {
        s[r] += k[r] * u;
        y += s[r] * load_0(key + r);
      }
    }
    y = column_sum(y, lid);
    if (here && first == 0u) { store_0(value * columns + column, y); }
  }
  for (var r = 0u; r < ROWS; r++) {
    if (here && first + r < rows) { store_1(state + r * columns, s[r]); }
  }
}
