"""Embeddings through OpenAI's client against reference vectors: BASE_URL REFERENCE.json LEAST_COSINE."""
import base64
import json
import math
import struct
import sys

import openai


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def main():
    base, path, least = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with open(path, encoding="utf-8") as file:
        reference = json.load(file)
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    inputs = {"text": reference["sentences"], "tokens": reference["token_ids"]}
    for kind, given in inputs.items():
        for encoding in ("float", "base64", None):
            # Without a format the client asks for base64 and decodes it itself.
            more = {} if encoding is None else {"encoding_format": encoding}
            answer = client.embeddings.create(model="embedder", input=given, **more)
            assert [item.index for item in answer.data] == list(range(len(given))), answer.data
            assert answer.usage.prompt_tokens == sum(map(len, reference["token_ids"])), answer.usage
            for item, wanted in zip(answer.data, reference["embeddings"], strict=True):
                vector = item.embedding
                if encoding == "base64":
                    raw = base64.b64decode(vector)
                    vector = struct.unpack(f"<{len(raw) // 4}f", raw)
                assert abs(sum(x * x for x in vector) - 1) < 1e-5, "not normalised"
                near = cosine(vector, wanted)
                assert near >= least, f"{kind} {encoding}: {near} < {least}"
    together = client.embeddings.create(model="embedder", input=reference["sentences"]).data
    for sentence, among in zip(reference["sentences"], together, strict=True):
        alone = client.embeddings.create(model="embedder", input=sentence).data[0].embedding
        # Sums are taken in another order in another batch, and what is rounded to 8 bits in between may flip: no more than
        # a fifth of what separates the weights' type from the reference.
        near = cosine(alone, among.embedding)
        assert 1 - near <= (1 - least) / 5, f"{sentence!r}: {near}"
    try:
        client.embeddings.create(model="embedder", input=["short", "long " * 600])
    except openai.BadRequestError as error:
        assert error.body["param"] == "input[1]", error.body
        assert error.body["code"] == "context_length_exceeded", error.body
    else:
        raise AssertionError("an input over the context was taken")
    print("all checks passed")


main()
