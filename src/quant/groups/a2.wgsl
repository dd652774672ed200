#include "quant/affine_groups.wgsl" BITS = 2, MASK = 3, POINT = 0
