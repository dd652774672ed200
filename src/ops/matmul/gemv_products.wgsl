// Which of several products of one left side a workgroup or a row belongs to, and how its weights are loaded and its results written. PAIRED: the
// two of them go row by row together, and the second's store reads what the first's has written. Otherwise each has workgroups of its own.

#if PRODUCTS > 1 && !PAIRED
var<private> part: u32;
fn locate(group: u32) -> u32 {
  var g = group;
  part = 0u;
#for P in 0..PRODUCTS - 1
  if (g < p.tiles_${P}) { return g; }
  g -= p.tiles_${P};
  part = ${P}u + 1u;
#endfor
  return g;
}
fn columns() -> u32 {
#for P in 1..PRODUCTS
  if (part == ${P}u) { return p.n_${P}; }
#endfor
  return p.n_0;
}
fn tiles_of() -> u32 {
#for P in 1..PRODUCTS
  if (part == ${P}u) { return p.tiles_${P}; }
#endfor
  return p.tiles_0;
}
fn chosen(p: u32) -> bool { return part == p; }
#else
fn locate(group: u32) -> u32 { return group; }
fn columns() -> u32 { return p.n_0; }
fn tiles_of() -> u32 { return p.tiles_0; }
fn chosen(p: u32) -> bool { return always(); }
#endif
fn place_in(p: u32, row: u32) -> u32 {
#for P in 1..PRODUCTS
  if (p == ${P}u) { return place_p${P}(row); }
#endfor
  return place_p0(row);
}
fn first_of(p: u32, at: u32, i: u32) -> vec4<u32> {
#for P in 1..PRODUCTS
  if (p == ${P}u) { return first_p${P}(at, i); }
#endfor
  return first_p0(at, i);
}
#if PLANES > 1
fn second_of(p: u32, at: u32, i: u32) -> vec4<u32> {
#for P in 1..PRODUCTS
  if (p == ${P}u) { return second_p${P}(at, i); }
#endfor
  return second_p0(at, i);
}
#endif
#if PLANES > 2
fn third_of(p: u32, at: u32, i: u32) -> vec4<u32> {
#for P in 1..PRODUCTS
  if (p == ${P}u) { return third_p${P}(at, i); }
#endfor
  return third_p0(at, i);
}
#endif

// How results are written, in groups of four or one by one, and what is asked for before.
#if !VEC_OUT
alias EpilogueReads = u32;
fn put(p: u32, i: u32, v: f32) {
#for P in 1..PRODUCTS
  if (${BY} == ${P}u) { store_${P}(i, v); return; }
#endfor
  store_0(i, v);
}
#elif PAIRED
alias EpilogueReads = u32;
fn read_epilogue(i: u32) -> EpilogueReads { return i; }
fn put4(p: u32, i: u32, v: vec4<f32>, e: EpilogueReads) {
  if (p == 1u) { store4_1(i, v); return; }
  store4_0(i, v);
}
#else
struct EpilogueReads {
#for P in 0..PRODUCTS
  e${P}: Reads_${P},
#endfor
}
fn read_epilogue(i: u32) -> EpilogueReads {
  var e: EpilogueReads;
#if PRODUCTS == 1
  e.e0 = reads4_0(i);
#else
#for P in 0..PRODUCTS
  if (part == ${P}u) { e.e${P} = reads4_${P}(i); }
#endfor
#endif
  return e;
}
fn put4(p: u32, i: u32, v: vec4<f32>, e: EpilogueReads) {
#for P in 1..PRODUCTS
  if (part == ${P}u) { write4_${P}(i, v, e.e${P}); return; }
#endfor
  write4_0(i, v, e.e0);
}
#endif
