// The largest and the sum in one walk: whenever a larger element comes, the sum so far is scaled to it.
// Limit: the row is read twice, though from caches the second time: on an H100 it gains nothing.
//
// out[r, c] = exp(x[r, c] - top) / sum over c of the same.

const ROW_THREADS: u32 = 256;
var<workgroup> parts: array<vec2<f32>, ROW_THREADS>;

// What is known of two sets of elements together; of each its largest and the sum of exponentials relative to that.
fn both(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let top = max(a.x, b.x);
  return vec2<f32>(top, a.y * exp(a.x - top) + b.y * exp(b.x - top));
}

@compute @workgroup_size(ROW_THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let cols = p.cols; let start = group.x * cols;
  var own = vec2<f32>(-3.0e38, 0.0);
  for (var c = lane; c < cols; c += ROW_THREADS) { own = both(own, vec2<f32>(load_0(start + c), 1.0)); }
  parts[lane] = own;
  for (var half = ROW_THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] = both(parts[lane], parts[lane + half]); }
  }
  let all = workgroupUniformLoad(&parts[0]);
  for (var c = lane; c < cols; c += ROW_THREADS) { store_0(start + c, exp(load_0(start + c) - all.x) / all.y); }
}
