"""Log-probabilities of tokens from the weights of a GGUF: by a Llama network that numpy computes in 32 bits, and by llama-cpp-python."""

import importlib
import os
import sys

import gguf
import numpy


class Llama:
    """A model without grouped heads or biases whose rotary positions turn neighbouring pairs, as `demo.gguf` is."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)

        def field(name):
            return reader.fields[f"llama.{name}"].contents()

        self.layers, self.heads = field("block_count"), field("attention.head_count")
        self.epsilon, self.base = field("attention.layer_norm_rms_epsilon"), field("rope.freq_base")
        assert field("attention.head_count_kv") == self.heads
        self.weights = {
            tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
            for tensor in reader.tensors
        }

    def norm(self, x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weights[name]

    def turned(self, x):
        """`x` of [tokens, heads, width], turned by its positions."""
        width = x.shape[-1]
        frequencies = self.base ** (-numpy.arange(0, width, 2, dtype=numpy.float64) / width)
        angles = numpy.arange(len(x))[:, None] * frequencies
        cosines, sines = (part[:, None, :].astype(numpy.float32) for part in (numpy.cos(angles), numpy.sin(angles)))
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = numpy.stack([even * cosines - odd * sines, even * sines + odd * cosines], -1)
        return turned.reshape(x.shape)

    def attention(self, x, layer):
        count = len(x)
        query, key, value = (
            (x @ self.weights[f"blk.{layer}.attn_{part}"].T).reshape(count, self.heads, -1) for part in "qkv")
        scores = numpy.einsum("qhd,khd->hqk", self.turned(query), self.turned(key)) / numpy.sqrt(query.shape[-1])
        scores += numpy.triu(numpy.full((count, count), -numpy.inf, numpy.float32), 1)
        scores = numpy.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = numpy.einsum("hqk,khd->qhd", scores, value).reshape(count, -1)
        return mixed @ self.weights[f"blk.{layer}.attn_output"].T

    def log_probabilities(self, tokens):
        """Of each token but the first, under those before it."""
        x = self.weights["token_embd"][tokens]
        for layer in range(self.layers):
            x = x + self.attention(self.norm(x, f"blk.{layer}.attn_norm"), layer)
            y = self.norm(x, f"blk.{layer}.ffn_norm")
            gate = y @ self.weights[f"blk.{layer}.ffn_gate"].T
            hidden = gate / (1 + numpy.exp(-gate)) * (y @ self.weights[f"blk.{layer}.ffn_up"].T)
            x = x + hidden @ self.weights[f"blk.{layer}.ffn_down"].T
        return chosen(self.norm(x, "output_norm") @ self.weights["output"].T, tokens)


def chosen(logits, tokens):
    """The log-probability of each token but the first, in the row of the one before it."""
    logits = logits - logits.max(-1, keepdims=True)
    rows = logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
    return rows[numpy.arange(len(tokens) - 1), tokens[1:]]


class LlamaCpp:
    """The same by llama-cpp-python, which has no wheels: CAMSHAFT_LLAMA_CPP_PYTHON has the folders of its package and of diskcache."""

    def __init__(self, path):
        sys.path.extend(os.environ["CAMSHAFT_LLAMA_CPP_PYTHON"].split(os.pathsep))
        self.model = importlib.import_module("llama_cpp").Llama(str(path), n_ctx=1024, logits_all=True, verbose=False)

    def log_probabilities(self, tokens):
        """Of each token but the first, under those before it."""
        self.model.reset()
        self.model.eval(tokens)
        return chosen(numpy.array(self.model.scores[:len(tokens)], dtype=numpy.float64), tokens)
