"""JSON that a user describes by a schema or by the names of its fields, with values from a text or made up."""

import json

import corpus
from corpus import Turn, pick
from toolbox import CITIES

# Field: (type, the value where nobody gives one).
FIELDS = {
    "name": ("string", "Ada"), "age": ("integer", 36), "city": ("string", "London"), "country": ("string", "England"),
    "tags": ("array", ["small", "red"]), "colour": ("string", "blue"), "color": ("string", "blue"), "job": ("string", "baker"),
    "animal": ("string", "fox"), "price": ("number", 10), "count": ("integer", 3), "title": ("string", "The fox"),
    "id": ("integer", 1), "year": ("integer", 2020), "fruit": ("string", "apple"), "height": ("number", 180),
    "active": ("boolean", True), "items": ("array", ["lamp", "book"]), "email": ("string", "ada@example.com"),
    "score": ("number", 7), "words": ("array", ["moon", "tree"]), "product": ("string", "lamp"),
}
# How a text says it: what it is about is {n}.
SAYS = {
    "age": ("is {v} years old", "is {v}"), "city": ("lives in {v}", "is from {v}"), "country": ("lives in {v}", "comes from {v}"),
    "job": ("works as a {v}", "is a {v}"), "colour": ("likes {v}",), "color": ("likes {v}",), "animal": ("has a {v}",),
    "height": ("is {v} cm tall",), "email": ("has the address {v}",), "fruit": ("eats a {v}",), "id": ("has the number {v}",),
    "tags": ("has the tags {v}",), "score": ("has a score of {v}",), "year": ("was there in {v}",),
}
EMPTY_FORMS = ("Give me a JSON object with the fields {f}.", "Give me a JSON object with {f}.", "Write JSON with the fields {f}.",
               "Return a JSON object with {f}.", "Make up a JSON object with {f}.", "JSON with the fields {f}.",
               "Answer in JSON with the fields {f}.", "Give me {f} as JSON.", "Fill in {f} as JSON.", "Give me an example with {f} as JSON.")
FILL_FORMS = ("Fill this schema: {s}", "Fill this schema: {s}", "Fill in this schema: {s}", "Fill this JSON schema: {s}",
              "Give me JSON for this schema: {s}", "Answer with JSON of this schema: {s}", "Make JSON that fits this schema: {s}",
              "Write a JSON object that follows this schema: {s}")
TEXT_FORMS = ("Fill this schema: {s}\n{t}", "Fill this schema: {s} Text: {t}", "Fill this schema from the text. {s}\nText: {t}",
              "{t} Fill this schema: {s}", "Text: {t}\nSchema: {s}", "Extract JSON of this schema: {s} from: {t}",
              "Fill this JSON schema: {s} with: {t}")
NAMED_FORMS = ("Extract {f} as JSON: {t}", "Extract {f} as JSON: {t}", "Fill in {f}: {t}", "Extract the {f} as JSON. {t}",
               "{t} Give me {f} as JSON.", "Read {f} from this text as JSON: {t}", "Answer in JSON with the fields {f}. {t}",
               "Give me a JSON object with {f} from this text: {t}")


def value(rng, field):
    kind, _ = FIELDS[field]
    if kind == "array":
        return [corpus.some_word(rng, 0.8, 6) for _ in range(rng.randint(1, 4))]
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        low, high = {"age": (1, 99), "year": (1900, 2030), "height": (50, 220)}.get(field, (0, rng.choice((20, 999))))
        return rng.randint(low, high)
    if field in ("name", "product", "title"):
        return corpus.some_name(rng) if field == "name" else corpus.some_word(rng)
    if field == "city":
        return rng.choice(CITIES) if rng.random() < 0.7 else corpus.some_name(rng, 0)
    if field == "country":
        return rng.choice([c for c in corpus.COUNTRIES if not c.startswith("the ")])
    if field in ("colour", "color"):
        return rng.choice(tuple(corpus.COLOURS.values()))
    return f"{corpus.some_word(rng)}@{corpus.some_word(rng)}.com" if field == "email" else corpus.some_word(rng)


def joined(rng, parts):
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + rng.choice((" and ", " and ", ", ")) + parts[-1]


def schema_text(rng, fields):
    properties = {}
    for field in fields:
        kind = FIELDS[field][0]
        properties[field] = {"type": kind} | ({"items": {"type": "string"}} if kind == "array" else {})
    schema = {"type": "object", "properties": properties}
    if rng.random() < 0.5:
        schema["required"] = list(fields)
    if rng.random() < 0.2:
        schema["additionalProperties"] = False
    if rng.random() < 0.2:
        schema = properties
    return json.dumps(schema, separators=(",", ":") if rng.random() < 0.3 else None)


def shown(value):
    return ", ".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)


def sentences(rng, values):
    """A text about somebody, in an order of its own, with all values."""
    rest = [f for f in values if f != "name"]
    rng.shuffle(rest)
    who = values["name"]
    lists = [f for f in rest if f == "tags"]
    says = [rng.choice(SAYS[f]).format(v=shown(values[f])) for f in rest if f != "tags"]
    text = f"{who} {joined(rng, says)}." if says else f"This is {who}."
    for field in lists:
        text += rng.choice((f" Tags: {shown(values[field])}.", f" {who} has the tags {shown(values[field])}."))
    return text


def facts(rng, values):
    link = rng.choice((" ", ": ", ": ", " = "))
    parts = [f"{f}{link}{shown(v)}" for f, v in values.items()]
    if rng.random() < 0.3:
        rng.shuffle(parts)
    return rng.choice(("; ", "; ", ". ", "\n")).join(parts) + rng.choice((".", ""))


def some_fields(rng, told):
    """Distinct fields; such as sentences tell of where `told`."""
    number = rng.choice((1, 2, 2, 3, 3, 3, 4))
    if rng.random() < 0.35:
        fields = rng.sample(("name", "age", "city", "tags"), number)
    else:
        fields = rng.sample(sorted(SAYS) if told else sorted(FIELDS), number)
    if told:
        # A text says that somebody lives in one place, and what is likes and colours only once.
        for one, other in (("city", "country"), ("colour", "color")):
            if one in fields and other in fields:
                fields.remove(other)
        fields = ["name"] + [f for f in fields if f != "name"]
        if rng.random() < 0.3:
            rng.shuffle(fields)
    return fields


def made_up(rng, heldout=False):
    """No values are given: each field has one that it always gets."""
    def make(rng):
        fields = some_fields(rng, told=False)
        names = joined(rng, fields)
        if rng.random() < 0.5:
            prompt = rng.choice(EMPTY_FORMS).format(f=names)
        else:
            prompt = rng.choice(FILL_FORMS).format(s=schema_text(rng, fields))
        return ",".join(fields), Turn("schema", prompt, json.dumps({f: FIELDS[f][1] for f in fields}))
    return pick(rng, heldout, "made_up", make)


def from_text(rng, heldout=False):
    def make(rng):
        told = rng.random() < 0.6
        fields = some_fields(rng, told)
        values = {f: value(rng, f) for f in fields}
        text = sentences(rng, values) if told else facts(rng, values)
        if len(fields) > 1 and rng.random() < 0.15:
            values.pop(rng.choice(fields))  # The text says more than is asked for.
        if rng.random() < 0.5:
            prompt = rng.choice(TEXT_FORMS).format(s=schema_text(rng, values), t=text)
        else:
            prompt = rng.choice(NAMED_FORMS).format(f=joined(rng, values), t=text)
        return text, Turn("schema", prompt, json.dumps(values, ensure_ascii=False))
    return pick(rng, heldout, "from_text", make)


def turn(rng):
    return (made_up if rng.random() < 0.35 else from_text)(rng)


def conversation(rng):
    messages = [("system", rng.choice(corpus.NEUTRAL))] if rng.random() < 0.15 else []
    for _ in range(rng.choice((1, 1, 1, 2))):
        one = turn(rng) if rng.random() < 0.9 else corpus.any_turn(rng, ("story",))
        messages += [("user", one.prompt), ("assistant", one.answer)]
    return messages
