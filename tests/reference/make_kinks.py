"""Makes tests/vectors/kinks.json: values and gradients of functions with a kink, or whose definition has a case, at that very place.

    python make_kinks.py ../vectors/kinks.json

Written for torch 2.15.0 (any build; computed on the CPU in f64). No case has a NaN.
"""

import itertools
import json
import sys

import torch
import torch.nn.functional as F

X = [-6.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 7.0]
PAIRS = [list(v) for v in zip(*itertools.product([-1.0, 0.0, 1.0, 2.0], repeat=2))]
TRIPLES = [list(v) for v in zip(*itertools.product([0.0, 1.0, 2.0], repeat=3))]

CASES = {
    "abs": (torch.abs, [X]),
    "sign": (torch.sign, [X]),
    "floor": (torch.floor, [X]),
    "round": (torch.round, [X]),
    "frac": (torch.frac, [X]),
    "square": (torch.square, [X]),
    "relu": (F.relu, [X]),
    "relu6": (F.relu6, [X]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.25), [X]),
    "elu": (lambda x: F.elu(x, 2.0), [X]),
    "celu": (lambda x: F.celu(x, 2.0), [X]),
    "selu": (F.selu, [X]),
    "silu": (F.silu, [X]),
    "gelu": (F.gelu, [X]),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [X]),
    "mish": (F.mish, [X]),
    "softplus": (F.softplus, [X]),
    "softplus_with": (lambda x: F.softplus(x, 2.0, 6.0), [X]),
    "log_sigmoid": (F.logsigmoid, [X]),
    "softsign": (F.softsign, [X]),
    "hardsigmoid": (F.hardsigmoid, [X]),
    "hardswish": (F.hardswish, [X]),
    "hardtanh": (lambda x: F.hardtanh(x, -1.0, 2.0), [X]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), [X]),
    "softshrink": (lambda x: F.softshrink(x, 0.5), [X]),
    "threshold": (lambda x: F.threshold(x, 1.0, -2.0), [X]),
    "clamp": (lambda x: torch.clamp(x, -1.0, 2.0), [X]),
    "clamp_min": (lambda x: torch.clamp(x, min=-1.0), [X]),
    "clamp_max": (lambda x: torch.clamp(x, max=2.0), [X]),
    "clamp_tensors": (torch.clamp, TRIPLES),
    "clamp_min_tensor": (lambda x, low: torch.clamp(x, min=low), PAIRS),
    "clamp_max_tensor": (lambda x, high: torch.clamp(x, max=high), PAIRS),
    "maximum": (torch.maximum, PAIRS),
    "minimum": (torch.minimum, PAIRS),
    "fmax": (torch.fmax, PAIRS),
    "fmin": (torch.fmin, PAIRS),
    "logaddexp": (torch.logaddexp, PAIRS),
    "copysign": (torch.copysign, PAIRS),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.5), PAIRS),
    "atan2": (torch.atan2, [[0.0, 0.0, 1.0, -1.0], [1.0, -1.0, 0.0, 0.0]]),
    "pow": (lambda x: x**2.0, [X]),
    "pow_1": (lambda x: x**1.0, [X]),
    "norm_3": (lambda x: torch.linalg.vector_norm(x, 3.0).reshape(1), [[0.0, 0.0, 0.0]]),
    "norm_1_5": (lambda x: torch.linalg.vector_norm(x, 1.5).reshape(1), [[0.0, 1.0, -8.0]]),
    "norm": (lambda x: torch.linalg.vector_norm(x, 2.0).reshape(1), [[0.0, 0.0, 0.0]]),
}


def main():
    rows = []
    for name, (f, inputs) in CASES.items():
        tensors = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in inputs]
        y = f(*tensors)
        y.sum().backward()
        gradients = [(t.grad if t.grad is not None else torch.zeros_like(t)).tolist() for t in tensors]
        rows.append({"name": name, "inputs": inputs, "value": y.tolist(), "gradients": gradients})
    with open(sys.argv[1], "w") as file:
        json.dump({"torch": torch.__version__.split("+")[0], "cases": rows}, file, separators=(",", ":"), allow_nan=False)
        file.write("\n")


main()
