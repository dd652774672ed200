// Maximum of a quad, and `row_max_sum`: a row's maximum and the sum of e^(element - maximum).
//
// The kernel has LOWEST, the PREFETCH vectors that a thread has under way, ROW_THREADS, and the functions `fetch_x`, `low_x`, `high_x`, `sum4`,
// `row_max` and `row_sum`.
fn max4(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }

// The largest element of a row that is not resident, and the sum of e^(element - largest), in one pass.
fn row_max_sum(row: u32, lane: u32, cols: u32) -> vec2<f32> {
  let vectors = (cols + 7u) / 8u;
  var top = LOWEST; var sum = 0.0;
  for (var v = lane; v < vectors; v += PREFETCH * ROW_THREADS) {
    var x: array<X, PREFETCH>;
    var most = vec4<f32>(LOWEST);
#unroll
    for (var h = 0u; h < PREFETCH; h++) { x[h] = fetch_x(row, min(v + h * ROW_THREADS, vectors - 1u), cols); }
#unroll
    for (var h = 0u; h < PREFETCH; h++) { most = max(most, max(low_x(x[h]), high_x(x[h]))); }
    let t = max(top, max4(most));
    sum *= exp(top - t);
#unroll
    for (var h = 0u; h < PREFETCH; h++) {
      sum += select(0.0, sum4(exp(low_x(x[h]) - t) + exp(high_x(x[h]) - t)), v + h * ROW_THREADS < vectors);
    }
    top = t;
  }
  let t = row_max(top);
  return vec2<f32>(t, row_sum(sum * exp(top - t)));
}
