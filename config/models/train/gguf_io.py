"""Writes the trained weights as a q8_0 GGUF and reads such a file back.

Reading back goes through the file alone (dequantised weights, vocabulary from
the metadata), so what the evaluation measures is what a server will load.
"""

import os

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

import chat
import vocab
from model import Shape

NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
         "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
NORMS = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}
Q8 = gguf.GGMLQuantizationType.Q8_0


def write(path, params, shape, tokens, merges, name, description):
    """The file appears under `path` complete or not at all."""
    partial = f"{path}.partial"
    w = gguf.GGUFWriter(partial, "llama")
    w.add_type("model")
    w.add_name(name)
    w.add_description(description)
    w.add_author("Camshaft authors")
    w.add_organization("Camshaft")
    w.add_license("apache-2.0")
    w.add_languages(["en"])
    w.add_size_label(f"{sum(p.size for p in params.values()) / 1e6:.1f}M")
    w.add_context_length(shape.context)
    w.add_embedding_length(shape.width)
    w.add_block_count(shape.layers)
    w.add_feed_forward_length(shape.hidden)
    w.add_head_count(shape.heads)
    w.add_head_count_kv(shape.heads)
    w.add_key_length(shape.head)
    w.add_value_length(shape.head)
    w.add_layer_norm_rms_eps(shape.eps)
    w.add_rope_dimension_count(shape.head)
    w.add_rope_freq_base(shape.rope_base)
    w.add_vocab_size(shape.vocab)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in vocab.SPECIAL else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(vocab.BOS)
    w.add_eos_token_id(vocab.END)
    w.add_eot_token_id(vocab.END)
    w.add_pad_token_id(vocab.PAD)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_chat_template(chat.CHAT_TEMPLATE)

    def matrix(tensor, value):
        w.add_tensor(f"{tensor}.weight", quantize(np.ascontiguousarray(value, np.float32), Q8), raw_dtype=Q8)

    def vector(tensor, value):
        w.add_tensor(f"{tensor}.weight", np.ascontiguousarray(value, np.float32))

    matrix("token_embd", params["embed"])
    vector("output_norm", params["final_norm"])
    matrix("output", params["head"].T)
    for i in range(shape.layers):
        for key, tensor in NORMS.items():
            vector(f"blk.{i}.{tensor}", params[key][i])
        for key, tensor in NAMES.items():
            matrix(f"blk.{i}.{tensor}", params[key][i].T)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(partial, path)


def read(path):
    """(params, shape, tokenizer) from a file made by `write`."""
    r = gguf.GGUFReader(path)

    def meta(key):
        return r.get_field(key).contents()

    shape = Shape(
        layers=meta("llama.block_count"), width=meta("llama.embedding_length"), heads=meta("llama.attention.head_count"),
        hidden=meta("llama.feed_forward_length"), vocab=meta("llama.vocab_size"), context=meta("llama.context_length"),
        rope_base=float(meta("llama.rope.freq_base")), eps=float(meta("llama.attention.layer_norm_rms_epsilon")))
    tensors = {t.name.removesuffix(".weight"): dequantize(t.data, t.tensor_type).astype(np.float32) for t in r.tensors}
    params = {"embed": tensors["token_embd"], "final_norm": tensors["output_norm"], "head": tensors["output"].T}
    for table in (NORMS, NAMES):
        for key, tensor in table.items():
            params[key] = np.stack([tensors[f"blk.{i}.{tensor}"].T for i in range(shape.layers)])
    return params, shape, vocab.from_pieces(meta("tokenizer.ggml.tokens"), meta("tokenizer.ggml.merges"))
