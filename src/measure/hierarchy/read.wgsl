// Each workgroup reads `word(2u)` pieces of 4 KiB in order, and begins again at the end of the set: a set that is small is read often.
// Words: 0 elements, 1 pieces of the set, 2 pieces that a workgroup reads.
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  var piece = (wid.x * word(2u)) % word(1u);
  var sum = vec4<f32>();
  for (var i = 0u; i < word(2u); i++) {
    sum += load4_0(4u * (piece * WORKGROUP + lid));
    piece = select(piece + 1u, 0u, piece + 1u == word(1u));
  }
  store_0(wid.x * WORKGROUP + lid, (sum.x + sum.y) + (sum.z + sum.w));
}
