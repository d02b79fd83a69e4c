"""Trains a demo model, from scratch or from a GGUF's weights, and writes it as a GGUF.

    python train.py --work work/demo --out ../demo.gguf
    python train.py --work work/pirate --out ../demo-pirate.gguf --manner pirate
    python train.py --work work/tools --out ../demo.gguf --from ../demo.gguf --tools 0.35 --peak 0.005

Batch number n is a function of (seed, n) alone, so a run cut off at a
checkpoint and started again with the same command sees the same data. The
learning rate holds for the first part of --steps and then falls to zero.
"""

import argparse
import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import corpus
import evaluate
import gguf_io
import model
import schemas
import tool_talk
import vocab

LONG_EVERY = 8
# Steps between checkpoints, and between lines of the log.
SAVE_EVERY = 25
# From this step on the slow families are drawn more often.
SLOW_FROM = 3500
# Share of talks with tools among the conversations with tools or schemas.
TALKS = 0.75


# --------------------------------------------------------------------------
# Batches
# --------------------------------------------------------------------------

def some_conversation(rng, manner, slow, tools):
    """`tools`: share of the conversations with tools or schemas."""
    if rng.random() >= tools:
        return corpus.conversation(rng, manner, slow=slow)
    return tool_talk.conversation(rng) if rng.random() < TALKS else schemas.conversation(rng)


def short_row(rng, tok, manner, size, slow, tools):
    """Conversations packed until the row is full; (ids, learn, docs)."""
    ids, learn, docs, number = [], [], [], 0
    while size - len(ids) >= 12:
        if rng.random() < 0.02:
            body = vocab.text_ids(tok, corpus.raw_text(rng) if manner == "plain" else corpus.story_text(rng, "fox"))
            # The first words are the request; the rest is what comes after them.
            c, l = [vocab.BOS] + body + [vocab.END], [False] * 4 + [True] * (len(body) - 2)
        else:
            c, l = vocab.conversation_ids(tok, some_conversation(rng, manner, slow, tools))
        room = size - len(ids)
        if len(c) > room and room < size * 2 // 3 and rng.random() < 0.8:
            continue  # looks for a shorter one instead of cutting this
        number += 1
        ids += c[:room]
        learn += l[:room]
        docs += [number] * min(room, len(c))
    return ids, learn, docs


def long_row(rng, tok, manner, size, slow, tools):
    while True:
        talk = rng.random() < tools
        c, l = vocab.conversation_ids(tok, tool_talk.conversation(rng, rng.randint(2, 7)) if talk else
                                      corpus.long_conversation(rng, manner))
        if size * 0.55 < len(c) <= size:
            break
    rest = short_row(rng, tok, manner, size - len(c), slow, tools) if size - len(c) > 60 else ([], [], [])
    return c + rest[0], l + rest[1], [0] * len(c) + rest[2]


def batch(tok, seed, step, manner, rows, length, tools, slow_from):
    rng = random.Random(f"{seed}/{step}")
    long = step % LONG_EVERY == LONG_EVERY - 1 and step > 200
    if long:
        rows, length = max(1, rows * length // 1024), 1024
    ids = np.full((rows, length + 1), vocab.PAD, np.int32)
    learn = np.zeros((rows, length + 1), np.float32)
    docs = np.full((rows, length + 1), -1, np.int32)
    for r in range(rows):
        i, l, d = (long_row if long else short_row)(rng, tok, manner, length + 1, step >= slow_from, tools)
        ids[r, :len(i)], learn[r, :len(l)], docs[r, :len(d)] = i, l, d
    # A target in another conversation is never a learned one: each starts unlearned.
    return ids[:, :-1], docs[:, :-1], ids[:, 1:], learn[:, 1:]


# --------------------------------------------------------------------------
# Optimiser: Muon on the matrices, Adam on the rest
# --------------------------------------------------------------------------

def orthogonalised(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrix, stacked."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else jnp.swapaxes(g, -1, -2)
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(5):
        a = x @ jnp.swapaxes(x, -1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x if wide else jnp.swapaxes(x, -1, -2)


def fresh_state(params):
    return {"m": {k: np.zeros_like(p) for k, p in params.items()},
            "v": {k: np.zeros_like(p) for k, p in params.items() if k not in model.MATRICES}}


@partial(jax.jit, static_argnums=(4, 5), donate_argnums=(0, 1))
def update(params, state, step, data, shape, peak, rate):
    value, grads = jax.value_and_grad(model.loss)(params, *data, shape)
    total = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    new_p, new_m, new_v = {}, {}, {}
    for k, p in params.items():
        g = grads[k]
        if k in model.MATRICES:
            m = 0.95 * state["m"][k] + g
            d = orthogonalised(g + 0.95 * m) * max(1.0, p.shape[-1] / p.shape[-2]) ** 0.5
            new_p[k] = p * (1 - rate * peak * 0.03) - rate * peak * d
        else:
            g = g * jnp.minimum(1.0, 1.0 / (total + 1e-6))
            m = 0.9 * state["m"][k] + 0.1 * g
            v = new_v[k] = 0.98 * state["v"][k] + 0.02 * g * g
            d = (m / (1 - 0.9 ** step)) / (jnp.sqrt(v / (1 - 0.98 ** step)) + 1e-8)
            new_p[k] = p - rate * peak * 0.3 * d
        new_m[k] = m
    return new_p, {"m": new_m, "v": new_v}, value


def rate_at(step, left):
    """Short warm-up, a plateau, then a straight line to zero; `left`: share of the training that is left."""
    return min(1.0, (step + 1) / 50, left / 0.75)


# --------------------------------------------------------------------------
# Checkpoints
# --------------------------------------------------------------------------

def save(path, params, state, info):
    flat = {f"p/{k}": v for k, v in params.items()}
    flat |= {f"{s}/{k}": v for s, part in state.items() for k, v in part.items()}
    with open(path + ".partial", "wb") as f:
        np.savez(f, info=json.dumps(info), **flat)
    os.replace(path + ".partial", path)


def load(path):
    data = np.load(path)
    params = {k[2:]: data[k] for k in data if k.startswith("p/")}
    state = {s: {k[2:]: data[k] for k in data if k.startswith(f"{s}/")} for s in ("m", "v")}
    return params, state, json.loads(str(data["info"]))


# --------------------------------------------------------------------------

SIZES = {"plain": dict(layers=6, width=192, heads=6, hidden=512), "pirate": dict(layers=4, width=128, heads=4, hidden=352)}
TITLES = {"plain": ("Camshaft demo", "A very small chat model trained from scratch on generated text, for trying the server."),
          "pirate": ("Camshaft demo pirate", "A second very small chat model which answers everything like a pirate.")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True, help="folder for checkpoints and the log")
    p.add_argument("--out", required=True, help="the GGUF to write")
    p.add_argument("--manner", choices=tuple(SIZES), default="plain")
    p.add_argument("--from", dest="base", help="a GGUF whose weights and vocabulary training starts from")
    p.add_argument("--tools", type=float, default=0.0, help="share of conversations with tools or schemas")
    p.add_argument("--seed", type=int)
    p.add_argument("--steps", type=int, default=6000)
    p.add_argument("--minutes", type=float, help="end after this time where --steps would take longer")
    p.add_argument("--rows", type=int, default=8)
    p.add_argument("--length", type=int, default=192)
    p.add_argument("--peak", type=float, default=0.01, help="highest learning rate of the matrices")
    p.add_argument("--eval-every", type=int, default=400)
    p.add_argument("--eval-count", type=int, default=16, help="prompts per family; 0: none is measured")
    p.add_argument("--stop-at", type=int, help="leave after this step, to be resumed later")
    args = p.parse_args()
    seed = args.seed if args.seed is not None else {"plain": 1, "pirate": 2}[args.manner]
    os.makedirs(args.work, exist_ok=True)
    checkpoint = os.path.join(args.work, "checkpoint.npz")

    if args.base:
        base, shape, tok = gguf_io.read(args.base)
        tokens, merges = vocab.pieces(tok)
    else:
        base, shape = None, model.Shape(**SIZES[args.manner])
        tokens, merges = vocab.train()
        tok = vocab.from_pieces(tokens, merges)
    vocab.check(tok, 300)
    if os.path.exists(checkpoint):
        params, state, info = load(checkpoint)
        print("resumed at step", info["step"], flush=True)
    else:
        params = base or model.init(shape, seed)
        state, info = fresh_state(params), {"step": 0, "seconds": 0.0, "best": -1.0}
    print(f"{model.parameter_count(params)} parameters", flush=True)
    params, state = jax.tree.map(jnp.asarray, (params, state))
    table = evaluate.cases(args.manner, args.eval_count) | (evaluate.tool_cases(args.eval_count) if args.tools else {})
    pool = ThreadPoolExecutor(1)
    make = partial(batch, tok, seed, manner=args.manner, rows=args.rows, length=args.length,
                   tools=args.tools, slow_from=0 if args.base else SLOW_FROM)
    pending = pool.submit(make, step=info["step"])
    started, losses, mark = time.time() - info["seconds"], [], time.time()

    while True:
        step = info["step"]
        left = 1 - step / args.steps
        if args.minutes:
            left = min(left, max(0.0, 1 - info["seconds"] / 60 / args.minutes))
        data = pending.result()
        pending = pool.submit(make, step=step + 1)
        params, state, value = update(params, state, step + 1.0, data, shape, args.peak,
                                      rate_at(step, left))
        losses.append(value)
        info["step"] = step = step + 1
        info["seconds"] = time.time() - started
        if step % SAVE_EVERY == 0:
            spent, mark = time.time() - mark, time.time()
            print(f"step {step}/{args.steps}  loss {float(np.mean(jax.device_get(losses))):.4f}  "
                  f"{SAVE_EVERY * args.rows * args.length / spent:.0f} tokens/s  {info['seconds'] / 60:.1f} min", flush=True)
            losses = []
        leaving = step >= args.steps or step == args.stop_at or left <= 0
        if step % args.eval_every == 0 or leaving:
            host = jax.device_get(params)
            # Written first and read back, so the q8_0 weights are what is measured.
            candidate = os.path.join(args.work, "candidate.gguf")
            gguf_io.write(candidate, host, shape, tokens, merges, *TITLES[args.manner])
            result = evaluate.measure(*gguf_io.read(candidate), table) if args.eval_count else {}
            score = float(np.mean([share for share, _ in result.values()])) if result else info["best"]
            print("  " + "  ".join(f"{n} {share * 100:.0f}" for n, (share, _) in result.items()), flush=True)
            if score >= info["best"]:
                info["best"] = score
                gguf_io.write(args.out, host, shape, tokens, merges, *TITLES[args.manner])
        if step % SAVE_EVERY == 0 or leaving:
            save(checkpoint, jax.device_get(params), jax.device_get(state), info)
        if leaving:
            break
    pool.shutdown()
    print(f"done: {info['seconds'] / 60:.1f} minutes, mean accuracy {info['best'] * 100:.1f} %", flush=True)


if __name__ == "__main__":
    main()
