"""Adapters that PEFT made, and what transformers computes with them: python make.py, with peft, transformers and torch.

For each of the small models beside this folder: adapters with random matrices, saved by PEFT, and the logits of a batch in f64.
"""
import json, os, shutil
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    ("gpt2-odd", dict(target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True)),
    ("llama3-rope", dict(target_modules=["q_proj", "k_proj", "v_proj", "down_proj"], use_rslora=True)),
]
for seed, (name, settings) in enumerate(CASES):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "..", "models", name), dtype=torch.float64)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, **settings)).eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" in n:
                p.copy_(torch.randn_like(p) * 0.2)
                p.copy_(p.to(torch.float32))
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.float32).save_pretrained(folder)
    model.to(torch.float64)
    ids = torch.tensor([[i * i % 61 for i in range(r * 20, r * 20 + 20)] for r in range(2)])
    with torch.no_grad():
        logits = model(ids).logits
    save_file({"input_ids": ids, "logits": logits.contiguous()}, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "README.md")):
        os.remove(os.path.join(folder, "README.md"))
    config = json.load(open(os.path.join(folder, "adapter_config.json")))
    config["base_model_name_or_path"] = name
    json.dump(config, open(os.path.join(folder, "adapter_config.json"), "w"), indent=2)
