#include "quant/affine_groups.wgsl" BITS = 4, MASK = 15, POINT = 0
