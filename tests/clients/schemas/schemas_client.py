"""The schemas of the public JSON Schema test suite (draft 2020-12), as the source distribution of `jsonschema` has it, as formats of answers.

Of each, the server makes an answer that follows it, whole and streamed, or refuses it and names the place and what it does not support.
Arguments and report: `kit`.
"""

import collections
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from importlib.metadata import version

import jsonschema

import kit

served = kit.server()
FIELD = "response_format.json_schema.schema"
FOLDER = "json/tests/draft2020-12/"
MAX_TOKENS = 200
CLIENTS = 8
# Keywords that docs/structured-output.md says are refused, always or with some values or neighbours.
REFUSED = {"not", "if", "then", "else", "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties", "propertyNames",
           "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$dynamicAnchor", "uniqueItems", "$id", "id", "$ref",
           "oneOf", "allOf", "patternProperties", "minProperties", "maxProperties", "pattern", "format", "multipleOf"}

# No value follows it, or it is no object, as OpenAI's field must be.
NOTHING_TO_WRITE = {("anyOf.json", "anyOf with boolean schemas, all false"), ("boolean_schema.json", "boolean schema 'true'"),
                    ("boolean_schema.json", "boolean schema 'false'")}


def suite():
    """(file, description, schema) of each group of the suite."""
    with tempfile.TemporaryDirectory(prefix="camshaft-schemas-") as folder:
        package = f"jsonschema=={version('jsonschema')}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--no-build-isolation", "--dest", folder, package], check=True)
        [archive] = pathlib.Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getmembers(), key=lambda member: member.name):
                name = member.name.partition(FOLDER)[2]
                if name.endswith(".json") and "/" not in name:
                    for group in json.load(tar.extractfile(member)):
                        yield name, group["description"], group["schema"]


def post(body):
    """(status, body) of a chat."""
    headers = {"authorization": f"Bearer {served.key}", "content-type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{served.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with opener.open(request, timeout=kit.PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def answer(schema, number, stream):
    """(status, content or error, finish reason) of an answer that is to follow a schema."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Fill it in."}], "temperature": 1, "seed": number, "stream": stream,
            "max_tokens": MAX_TOKENS,
            "response_format": {"type": "json_schema", "json_schema": {"name": "case", "strict": True, "schema": schema}}}
    status, text = post(body)
    if status != 200:
        return status, json.loads(text)["error"], None
    if not stream:
        [choice] = json.loads(text)["choices"]
        return status, choice["message"]["content"], choice["finish_reason"]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", text
    chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
    [reason] = [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]]
    return status, "".join(chunk["delta"].get("content") or "" for chunk in chunks), reason


def outcome(case):
    """What became of a schema: `valid`, `long` (cut off) or `refused`. Raises where it is none of these, or not as it must be."""
    number, (_, _, schema) = case
    outcomes = set()
    for stream in (False, True):
        status, got, reason = answer(schema, number, stream)
        if status == 400:
            assert got["param"] and got["param"].startswith(FIELD), got
            assert got["param"] in got["message"] and got["type"] == "invalid_request_error", got
            outcomes.add("refused")
        elif reason == "length":
            outcomes.add("long")
        else:
            assert (status, reason) == (200, "stop"), (status, got, reason)
            jsonschema.Draft202012Validator(schema).validate(json.loads(got))
            outcomes.add("valid")
    assert "refused" not in outcomes or len(outcomes) == 1, outcomes
    return min(outcomes, key=["valid", "long", "refused"].index)


def names(value):
    """All keys of a JSON value, and of what is in it."""
    if isinstance(value, dict):
        return set(value).union(*(names(inner) for inner in value.values()))
    return set().union(*(names(inner) for inner in value)) if isinstance(value, list) else set()


def checked(case):
    try:
        return case, outcome(case), None
    except Exception as error:
        return case, "failed", error


def every_schema_of_the_public_suite_is_followed_or_refused_by_its_place():
    cases = list(enumerate(suite()))
    assert len(cases) > 300, len(cases)
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        results = list(clients.map(checked, cases))
    found = collections.Counter(result for _, result, _ in results)
    print(f"{len(cases)} schemas: {dict(found)}")
    unexplained = []
    for (_, (file, description, schema)), result, error in results:
        if result == "failed":
            print(f"{file}: {description}: {type(error).__name__}: {error}"[:600])
        elif result == "refused" and not names(schema) & REFUSED and (file, description) not in NOTHING_TO_WRITE:
            unexplained.append(f"{file}: {description}: {json.dumps(schema)[:200]}")
    assert not found["failed"], found["failed"]
    assert not unexplained, unexplained
    assert found["valid"] > len(cases) / 4, "too few show anything"


kit.run(every_schema_of_the_public_suite_is_followed_or_refused_by_its_place)
