// Quads of rows as attention reads and writes them: it takes these sections under other names, for several operands, and says what stands
// beyond a row's end (REST).

// default
const VEC: u32 = 1;
const REST: f32 = 0.0;
@group(0) @binding(0) var<storage, read> a_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
fn load_0(i: u32) -> f32 { return a_0[i / 4u][i % 4u]; }
fn load4_0(i: u32) -> vec4<f32> { return a_0[i / 4u]; }
fn store_0(i: u32, v: f32) { o_0[i / 4u][i % 4u] = v; }
fn store4_0(i: u32, v: vec4<f32>) { o_0[i / 4u] = v; }
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
