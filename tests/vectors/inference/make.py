"""What transformers computes for padded batches of the small models beside this folder: python make.py, with transformers and torch.

In f64, stored as f32. A file per model; the names of its tensors begin with the case:

left, right    rows of 9, 5 and 2 tokens with padding at that side; `position_ids` from the mask, as `generate` makes them
holes          masked tokens between valid ones, and `position_ids` that skip some
embeddings     `inputs_embeds` instead of tokens, padded at the left

`logits` are those of each row's last valid token, `some_logits` those of every token for each sixteenth entry of the vocabulary;
`hidden.N` is the Nth of `hidden_states`, the last of them behind the final norm (of `left` all, of the others the last).
Values at masked positions mean nothing and are stored as 0.
"""
import os
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS, T, EVERY = [9, 5, 2], 9, 16


def positions_of(mask):
    """As transformers' `generate` derives them from the mask."""
    positions = mask.long().cumsum(-1) - 1
    return positions.masked_fill(mask == 0, 0)


def run(model, mask, positions, **inputs):
    with torch.no_grad():
        out = model(attention_mask=mask, position_ids=positions, output_hidden_states=True, use_cache=False, **inputs)
    last = (mask * torch.arange(mask.shape[1])).argmax(-1)
    keep = mask.bool().unsqueeze(-1)
    zero = lambda x: torch.where(keep, x, torch.zeros_like(x))
    return {
        "logits": out.logits[torch.arange(len(mask)), last],
        "some_logits": zero(out.logits)[..., ::EVERY],
        **{f"hidden.{n}": zero(h) for n, h in enumerate(out.hidden_states)},
    }


def cases(vocab, width, generator):
    tokens = torch.randint(2, vocab, (len(LENGTHS), T), generator=generator)
    at = torch.arange(T)
    for name in ["left", "right"]:
        mask = torch.stack([(at >= T - n if name == "left" else at < n).long() for n in LENGTHS])
        # Padding is a token as any other.
        ids = torch.where(mask.bool(), tokens, torch.ones_like(tokens))
        yield name, {"input_ids": ids}, mask, positions_of(mask)
    holes = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1], [0, 1, 1, 1, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 1, 1, 1, 0]])
    skipping = positions_of(holes) * 3 + torch.tensor([[0], [4], [1]])
    yield "holes", {"input_ids": tokens}, holes, skipping
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    embeddings = torch.randn((2, 5, width), generator=generator).float()
    yield "embeddings", {"inputs_embeds": embeddings}, mask, positions_of(mask)


total = 0
for seed, name in enumerate(["gpt2-odd", "llama3-rope", "gemma3_text-pattern"]):
    folder = os.path.join(HERE, "..", "models", name)
    generator = torch.Generator().manual_seed(seed)
    found = {}
    # Eager attention rounds a mask in f64 to f32, and gives NaN for rows that see padding only.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa").eval()
    for case, inputs, mask, positions in cases(model.config.vocab_size, model.config.hidden_size, generator):
        wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        out = run(model, mask, positions, **wide)
        assert all(v.isfinite().all() for v in out.values()), (name, case)
        if case != "holes":
            for row, valid in enumerate(mask.bool()):
                alone = {k: v[row : row + 1, valid] for k, v in wide.items()}
                count = valid.sum().item()
                alone = run(model, torch.ones(1, count, dtype=torch.long), torch.arange(count).unsqueeze(0), **alone)
                assert torch.allclose(alone["logits"][0], out["logits"][row], rtol=1e-5, atol=1e-5), (name, case, row)
        layers = len(out) - 2
        keys = [k for k in out if case == "left" or not k.startswith("hidden") or k == f"hidden.{layers - 1}"]
        found |= {f"{case}.{k}": v.int() if not v.is_floating_point() else v for k, v in inputs.items()}
        found |= {f"{case}.attention_mask": mask.int(), f"{case}.position_ids": positions.int()}
        found |= {f"{case}.{k}": out[k].float().contiguous() for k in keys}
    file = os.path.join(HERE, f"{name}.safetensors")
    save_file(found, file)
    total += os.path.getsize(file)
    print(name, os.path.getsize(file), max(v.abs().max().item() for v in found.values()))
print(total)
