// A subgroup for each result: threads in lockstep add up their parts by one instruction, without memory and without barriers.
// Limit: memory on an H100.
//
// K is a multiple of 8. out[n] = sum over k of x[k] * w[n, k].

fn halves(w: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % SUBGROUP; let eights = p.k / 8u;
  let own = group.x * (WORKGROUP / SUBGROUP) + thread / SUBGROUP;
  let n = min(own, p.n - 1u); // beyond the end the last row again, for nobody: all threads must reach subgroupAdd
  var sum = 0.0;
  for (var v = lane; v < eights; v += SUBGROUP) {
    let w = raw_1[n * eights + v];
    sum += dot(load4_0(8u * v), halves(w.xy)) + dot(load4_0(8u * v + 4u), halves(w.zw));
  }
  sum = subgroupAdd(sum);
  if (lane == 0u && own < p.n) { store_0(n, sum); }
}
