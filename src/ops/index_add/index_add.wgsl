// Rows joined with those of a table: out[t, c] = table[t, c] with rows[i, c] for all i with index[i] = t, in order. HOW: 0 adds, 1 replaces,
// 2 multiplies, 3 takes the smaller, 4 the larger.
//
// A workgroup makes a piece of one row of the table, or several short rows: it looks through all indices, a batch at a time, and marks those
// that name one of its rows.
// Words: 0 rows of the table, 1 inner size, 2 count, 3 workgroups in x, 4 pieces of a row, 5 rows of a workgroup.

// default
const WORKGROUP: u32 = 256;
const VEC: u32 = 1;
const HOW: u32 = 0;
alias T_0 = f32;
alias T_1 = i32;
alias T_2 = f32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<i32>;
@group(0) @binding(4) var<storage, read> c_0: array<vec4<f32>>;
fn word(n: u32) -> u32 { return words[n]; }
fn fail(code: u32) { }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> i32 { return b_0[i]; }
fn load_2(i: u32) -> f32 { return c_0[i / 4u][i % 4u]; }
fn load4_2(i: u32) -> vec4<f32> { return c_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
// end

// What is added up.
alias Sum = f32;

fn joined(a: vec4<Sum>, b: vec4<Sum>) -> vec4<Sum> {
  if (HOW == 1u) { return b; }
  if (HOW == 2u) { return a * b; }
  if (HOW == 3u) { return select(b, a, a < b); }
  if (HOW == 4u) { return select(b, a, a > b); }
  return a + b;
}

var<workgroup> marks: array<atomic<u32>, (WORKGROUP + 31u) / 32u>;
// The row that each index of the batch names.
var<workgroup> named: array<u32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let rows = word(0u); let inner = word(1u); let count = word(2u); let pieces = word(4u); let group_rows = word(5u);
  let step = 1u + 3u * VEC;
  let item = wid.y * word(3u) + wid.x;
  let first_row = item / pieces * group_rows;
  // Threads of a row.
  let threads = WORKGROUP / group_rows;
  let row = first_row + lid / threads;
  let c = ((item % pieces) * threads + lid % threads) * step;
  let mine = lid < threads * group_rows && row < rows && c < inner;
  var sum = vec4<Sum>();
  if (mine) {
    if (VEC == 1u) { sum = vec4<Sum>(load4_0(row * inner + c)); } else { sum.x = Sum(load_0(row * inner + c)); }
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
          if (VEC == 1u) { sum = joined(sum, vec4<Sum>(load4_2(i * inner + c))); } else { sum.x = joined(sum, vec4<Sum>(Sum(load_2(i * inner + c)))).x; }
        }
      }
    }
    workgroupBarrier();
  }
  if (mine) {
    if (VEC == 1u) { store4_0(row * inner + c, sum); } else { store_0(row * inner + c, sum.x); }
  }
}
