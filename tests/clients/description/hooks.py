"""What schemathesis sends is turned so that more of it gets past the first checks.

Of generated bodies, which differ from what is wanted in many fields at once, two of three are cut: to one that is answered and one
or two of the generated fields. Models are mostly those that are served, and there are no deadlines, which would be a 504.
"""

import os
import zlib

import schemathesis

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"prompt": "1, 2,", "max_tokens": 4}
EMBEDDED = {"input": "rain"}
# Those of other paths are sent as they are.
ANSWERED = {
    "/v1/chat/completions": CHAT,
    "/chat": CHAT,
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/chat/template": {"messages": CHAT["messages"]},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/completions": TEXT,
    "/v1/generate": TEXT,
    "/generate": TEXT,
    "/v1/embeddings": EMBEDDED,
    "/embeddings": EMBEDDED,
    "/v1/rerank": {"query": "rain", "documents": ["sun", "a shower"]},
    "/v1/score": {"text_1": "rain", "text_2": "a shower"},
    "/v1/tokenize": {"text": "rain"},
    "/v1/detokenize": {"tokens": [1, 2]},
    "/v1/session/close": {"session_id": "none"},
}
EMBEDDING = ("/v1/embeddings", "/embeddings", "/v1/rerank", "/v1/score")
DEADLINES = ("timeout", "max_duration")


@schemathesis.hook
def before_call(context, case, kwargs):
    path = case.operation.path
    # The same for the same request.
    chance = zlib.crc32(repr((case.body, case.path_parameters)).encode("utf-8", "surrogatepass"))
    if isinstance(case.body, dict):
        body = {name: value for name, value in case.body.items() if name not in DEADLINES}
        if chance % 3 and path in ANSWERED:
            some = sorted(body)[chance % 7:][:1 + chance % 2]
            body = {**ANSWERED[path], **{name: body[name] for name in some}}
        if chance % 4:
            body["model"] = (path in EMBEDDING and os.environ["EMBEDDER"]) or "demo"
        case.body = body
    if "id" in (case.path_parameters or {}) and chance % 2:
        case.path_parameters["id"] = "demo"
