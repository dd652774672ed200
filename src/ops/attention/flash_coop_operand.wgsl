// One operand of attention by cooperative matrices, f16 in lines of whole eights: rows of ${K} elements, a tile of TILE_ROWS by TILE_K of them.
#include "gemm_coop_operand.wgsl" ROWS = p.queries, TRANSPOSED = 0, RAW = 1, BLOCKS = 0, VEC = 1, FOLDED = 0, UNALIGNED = 0, DEFERRED = 0
