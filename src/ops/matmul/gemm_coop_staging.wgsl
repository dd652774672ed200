// Memory of the strips through which the results of gemm_coop.wgsl and expert_matmul_coop.wgsl leave, and how eight of a row are stored.
const STRIP_COLS: u32 = STRIP_FRAGMENTS * EDGE; // columns of a strip
const STRIP_PITCH: u32 = STRIP_COLS + 4u;
const STRIP_SIZE: u32 = EDGE * STRIP_PITCH;
const STRIP_EIGHTS: u32 = EDGE * STRIP_COLS / 8u; // of a strip
const TILE_EIGHTS: u32 = BM * BN / 8u; // eights of a tile
var<workgroup> arrived: u32;
var<private> row_start: u32;

#if COOP_VECTORS
var<workgroup> strip: array<vec4<f32>, WARPS_M * WARPS_N * STRIP_SIZE / 4u>;
fn sum(at: u32) -> f32 { return strip[at / 4u][at % 4u]; }
fn sums(at: u32) -> vec4<f32> { return strip[at / 4u]; }
#else
var<workgroup> strip: array<f32, WARPS_M * WARPS_N * STRIP_SIZE>;
fn sum(at: u32) -> f32 { return strip[at]; }
fn sums(at: u32) -> vec4<f32> { return vec4<f32>(strip[at], strip[at + 1u], strip[at + 2u], strip[at + 3u]); }
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
