// Finds out whether Metal 4's tensor operations multiply as their WGSL does: operands in rows of k, of which the last tile and the last columns are not
// whole, and transposed ones of a whole tile. Two sets of operands, one behind the other; the results of each follow those of the one before.

const K: u32 = 40u; // whole eights, not whole sixteens
const ROWS_A: u32 = 37u;
const ROWS_B: u32 = 43u;
const K_TRANSPOSED: u32 = 37u;
const ROWS_TRANSPOSED: u32 = 72u; // more than a tile has
const SET: u32 = (K * (ROWS_A + ROWS_B) + 2u * K_TRANSPOSED * ROWS_TRANSPOSED) / 8u;
const RESULTS: u32 = ROWS_A * ROWS_B + TENSOR_TILE * TENSOR_TILE;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) lid: u32) {
  for (var s = 0u; s < 2u; s++) {
    let rows = s * SET; let columns = rows + K * (ROWS_A + ROWS_B) / 8u;
    tensor_tile_rows(rows, K / 8u, ROWS_A, rows + K * ROWS_A / 8u, K / 8u, ROWS_B, K, lid);
    workgroupBarrier();
    for (var i = lid; i < ROWS_A * ROWS_B; i += 128u) { y[s * RESULTS + i] = tile_sums[i / ROWS_B * TENSOR_TILE + i % ROWS_B]; }
    workgroupBarrier();
    let line = ROWS_TRANSPOSED / 8u;
    tensor_tile_columns(columns, line, ROWS_TRANSPOSED, columns + K_TRANSPOSED * line, line, ROWS_TRANSPOSED, K_TRANSPOSED, lid);
    workgroupBarrier();
    for (var i = lid; i < TENSOR_TILE * TENSOR_TILE; i += 128u) { y[s * RESULTS + ROWS_A * ROWS_B + i] = tile_sums[i]; }
    workgroupBarrier();
  }
}

#include "tensor_tile.wgsl" S = "_rows", A = x, B = x, MEMORY = 1, TRANSPOSED_A = 0, TRANSPOSED_B = 0
#include "tensor_tile.wgsl" S = "_columns", A = x, B = x, MEMORY = 0, TRANSPOSED_A = 1, TRANSPOSED_B = 1
