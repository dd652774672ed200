"""PyTorch on the rows of `cargo bench --bench cpu_speed`: reads the name of a row a line, answers with a line of JSON: seconds of one call.

Nothing runs between two answers, so that the two can take turns. `{}` for a row that is not here.   python3 pytorch_cpu.py THREADS"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
torch.set_grad_enabled(False)


def measure(run, samples=9, least=3e-3):
    """The median time of one call, in batches of at least 3 ms."""
    begun = time.perf_counter()
    run()
    while time.perf_counter() - begun < 0.1:
        run()
    t = time.perf_counter()
    run()
    count = max(1, min(5000, int(least / max(time.perf_counter() - t, 1e-7)) + 1))
    times = []
    for _ in range(samples):
        t = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - t) / count)
    return statistics.median(times)


def product(dtype, n, turned):
    a = (torch.rand(n, n) - 0.5).to(dtype)
    b = (torch.rand(n, n) - 0.5).to(dtype)
    b = b.t() if turned else b
    out = torch.empty(n, n, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def chain(x):
    return F.gelu(torch.relu(x * 1.5 + 0.25), approximate="tanh")


def dependent(x):
    for _ in range(1000):
        x = x + 1.0
    return x


def on(f, *shape):
    x = torch.rand(*shape) - 0.5
    return lambda: f(x)


def layer_norm(n):
    w, b = torch.ones(n), torch.zeros(n)
    return on(lambda x: F.layer_norm(x, (n,), w, b), n, n)


def case(name):
    """The row's work, and by what its time is divided."""
    kind, *rest = name.split()
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    if kind == "gemm":
        n = int(rest[1])
        # Without half-precision instructions PyTorch falls back to plain loops that take seconds.
        return None if rest[0] == "f16" and n > 512 else (product(dtypes[rest[0]], n, rest[2] == "nt"), 1)
    return {
        "chain": lambda: (on(chain, 10_000_000), 1),
        "gelu": lambda: (on(lambda x: F.gelu(x, approximate="tanh"), 100_000), 1),
        "softmax": lambda: (on(lambda x: torch.softmax(x, -1), 1024, 1024), 1),
        "layer_norm": lambda: (layer_norm(1024), 1),
        "sum": lambda: (on(torch.sum, 10_000_000), 1),
        "small": lambda: (on(lambda x: x + 1.0, 1000), 1),
        "graph": lambda: (on(dependent, 1000), 1000),
    }.get(kind, lambda: None)()


print(json.dumps({"peer": f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"}), flush=True)
cases = {}
for line in sys.stdin:
    name = line.strip()
    if name not in cases:
        cases.clear()
        cases[name] = case(name)
    found = cases[name]
    print(json.dumps({"seconds": measure(found[0]) / found[1]} if found else {}), flush=True)
