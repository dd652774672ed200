#include "quant/affine_groups.wgsl" BITS = 6, MASK = 63, POINT = 0
