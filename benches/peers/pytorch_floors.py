"""PyTorch on the work of `--suite floors`: one line of JSON each.   python3 pytorch_floors.py cuda|cpu

On a GPU: f16, 64 Mi elements, times by CUDA events over batches, and by the wall for what waits. On the CPU: f32, 10 M elements."""
import json
import statistics
import sys
import time

import torch

kind = sys.argv[1] if len(sys.argv) > 1 else ("cuda" if torch.cuda.is_available() else "cpu")
gpu = kind == "cuda"
dtype = torch.float16 if gpu else torch.float32
torch.set_grad_enabled(False)
version = f"PyTorch {torch.__version__} " + (torch.cuda.get_device_name() if gpu else f"cpu, {torch.get_num_threads()} threads")


def out(name, seconds, how):
    print(json.dumps({"name": name, "seconds": seconds, "peer": f"{version}, {how}"}), flush=True)


def chain(x):
    return torch.clamp(torch.tanh(torch.square(torch.relu(x * 1.5 + 0.25)) + 0.125) * 2.0, 0.25, 1.5)


def wait():
    if gpu:
        torch.cuda.synchronize()


def measure(run, inputs, samples=25, least=2e-3):
    """The median time of one call; batches end with a wait, and inputs take turns."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.2:
        run(inputs[0])
    wait()
    t = time.perf_counter()
    run(inputs[0])
    wait()
    count = max(1, min(500, int(least / (time.perf_counter() - t)) + 1))
    times = []
    for _ in range(samples):
        if gpu:
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for i in range(count):
                run(inputs[i % len(inputs)])
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1e-3 / count)
        else:
            t = time.perf_counter()
            for i in range(count):
                run(inputs[i % len(inputs)])
            times.append((time.perf_counter() - t) / count)
    return statistics.median(times)


n = 64 << 20 if gpu else 10_000_000
x = [(torch.rand(n, device=kind) - 0.5).to(dtype) for _ in range(2)]
out("chain8", measure(chain, x), "eager")
try:
    fused = torch.compile(chain)
    fused(x[0])
    out("chain8", measure(fused, x), "torch.compile")
except Exception as e:  # a compiler that is missing is not a reason to stop
    print(f"torch.compile: {str(e)[:200]}", file=sys.stderr)
x = [(torch.rand(64 << 20, device=kind) - 0.5).to(dtype) for _ in range(2)]
out("sum", measure(torch.sum, x), "eager")
if gpu:
    t = [measure(lambda y: y.copy_(x[0]), [torch.empty_like(x[0])])]
    print(f"copy bandwidth {2 * x[0].numel() * 2 / t[0] / 1e9:.1f} GB/s", file=sys.stderr)
small = [torch.zeros(1024, device=kind, dtype=torch.float32) for _ in range(2)]


def dependent(y):
    for _ in range(1000):
        y = y + 1.0
    return y


seconds = measure(dependent, small, samples=9) / 1000
out("dispatch_gpu", seconds, "eager, a stream")
wait()
times = []
for i in range(9):
    t = time.perf_counter()
    dependent(small[i % 2])
    wait()
    times.append((time.perf_counter() - t) / 1000)
out("dispatch_wall", statistics.median(times), "eager, wall")
if gpu:
    graph = torch.cuda.CUDAGraph()
    dependent(small[0])
    wait()
    with torch.cuda.graph(graph):
        dependent(small[0])
    out("dispatch_gpu", measure(lambda _: graph.replay(), small, samples=9) / 1000, "CUDA graph")
tiny = [(torch.rand(1000, device=kind) - 0.5).to(dtype) for _ in range(2)]
for _ in range(50):
    tiny[0].sum().item()
times = []
for i in range(200):
    t = time.perf_counter()
    tiny[i % 2].sum().item()
    times.append(time.perf_counter() - t)
out("sum_item", statistics.median(times), "eager, wall")
