// Memory in which the results of gemm_coop.wgsl and expert_matmul_coop.wgsl are staged, and how eight of a row are stored.
const STAGING_COLS: u32 = STAGED_FRAGMENTS * EDGE; // columns that a subgroup stages at a time
const STAGING_PITCH: u32 = STAGING_COLS + 4u;
const STAGING_SIZE: u32 = EDGE * STAGING_PITCH;
const STAGING_EIGHTS: u32 = EDGE * STAGING_COLS / 8u; // of what it stages
const TILE_EIGHTS: u32 = BM * BN / 8u; // eights of a tile
var<workgroup> arrived: u32;
var<private> row_start: u32;

#if COOP_VECTORS
var<workgroup> staging: array<vec4<f32>, WARPS_M * WARPS_N * STAGING_SIZE / 4u>;
fn sum(at: u32) -> f32 { return staging[at / 4u][at % 4u]; }
fn sums(at: u32) -> vec4<f32> { return staging[at / 4u]; }
#else
var<workgroup> staging: array<f32, WARPS_M * WARPS_N * STAGING_SIZE>;
fn sum(at: u32) -> f32 { return staging[at]; }
fn sums(at: u32) -> vec4<f32> { return vec4<f32>(staging[at], staging[at + 1u], staging[at + 2u], staging[at + 3u]); }
#endif

// Eight results of a row, of which `there` are columns.
fn store_row8(i: u32, there: u32, v: vec4<f32>, w: vec4<f32>) {
#if EIGHT_OUT
  {
    store8_0(i, v, w);
  }
#else
  {
#if VEC_OUT
    {
      store4_0(i, v);
      if (there > 4u) { store4_0(i + 4u, w); }
    }
#else
    {
      if (there > 0u) { store_0(i, v.x); } if (there > 1u) { store_0(i + 1u, v.y); }
      if (there > 2u) { store_0(i + 2u, v.z); } if (there > 3u) { store_0(i + 3u, v.w); }
      if (there > 4u) { store_0(i + 4u, w.x); } if (there > 5u) { store_0(i + 5u, w.y); }
      if (there > 6u) { store_0(i + 6u, w.z); } if (there > 7u) { store_0(i + 7u, w.w); }
    }
#endif
  }
#endif
}
