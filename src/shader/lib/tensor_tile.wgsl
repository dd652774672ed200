// A tile of a product of f16 operands with sums in f32, which Metal 4's tensor operations compute where a text may use them: `tensor_tile${S}` leaves in
// `tile_sums` the products of 64 rows of ${A} with 64 rows of ${B}. All 128 threads of a workgroup call it, and need a barrier before they read the sums.
// An operand is stored in lines: a line is a row of k, or, where the operand is TRANSPOSED, what all rows have at one k. Lines begin at whole eights, and
// are whole eights long. `a` and `b` are where the tile begins, `a_line` and `b_line` the distances between lines, all in eights; `a_rows` and `b_rows`
// say how many rows there are from the tile's first one on. Sums beyond those rows are not for use.
// MEMORY: declares `tile_sums`, once in a text.

#if MEMORY
const TENSOR_TILE: u32 = 64u;
var<workgroup> tile_sums: array<f32, 4096>;

// Eight halves, each as a float, `step` apart.
fn tensor_stage(at: u32, step: u32, e: vec4<u32>) {
#unroll
  for (var i = 0u; i < 4u; i++) {
    let pair = unpack2x16float(e[i]);
    tile_sums[at + 2u * i * step] = pair.x;
    tile_sums[at + (2u * i + 1u) * step] = pair.y;
  }
}
#endif

// Sixteen columns of k at a time in the memory of the sums, an eight of each operand a thread: those of A, then those of B, in lines of 64 rows. A thread
// has four neighbouring rows, and every eighth column.
fn tensor_tile${S}(a: u32, a_line: u32, a_rows: u32, b: u32, b_line: u32, b_rows: u32, k: u32, lid: u32) {
  var sums: array<vec4<f32>, 8>;
  let top = lid / 8u * 4u; let left = lid % 8u;
  for (var k0 = 0u; k0 < k; k0 += 16u) {
    var e = vec4<u32>(); var f = vec4<u32>();
    workgroupBarrier();
#if TRANSPOSED_A
    let a_k = k0 + lid / 8u; let a_piece = lid % 8u;
    if (a_k < k && 8u * a_piece < a_rows) { e = ${A}[a + a_k * a_line + a_piece]; }
    tensor_stage(lid / 8u * 64u + 8u * a_piece, 1u, e);
#else
    let a_row = lid / 2u; let a_piece = k0 / 8u + lid % 2u;
    if (a_row < a_rows && 8u * a_piece < k) { e = ${A}[a + a_row * a_line + a_piece]; }
    tensor_stage(lid % 2u * 512u + a_row, 64u, e);
#endif
#if TRANSPOSED_B
    let b_k = k0 + lid / 8u; let b_piece = lid % 8u;
    if (b_k < k && 8u * b_piece < b_rows) { f = ${B}[b + b_k * b_line + b_piece]; }
    tensor_stage(1024u + lid / 8u * 64u + 8u * b_piece, 1u, f);
#else
    let b_row = lid / 2u; let b_piece = k0 / 8u + lid % 2u;
    if (b_row < b_rows && 8u * b_piece < k) { f = ${B}[b + b_row * b_line + b_piece]; }
    tensor_stage(1024u + lid % 2u * 512u + b_row, 64u, f);
#endif
    workgroupBarrier();
    for (var i = 0u; i < 16u; i++) {
      let at = 64u * i + top;
      let x = vec4<f32>(tile_sums[at], tile_sums[at + 1u], tile_sums[at + 2u], tile_sums[at + 3u]);
#unroll
      for (var j = 0u; j < 8u; j++) { sums[j] += x * tile_sums[1024u + 64u * i + left + 8u * j]; }
    }
  }
  workgroupBarrier();
#unroll
  for (var j = 0u; j < 8u; j++) {
#unroll
    for (var r = 0u; r < 4u; r++) { tile_sums[(top + r) * 64u + left + 8u * j] = sums[j][r]; }
  }
}
/* metal: tensor_tile${S}
    // Extents are those of a line and the number of lines: the operation takes k from them, and looks at nothing beyond.
    typedef metal::tensor<device half, metal::dextents<int, 2>, metal::tensor_inline> Lines;
    constexpr auto tile = mpp::tensor_ops::matmul2d_descriptor(64, 64, int(metal::dynamic_extent), bool(${TRANSPOSED_A}), !bool(${TRANSPOSED_B}));
    mpp::tensor_ops::matmul2d<tile, metal::execution_simdgroups<4>> product;
#if TRANSPOSED_A
    const auto sides_a = metal::dextents<int, 2>(int(a_rows), int(k));
#else
    const auto sides_a = metal::dextents<int, 2>(int(k), int(a_rows));
#endif
#if TRANSPOSED_B
    const auto sides_b = metal::dextents<int, 2>(int(b_rows), int(k));
#else
    const auto sides_b = metal::dextents<int, 2>(int(k), int(b_rows));
#endif
    Lines lines_a((device half*)(&${A}[a]), sides_a, metal::array<int, 2>{1, int(8u * a_line)});
    Lines lines_b((device half*)(&${B}[b]), sides_b, metal::array<int, 2>{1, int(8u * b_line)});
    auto results = product.get_destination_cooperative_tensor<Lines, Lines, float>();
    product.run(lines_a, lines_b, results);
    metal::tensor<threadgroup float, metal::dextents<int, 2>, metal::tensor_inline> out(&tile_sums.inner[0], metal::dextents<int, 2>(64, 64));
    results.store(out);
*/
