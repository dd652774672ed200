// A thread for each position counts all 256 bytes around it, then adds up p·log2 p of each value.
// Limit: every position costs 256 reads and 256 logarithms, on counts that lie in a kilobyte of memory of each thread.
//
// out[i] = entropy of bytes i - 128 .. i + 128, divided by 8. Words: 0 bytes.
//
// With the start as `max(0u, id - 128u)`, which is how one may write it in C, the first 128 results are 0: the difference wraps around.

// default
@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load_0(i: u32) -> i32 { return x[i]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
// end

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= word(0u)) { return; }
  let start = id.x - min(id.x, 128u);
  let end = min(id.x + 128u, word(0u));
  var histogram: array<u32, 256>;
  for (var i = start; i < end; i++) { histogram[load_0(i)]++; }
  var entropy = 0.0;
  for (var v = 0u; v < 256u; v++) {
    if (histogram[v] > 0u) {
      let p = f32(histogram[v]) / f32(end - start);
      entropy -= p * log2(p);
    }
  }
  store_0(id.x, entropy / 8.0);
}
