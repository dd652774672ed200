"""Makes the reference outputs of a GGUF model with Hugging Face transformers, every weight dequantized to f32.

    python make_reference.py MODEL.gguf OUT.safetensors OUT.json [--full LOGITS.f32]
                             [--llama-logits LLAMA.f32] [--llama-f32-logits LLAMA_F32.f32]

Written for torch 2.15.0, transformers 5.23.0, gguf 0.19.0, safetensors 0.8.0; the JSON says what really ran.
Needs no network. `text.txt` lies beside this script.

Arithmetic: f32 throughout, eager attention, no autocast, CPU. transformers computes everything from its own model code;
only the weights and the tokenizer come from the file.

Tensors of OUT.safetensors (V is the vocabulary size):
    text_ids      [1000] i32      the first 1,000 ids of text.txt, led by BOS if the file's metadata asks for it
    top_ids       [1000, 64] i32  ids of the 64 largest logits after each of these positions, largest first
    top_logits    [1000, 64] f32
    fixed_ids     [256] i32       ids drawn once without replacement, see FIXED_SEED, ascending
    fixed_logits  [1000, 256] f32
    logsumexp     [1000] f32      of the whole row of V logits: log-probability = logit - logsumexp
    norm          [1000] f32      L2 norm of the whole row of V logits
    prompt_{i}    [n] i32         i = 0..9
    greedy_{i}    [64] i32        the continuation by plain argmax: no repetition penalty, and no stop at an
                                  end-of-sequence token, which is fed back like any other
    margin_{i}    [64] f32        largest logit minus second largest at each of these steps

--full writes the [1000, V] f32 logits, raw. --llama-logits reads such a file made by llama.cpp from the same ids and puts
the mean over positions of KL(reference || llama.cpp), of the full softmax distributions in f64, into the JSON;
--llama-f32-logits does so for llama.cpp on the same weights dequantized to f32 beforehand, which shows that both programs
compute the same model: what remains in the first number is llama.cpp's arithmetic on quantized weights.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib

import gguf
import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

POSITIONS = 1000
TOP = 64
FIXED = 256
FIXED_SEED = 20240229
STEPS = 64

# For a model with a chat template each is one user message; for one without, the text to continue.
CHAT_PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List the first eight prime numbers.",
    "Write a Rust function that returns the sum of a slice of i64.",
    "Translate to Spanish: The book is on the table.",
    "Tell me a very short story about a clockmaker.",
    "What is 17 + 25?",
    "Name three things that float on water, and say why they float.",
    "Summarize: Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. Plants, algae and some bacteria do it.",
]
PLAIN_PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "The sky is blue because",
    "2, 3, 5, 7, 11, 13,",
    "fn sum(values: &[i64]) -> i64 {\n",
    "English: The book is on the table.\nSpanish:",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Q: What is 17 + 25?\nA:",
    "Il était une fois",
    "Photosynthesis is the process by which",
]

# What of the model's configuration decides its arithmetic.
CONFIG = [
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "max_position_embeddings", "rms_norm_eps"),
    *("tie_word_embeddings", "rope_parameters", "attention_bias", "mlp_bias", "query_pre_attn_scalar", "sliding_window"),
    *("layer_types", "final_logit_softcapping", "attn_logit_softcapping", "bos_token_id", "eos_token_id"),
]


def field(reader, name):
    """The value of a metadata key, or None."""
    return reader.fields[name].contents() if name in reader.fields else None


def load(path):
    """Model, tokenizer and metadata of a GGUF file."""
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    return model, tokenizer, gguf.GGUFReader(path)


def check_weights(model, reader):
    """Fails unless every tensor of the file is in the model: bit for bit, or in another order of rows (the rotary
    permutation of Llama's q and k, which the comparison with llama.cpp judges), or, for Gemma's norms, less one."""
    names = gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == field(reader, "general.architecture")),
        model.config.num_hidden_layers,
    )
    tensors = {t.name: t for t in reader.tensors}
    used = set()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, name
        stem = name.removesuffix(".weight")
        tensor = tensors[names.get_name(stem) + ".weight"]
        used.add(tensor.name)
        stored = gguf.dequantize(tensor.data, tensor.tensor_type)
        loaded = parameter.detach().numpy()
        if field(reader, "general.architecture") == "gemma3" and stem.endswith("norm"):
            # Gemma's norm multiplies by 1 + weight; the file holds the sum. The sum must survive the round trip.
            loaded = np.float32(1) + loaded
        elif field(reader, "general.architecture") == "llama" and stem.endswith(("q_proj", "k_proj")):
            stored, loaded = (w[np.lexsort(w.T)] for w in (stored, loaded))
        assert np.array_equal(stored, loaded), f"{name} differs from {tensor.name}"
    assert used == set(tensors), f"unused tensors: {set(tensors) - used}"


@torch.no_grad()
def logits_of(model, ids):
    """[len(ids), V] logits, all positions in one pass, no cache."""
    return model(torch.from_numpy(ids).long()[None], use_cache=False).logits[0]


@torch.no_grad()
def greedy(model, prompt):
    """STEPS ids by argmax, decoded one by one with the cache. The margins, and a check of the ids, come from one pass without
    cache over the whole sequence. Also the largest difference of a logit between the two ways: the reference's own noise."""
    out = model(torch.from_numpy(prompt).long()[None], use_cache=True)
    rows, ids = [out.logits[0, -1]], []
    while True:
        ids.append(int(rows[-1].argmax()))
        if len(ids) == STEPS:
            break
        out = model(torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0, -1])
    ids = np.array(ids, np.int32)
    whole = logits_of(model, np.concatenate([prompt, ids[:-1]]))[len(prompt) - 1 :]
    assert np.array_equal(whole.argmax(-1).numpy(), ids), "the two ways disagree: a margin below the noise"
    best = whole.topk(2, dim=-1).values
    return ids, (best[:, 0] - best[:, 1]).numpy(), float((torch.stack(rows) - whole).abs().max())


def compare(reference, path):
    """How far llama.cpp's logits are from the reference's."""
    other = np.memmap(path, np.float32, "r").reshape(reference.shape)
    kl, same, difference = [], 0, []
    for row, theirs in zip(reference, other):
        p = torch.log_softmax(row.double(), -1)
        q = torch.log_softmax(torch.from_numpy(np.array(theirs)).double(), -1)
        kl.append(float((p.exp() * (p - q)).sum()))
        same += int(row.argmax()) == int(theirs.argmax())
        difference.append(float(np.abs(row.numpy() - theirs).mean()))
    return {
        "mean_kl": float(np.mean(kl)),
        "median_kl": float(np.median(kl)),
        "max_kl": float(np.max(kl)),
        "same_argmax": same / len(kl),
        "mean_abs_logit_difference": float(np.mean(difference)),
    }


LLAMA_CPP_HOW = (
    "llama.cpp commit 0c1e57098 (vendored in llama-cpp-python 0.3.36) on the CPU with 2 threads; the 1,000 text_ids decoded in "
    "batches of 512 with the logits of every position; KL(reference || llama.cpp) of the full softmax in f64. llama_cpp: the "
    "model file itself, default context parameters (f16 KV cache, flash attention auto, activations in int8). llama_cpp_f32: "
    "the file converted with llama-quantize --allow-requantize F32, f32 KV cache, flash attention off, and llama.cpp built "
    "without GGML_GELU_FP16 (its GELU table in f16 alone gives Gemma a mean KL of 4.9e-7)."
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tensors", type=pathlib.Path)
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--full", type=pathlib.Path)
    parser.add_argument("--llama-logits", type=pathlib.Path)
    parser.add_argument("--llama-f32-logits", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("highest")

    model, tokenizer, reader = load(args.model)
    check_weights(model, reader)
    add_bos = bool(field(reader, "tokenizer.ggml.add_bos_token"))
    bos = [field(reader, "tokenizer.ggml.bos_token_id")] if add_bos else []

    def encode(text):
        return np.array(bos + tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    text = pathlib.Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
    text_ids = encode(text)[:POSITIONS]
    assert len(text_ids) == POSITIONS
    logits = logits_of(model, text_ids)
    if args.full:
        logits.numpy().tofile(args.full)
    top = logits.topk(TOP, dim=-1)
    vocabulary = logits.shape[1]
    fixed_ids = np.sort(np.random.RandomState(FIXED_SEED).choice(vocabulary, FIXED, replace=False)).astype(np.int32)
    tensors = {
        "text_ids": text_ids,
        "top_ids": top.indices.numpy().astype(np.int32),
        "top_logits": top.values.numpy(),
        "fixed_ids": fixed_ids,
        "fixed_logits": logits.numpy()[:, fixed_ids],
        "logsumexp": torch.logsumexp(logits.double(), -1).float().numpy(),
        "norm": torch.linalg.vector_norm(logits.double(), dim=-1).float().numpy(),
    }

    chat = field(reader, "tokenizer.chat_template") is not None
    prompts, noise = [], 0.0
    for i, prompt in enumerate(CHAT_PROMPTS if chat else PLAIN_PROMPTS):
        rendered = prompt
        if chat:
            message = [{"role": "user", "content": prompt}]
            rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = encode(rendered)
        continuation, margin, difference = greedy(model, ids)
        noise = max(noise, difference)
        tensors |= {f"prompt_{i}": ids, f"greedy_{i}": continuation, f"margin_{i}": margin}
        prompts.append(
            {
                "prompt": prompt,
                "rendered": rendered,
                "continuation": tokenizer.decode(continuation),
                "smallest_margin": float(margin.min()),
            }
        )
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, args.tensors)
    args.tensors.chmod(0o644)

    target = np.float64(logits.numpy()[np.arange(POSITIONS - 1), text_ids[1:]])
    facts = {
        "model": args.model.name,
        "model_sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "tensors": args.tensors.name,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "gguf": importlib.metadata.version("gguf"),
            "safetensors": safetensors.__version__,
            "numpy": np.__version__,
        },
        "options": {
            "dtype": "float32",
            "attn_implementation": "eager",
            "quantization_config": "GgufConfig(dequantize=True)",
            "float32_matmul_precision": "highest",
            "device": "cpu",
            "teacher_forcing": "all 1,000 positions in one pass, no cache",
            "generation": "argmax, no repetition penalty, no stop at end tokens, BOS as the metadata says",
            "fixed_seed": FIXED_SEED,
        },
        "config": {k: v for k, v in model.config.to_dict().items() if k in CONFIG},
        "add_bos_token": add_bos,
        "chat_template": chat,
        "perplexity_of_text": float(np.exp(np.mean(tensors["logsumexp"][:-1] - target))),
        "max_logit_difference_cached_vs_whole": noise,
        "prompts": prompts,
    }
    if args.llama_logits:
        facts["llama_cpp"] = compare(logits, args.llama_logits)
        facts["llama_cpp_mean_kl"] = facts["llama_cpp"]["mean_kl"]
        facts["llama_cpp_how"] = LLAMA_CPP_HOW
    if args.llama_f32_logits:
        facts["llama_cpp_f32"] = compare(logits, args.llama_f32_logits)
    args.json.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
