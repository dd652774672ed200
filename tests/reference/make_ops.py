# /// script
# dependencies = ["torch"]
# ///
"""Writes tests/vectors/breadth.json: what PyTorch computes on the CPU for operations that the other vectors do not contain.

    python3 tests/reference/make_ops.py tests/vectors/breadth.json
"""
import json
import sys
import torch
torch.manual_seed(7)
cases = []
def numbers(t):
    return [v if isinstance(v, (int, bool)) or v == v and abs(v) != float("inf") else str(v) for v in t.reshape(-1).tolist()]
def case(op, inputs, outputs, **attrs):
    put = lambda t: {"shape": list(t.shape), "data": numbers(t)}
    cases.append({"op": op, "attrs": attrs, "in": [put(t) for t in inputs], "out": [put(t) for t in outputs]})
def sample(*shape):
    return (torch.randn(*shape, dtype=torch.float32) * 64).round() / 16
nan = float("nan")
for n in (1, 2, 7, 33):
    row = sample(n).sort().values
    values = torch.cat([sample(12), row[:1], torch.tensor([nan, float("inf"), -float("inf")])])
    for right in (False, True):
        case("searchsorted", [row, values], [torch.searchsorted(row, values, right=right)], right=right)
rows, values = sample(3, 9).sort(-1).values, sample(3, 4)
case("searchsorted", [rows, values], [torch.searchsorted(rows, values)], right=False)
r = torch.cat([rows[0], torch.tensor([nan, nan])])
case("searchsorted", [r, values], [torch.searchsorted(r, values)], right=False)
for x in (sample(9), sample(4, 5), torch.tensor([1.0, nan, 3.0, nan, 2.0]), torch.tensor([2.0, 2.0, 1.0, 2.0])):
    for d in range(x.dim()):
        case("cummax", [x], torch.cummax(x, d), dim=d)
        case("cummin", [x], torch.cummin(x, d), dim=d)
p = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.4028234663852886e38, 1.1754943508222875e-38, float("inf"), -float("inf"), 1e-40, nan])
a, b = p.repeat_interleave(len(p)), p.repeat(len(p))
case("nextafter", [a, b], [torch.nextafter(a, b)])
case("signbit", [p], [torch.signbit(p)])
x = torch.tensor([[0.0, nan], [-0.0, 2.0]])
case("nonzero", [x], [x.nonzero()])
x, m = sample(3, 1, 4), torch.tensor([[True, False, True, True], [False] * 4])
case("masked_select", [x, m], [x.masked_select(m)])
f = torch.nn.functional.interpolate
for s in ((2, 2, 7), (1, 2, 5, 4), (1, 1, 3, 4, 2)):
    k = len(s) - 2
    sm = {1: "linear", 2: "bilinear", 3: "trilinear"}[k]
    for mode in ["nearest", "nearest-exact", sm] + (["bicubic"] if k == 2 else []):
        for c in (False, True) if mode in (sm, "bicubic") else (None,):
            x = sample(*s)
            for z in ([9, 4, 5][:k], [1, 2, 1][:k], list(s[2:])):
                case("interpolate", [x], [f(x, size=z, mode=mode, align_corners=c)], mode=mode, size=z, align_corners=bool(c))
            for z in ([2.0] * k, [1.7, 0.6, 2.5][:k]):
                case("interpolate", [x], [f(x, scale_factor=z, mode=mode, align_corners=c)], mode=mode, factors=z, align_corners=bool(c))
t, put = torch.fft, torch.view_as_real
for n in (1, 2, 5, 8, 12, 31):
    z = torch.view_as_complex(sample(2, n, 2))
    case("fft", [put(z)], [put(t.fft(z))], dim=1)
    case("ifft", [put(z)], [put(t.ifft(z))], dim=1)
    case("fft", [put(z)], [put(t.fft(z, dim=0))], dim=0)
    case("rfft", [z.real.contiguous()], [put(t.rfft(z.real))], dim=1)
    half = torch.view_as_complex(sample(2, n // 2 + 1, 2))
    case("irfft", [put(half)], [t.irfft(half, n=n)], dim=1, n=n)
with open(sys.argv[1], "w") as out:
    json.dump({"torch": torch.__version__, "cases": cases}, out, separators=(",", ":"))
print(len(cases), "cases with torch", torch.__version__)
