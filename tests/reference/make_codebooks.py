"""Writes src/quant/codebooks/*.txt: the codebooks that define GGML's formats IQ1 to IQ3, from the data of the package `gguf` (PyPI, 0.19.0).

An entry has 16 bits, two entries a word, the first in the low half: 8 values of 2 bits (IQ1, IQ2) or 4 values of 4 bits (IQ3), each the place of
the value among those that the format has, which begin with the smallest.

    pip install gguf==0.19.0 && python tests/reference/make_codebooks.py
"""

import pathlib

import gguf.quants as q

OUT = pathlib.Path(__file__).parents[2] / "src/quant/codebooks"

for cls in [q.IQ1_S, q.IQ2_XXS, q.IQ2_XS, q.IQ2_S, q.IQ3_XXS, q.IQ3_S]:
    cls.init_grid()
    entries, values = cls.grid_shape
    width = 16 // values
    grid = cls.grid.reshape(entries, values)
    coded = [sum(cls.grid_map.index(int(v)) << (width * i) for i, v in enumerate(entry)) for entry in grid]
    words = [f"0x{low | high << 16:08x}," for low, high in zip(coded[::2], coded[1::2])]
    lines = [" ".join(words[i : i + 12]) for i in range(0, len(words), 12)]
    name = cls.__name__.lower()
    (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
    print(name, len(words), "words, values", cls.grid_map)
