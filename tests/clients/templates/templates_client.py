"""The chat templates of public models, as the source distribution of `llama-cpp-python` has them, rendered by the server's engine and by
Jinja2 as `transformers` sets it up.

`CAMSHAFT_RENDER` names the program that renders with the server's engine: `RENDER cases.json rendered.json`. For each template and each
conversation it says which variables it gave to the template, and the prompt or the error. Jinja2 is given the same variables.
Arguments and report: `kit`.
"""

import datetime
import functools
import hashlib
import html
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

import kit

ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
ARCHIVE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PROJECT = "llama-cpp-python"
INSIDE = "/vendor/llama.cpp/models/templates/"
# Where pip looks if nothing is configured.
INDEX = "https://pypi.org/simple"

# Why a prompt is another than Jinja2's, by template and conversation ("*": all). One that explains nothing is an error.
LOOPS_OVER_NONE = "it goes through `tools` where there are none: nothing here, an error in Python"
GENERATOR = "it writes the items of a map as JSON: a list here, an error in Python"
SAFE = "Jinja2 escapes for HTML what is joined to a text that is marked as safe; the model was trained on plain text"
REASONS = {
    **{(template, name): LOOPS_OVER_NONE
       for template in ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use")
       for name in ("user", "system", "turns", "two systems")},
    # Its notation is not known, so that tools are described in a message.
    ("CohereForAI-c4ai-command-r-plus-tool_use", "*"): LOOPS_OVER_NONE,
    ("llama-cpp-deepseek-r1", "*"): GENERATOR,
    ("meetkai-functionary-medium-v3.1", "*"): SAFE,
}


def function(name, description, properties, required=()):
    """A tool as OpenAI's API takes it."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def user(text):
    """What the user says."""
    return {"role": "user", "content": text}


def system(text):
    """What the system says."""
    return {"role": "system", "content": text}


def assistant(text, *calls, **fields):
    """What the assistant says and calls."""
    return {"role": "assistant", "content": text, **fields, **({"tool_calls": list(calls)} if calls else {})}


def call(number, name, arguments):
    """A call of a tool. Some templates demand ids of nine letters and digits."""
    written = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": written}}


def result(number, text):
    """The result of the call of that number."""
    return {"role": "tool", "tool_call_id": f"call{number:05}", "content": text}


WEATHER = function("get_weather", "The weather of a city.", {
    "city": {"type": "string", "description": "The name of the city."},
    "days": {"type": "integer", "description": "How many days."},
}, ["city"])
CLOCK = function("get_time", "The time in a zone.", {"zone": {"type": "string", "enum": ["UTC", "CET"]}}, ["zone"])
# Names that are not in the order of the alphabet, types in a list, schemas in schemas, texts to escape.
ORDER = function("place_order", "", {
    "priority": {"type": "string", "enum": ["low", "high", "it's \"now\""], "description": "Naïve <b>“quotes”</b> & more",
                 "default": "low"},
    "address": {"type": "object", "description": "", "required": ["street"], "properties": {
        "street": {"type": "string", "minLength": 1},
        "at": {"type": "array", "items": {"type": "number", "minimum": -90.0, "maximum": 1e16}, "minItems": 2},
        "floor": {"type": ["integer", "null"], "description": "Line one.\nLine two."},
    }, "additionalProperties": False},
    "amount": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^\\d+$"}]},
    "gift": {"type": "boolean", "default": False},
}, ["address", "priority"])
STOP = function("stop", "Stops at once.", {})
# What Python and JSON write in ways of their own.
ODD = {
    "priority": "it's \"now\"",
    "address": {"street": "Straße 5\n\t<b>&amp;</b> \\ / 東京 🙂\u2028\u007f\u0001", "at": [1.0, -0.0, 1e-7, 0.0001, 1e16, 1.5],
                "floor": None},
    "amount": 1e-7,
    "whole": 1.0,
    "large": 9007199254740993,
    "gift": True,
    "wrapped": False,
    "note": None,
    "lines": [["a", [1, 2.5]], [], {}, {"z": 1, "a": [True, False, None]}],
    "empty": "",
    "quoted": "{\"a\": 'b'}",
}

OSLO, ROME = call(1, "get_weather", {"city": "Oslo", "days": 3}), call(2, "get_time", {"zone": "CET"})
COLD, NOON = result(1, "{\"degrees\": 4, \"sky\": \"grey\"}"), result(2, "12:00")
ASKED = user("What is the weather in Oslo?")


def conversation(name, messages, tools=(), **variables):
    """A conversation as the renderer takes it."""
    return {"name": name, "messages": messages, "tools": list(tools), "variables": variables}


CONVERSATIONS = [
    conversation("user", [user("What is 3 plus 4?")]),
    conversation("system", [system("Be brief."), user("What is 3 plus 4?")], enable_thinking=False),
    conversation("turns", [system("Be brief."), user("What is 3 plus 4?"), assistant("It is 7."), user("And 5?"), assistant("12, then."),
                           user("Thanks. Say it in French.")], enable_thinking=True),
    conversation("tools", [system("Be brief."), ASKED], [WEATHER, CLOCK, STOP]),
    conversation("call", [ASKED, assistant(None, OSLO), COLD], [WEATHER, CLOCK]),
    conversation("text and call", [system("Be brief."), ASKED, assistant("I look it up.", OSLO), COLD, assistant("It is 4 degrees."),
                                   user("And the time?"), assistant("One moment.", ROME), NOON], [WEATHER, CLOCK], enable_thinking=False),
    conversation("parallel calls", [user("The weather in Oslo and the time in Rome?"), assistant("", OSLO, ROME), COLD, NOON],
                 [WEATHER, CLOCK]),
    conversation("reasoning", [user("What is 3 plus 4?"), assistant("It is 7.", reasoning_content="Three and four are seven."), ASKED,
                               assistant("", OSLO, reasoning_content="A tool knows it.\nI call it."), COLD], [WEATHER],
                 enable_thinking=True),
    conversation("two systems", [system("Be brief."), user("What is 3 plus 4?"), assistant("It is 7."), system("Now be rude."),
                                 user("And 5?")]),
    conversation("unusual", [
        system("\u00a0Ünïcödé — «x» 🙂 \"double\" 'single' \\n {{ braces }} {% block %} <|im_end|>\n\n"),
        user("  <p class=\"a\">5 > 3 && 2 < 4</p>\r\n\tTab 東京 e\u0301 \u3000"),
        assistant("  <think> isn't \"it\" </think>\n", call(3, "place_order", ODD)),
        result(3, "{\"état\": \"pr\u00eat\", \"list\": [1.0, null, true, 1e-7], \"html\": \"<i>&</i>\"}\n"),
        assistant("\n", call(4, "stop", {})),
        result(4, ""),
    ], [ORDER, STOP]),
]


def setting(name):
    """What pip is configured with, or None."""
    found = os.environ.get(f"PIP_{name.upper().replace('-', '_')}")
    asked = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return found or subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None


def fetch(url):
    """What lies there."""
    request = urllib.request.Request(url, headers={"accept": "text/html, */*;q=0.1"})
    with urllib.request.urlopen(request, timeout=kit.PATIENCE_S, context=ssl.create_default_context(cafile=setting("cert"))) as response:
        return response.read()


def archive(folder):
    """The source distribution in a folder, from the package index if it is not there. pip would build it only to learn its name."""
    path = pathlib.Path(folder, ARCHIVE)
    is_right = lambda data: hashlib.sha256(data).hexdigest() == ARCHIVE_SHA256
    if not (path.exists() and is_right(path.read_bytes())):
        page = f"{(setting('index-url') or INDEX).rstrip('/')}/{PROJECT}/"
        links = [html.unescape(link) for link in re.findall(r"href\s*=\s*[\"']([^\"']+)", fetch(page).decode())]
        [link] = [link for link in links if urllib.parse.urlsplit(link).path.endswith(f"/{ARCHIVE}")]
        data = fetch(urllib.parse.urljoin(page, urllib.parse.urldefrag(link).url))
        assert is_right(data), f"{link} has another content than expected"
        # An interrupted run leaves no half of it.
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)
    return path


def cases(folder):
    """All templates and conversations, also written to `cases.json` in a folder, where the source distribution is kept, too."""
    templates = {}
    with tarfile.open(archive(folder)) as tar:
        for member in tar:
            name = member.name.partition(INSIDE)[2]
            if name.endswith(".jinja") and "/" not in name:
                templates[name.removesuffix(".jinja")] = tar.extractfile(member).read().decode()
    made = {"templates": dict(sorted(templates.items())), "conversations": CONVERSATIONS}
    pathlib.Path(folder, "cases.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    return made


def rendered(folder):
    """What the server's engine made of `cases.json` in a folder, and the times before and after."""
    answer = pathlib.Path(folder, "rendered.json")
    answer.unlink(missing_ok=True)
    times = [datetime.datetime.now(datetime.UTC)]
    subprocess.run([os.environ["CAMSHAFT_RENDER"], pathlib.Path(folder, "cases.json"), answer], check=True)
    times.append(datetime.datetime.now(datetime.UTC))
    return json.loads(answer.read_text(encoding="utf-8"))["results"], times


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which `transformers` finds what the assistant wrote. What is in it is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        """The block as a call, whose variables are its own, as there."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        """What is in the block."""
        return caller()


def raise_exception(message):
    """How a template refuses a conversation."""
    raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """The filter of `transformers`, which escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def environment():
    """Jinja2 as `transformers` sets it up."""
    extensions = [Generation, "jinja2.ext.loopcontrols"]
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


compiled = functools.cache(lambda source: environment().from_string(source))


def render(source, variables, time):
    """(prompt, error) of Jinja2."""
    try:
        return compiled(source).render(variables, strftime_now=time.strftime), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def difference(source, result, times):
    """How a result is another than Jinja2's, or None."""
    prompt, error = result["prompt"], result["error"]
    if (prompt is None) == (error is None) or "messages" not in result["variables"]:
        return f"neither a prompt nor an error, or no variables: {json.dumps(result)[:200]}"
    # Templates print dates: the day may end in between.
    expected = [render(source, result["variables"], time) for time in times]
    if prompt is None:
        return None if expected[0][1] else f"refused: {error}; Jinja2 writes {expected[0][0][:200]!r}"
    if prompt in [text for text, _ in expected]:
        return None
    text, refusal = expected[0]
    if text is None:
        return f"Jinja2 refuses: {refusal}; written: {prompt[:200]!r}"
    at = len(os.path.commonprefix([text, prompt]))
    begin = max(0, at - 60)
    return f"at {at}: Jinja2 {text[begin:at + 100]!r}, not {prompt[begin:at + 100]!r}"


def compare(made, results, times):
    """{(template, conversation): how the prompt is another than Jinja2's}."""
    names = [(result["template"], result["conversation"]) for result in results]
    assert sorted(names) == sorted((template, one["name"]) for template in made["templates"] for one in made["conversations"])
    found = {name: difference(made["templates"][name[0]], result, times) for name, result in zip(names, results)}
    return {name: told for name, told in found.items() if told}


@functools.cache
def compared():
    """(results, differences, the reasons that explain some)."""
    # Where this Python's packages are: the archive is large, and stays.
    folder = pathlib.Path(sys.prefix, "templates")
    folder.mkdir(exist_ok=True)
    made = cases(folder)
    results, times = rendered(folder)
    differences = compare(made, results, times)
    keys = {name: next((key for key in (name, (name[0], "*")) if key in REASONS), None) for name in differences}
    return results, differences, keys


def every_public_template_writes_what_jinja2_writes():
    results, differences, keys = compared()
    refused = sum(result["prompt"] is None for result in results)
    explained = sum(key is not None for key in keys.values())
    print(f"{len(results)} renderings: {len(differences)} other than Jinja2's, {explained} of these explained, {refused} refused")
    unexplained = [name for name, key in keys.items() if key is None]
    for template, one in unexplained:
        print(f"{template}: {one}: {differences[template, one]}")
    assert not unexplained, len(unexplained)


def every_reason_explains_a_difference():
    _, _, keys = compared()
    unused = set(REASONS) - set(keys.values())
    assert not unused, unused


def most_conversations_are_rendered_by_most_templates():
    results, _, _ = compared()
    assert len(results) >= 600, len(results)
    refused = sorted((result["template"], result["conversation"]) for result in results if result["prompt"] is None)
    assert len(refused) < len(results) / 5, refused


if __name__ == "__main__":
    kit.run(every_public_template_writes_what_jinja2_writes, every_reason_explains_a_difference,
            most_conversations_are_rendered_by_most_templates)
