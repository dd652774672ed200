// A weight in blocks as floats: each thread unpacks an item of it into workgroup memory, from where neighbours store neighbouring eights.
//
// A format says how an item's quads lie and what they are, see matvec.wgsl and block_items.wgsl.
// Words: 0 workgroups in x, 1 items, 2 elements, 5 and 6 the start in elements.

// default
const WORKGROUP: u32 = 128;
const QUADS: u32 = 8;
const STRIPS: u32 = 1;
const SPAN: u32 = 8;
const PARTS: u32 = 1;
const SECOND: u32 = 1;
const THIRD: u32 = 0;
@group(0) @binding(0) var<storage, read> wide_0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> o_0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
fn place(row: u32) -> u32 { return word(5u) + word(6u) + row; }
fn first(at: u32, i: u32) -> vec4<u32> { return wide_0[at + i]; }
fn second(at: u32, i: u32) -> vec4<u32> { return wide_0[at + i]; }
fn third(at: u32, i: u32) -> vec4<u32> { return wide_0[at + i]; }
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x); }
fn scale(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, s: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }
fn store8_0(i: u32, v: vec4<f32>, w: vec4<f32>) { o_0[i / 4u] = v; o_0[i / 4u + 1u] = w; }
// end

const WIDTH: u32 = QUADS / STRIPS; // neighbouring quads of an item
const TWINS: u32 = SPAN / WIDTH; // items that share a span of quads
const PART: u32 = QUADS / PARTS; // quads of a part
var<workgroup> tile: array<vec4<f32>, WORKGROUP * (QUADS + 1u)>;

// Where quad q of a workgroup lies: neighbouring threads write to different banks.
fn local(q: u32) -> u32 { return q + q / QUADS; }
// The place in memory of quad c of item i.
fn quad_of(i: u32, c: u32) -> u32 { return i / TWINS * (SPAN * STRIPS) + c / WIDTH * SPAN + i % TWINS * WIDTH + c % WIDTH; }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * word(0u) + wid.x;
  let i = min(group * WORKGROUP + lid, word(1u) - 1u);
  let at = place(0u);
  let x = first(at, i);
  var y = vec4<u32>(0u); var z = vec4<u32>(0u);
  if (SECOND == 1u) { y = second(at, i); }
  if (THIRD == 1u) { z = third(at, i); }
  for (var s = 0u; s < PARTS; s++) {
    let by = scale(x, y, z, i, s);
    for (var q = 0u; q < PART; q++) {
      let c = s * PART + q;
      // A workgroup has whole spans of items.
      tile[local(quad_of(lid, c))] = fma(quad(x, y, z, i, c), vec4<f32>(by.x), vec4<f32>(by.y));
    }
  }
  workgroupBarrier();
  for (var e = 0u; e < QUADS / 2u; e++) {
    let u = 2u * (lid + e * WORKGROUP);
    let to = 4u * (group * WORKGROUP * QUADS + u);
    if (to < word(2u)) { store8_0(to, tile[local(u)], tile[local(u + 1u)]); }
  }
}
