// Softmax of rows of `p.cols` elements, at most 2048, a workgroup each. BLOCKED keeps the row in workgroup memory between the passes;
// without it each pass reads the row again.
struct Params { cols: u32 }
var<workgroup> kept: array<f32, 2048>;
var<workgroup> parts: array<f32, WORKGROUP>;

fn value(base: u32, i: u32) -> f32 {
  if (BLOCKED == 1u) { return kept[i]; }
  return load_0(base + i);
}

fn greatest(lid: u32, own: f32) -> f32 {
  parts[lid] = own;
  workgroupBarrier();
  for (var step = WORKGROUP / 2u; step > 0u; step /= 2u) {
    if (lid < step) { parts[lid] = max(parts[lid], parts[lid + step]); }
    workgroupBarrier();
  }
  let all = parts[0];
  workgroupBarrier();
  return all;
}

fn total(lid: u32, own: f32) -> f32 {
  parts[lid] = own;
  workgroupBarrier();
  for (var step = WORKGROUP / 2u; step > 0u; step /= 2u) {
    if (lid < step) { parts[lid] += parts[lid + step]; }
    workgroupBarrier();
  }
  let all = parts[0];
  workgroupBarrier();
  return all;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let cols = p.cols; let base = wid.x * cols;
  if (BLOCKED == 1u) {
    for (var i = lid; i < cols; i += WORKGROUP) { kept[i] = load_0(base + i); }
    workgroupBarrier();
  }
  var most = value(base, lid % cols);
  for (var i = lid; i < cols; i += WORKGROUP) { most = max(most, value(base, i)); }
  most = greatest(lid, most);
  var sum = 0.0;
  for (var i = lid; i < cols; i += WORKGROUP) { sum += exp(value(base, i) - most); }
  sum = total(lid, sum);
  for (var i = lid; i < cols; i += WORKGROUP) { store_0(base + i, exp(value(base, i) - most) / sum); }
}
