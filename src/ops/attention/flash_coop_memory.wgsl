// What attention by cooperative matrices and its gradients keep in workgroup memory: the tile, the powers of two that are multiplied (`parts`) and
// the scores (`score_tiles`), as vectors where a matrix may be loaded through a pointer to them; and what subgroups wait by.

#include "subgroup_barrier.wgsl"
// What a subgroup agrees on, said so that compilers see it and do not prepare for threads that part.
fn subgroup_any(v: bool) -> bool { return subgroupAny(v); }

#if COOP_VECTORS
#include "coop_tile_vectors.wgsl"
var<workgroup> parts: array<vec4<f16>, PARTS * ROWS * PITCH_P / 4u>;
fn put_part(at: u32, v: vec4<f32>) { parts[at] = vec4<f16>(v); }
var<workgroup> score_tiles: array<vec4<f32>, SCORE_TILES * ROWS * PITCH_S / 4u>;
fn scores(at: u32) -> vec4<f32> { return score_tiles[at / 4u]; }
fn put_score(at: u32, v: vec4<f32>) { score_tiles[at / 4u] = v; }
#else
#include "coop_tile_scalars.wgsl"
var<workgroup> parts: array<f16, PARTS * ROWS * PITCH_P>;
fn put_part(at: u32, v: vec4<f32>) {
  let h = vec4<f16>(v);
  parts[at] = h.x; parts[at + 1u] = h.y; parts[at + 2u] = h.z; parts[at + 3u] = h.w;
}
var<workgroup> score_tiles: array<f32, SCORE_TILES * ROWS * PITCH_S>;
fn scores(at: u32) -> vec4<f32> { return vec4<f32>(score_tiles[at], score_tiles[at + 1u], score_tiles[at + 2u], score_tiles[at + 3u]); }
fn put_score(at: u32, v: vec4<f32>) { score_tiles[at] = v.x; score_tiles[at + 1u] = v.y; score_tiles[at + 2u] = v.z; score_tiles[at + 3u] = v.w; }
#endif
