#include "quant/affine_groups.wgsl" BITS = 3, MASK = 7, POINT = 0
