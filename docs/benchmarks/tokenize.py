#!/usr/bin/env python3
"""Tokens a second of `/v1/tokenize` and `/v1/detokenize` over HTTP, by the length of the text: `cargo xtask bench tokenize`.

One client sends one request at a time: this project's own documentation, cut to a length. A time is from the first byte of the request
to the last one of the answer, which for `/v1/tokenize` has each token and its place in the text.
"""
import argparse
import http.client
import json
import os
import pathlib
import statistics
import time

from structured import free_port, start

KIB = (1, 16, 256)


def text():
    pages = sorted((pathlib.Path(__file__).parents[1]).glob("*.md"))
    return "\n".join(page.read_text() for page in pages)


def timed(port, path, body):
    """Seconds of a request, and its answer."""
    data = json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    begun = time.perf_counter()
    connection.request("POST", path, data, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = time.perf_counter() - begun
    connection.close()
    assert response.status == 200, answer[:300]
    return took, json.loads(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="a GGUF, or demo")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    port = free_port()
    path = "demo" if args.model == "demo" else os.path.abspath(args.model)
    child = start(
        [os.environ["CAMSHAFT_BIN"], "serve", "--listen", f"127.0.0.1:{port}", "--admin-listen", "", "--set", "log.level=error",
         "--set", f'model=[{{id="m", path={json.dumps(path)}}}]', "--policy-dir", os.path.join(os.environ["CAMSHAFT_TARGET"], "policy.d")],
        port, "/readyz")
    try:
        whole = text()
        while len(whole.encode()) < max(KIB) << 10:
            whole += whole
        print("\n| text | tokens | tokenize, tokens/s | slowest of the rounds | detokenize, tokens/s |")
        print("|---|---|---|---|---|")
        for kib in KIB:
            part = whole.encode()[:kib << 10].decode(errors="ignore")
            there, back, tokens = [], [], []
            for _ in range(args.rounds + 1):
                took, answer = timed(port, "/v1/tokenize", {"model": "m", "text": part})
                tokens = answer["tokens"]
                there.append(took)
                took, answer = timed(port, "/v1/detokenize", {"model": "m", "tokens": tokens})
                # The made-up vocabularies of shape_model.py spell other bytes.
                assert answer["text"] == part or args.model != "demo"
                back.append(took)
            # The first round warms up.
            there, back, count = there[1:], back[1:], len(tokens)
            print(f"| {kib} KiB | {count} | {count / statistics.median(there):,.0f} | {count / max(there):,.0f} "
                  f"| {count / statistics.median(back):,.0f} |")
    finally:
        child.terminate()


if __name__ == "__main__":
    main()
