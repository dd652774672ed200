"""Results and gradients of PyTorch's encoder layer and cross-attention in f64, rounded to f32, as tests/it/train/encoder.rs compares them.

pytorch_encoder.py OUT.safetensors

The loss is the sum of the result times `cotangent`; `NAME.grad.P` is its gradient by parameter P, `NAME.grad.x` that by the input.
"""
import json, struct, sys
import numpy as np
import torch, torch.nn as nn

BATCH, LENGTH, WIDTH, HEADS, HIDDEN, MEMORY = 2, 6, 16, 4, 40, 9


def save(path, tensors):
    header, at, data = {}, 0, b""
    for name, t in sorted(tensors.items()):
        bytes_ = np.ascontiguousarray(t.detach().numpy().astype("<f4" if t.is_floating_point() else "u1")).tobytes()
        dtype = "F32" if t.is_floating_point() else "U8"
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [at, at + len(bytes_)]}
        at, data = at + len(bytes_), data + bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def add(out, name, module, x, y, cotangent, **inputs):
    (y * cotangent).sum().backward()
    out |= {f"{name}.y": y, f"{name}.grad.x": x.grad} | {f"{name}.{k}": v for k, v in inputs.items()}
    for p, v in module.named_parameters():
        out |= {f"{name}.param.{p}": v, f"{name}.grad.{p}": v.grad}


def main(path):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    out = {"x": torch.randn(BATCH, LENGTH, WIDTH), "memory": torch.randn(BATCH, MEMORY, WIDTH), "cotangent": torch.randn(BATCH, LENGTH, WIDTH)}
    lengths = torch.tensor([LENGTH, 4])
    valid = torch.arange(LENGTH)[None, :] < lengths[:, None]
    out["valid"] = valid
    for norm_first in [False, True]:
        for activation in ["relu", "gelu"]:
            for mask in ["none", "padding", "causal"]:
                layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first)
                with torch.no_grad():
                    for v in layer.parameters():
                        v += 0.1 * torch.randn_like(v)
                x = out["x"].clone().requires_grad_()
                y = layer(
                    x,
                    src_key_padding_mask=~valid if mask == "padding" else None,
                    src_mask=nn.Transformer.generate_square_subsequent_mask(LENGTH) if mask == "causal" else None,
                    is_causal=mask == "causal",
                )
                add(out, f"{'pre' if norm_first else 'post'}.{activation}.{mask}", layer, x, y, out["cotangent"])
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        for v in layer.parameters():
            v += 0.1 * torch.randn_like(v)
    x, memory = out["x"].clone().requires_grad_(), out["memory"].clone().requires_grad_()
    allowed = torch.rand(LENGTH, MEMORY) < 0.6
    allowed[:, 0] = True
    y, _ = layer(x, memory, memory, attn_mask=~allowed, need_weights=False)
    (y * out["cotangent"]).sum().backward()
    out |= {"cross.y": y, "cross.grad.x": x.grad, "cross.grad.memory": memory.grad, "cross.allowed": allowed}
    for p, v in layer.named_parameters():
        out |= {f"cross.param.{p}": v, f"cross.grad.{p}": v.grad}
    save(path, out)


main(sys.argv[1])
