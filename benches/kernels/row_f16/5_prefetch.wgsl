// Four reads of weights are under way before the first is used.
// Limit: memory. On an H100 the rungs before are there already.
//
// K is a multiple of 8. out[n] = sum over k of x[k] * w[n, k]. Words: 0 N, 1 K.

// default
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> raw_1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> words: vec4<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn load4_0(i: u32) -> vec4<f32> { return x[i / 4u]; }
fn store_0(i: u32, v: f32) { out[i] = v; }
const WORKGROUP: u32 = 128;
const SUBGROUP: u32 = 32;
// end

fn halves(w: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }
// The products of eight weights; none beyond the row's end.
fn eight(w: vec4<u32>, v: u32, eights: u32) -> f32 {
  let at = 8u * min(v, eights - 1u);
  return select(0.0, dot(load4_0(at), halves(w.xy)) + dot(load4_0(at + 4u), halves(w.zw)), v < eights);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % SUBGROUP; let eights = word(1u) / 8u;
  let own = group.x * (WORKGROUP / SUBGROUP) + thread / SUBGROUP;
  let n = min(own, word(0u) - 1u);
  let start = n * eights; let last = eights - 1u;
  var sum = 0.0;
  for (var v = lane; v < eights; v += 4u * SUBGROUP) {
    let v1 = v + SUBGROUP; let v2 = v1 + SUBGROUP; let v3 = v2 + SUBGROUP;
    let w0 = raw_1[start + v]; let w1 = raw_1[start + min(v1, last)];
    let w2 = raw_1[start + min(v2, last)]; let w3 = raw_1[start + min(v3, last)];
    sum += (eight(w0, v, eights) + eight(w1, v1, eights)) + (eight(w2, v2, eights) + eight(w3, v3, eights));
  }
  sum = subgroupAdd(sum);
  if (lane == 0u && own < word(0u)) { store_0(n, sum); }
}
