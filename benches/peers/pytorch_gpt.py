"""The models of benches/training.rs in PyTorch: their speed, or the losses of the character GPT's first steps on the CPU.

pytorch_gpt.py speed [seconds] [--eager] [--model char|gpt2] [--dtype f32|f16|bf16] [--batch N] [--device cpu|cuda]    one JSON line per mode
pytorch_gpt.py losses SHAPE STEPS TEXT OUT.csv       the loss of each step, from weights and batches that tests/it/train/training_parity.rs makes, too
"""
import json, sys, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F

SHAPES = {  # layers, heads, width, context, batch, learning rate
    "char": (6, 6, 384, 256, 12, 1e-3),
    "small": (2, 2, 64, 64, 4, 1e-3),
    "gpt2": (12, 12, 768, 1024, 16, 1e-3),
}
VOCAB = 65


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.attn_proj = nn.Linear(width, width, bias=bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (u.view(b, t, self.heads, c // self.heads).transpose(1, 2) for u in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context, vocab=VOCAB, bias=False):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads, bias) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=bias)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return F.cross_entropy((self.ln_f(x) @ self.wte.weight.t()).flatten(0, 1), targets.flatten())


def mix(x):
    """splitmix64 of 64-bit numbers."""
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def spread(number, count, std):
    """Parameter `number`: uniform numbers of this standard deviation."""
    u = (mix(np.arange(count, dtype=np.uint64) + np.uint64(number << 32)) >> np.uint64(40)).astype(np.float64) / (1 << 24)
    return ((u - 0.5) * 2.0 * np.sqrt(3.0) * std).astype(np.float32)


def initialise(model):
    for n, p in enumerate(model.parameters()):
        if p.dim() > 1:
            with torch.no_grad():
                p.copy_(torch.from_numpy(spread(n, p.numel(), 0.02)).view(p.shape))


def optimizer(model, rate):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), eps=1e-8, fused=True)


def train_step(run, model, opt, x, y):
    loss = run(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss.item()


def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def speed(seconds):
    shape, device, dtype = option("--model", "char"), option("--device", "cpu"), option("--dtype", "f32")
    layers, heads, width, context, batch, rate = SHAPES[shape]
    batch = int(option("--batch", batch))
    vocab, bias = (50257, True) if shape == "gpt2" else (VOCAB, False)
    half = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    scaler = torch.amp.GradScaler(device, enabled=dtype == "f16")
    data = torch.randint(0, vocab, (1 << 16,), generator=torch.Generator().manual_seed(1)).to(device)
    for mode in ("eager", "compile"):
        model = Gpt(layers, heads, width, context, vocab, bias)
        initialise(model)
        model = model.to(device)
        opt = optimizer(model, rate)
        run = torch.compile(model) if mode == "compile" else model

        def step():
            at = torch.randint(0, len(data) - context - 1, (batch,))
            x = torch.stack([data[i : i + context] for i in at])
            y = torch.stack([data[i + 1 : i + context + 1] for i in at])
            with torch.autocast(device, dtype=half, enabled=half is not None):
                loss = run(x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            return loss.item()

        for _ in range(2):
            step()
        times = []
        began = time.perf_counter()
        while len(times) < 4 or time.perf_counter() - began < seconds:
            t = time.perf_counter()
            step()
            times.append(time.perf_counter() - t)
        times.sort()
        median = times[len(times) // 2]
        line = {"peer": f"PyTorch {torch.__version__} {mode}", "seconds": median, "least": times[0], "tokens": batch * context / median}
        if device == "cuda":
            line["peak"] = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        print(json.dumps(line), flush=True)
        if "--eager" in sys.argv:
            break


def losses(shape, steps, text, out):
    layers, heads, width, context, batch, rate = SHAPES[shape]
    text = open(text, encoding="ascii").read()
    letters = {c: i for i, c in enumerate(sorted(set(text)))}
    assert len(letters) <= VOCAB
    data = torch.tensor([letters[c] for c in text])
    model = Gpt(layers, heads, width, context)
    initialise(model)
    opt = optimizer(model, rate)
    with open(out, "w") as f:
        f.write("step,loss\n")
        for n in range(steps):
            at = (mix(np.arange(batch, dtype=np.uint64) + np.uint64(n * batch)) % np.uint64(len(data) - context - 1)).astype(np.int64)
            x = torch.stack([data[i : i + context] for i in at])
            y = torch.stack([data[i + 1 : i + context + 1] for i in at])
            f.write(f"{n},{train_step(model, model, opt, x, y):.6f}\n")
            f.flush()


if sys.argv[1] == "speed":
    speed(float(sys.argv[2]) if len(sys.argv) > 2 and not sys.argv[2].startswith("-") else 8.0)
else:
    losses(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
