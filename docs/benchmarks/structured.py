#!/usr/bin/env python3
"""What a JSON Schema adds to a token, in Camshaft and in llama-server, in turn on the same model: `cargo xtask bench structured`.

Every request is a stream of one client. The time of a token is from the first event with text to the last one, divided by the tokens
after the first; what a schema adds is that time less the time without one, in the same round.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import time
import urllib.request

TOKENS = 128
SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "bio": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string", "enum": ["in", "on", "to"]}, "minItems": 20}},
        "required": ["name", "age", "bio", "tags"], "additionalProperties": False},
    "strings": {"type": "array", "items": {"type": "string", "minLength": 4, "maxLength": 30}, "minItems": 40},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 100},
    "records": {
        "type": "array", "minItems": 20,
        "items": {"type": "object", "properties": {
            "id": {"type": "string", "pattern": "^[a-z]{3,12}-[0-9]{4}$"}, "kind": {"anyOf": [{"const": "a"}, {"type": "null"}]},
            "at": {"type": "string", "maxLength": 20}}, "required": ["id", "kind", "at"], "additionalProperties": False}},
    "tree": {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "object", "properties": {
            "v": {"type": "string"}, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 2}}, "required": ["v", "c"],
            "additionalProperties": False}}},
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, port, path):
    # What tells this script where things are would be configuration to the server.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAMSHAFT_")}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    for _ in range(600):
        try:
            if urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").status == 200:
                return child
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{command[0]} is not ready")


def token_time(port, schema, seed):
    """Seconds of a token after the first, and those between the events of the stream."""
    body = {"model": "m", "prompt": "Go on.", "max_tokens": TOKENS, "temperature": 1, "top_k": 0,
            "top_p": 1, "min_p": 0, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    if schema:
        # Both servers take it so. In chats llama-server also parses what was cut off, and fails.
        body["json_schema"] = schema
    else:
        body["ignore_eos"] = True
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    first = last = tokens = None
    gaps = []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event, now = json.loads(line[6:]), time.perf_counter()
            if "error" in event:
                raise SystemExit(f"port {port}: {event}")
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if event["choices"] and event["choices"][0].get("text"):
                gaps += [now - last] if last else []
                first, last = first or now, now
    return (last - first) / (tokens - 1), gaps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF, as of shape_model.py --preset 128k")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ports = {"Camshaft": free_port(), "llama-server": free_port()}
    camshaft, llama = ports["Camshaft"], ports["llama-server"]
    own = [os.environ["CAMSHAFT_BIN"], "serve", "--listen", f"127.0.0.1:{camshaft}", "--admin-listen", "", "--set", "log.level=error",
           "--set", f'model=[{{id="m", path={json.dumps(os.path.abspath(args.model))}}}]',
           "--policy-dir", os.path.join(os.environ["CAMSHAFT_TARGET"], "policy.d")]
    other = [args.llama_server, "-m", args.model, "--host", "127.0.0.1", "--port", str(llama), "--jinja"]
    children = [start(own, camshaft, "/readyz"), start(other, llama, "/health")]
    try:
        added = {name: {schema: [] for schema in SCHEMAS} for name in ports}
        plain = {name: [] for name in ports}
        gaps = {name: ([], []) for name in ports}
        for name, port in ports.items():
            for schema in SCHEMAS.values():
                token_time(port, schema, 0)  # compiles it
        for seed in range(1, args.rounds + 1):
            for label, schema in SCHEMAS.items():
                for name, port in ports.items():
                    without, free = token_time(port, None, seed)
                    held, constrained = token_time(port, schema, seed)
                    gaps[name][0].extend(free)
                    gaps[name][1].extend(constrained)
                    plain[name].append(without)
                    added[name][label].append(held - without)
        print(f"\n| schema | " + " | ".join(f"{name}, us a token" for name in ports) + " |")
        print("|---|" + "---|" * len(ports))
        print("| none (the whole token) | " + " | ".join(f"{statistics.median(plain[n]) * 1e6:.0f}" for n in ports) + " |")
        for label in SCHEMAS:
            print(f"| {label} adds | " + " | ".join(f"{statistics.median(added[n][label]) * 1e6:.0f}" for n in ports) + " |")
        mean = {name: statistics.mean(statistics.median(times) for times in added[name].values()) for name in ports}
        print("| mean | " + " | ".join(f"{mean[n] * 1e6:.0f}" for n in ports) + " |")
        for name, kinds in gaps.items():
            free, constrained = (statistics.quantiles(kind, n=100)[98] * 1e6 for kind in kinds)
            print(f"{name}: p99 between two events {free:.0f} us without a schema, {constrained:.0f} us with one.")
        held = {n: statistics.mean(statistics.median(a) for a in added[n].values()) + statistics.median(plain[n]) for n in ports}
        adds = {name: f"{mean[name] * 1e6:.0f} us" for name in ports}
        print(f"\nA schema adds {adds['Camshaft']} a token in Camshaft and {adds['llama-server']} in llama-server.")
        print(f"A whole token under a schema: {held['llama-server'] / held['Camshaft']:.1f} times as long in llama-server.")
    finally:
        for child in children:
            child.terminate()


if __name__ == "__main__":
    main()
