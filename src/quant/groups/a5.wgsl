#include "quant/affine_groups.wgsl" BITS = 5, MASK = 31, POINT = 0
