// Maximum of a quad, and `top_sum`: a row's maximum and the sum of e^(element - maximum).
//
// The kernel has LOWEST, the AHEAD packets that a thread has under way, TEAM, and the functions `fetch_x`, `low_x`, `high_x`, `sum4`, `team_max` and
// `team_sum`.
fn max4(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }

// The largest element of a row that is not held, and the sum of e^(element - largest), in one pass.
fn top_sum(row: u32, lane: u32, cols: u32) -> vec2<f32> {
  let packets = (cols + 7u) / 8u;
  var top = LOWEST; var sum = 0.0;
  for (var v = lane; v < packets; v += AHEAD * TEAM) {
    var x: array<X, AHEAD>;
    var most = vec4<f32>(LOWEST);
#unroll
    for (var h = 0u; h < AHEAD; h++) { x[h] = fetch_x(row, min(v + h * TEAM, packets - 1u), cols); }
#unroll
    for (var h = 0u; h < AHEAD; h++) { most = max(most, max(low_x(x[h]), high_x(x[h]))); }
    let t = max(top, max4(most));
    sum *= exp(top - t);
#unroll
    for (var h = 0u; h < AHEAD; h++) {
      sum += select(0.0, sum4(exp(low_x(x[h]) - t) + exp(high_x(x[h]) - t)), v + h * TEAM < packets);
    }
    top = t;
  }
  let t = team_max(top);
  return vec2<f32>(t, team_sum(sum * exp(top - t)));
}
