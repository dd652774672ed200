// What kernels over rows share: a row in quads, of which a thread takes every TEAM-th, or in packets of eight. A kernel takes the sections
// that it uses, and says what stands beyond a row's end (REST). Attention takes quads of several operands, under other names.

// default
const VEC: u32 = 1;
const EIGHTS: u32 = 1;
const HELD: u32 = 2;
const TEAM: u32 = 32;
const REST: f32 = 0.0;
const LOWEST: f32 = -3.0e38;
const AHEAD: u32 = 4;
alias X = vec4<u32>;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
fn store8_0(i: u32, v: vec4<f32>, w: vec4<f32>) { o_0[i / 4u] = v; o_0[i / 4u + 1u] = w; }
fn fetch_x(row: u32, v: u32, size: u32) -> X { return bitcast<X>(a_0[row * (size / 8u) + v]); }
fn low_x(p: X) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn high_x(p: X) -> vec4<f32> { return bitcast<vec4<f32>>(p); }
fn team_sum(v: f32) -> f32 { return v; }
fn team_max(v: f32) -> f32 { return v; }
// end

// section fetch
// Quad v of a row; REST beyond its end.
fn fetch(start: u32, cols: u32, v: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(REST);
  if (VEC == 1u) {
    if (c < cols) { x = load4_0(start + c); }
  } else {
    if (c < cols) { x.x = load_0(start + c); }
    if (c + 1u < cols) { x.y = load_0(start + c + 1u); }
    if (c + 2u < cols) { x.z = load_0(start + c + 2u); }
    if (c + 3u < cols) { x.w = load_0(start + c + 3u); }
  }
  return x;
}

// section fetch_inside
// Quad v of a row that reaches as far: no load waits for a condition.
fn fetch_inside(start: u32, cols: u32, v: u32) -> vec4<f32> {
  let c = 4u * v;
  var x = vec4<f32>(REST);
  if (VEC == 1u) {
    x = load4_0(start + c);
  } else {
    x.x = load_0(start + c);
    if (c + 1u < cols) { x.y = load_0(start + c + 1u); }
    if (c + 2u < cols) { x.z = load_0(start + c + 2u); }
    if (c + 3u < cols) { x.w = load_0(start + c + 3u); }
  }
  return x;
}

// section sum4
fn sum4(x: vec4<f32>) -> f32 { return (x.x + x.y) + (x.z + x.w); }

// section put
// Stores quad v of a row, as far as the row goes.
fn put(start: u32, cols: u32, v: u32, x: vec4<f32>) {
  let c = 4u * v;
  if (VEC == 1u) {
    if (c < cols) { store4_0(start + c, x); }
  } else {
    if (c < cols) { store_0(start + c, x.x); }
    if (c + 1u < cols) { store_0(start + c + 1u, x.y); }
    if (c + 2u < cols) { store_0(start + c + 2u, x.z); }
    if (c + 3u < cols) { store_0(start + c + 3u, x.w); }
  }
}

// section largest
fn max4(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }

// section top_sum
// The largest element of a row that is not held, and the sum of e^(element - largest), in one pass.
fn top_sum(row: u32, lane: u32, cols: u32) -> vec2<f32> {
  let packets = (cols + 7u) / 8u;
  var top = LOWEST; var sum = 0.0;
  for (var v = lane; v < packets; v += AHEAD * TEAM) {
    var x: array<X, AHEAD>;
    var most = vec4<f32>(LOWEST);
    for (var h = 0u; h < AHEAD; h++) { x[h] = fetch_x(row, min(v + h * TEAM, packets - 1u), cols); }
    for (var h = 0u; h < AHEAD; h++) { most = max(most, max(low_x(x[h]), high_x(x[h]))); }
    let t = max(top, max4(most));
    sum *= exp(top - t);
    for (var h = 0u; h < AHEAD; h++) {
      sum += select(0.0, sum4(exp(low_x(x[h]) - t) + exp(high_x(x[h]) - t)), v + h * TEAM < packets);
    }
    top = t;
  }
  let t = team_max(top);
  return vec2<f32>(t, team_sum(sum * exp(top - t)));
}

// section centre
// Quad v less the mean, where there are elements.
fn centre(cols: u32, v: u32, x: vec4<f32>, mean: f32) -> vec4<f32> {
  return select(vec4<f32>(0.0), x - mean, vec4<u32>(4u * v) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(cols));
}

// section packets
// Whether packet number h of a thread lies in the row: only the last one may not.
fn within(h: u32, lane: u32, cols: u32) -> bool { return h + 1u < HELD || lane + h * TEAM < (cols + 7u) / 8u; }

// section put8
// Stores packet v of a row, as far as the row goes.
fn put8(start: u32, cols: u32, v: u32, low: vec4<f32>, high: vec4<f32>) {
  let c = 8u * v;
  if (EIGHTS == 1u) {
    if (c < cols) { store8_0(start + c, low, high); }
  } else {
    put(start, cols, 2u * v, low);
    put(start, cols, 2u * v + 1u, high);
  }
}
