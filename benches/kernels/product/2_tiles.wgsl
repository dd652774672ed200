// 256 threads share what they read: square tiles of both operands are brought to workgroup memory, and each number there is used 16 times.
// Limit: each multiplication still reads two numbers, now from workgroup memory.
//
// out[m, n] = sum over k of a[m, k] * b[k, n]. Words: 0 M, 1 N, 2 K.

// default
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> f32 { return a[i]; }
fn load_1(i: u32) -> f32 { return b[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

const EDGE: u32 = 16;
var<workgroup> a_tile: array<f32, EDGE * EDGE>;
var<workgroup> b_tile: array<f32, EDGE * EDGE>;

// Zero beyond the matrix. Something is read in any case: a load under a branch would be waited for at once.
fn fetch_a(m: u32, k: u32) -> f32 {
  let v = load_0(min(m, word(0u) - 1u) * word(2u) + min(k, word(2u) - 1u));
  return select(0.0, v, m < word(0u) && k < word(2u));
}
fn fetch_b(k: u32, n: u32) -> f32 {
  let v = load_1(min(k, word(2u) - 1u) * word(1u) + min(n, word(1u) - 1u));
  return select(0.0, v, k < word(2u) && n < word(1u));
}

@compute @workgroup_size(EDGE, EDGE)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>) {
  let place = own.y * EDGE + own.x;
  var sum = 0.0;
  for (var k0 = 0u; k0 < word(2u); k0 += EDGE) {
    a_tile[place] = fetch_a(id.y, k0 + own.x);
    b_tile[place] = fetch_b(k0 + own.y, id.x);
    workgroupBarrier();
    for (var k = 0u; k < EDGE; k++) { sum += a_tile[own.y * EDGE + k] * b_tile[k * EDGE + own.x]; }
    workgroupBarrier();
  }
  if (id.y < word(0u) && id.x < word(1u)) { store_0(id.y * word(1u) + id.x, sum); }
}
