"""The rows of benches/gpu_speed.rs that are compared with PyTorch: one JSON line each, seconds by the GPU's events."""
import json

import torch
import torch.nn.functional as F


def time(run, count):
    for _ in range(5):
        run()
    best = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        best.append(begin.elapsed_time(end) / count * 1e-3)
    return sorted(best)[len(best) // 2]


def line(name, seconds):
    print(json.dumps({"name": name, "seconds": seconds}), flush=True)


PRODUCTS = [
    (4096, 4096, 4096), (8192, 8192, 8192), (16, 4096, 4096), (64, 3072, 768), (256, 4096, 4096), (1024, 2304, 768), (4096, 3072, 768),
    (4096, 14336, 4096), (512, 50257, 768),
]
for m, n, k in PRODUCTS:
    a = torch.randn(m, k, device="cuda", dtype=torch.half) * 0.1
    w = [torch.randn(n, k, device="cuda", dtype=torch.half) * 0.1 for _ in range(max(2, min(64, (256 << 20) // (2 * n * k))))]
    turn = iter(range(1 << 30))
    line(f"product {m} {n} {k}", time(lambda: a @ w[next(turn) % len(w)].T, max(3, min(200, int(2e12 / (2 * m * n * k))))))
for b, h, s, d in [(8, 12, 1024, 64), (1, 32, 4096, 128), (64, 12, 64, 64)]:
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.half) * 0.1 for _ in range(3))
    line(f"attention {b} {h} {s} {d}", time(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 20))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    ones = torch.ones_like(q)

    def gradients():
        torch.autograd.grad(F.scaled_dot_product_attention(*inputs, is_causal=True), inputs, ones)

    line(f"attention_gradients {b} {h} {s} {d}", time(gradients, 20))
