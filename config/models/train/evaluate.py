"""Measures a GGUF: greedy exact-match accuracy per family on held-out prompts.

    python evaluate.py demo.gguf [--count 200] [--show 3] [--ask "Hello!" --system "..."]
"""

import argparse
import random

import corpus
import gguf_io
import model
import schemas
import tool_talk
import vocab

# Tokens of an answer at most: two calls are the longest.
ANSWER = 160


def cases(manner="plain", count=100, seed=99):
    """{family: [(messages, expected answer)]}, the same list for every model."""
    rng = random.Random(seed)
    say = corpus.sea_dog if manner == "pirate" else corpus.plain
    families = [f for f in corpus.CLOSED if manner == "plain" or f in corpus.PIRATE_WEIGHTS] + ["unknown"]
    out = {}
    for name in families:
        turns = [corpus.SIMPLE[name][0](rng, heldout=True) for _ in range(count)]
        out[name] = [([("user", t.prompt)], say(t)) for t in turns]
    middle = (lambda r: corpus.any_turn(r, ("story",), corpus.PIRATE_WEIGHTS)) if manner == "pirate" else None
    out["recall"] = []
    for i in range(count):
        turns = corpus.recall(rng, heldout=True, between=i % 5, middle=middle)
        messages = [m for t in turns for m in (("user", t.prompt), ("assistant", say(t)))]
        out["recall"].append((messages[:-1], messages[-1][1]))
    if manner == "pirate":
        return out
    mixed = ("add", "capital", "colour", "count", "backwards", "repeat", "greeting", "json")
    for name, (prompts, say) in corpus.MANNERS.items():
        among = ("add", "sub", "mul", "capital", "colour") if name == "one_word" else mixed
        turns = [corpus.SIMPLE[rng.choice(among)][0](rng, heldout=True) for _ in range(count)]
        out[f"system: {name}"] = [([("system", rng.choice(prompts)), ("user", t.prompt)], say(t)) for t in turns]
    for label, sentences in (("short neutral", 0), ("long neutral", 22)):
        turns = [corpus.SIMPLE[rng.choice(mixed)][0](rng, heldout=True) for _ in range(count)]
        out[f"system: {label}"] = [
            ([("system", corpus.long_system(rng, sentences) if sentences else rng.choice(corpus.NEUTRAL)),
              ("user", t.prompt)], t.answer) for t in turns]
    return out


def tool_cases(count=100, seed=98):
    """As `cases`: conversations with tools, and JSON by schemas."""
    rng = random.Random(seed)
    out = {}
    for name in tool_talk.CASES:
        talks = [tool_talk.case(rng, name) for _ in range(count)]
        out[f"tools: {name}"] = [(talk[:-1], talk[-1][1]) for talk in talks]
    for name, make in (("from a text", schemas.from_text), ("made up", schemas.made_up)):
        turns = [make(rng, heldout=True) for _ in range(count)]
        out[f"schema: {name}"] = [([("user", t.prompt)], t.answer) for t in turns]
    return out


def measure(params, shape, tok, table):
    """{family: (share right, [(messages, expected, got) for the wrong ones])}"""
    prompts = [vocab.prompt_ids(tok, messages) for rows in table.values() for messages, _ in rows]
    answers = iter(model.generate(params, prompts, shape, limit=ANSWER))
    result = {}
    for name, rows in table.items():
        wrong = []
        for messages, expected in rows:
            got = tok.decode(next(answers), skip_special_tokens=False)
            if got != expected:
                wrong.append((messages, expected, got))
        result[name] = (1 - len(wrong) / len(rows), wrong)
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("gguf")
    p.add_argument("--manner", choices=("plain", "pirate"), default="plain")
    p.add_argument("--count", type=int, default=200, help="prompts per family")
    p.add_argument("--show", type=int, default=0, help="wrong answers to print per family")
    p.add_argument("--ask", action="append", help="only answer this prompt (repeatable: one conversation)")
    p.add_argument("--system")
    args = p.parse_args()
    params, shape, tok = gguf_io.read(args.gguf)
    vocab.check(tok, 500)
    if args.ask:
        messages = [("system", args.system)] if args.system else []
        for prompt in args.ask:
            messages.append(("user", prompt))
            ids = model.generate(params, [vocab.prompt_ids(tok, messages)], shape, limit=200, batch=1)[0]
            messages.append(("assistant", tok.decode(ids)))
            print(f"> {prompt}\n{messages[-1][1]}")
        return
    table = cases(args.manner, args.count) | (tool_cases(args.count) if args.manner == "plain" else {})
    print("| family | accuracy |\n|---|---|")
    for name, (share, wrong) in measure(params, shape, tok, table).items():
        print(f"| {name} | {share * 100:.1f} % |")
        for messages, expected, got in wrong[:args.show]:
            print(f"    {messages[-1][1]!r}: expected {expected!r}, got {got!r}")


if __name__ == "__main__":
    main()
