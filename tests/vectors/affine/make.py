"""Reference vectors of affine quantization: torchao's choose_qparams_affine, quantize_affine and dequantize_affine, and PyTorch's own kernels.

    pip install torch torchao && python make.py     writes affine.json.gz beside this file

Values are f32, written as the integers of their bits, so that nothing is lost.
"""

import gzip
import json
import pathlib
import warnings

warnings.filterwarnings("ignore")
import torch
import torchao
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, dequantize_affine, quantize_affine

torch.manual_seed(7)


def bits(t):
    return t.detach().contiguous().view(torch.int32).flatten().tolist()


def inputs():
    yield "normal", torch.randn(6, 40)
    yield "outliers", torch.randn(5, 24) * torch.tensor([0.01, 1.0, 100.0, 1e-5, 3.0])[:, None]
    yield "positive", torch.rand(4, 16) + 3.0
    yield "negative", -torch.rand(4, 16) - 0.25
    yield "constant", torch.full((3, 8), 2.5)
    yield "zeros", torch.zeros(2, 8)
    yield "tiny", torch.randn(3, 16) * 1e-9
    yield "huge", torch.randn(3, 16) * 1e37
    # Halves of a step, which round to even.
    yield "ties", torch.arange(-128, 128).float().reshape(8, 32) / 2


def cases():
    for name, x in inputs():
        rows, cols = x.shape
        for quant_bits, (low, high) in ((8, (-128, 127)), (4, (-8, 7))):
            for mapping in (MappingType.ASYMMETRIC, MappingType.SYMMETRIC):
                for granularity, block in (("tensor", (rows, cols)), ("channel 0", (1, cols)), ("channel 1", (rows, 1)), ("block 8", (1, 8))):
                    scale, zero = choose_qparams_affine(x, mapping, block, torch.int8, low, high, scale_dtype=torch.float32, zero_point_dtype=torch.int32)
                    q = quantize_affine(x, block, scale, zero, torch.int8, low, high)
                    back = dequantize_affine(q, block, scale, zero, torch.int8, low, high, output_dtype=torch.float32)
                    own = None
                    if quant_bits == 8 and granularity == "tensor":
                        own = torch.quantize_per_tensor(x, scale.item(), zero.item(), torch.qint8).int_repr()
                    if quant_bits == 8 and granularity.startswith("channel"):
                        own = torch.quantize_per_channel(x, scale.flatten().double(), zero.flatten().long(), int(granularity[-1]), torch.qint8).int_repr()
                    # PyTorch's kernels give the same integers, so that one list is enough.
                    assert own is None or torch.equal(own, q), (name, granularity, mapping)
                    yield {
                        "input": name,
                        "bits": quant_bits,
                        "symmetric": mapping == MappingType.SYMMETRIC,
                        "granularity": granularity,
                        "scale": bits(scale.float()),
                        "zero_point": zero.flatten().tolist(),
                        "q": q.flatten().tolist(),
                        "dequantized": bits(back) if name in ("normal", "ties") else None,
                    }


tensors = dict(inputs())
inputs = tensors.items
found = {
    "torch": torch.__version__,
    "torchao": torchao.__version__,
    "inputs": {name: {"shape": list(x.shape), "bits": bits(x)} for name, x in inputs()},
    "cases": list(cases()),
}
path = pathlib.Path(__file__).with_name("affine.json.gz")
# No time and no name in the header: the same numbers give the same file.
path.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))
print(path, path.stat().st_size, "bytes", len(found["cases"]), "cases")
