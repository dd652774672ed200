// Four reads of weights are under way before the first is used.
// Limit: memory. On an H100 the variants before are there already.
//
// K is a multiple of 8. out[n] = sum over k of x[k] * w[n, k].

fn halves(w: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }
// The products of eight weights; none beyond the row's end.
fn eight(w: vec4<u32>, v: u32, eights: u32) -> f32 {
  let at = 8u * min(v, eights - 1u);
  return select(0.0, dot(load4_0(at), halves(w.xy)) + dot(load4_0(at + 4u), halves(w.zw)), v < eights);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % SUBGROUP; let eights = p.k / 8u;
  let own = group.x * (WORKGROUP / SUBGROUP) + thread / SUBGROUP;
  let n = min(own, p.n - 1u);
  let start = n * eights; let last = eights - 1u;
  var sum = 0.0;
  for (var v = lane; v < eights; v += 4u * SUBGROUP) {
    let v1 = v + SUBGROUP; let v2 = v1 + SUBGROUP; let v3 = v2 + SUBGROUP;
    let w0 = raw_1[start + v]; let w1 = raw_1[start + min(v1, last)];
    let w2 = raw_1[start + min(v2, last)]; let w3 = raw_1[start + min(v3, last)];
    sum += (eight(w0, v, eights) + eight(w1, v1, eights)) + (eight(w2, v2, eights) + eight(w3, v3, eights));
  }
  sum = subgroupAdd(sum);
  if (lane == 0u && own < p.n) { store_0(n, sum); }
}
