#include "quant/affine_groups.wgsl" BITS = 8, MASK = 255, POINT = 1
