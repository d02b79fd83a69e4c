#!/usr/bin/env python3
"""Writes a GGUF with random weights in the shape of a real Llama-family model.

For measuring speed and memory where no trained model of that size is at hand: its text is noise, its
arithmetic is that of the real thing. Needs: pip install gguf numpy.

    shape_model.py out.gguf --preset 160m              # 12 layers, 768 wide, 32 000 tokens
    shape_model.py out.gguf --preset 1b --quant q4_0   # the shape of Llama 3.2 1B, 128 256 tokens
    shape_model.py out.gguf --preset 8b-2              # two layers of the shape of Llama 3.1 8B
    shape_model.py out.gguf --preset 128k              # what 128 256 tokens cost beside a model
"""
import argparse

import gguf
import numpy as np

PRESETS = {  # layers, width, heads, KV heads, feed-forward, vocabulary
    "30m": (6, 384, 6, 2, 1024, 32000),
    "160m": (12, 768, 12, 4, 2048, 32000),
    "500m": (24, 896, 14, 2, 4864, 151936),
    "1b": (16, 2048, 32, 8, 8192, 128256),
    "8b-2": (2, 4096, 32, 8, 14336, 128256),
    "128k": (2, 256, 4, 2, 512, 128256),  # a large vocabulary and little else
}


def vocabulary(size: int):
    """A SentencePiece-style vocabulary: control, byte, then syllable pieces, so that any text tokenizes."""
    pieces = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % b for b in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    seen = set()
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    def spread():
        for a in letters:
            yield a
            yield "\u2581" + a
        for a in letters + letters.upper():
            for b in letters:
                yield a + b
                yield "\u2581" + a + b
        for a in letters:
            for b in letters:
                for c in letters:
                    yield a + b + c
                    yield "\u2581" + a + b + c
        n = 0
        while True:
            yield "\u2581w%d" % n
            n += 1
    for extra in ["\u2581"] + list("0123456789.,;:!?'\"()[]{}<>/\\-_+=*&^%$#@~`|\n"):
        pieces.append(extra.encode()); kinds.append(1); seen.add(extra)
    for piece in spread():
        if len(pieces) >= size:
            break
        if piece not in seen:
            seen.add(piece); pieces.append(piece.encode()); kinds.append(1)
    return pieces, [-float(i) for i in range(size)], kinds


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--preset", choices=PRESETS, default="160m")
    ap.add_argument("--quant", choices=["f16", "q8_0", "q4_0"], default="q8_0")
    ap.add_argument("--context", type=int, default=8192)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    layers, width, heads, kv_heads, ff, vocab = PRESETS[args.preset]
    head = width // heads
    rng = np.random.default_rng(args.seed)
    kind = {"f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}[args.quant]

    w = gguf.GGUFWriter(args.out, "llama")
    w.add_name(f"shape-{args.preset}-{args.quant}"); w.add_context_length(args.context); w.add_embedding_length(width)
    w.add_block_count(layers); w.add_feed_forward_length(ff); w.add_head_count(heads); w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(head); w.add_rope_freq_base(500000.0); w.add_vocab_size(vocab)
    pieces, scores, kinds = vocabulary(vocab)
    w.add_tokenizer_model("llama"); w.add_token_list(pieces); w.add_token_scores(scores); w.add_token_types(kinds)
    w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0); w.add_add_bos_token(True)
    w.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")

    def matrix(name, rows, cols):
        data = rng.standard_normal((rows, cols), dtype=np.float32) * 0.02
        w.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    def norm(name):
        w.add_tensor(name, np.ones(width, dtype=np.float32))

    matrix("token_embd.weight", vocab, width)  # tied: also the output head
    norm("output_norm.weight")
    for i in range(layers):
        b = f"blk.{i}."
        norm(b + "attn_norm.weight"); norm(b + "ffn_norm.weight")
        matrix(b + "attn_q.weight", width, width); matrix(b + "attn_k.weight", kv_heads * head, width)
        matrix(b + "attn_v.weight", kv_heads * head, width); matrix(b + "attn_output.weight", width, width)
        matrix(b + "ffn_gate.weight", ff, width); matrix(b + "ffn_up.weight", ff, width); matrix(b + "ffn_down.weight", width, ff)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


if __name__ == "__main__":
    main()
