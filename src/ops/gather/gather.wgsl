// Rows of a table: out[i, c] = table[index[i], c]. An index outside the table is clamped and reported.
//
// Words: 0 rows of the table, 1 inner size, 2 count, 3 workgroups in x.

// default
const WORKGROUP: u32 = 256;
const VEC: u32 = 1;
alias T_0 = f32;
alias T_1 = i32;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> b_0: array<i32>;
fn word(n: u32) -> u32 { return words[n]; }
fn fail(code: u32) { }
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn load_1(i: u32) -> i32 { return b_0[i]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
// end

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let rows = word(0u); let inner = word(1u); let count = word(2u);
  let step = 1u + 3u * VEC;
  let width = inner / step;
  let i = (wid.y * word(3u) + wid.x) * WORKGROUP + lid;
  let r = i / width;
  if (r < count) {
    let c = (i - r * width) * step;
    // A negative i32 is a large u32.
    var t = u32(load_1(r));
    if (t >= rows) { fail(t); t = select(rows - 1u, 0u, (t & 0x80000000u) != 0u); }
    if (VEC == 1u) { store4_0(r * inner + c, load4_0(t * inner + c)); } else { store_0(r * inner + c, load_0(t * inner + c)); }
  }
}
