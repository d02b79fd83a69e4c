#!/usr/bin/env python3
"""Writes the tokens of Mistral's tekken, one a line in hexadecimal digits, for `cargo xtask bench kernels grammars`.

    pip download --no-deps mistral-common==1.13.1
    vocabulary.py mistral_common-*.whl out.hex
    CAMSHAFT_BENCH_VOCABULARY=out.hex cargo xtask bench kernels grammars
"""
import base64
import json
import sys
import zipfile

FILE = "mistral_common/data/tekken_240911.json"


def main():
    wheel, out = sys.argv[1:]
    with zipfile.ZipFile(wheel) as files:
        tokens = json.loads(files.read(FILE))["vocab"]
    with open(out, "w") as lines:
        lines.writelines(base64.b64decode(token["token_bytes"]).hex() + "\n" for token in tokens)


if __name__ == "__main__":
    main()
