// What the gradients of attention by cooperative matrices read: rows r1 and r2, columns c1 and c2.
#if BY_KEY
#include "flash_coop_operand.wgsl" x = r1, X = R1, LOAD = 1, LINES = k, K = p.size, TILE_ROWS = ROWS, TILE_K = "KD * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = c1, X = C1, LOAD = 0, LINES = q, K = p.size, TILE_ROWS = COLS, TILE_K = "KD * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = r2, X = R2, LOAD = 2, LINES = v, K = p.size_v, TILE_ROWS = ROWS, TILE_K = "KV * EDGE", EVEN_K = ${EVEN_V}
#include "flash_coop_operand.wgsl" x = c2, X = C2, LOAD = 3, LINES = g, K = p.size_v, TILE_ROWS = COLS, TILE_K = "KV * EDGE", EVEN_K = ${EVEN_V}
#else
#include "flash_coop_operand.wgsl" x = r1, X = R1, LOAD = 0, LINES = q, K = p.size, TILE_ROWS = ROWS, TILE_K = "KD * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = c1, X = C1, LOAD = 1, LINES = k, K = p.size, TILE_ROWS = COLS, TILE_K = "KD * EDGE", EVEN_K = ${EVEN_D}
#include "flash_coop_operand.wgsl" x = r2, X = R2, LOAD = 3, LINES = g, K = p.size_v, TILE_ROWS = ROWS, TILE_K = "KV * EDGE", EVEN_K = ${EVEN_V}
#include "flash_coop_operand.wgsl" x = c2, X = C2, LOAD = 2, LINES = v, K = p.size_v, TILE_ROWS = COLS, TILE_K = "KV * EDGE", EVEN_K = ${EVEN_V}
#endif
