"""A validator in Python: it refuses prompts that contain certain words.

Settings: `words`, a list of texts (case does not matter), and `reuse`, whether an instance may serve several requests.
"""
import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.plugin import Description
from wit_world.exports.policy import Request, Verdict, Verdict_Accept
from wit_world.imports.camshaft_host_context import Setup
from wit_world.imports.camshaft_validator_context import Draft
from wit_world.imports.types import Refusal

SCHEMA = {
    "type": "object",
    "properties": {
        "words": {"type": "array", "items": {"type": "string", "minLength": 1}},
        "reuse": {"type": "boolean"},
    },
    "additionalProperties": False,
}
# Where endpoints have their prompt.
FIELDS = ("messages", "prompt", "input")

words: list[str] = []


class Plugin(exports.Plugin):
    def describe(self) -> Description:
        return Description("validator-words-py", "0.1.0", json.dumps(SCHEMA))

    def configure(self, settings: str, cx: Setup) -> None:
        global words
        given = json.loads(settings)
        wanted = given.pop("words", [])
        reuse = given.pop("reuse", False)
        if given:
            raise Err(f"settings.{next(iter(given))} is not a setting")
        if not isinstance(wanted, list) or not all(isinstance(word, str) and word for word in wanted):
            raise Err("settings.words must be a list of texts that are not empty")
        if reuse:
            # Nothing is kept of a request.
            cx.reuse()
        words = [word.lower() for word in wanted]


class Policy(exports.Policy):
    def validate(self, request: Request, cx: Draft) -> Verdict:
        for field in FIELDS:
            value = cx.field(f"/{field}")
            found = value and first_word(json.loads(value))
            if found:
                raise Err(Refusal(400, "forbidden_word", f"the prompt contains the word {found!r}", field))
        return Verdict_Accept()


def first_word(value: object) -> str | None:
    """The first forbidden word in the texts of a JSON value."""
    if isinstance(value, str):
        text = value.lower()
        return next((word for word in words if word in text), None)
    if isinstance(value, dict):
        # A picture is no text.
        return first_word([value[key] for key in ("content", "text") if key in value])
    if isinstance(value, list):
        return next((found for part in value if (found := first_word(part))), None)
    return None
