"""Writes tests/vectors/images: image files, what PIL reads from them, and what transformers' image processors (with PIL) make of them.

    pip install pillow==13.0.0 numpy transformers==5.24.0 safetensors==0.8.0 && python tests/reference/make_images.py

Needs no torch and no network. `cases.json` lists, for each processor, its `preprocessor_config.json` and an image; `expected.safetensors` has

    rgb.FILE    [H,W,3] u8   `Image.open(FILE).convert("RGB")`
    case.N      [3,H,W] f32  the pixel values of case N; u8 where they are levels

Folders have `preprocessor_config.json` as transformers writes it.
"""

import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

OUT = pathlib.Path(__file__).parents[1] / "vectors/images"
SEED = 20261126
PROCESSORS = {
    "ViT": ViTImageProcessorPil,
    "CLIP": CLIPImageProcessorPil,
    "Siglip": SiglipImageProcessorPil,
    "Bit": BitImageProcessorPil,
}

rng = np.random.default_rng(SEED)


def picture(height, width, channels=3):
    """Waves with edges and some noise: levels from 0 to 255 that hold every filter to its lobes."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c) + c) + np.cos(y / (4 - c / 2) - c) for c in range(channels)]
    levels = 128 + 60 * np.stack(waves, -1) + rng.normal(0, 12, (height, width, channels))
    levels[height // 4 : height // 2, width // 3 : width // 2] = 255
    levels[height // 2 : 2 * height // 3, : width // 4] = 0
    return levels.clip(0, 255).astype(np.uint8)


def png(height, width, depth, kind, rows, chunks=()):
    """A PNG file of kinds that PIL does not write; `rows` are packed."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunk(*c) for c in chunks) + data + chunk(b"IEND", b"")


def deep(levels):
    """Levels of 16 bits, high byte first, whose low bytes are not the high ones."""
    low = rng.integers(0, 256, levels.shape, dtype=np.uint16)
    return (levels.astype(np.uint16) << 8 | low).astype(">u2")


def files():
    """Image files by name."""
    found = {}

    def add(name, image, **options):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG" if name.endswith("jpg") else "PNG", **options)
        found[name] = buffer.getvalue()

    rgb = Image.fromarray(picture(53, 37))
    add("wide.png", Image.fromarray(picture(47, 71)))
    add("tiny.png", Image.fromarray(picture(9, 13)))
    add("grey.png", rgb.convert("L"))
    add("one-bit.png", rgb.convert("1"))
    palette = Image.fromarray(picture(37, 53)).convert("P", palette=Image.Palette.ADAPTIVE, colors=50)
    add("palette.png", palette)
    add("palette-transparent.png", palette, transparency=bytes(range(0, 250, 5)))
    add("alpha.png", Image.fromarray(picture(23, 31, 4), "RGBA"))
    add("grey-alpha.png", Image.fromarray(np.ascontiguousarray(picture(23, 31, 2)), "LA"))
    h, w = 11, 17
    found["grey-2.png"] = png(h, w, 2, 0, np.packbits(rng.integers(0, 2, (h, 2 * w), dtype=np.uint8), axis=1))
    found["grey-4.png"] = png(h, w, 4, 0, np.packbits(rng.integers(0, 2, (h, 4 * w), dtype=np.uint8), axis=1))
    dark = (picture(h, w, 1)[..., 0].astype(np.uint16) * 3).astype(">u2")
    found["grey-16.png"] = png(h, w, 16, 0, [row.tobytes() for row in dark])
    for name, kind, channels in [("rgb-16.png", 2, 3), ("grey-alpha-16.png", 4, 2), ("rgba-16.png", 6, 4)]:
        found[name] = png(h, w, 16, kind, [row.tobytes() for row in deep(picture(h, w, channels))])
    keyed = picture(h, w)
    key = b"".join(struct.pack(">H", v) for v in keyed[3, 5])
    found["rgb-key.png"] = png(h, w, 8, 2, [row.tobytes() for row in keyed], [(b"tRNS", key)])
    add("photo-444.jpg", rgb, quality=90, subsampling=0)
    add("photo-420.jpg", rgb, quality=90, subsampling=2)
    add("photo-422.jpg", rgb, quality=75, subsampling=1)
    add("progressive.jpg", rgb, quality=85, progressive=True)
    add("grey.jpg", rgb.convert("L"), quality=90)
    add("four-inks.jpg", rgb.convert("CMYK"), quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6
    add("turned.jpg", Image.fromarray(picture(16, 24)), quality=95, subsampling=0, exif=exif)
    return found


def cases():
    """For each case the kind of processor, the image, and the settings in `preprocessor_config.json`."""
    levels = {"do_rescale": False, "do_normalize": False}
    exact = lambda h, w: {"size": {"height": h, "width": w}}
    for resample in range(6):
        for image, size in [("wide.png", (19, 23)), ("tiny.png", (22, 17)), ("palette.png", (37, 20)), ("grey.png", (60, 13))]:
            yield "ViT", image, {**levels, **exact(*size), "resample": resample}
    for image, size, crop in [("wide.png", 20, (15, 26)), ("grey.png", 21, (30, 17)), ("tiny.png", 9, (12, 18)), ("palette.png", 31, (31, 44))]:
        yield "CLIP", image, {**levels, "size": {"shortest_edge": size}, "crop_size": {"height": crop[0], "width": crop[1]}}
    yield "CLIP", "wide.png", {**levels, "do_resize": False, "crop_size": 33}
    yield "CLIP", "wide.png", {**levels, "do_center_crop": False, "size": 25}
    # What the towers of tests/vectors/encoders read.
    yield "ViT", "wide.png", exact(24, 24)
    yield "CLIP", "wide.png", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    yield "Siglip", "palette.png", exact(32, 32)
    yield "Bit", "grey.png", {
        **{"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}},
        **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    }
    yield "ViT", "tiny.png", {"do_resize": False, "do_normalize": False, "rescale_factor": 1 / 127.5}
    yield "ViT", "tiny.png", {"do_resize": False, "do_rescale": False, "image_mean": 100.0, "image_std": [50.0, 60.0, 70.0]}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, data in files().items():
        (OUT / name).write_bytes(data)
        if name != "four-inks.jpg":
            expected[f"rgb.{name}"] = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    listed = []
    for n, (kind, image, settings) in enumerate(cases()):
        # As transformers reads a file; its processors alone may put transparency on white.
        rgb = Image.open(OUT / image).convert("RGB")
        pixels = PROCESSORS[kind](**settings)(images=rgb, return_tensors="np")["pixel_values"][0]
        expected[f"case.{n}"] = np.ascontiguousarray(pixels, dtype=np.float32)
        listed.append({"image": image, "config": {"image_processor_type": f"{kind}ImageProcessor", **settings}})
    for name in [n for n, t in expected.items() if n.startswith("case.") and (t == t.round()).all() and t.min() >= 0]:
        # Levels alone need a byte each.
        expected[name] = expected[name].astype(np.uint8)
    for kind, size in [("ViT", {"height": 24, "width": 24}), ("CLIP", {"shortest_edge": 32}), ("Siglip", {"height": 32, "width": 32}), ("Bit", None)]:
        options = {"size": size} if size else {}
        PROCESSORS[kind](**options).save_pretrained(OUT / kind.lower())
    save_file(expected, OUT / "expected.safetensors")
    (OUT / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in listed) + "\n]\n")
    print(len(listed), "cases,", sum(f.stat().st_size for f in OUT.iterdir()), "bytes")


main()
