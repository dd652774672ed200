// Finds out whether a GPU computes right at all: values one by one, sums through workgroup memory with barriers, and the product of two 8 × 8 matrices from
// tiles in workgroup memory. All are whole numbers.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> sums: array<f32, 64>;
var<workgroup> tile: array<f32, 128>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lid: u32) {
  y[lid] = 2.0 * x[lid] + 1.0;
  sums[lid] = x[lid];
  for (var span = 32u; span > 0u; span /= 2u) {
    workgroupBarrier();
    if (lid < span) { sums[lid] += sums[lid + span]; }
  }
  workgroupBarrier();
  y[64u + lid] = sums[0];
  // Each thread writes what others read.
  tile[63u - lid] = x[63u - lid];
  tile[127u - lid] = x[127u - lid];
  workgroupBarrier();
  var product = 0.0;
  for (var k = 0u; k < 8u; k++) { product += tile[lid / 8u * 8u + k] * tile[64u + k * 8u + lid % 8u]; }
  y[128u + lid] = product;
}
