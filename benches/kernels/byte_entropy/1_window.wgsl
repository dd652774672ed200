// A thread for each position counts all 256 bytes around it, then adds up p·log2 p of each value.
// Limit: every position costs 256 reads and 256 logarithms, on counts that lie in a kilobyte of memory of each thread.
//
// out[i] = entropy of bytes i - 128 .. i + 128, divided by 8.
//
// With the start as `max(0u, id - 128u)`, which is how one may write it in C, the first 128 results are 0: the difference wraps around.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let at = (group.y * groups.x + group.x) * 64u + lane;
  if (at >= p.bytes) { return; }
  let start = at - min(at, 128u);
  let end = min(at + 128u, p.bytes);
  var histogram: array<u32, 256>;
  for (var i = start; i < end; i++) { histogram[load_0(i)]++; }
  var entropy = 0.0;
  for (var v = 0u; v < 256u; v++) {
    if (histogram[v] > 0u) {
      let p = f32(histogram[v]) / f32(end - start);
      entropy -= p * log2(p);
    }
  }
  store_0(at, entropy / 8.0);
}
