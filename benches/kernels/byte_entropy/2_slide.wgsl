// A thread slides one window along 128 positions: one byte leaves, one enters, and the sum of c·log2 c changes by four terms.
// Limit: four logarithms a position, and counts that are still in memory.
//
// out[i] = entropy of bytes i - 128 .. i + 128, divided by 8.

fn f(c: f32) -> f32 { return select(c * log2(max(c, 1.0)), 0.0, c < 2.0); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = 128u * id.x;
  if (first >= p.bytes) { return; }
  var histogram: array<u32, 256>;
  for (var i = first - min(first, 128u); i < min(first + 128u, p.bytes); i++) { histogram[load_0(i)]++; }
  var sum = 0.0;
  for (var v = 0u; v < 256u; v++) { sum += f(f32(histogram[v])); }
  for (var i = first; i < min(first + 128u, p.bytes); i++) {
    let bytes = f32(min(i + 128u, p.bytes) - (i - min(i, 128u)));
    store_0(i, (log2(bytes) - sum / bytes) / 8.0);
    if (i >= 128u) {
      let v = load_0(i - 128u);
      let c = f32(histogram[v]);
      sum += f(c - 1.0) - f(c);
      histogram[v]--;
    }
    if (i + 128u < p.bytes) {
      let v = load_0(i + 128u);
      let c = f32(histogram[v]);
      sum += f(c + 1.0) - f(c);
      histogram[v]++;
    }
  }
}
