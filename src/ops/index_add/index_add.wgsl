// Rows joined with those of a table: out[t, c] = table[t, c] with rows[i, c] for all i with index[i] = t, in order. HOW: 0 adds, 1 replaces,
// 2 multiplies, 3 takes the smaller, 4 the larger.
//
// A workgroup makes a piece of one row of the table, or several short rows: it looks through all indices, a batch at a time, and marks those
// that name one of its rows.

// What is added up.
alias Sum = ${SUM};

#if FLOAT
fn is_nan(x: vec4<Sum>) -> vec4<bool> {
  return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
}
// a where `first` says so, else b; NaN where one of them is, whatever a comparison with it gives.
fn chosen(a: vec4<Sum>, b: vec4<Sum>, first: vec4<bool>) -> vec4<Sum> {
  return select(select(select(b, a, first), b, is_nan(b)), a, is_nan(a));
}
#else
fn chosen(a: vec4<Sum>, b: vec4<Sum>, first: vec4<bool>) -> vec4<Sum> { return select(b, a, first); }
#endif

fn joined(a: vec4<Sum>, b: vec4<Sum>) -> vec4<Sum> {
  if (HOW == 1u) { return b; }
  if (HOW == 2u) { return a * b; }
  if (HOW == 3u) { return chosen(a, b, a < b); }
  if (HOW == 4u) { return chosen(a, b, a > b); }
  return a + b;
}

var<workgroup> marks: array<atomic<u32>, (WORKGROUP + 31u) / 32u>;
// The row that each index of the batch names.
var<workgroup> named: array<u32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let rows = p.rows; let inner = p.inner; let count = p.count; let pieces = p.pieces; let group_rows = p.group_rows;
  let step = 1u + 3u * VEC;
  let item = wid.y * p.groups_x + wid.x;
  let first_row = item / pieces * group_rows;
  // Threads of a row.
  let threads = WORKGROUP / group_rows;
  let row = first_row + lid / threads;
  let c = ((item % pieces) * threads + lid % threads) * step;
  let mine = lid < threads * group_rows && row < rows && c < inner;
  var sum = vec4<Sum>();
  if (mine) {
#if VEC
    { sum = vec4<Sum>(load4_0(row * inner + c)); }
#else
    { sum.x = Sum(load_0(row * inner + c)); }
#endif
  }
  for (var first = 0u; first < count; first += WORKGROUP) {
    if (lid < (WORKGROUP + 31u) / 32u) { atomicStore(&marks[lid], 0u); }
    workgroupBarrier();
    if (first + lid < count) {
      let t = u32(load_1(first + lid));
      if (t >= rows) { fail(t); }
      named[lid] = t;
      // Of rows before the first the difference is large.
      if (t - first_row < group_rows) { atomicOr(&marks[lid / 32u], 1u << (lid % 32u)); }
    }
    workgroupBarrier();
    for (var w = 0u; w < (WORKGROUP + 31u) / 32u; w++) {
      var bits = atomicLoad(&marks[w]);
      while (bits != 0u) {
        let at = w * 32u + firstTrailingBit(bits);
        let i = first + at;
        bits &= bits - 1u;
        if (mine && named[at] == row) {
#if VEC
          { sum = joined(sum, vec4<Sum>(load4_2(i * inner + c))); }
#else
          { sum.x = joined(sum, vec4<Sum>(Sum(load_2(i * inner + c)))).x; }
#endif
        }
      }
    }
    workgroupBarrier();
  }
  if (mine) {
#if VEC
    { store4_0(row * inner + c, sum); }
#else
    { store_0(row * inner + c, sum.x); }
#endif
  }
}
