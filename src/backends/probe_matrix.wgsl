// Finds out whether matrix units multiply two matrices of 8 × 8 in f16, with sums in f32.
enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(0) var<storage, read> x: array<f16>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(32)
fn main() {
  let a = coopLoad<coop_mat8x8<f16, A>>(&x[0], 8u);
  let b = coopLoad<coop_mat8x8<f16, B>>(&x[64], 8u);
  let c = coopMultiplyAdd(a, b, coop_mat8x8<f32, C>());
  coopStore(c, &y[0], 8u);
}
