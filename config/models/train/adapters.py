"""Makes two small LoRA adapters for the demo model: drawn, not trained, and large
enough to change its greedy answers.

    python adapters.py --out ../../../tests/fixtures/adapters

Each pair of matrices comes from a stream of random numbers of its own, named by
adapter and tensor, so the files are the same on every machine.
"""

import argparse
import hashlib
import os

import gguf
import numpy as np

RANK = 4
LAYERS, WIDTH, HIDDEN = 6, 192, 512
# Inputs and outputs of the demo model's matrices.
SHAPES = {"attn_q": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_down": (HIDDEN, WIDTH)}
# Of each adapter: the matrices that it changes, the layers, its numbers, and how large a change is beside the weights.
ADAPTERS = {
    "gale": (("attn_output", "ffn_down"), range(0, LAYERS, 2), np.float16, 0.9),
    "ember": (("attn_q", "attn_v"), range(1, LAYERS, 2), np.float32, 1.6),
}


def pair(name, tensor, inputs, outputs, strength):
    """(A, B): A maps the inputs to RANK numbers, B those to the outputs."""
    seed = hashlib.sha256(f"{name} {tensor}".encode()).digest()[:8]
    rng = np.random.Generator(np.random.Philox(int.from_bytes(seed, "little")))
    a = rng.standard_normal((RANK, inputs)) * inputs ** -0.5
    b = rng.standard_normal((outputs, RANK)) * strength * RANK ** -0.5
    return a, b


def write(path, name):
    """The file appears under `path` complete or not at all."""
    tensors, layers, kind, strength = ADAPTERS[name]
    partial = f"{path}.partial"
    w = gguf.GGUFWriter(partial, "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", float(RANK))
    w.add_name(name)
    w.add_license("apache-2.0")
    for layer in layers:
        for short in tensors:
            tensor = f"blk.{layer}.{short}.weight"
            a, b = pair(name, tensor, *SHAPES[short], strength)
            w.add_tensor(f"{tensor}.lora_a", np.ascontiguousarray(a, kind))
            w.add_tensor(f"{tensor}.lora_b", np.ascontiguousarray(b, kind))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(partial, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="directory of the files")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name in ADAPTERS:
        write(os.path.join(args.out, f"{name}.gguf"), name)


if __name__ == "__main__":
    main()
