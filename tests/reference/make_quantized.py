"""Writes tests/vectors/quantized.safetensors: layers as other libraries store them quantized, and what they decode to.

MLX quantizes and decodes its own layers (`mx.quantize`, `mx.dequantize`); the others are packed and decoded here in NumPy, in float64, by what the
libraries publish: DeepSeek's `weight_dequant` (FP8 tiles), transformers' `convert_moe_packed_tensors` (gpt-oss), AutoAWQ's `WQLinear_GEMM`,
AutoGPTQ's `QuantLinear.pack`, and `pack_to_int32` of compressed-tensors. A case is `CASE/TENSOR` with `CASE/expected`; the metadata has its config.json.

    pip install numpy==2.4.6 ml_dtypes==0.5.4 safetensors==0.7.0 "mlx[cpu]==0.32.4" && python tests/reference/make_quantized.py
"""

import json
import pathlib
import struct

import ml_dtypes
import mlx.core as mx
import numpy as np

OUT = pathlib.Path(__file__).parents[1] / "vectors/quantized.safetensors"
rng = np.random.default_rng(7)
KINDS = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3"}
tensors, configs = {}, {}


def case(name, config, expected, **parts):
    configs[name] = {"model_type": "llama", **config}
    for key, value in parts.items():
        tensors[f"{name}/layer{key.replace('__', '.')}"] = np.ascontiguousarray(value)
    tensors[f"{name}/expected"] = np.asarray(expected, dtype=np.float32)


def numpy(x):
    return np.array(x.astype(mx.float32)).astype(ml_dtypes.bfloat16) if x.dtype == mx.bfloat16 else np.array(x)


# MLX
for mode, group, bits, dtype in [
    ("affine", 64, 2, mx.float16), ("affine", 64, 3, mx.bfloat16), ("affine", 32, 4, mx.bfloat16), ("affine", 64, 4, mx.float16), ("affine", 128, 5, mx.bfloat16),
    ("affine", 64, 6, mx.float16), ("affine", 128, 8, mx.bfloat16), ("mxfp4", 32, 4, mx.bfloat16), ("nvfp4", 16, 4, mx.bfloat16), ("mxfp8", 32, 8, mx.bfloat16),
]:
    weight = mx.array(rng.normal(0, 0.05, (6, 256)).astype(np.float32)).astype(dtype)
    parts = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
    wide = [parts[0]] + [p.astype(mx.float32) if mode == "affine" else p for p in parts[1:]]
    expected = mx.dequantize(*wide, group_size=group, bits=bits, mode=mode).astype(mx.float32)
    settings = {"group_size": group, "bits": bits, **({} if mode == "affine" else {"mode": mode})}
    names = ["__weight", "__scales", "__biases"]
    case(f"mlx_{mode}_{bits}_{group}", {"quantization": settings, "quantization_config": settings}, numpy(expected), **dict(zip(names, map(numpy, parts))))

# FP8: tiles, rows, one factor
weight = rng.normal(0, 1, (160, 192)).astype(ml_dtypes.float8_e4m3fn)
weight.reshape(-1)[:256] = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
weight = np.where(np.isnan(weight.astype(np.float32)), ml_dtypes.float8_e4m3fn(0.001953125), weight)
wide = weight.astype(np.float64)
tiles = rng.uniform(0.5, 2, (2, 2)).astype(np.float32)
fp8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
by_tile = wide * np.repeat(np.repeat(tiles.astype(np.float64), 128, 0)[:160], 128, 1)[:, :192]
case("fp8_tiles", {"quantization_config": {**fp8, "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}}, by_tile, __weight=weight, __weight_scale_inv=tiles)
rows = rng.uniform(0.5, 2, (160, 1)).astype(ml_dtypes.bfloat16)
group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}, "input_activations": {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}}
compressed = lambda format, group: {"quantization_config": {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}, "ignore": ["lm_head"], "quantization_status": "compressed"}}
case("fp8_rows", compressed("float-quantized", group), wide * rows.astype(np.float64), __weight=weight, __weight_scale=rows)
case("fp8_one", {"quantization_config": {**fp8, "activation_scheme": "static"}}, wide * 0.375, __weight=weight, __weight_scale=np.float32(0.375), __input_scale=np.float32(1.5))

# MXFP4 of gpt-oss: value 2i in the low half of byte i
LUT = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
values, exponents = rng.integers(0, 256, (2, 5, 4, 16), dtype=np.uint8), rng.integers(110, 135, (2, 5, 4), dtype=np.uint8)
mxfp4 = np.stack([LUT[values & 15], LUT[values >> 4]], -1).reshape(2, 5, 4, 32)
mxfp4 = np.ldexp(mxfp4, exponents.astype(np.int32)[..., None] - 127).reshape(2, 5, 128)
case("mxfp4_experts", {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}, mxfp4, _blocks=values, _scales=exponents)
group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}}
case("mxfp4_rows", compressed("mxfp4-pack-quantized", group), mxfp4[0], __weight_packed=values[0].reshape(5, 64), __weight_scale=exponents[0])

# AWQ: numbers [in, out], eight columns of a row in a word
q, z = rng.integers(0, 16, (256, 24)), rng.integers(0, 16, (2, 24))
s = rng.uniform(0.001, 0.01, (2, 24)).astype(np.float16)
pack = lambda x: sum(x[:, np.array([0, 2, 4, 6, 1, 3, 5, 7])[i] :: 8].astype(np.uint32) << np.uint32(4 * i) for i in range(8)).view(np.int32)
expected = ((q - np.repeat(z, 128, 0)) * np.repeat(s.astype(np.float64), 128, 0)).T
awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
case("awq", {"quantization_config": awq}, expected, __qweight=pack(q), __qzeros=pack(z), __scales=s)

# GPTQ: eight or four rows of a column in a word; zero points less one
for bits, fmt in [(4, "gptq"), (8, "gptq"), (4, "gptq_v2"), (2, "gptq")]:
    n = 32 // bits
    q, z = rng.integers(0, 2**bits, (128, 16)), rng.integers(1, 2**bits, (4, 16))
    s = rng.uniform(0.001, 0.01, (4, 16)).astype(np.float16)
    stored = z - (fmt == "gptq")
    qweight = sum(q[i::n].astype(np.uint32) << np.uint32(bits * i) for i in range(n)).view(np.int32)
    qzeros = sum(stored[:, i::n].astype(np.uint32) << np.uint32(bits * i) for i in range(n)).view(np.int32)
    expected = ((q - np.repeat(z, 32, 0)) * np.repeat(s.astype(np.float64), 32, 0)).T
    gptq = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, "sym": False, "checkpoint_format": fmt, "damp_percent": 0.01}
    order = np.arange(128, dtype=np.int32) // 32
    case(f"gptq_{bits}_{fmt}", {"quantization_config": gptq}, expected, __qweight=qweight, __qzeros=qzeros, __scales=s, __g_idx=order)

# compressed-tensors: numbers [out, in], low bits first, half of the range added
for bits, symmetric in [(4, True), (4, False), (8, True)]:
    n, half = 32 // bits, 2 ** (bits - 1)
    q, z = rng.integers(-half, half, (16, 128)), np.zeros((16, 4), np.int64) if symmetric else rng.integers(-half, half, (16, 4))
    s = rng.uniform(0.001, 0.01, (16, 4)).astype(ml_dtypes.bfloat16)
    expected = (q - np.repeat(z, 32, 1)) * np.repeat(s.astype(np.float64), 32, 1)
    packed = sum((q + half)[:, i::n].astype(np.uint32) << np.uint32(bits * i) for i in range(n)).view(np.int32)
    zeros = {} if symmetric else {"__weight_zero_point": sum((z + half)[i::n].astype(np.uint32) << np.uint32(bits * i) for i in range(n)).view(np.int32)}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32, "actorder": None}
    config = compressed("pack-quantized", {"targets": ["Linear"], "weights": weights})
    case(f"packed_{bits}_{'symmetric' if symmetric else 'zeros'}", config, expected, __weight_packed=packed, __weight_scale=s, __weight_shape=np.array([16, 128], np.int32), **zeros)
q, s = rng.integers(-128, 128, (16, 128)).astype(np.int8), rng.uniform(0.001, 0.01, (16, 1)).astype(ml_dtypes.bfloat16)
config = compressed("int-quantized", {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}})
case("int8_rows", config, q * s.astype(np.float64), __weight=q, __weight_scale=s)

header, at = {"__metadata__": {name: json.dumps(config) for name, config in configs.items()}}, 0
for name, value in tensors.items():
    header[name] = {"dtype": KINDS[value.dtype.name], "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
    at += value.nbytes
text = json.dumps(header).encode()
OUT.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(value.tobytes() for value in tensors.values()))
print(len(configs), "cases,", OUT.stat().st_size, "bytes")
