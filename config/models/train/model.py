"""The network: a plain Llama in jax, written so that its matrices can be copied
into a GGUF without any permutation (RoPE rotates neighbouring pairs, which is
llama.cpp's NORM convention)."""

from dataclasses import asdict, dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import vocab


@dataclass(frozen=True)
class Shape:
    layers: int = 6
    width: int = 192
    heads: int = 6
    hidden: int = 512
    vocab: int = vocab.VOCAB_SIZE
    context: int = 1024
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head(self):
        return self.width // self.heads

    def as_dict(self):
        return asdict(self)


# Main matrices, stacked over layers as [layer, in, out].
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def init(shape, seed):
    rng = np.random.default_rng(seed)
    d, h, n = shape.width, shape.hidden, shape.layers

    def normal(*dims, scale):
        return rng.standard_normal(dims, dtype=np.float32) * scale

    out = 1.0 / np.sqrt(2 * n)
    return {
        "embed": normal(shape.vocab, d, scale=0.5),
        "head": normal(d, shape.vocab, scale=d ** -0.5 * 0.5),
        "final_norm": np.ones(d, np.float32),
        "attn_norm": np.ones((n, d), np.float32),
        "ffn_norm": np.ones((n, d), np.float32),
        "q": normal(n, d, d, scale=d ** -0.5), "k": normal(n, d, d, scale=d ** -0.5),
        "v": normal(n, d, d, scale=d ** -0.5), "o": normal(n, d, d, scale=d ** -0.5 * out),
        "gate": normal(n, d, h, scale=d ** -0.5), "up": normal(n, d, h, scale=d ** -0.5),
        "down": normal(n, h, d, scale=h ** -0.5 * out),
    }


def parameter_count(params):
    return sum(int(np.prod(p.shape)) for p in params.values())


def norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def rope(x, positions, base):
    """x: [batch, time, heads, head]; rotates elements (2i, 2i+1) together."""
    half = x.shape[-1] // 2
    freq = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * freq
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pair = x.reshape(*x.shape[:-1], half, 2)
    a, b = pair[..., 0], pair[..., 1]
    return jnp.stack((a * cos - b * sin, a * sin + b * cos), -1).reshape(x.shape)


def block(params, i, x, positions, attend, shape):
    """One layer; `attend` maps this layer's (q, k, v) to mixed values."""
    batch, time, d = x.shape
    y = norm(x, params["attn_norm"][i], shape.eps)
    split = (batch, time, shape.heads, shape.head)
    q = rope((y @ params["q"][i]).reshape(split), positions, shape.rope_base)
    k = rope((y @ params["k"][i]).reshape(split), positions, shape.rope_base)
    v = (y @ params["v"][i]).reshape(split)
    x = x + attend(i, q, k, v).reshape(batch, time, d) @ params["o"][i]
    y = norm(x, params["ffn_norm"][i], shape.eps)
    return x + (jax.nn.silu(y @ params["gate"][i]) * (y @ params["up"][i])) @ params["down"][i]


def mix(q, k, v, allowed):
    """Softmax attention; allowed: [batch, query, key]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5)
    scores = jnp.where(allowed[:, None], scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def mix_fast(q, k, v, allowed):
    """`mix` for training on a CPU, where a softmax's row maxima and sums cost more
    than its matrix products. The sums come out of the product with a column of
    ones, and a cap takes the place of the maxima: exp(60) still fits a float32."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q * (q.shape[-1] ** -0.5), k, v))
    v = jnp.concatenate((v, jnp.ones_like(v[..., :1])), -1)
    weight = jnp.exp(jnp.minimum(q @ k.swapaxes(-1, -2), 60.0)) * allowed[:, None].astype(q.dtype)
    out = weight @ v
    return (out[..., :-1] / (out[..., -1:] + 1e-30)).transpose(0, 2, 1, 3)


def logits(params, x, shape):
    return norm(x, params["final_norm"], shape.eps) @ params["head"]


def loss(params, ids, docs, targets, learn, shape):
    """Cross entropy on the learned positions. Conversations packed into one row
    carry different `docs` numbers and cannot see each other."""
    time = ids.shape[1]
    positions = jnp.broadcast_to(jnp.arange(time), ids.shape)
    allowed = (docs[:, :, None] == docs[:, None, :]) & jnp.tril(jnp.ones((time, time), bool))
    x = params["embed"][ids]
    for i in range(shape.layers):
        x = block(params, i, x, positions, lambda _, q, k, v: mix_fast(q, k, v, allowed), shape)
    scores = jax.nn.log_softmax(logits(params, x, shape), -1)
    picked = jnp.take_along_axis(scores, targets[..., None], -1)[..., 0]
    return -jnp.sum(picked * learn) / jnp.maximum(jnp.sum(learn), 1.0)


@partial(jax.jit, static_argnums=(3, 4))
def _generate(params, ids, lengths, limit, shape):
    """Greedy decoding of a right-padded batch with a key/value cache."""
    batch, time = ids.shape
    rows, total = jnp.arange(batch), time + limit
    cache = []
    positions = jnp.broadcast_to(jnp.arange(time), ids.shape)
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), bool)), (batch, time, time))

    def keep(i, q, k, v):
        pad = ((0, 0), (0, limit), (0, 0), (0, 0))
        cache.append((jnp.pad(k, pad), jnp.pad(v, pad)))
        return mix(q, k, v, causal)

    x = params["embed"][ids]
    for i in range(shape.layers):
        x = block(params, i, x, positions, keep, shape)
    first = jnp.argmax(logits(params, x[rows, lengths - 1][:, None], shape)[:, 0], -1)

    def step(state):
        n, token, done, out, cache = state
        out = out.at[:, n].set(jnp.where(done, vocab.END, token))
        done = done | (token == vocab.END)
        at = lengths + n
        new = []

        def attend(i, q, k, v):
            ck = cache[i][0].at[rows, at].set(k[:, 0])
            cv = cache[i][1].at[rows, at].set(v[:, 0])
            new.append((ck, cv))
            return mix(q, ck, cv, (jnp.arange(total) <= at[:, None])[:, None])

        x = params["embed"][token][:, None]
        for i in range(shape.layers):
            x = block(params, i, x, at[:, None], attend, shape)
        token = jnp.argmax(logits(params, x, shape)[:, 0], -1)
        return n + 1, token, done, out, new

    state = (0, first, jnp.zeros(batch, bool), jnp.full((batch, limit), vocab.END), cache)
    return jax.lax.while_loop(lambda s: (s[0] < limit) & ~jnp.all(s[2]), step, state)[3]


def generate(params, prompts, shape, limit=96, batch=50):
    """Greedy answers (lists of ids, without the end) to lists of prompt ids."""
    answers = [None] * len(prompts)
    # Sorting by length keeps the padding, and the number of compiled shapes, small.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), batch):
        group = order[start:start + batch]
        longest = max(len(prompts[i]) for i in group)
        time = min(-(-longest // 64) * 64, shape.context)
        ids = np.full((batch, time), vocab.PAD, np.int32)
        lengths = np.ones(batch, np.int32)
        for row, i in enumerate(group):
            ids[row, :len(prompts[i])] = prompts[i]
            lengths[row] = len(prompts[i])
        out = np.asarray(_generate(params, ids, lengths, limit, shape))
        for row, i in enumerate(group):
            answer = out[row].tolist()
            answers[i] = answer[:answer.index(vocab.END)] if vocab.END in answer else answer
    return answers
