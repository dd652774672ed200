// Finds out whether subgroups of 32 threads add up: each thread writes its subgroup's sum and size.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32) {
  y[i] = subgroupAdd(x[i]);
  y[64u + i] = f32(size);
}
