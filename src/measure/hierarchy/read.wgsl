// Each workgroup reads `p.reads` pieces of 4 KiB in order, and begins again at the end of the set: a set that is small is read often.
struct Params {
  elements: u32,
  pieces: u32, // of the set
  reads: u32, // pieces that a workgroup reads
}
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  var piece = (wid.x * p.reads) % p.pieces;
  var sum = vec4<f32>();
  for (var i = 0u; i < p.reads; i++) {
    sum += load4_0(4u * (piece * WORKGROUP + lid));
    piece = select(piece + 1u, 0u, piece + 1u == p.pieces);
  }
  store_0(wid.x * WORKGROUP + lid, (sum.x + sum.y) + (sum.z + sum.w));
}
