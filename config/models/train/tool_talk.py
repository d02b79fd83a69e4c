"""Conversations with tools: calls where one is asked for, answers from results, and no calls elsewhere."""

import corpus
from arithmetic import Calculator
from chat import dumps, spell
from toolbox import Message, Named, Price, Search, Time, Timer, Weather, function, some_city

KINDS = (Weather, Calculator, Time, Search, Message, Timer, Price, Named)
WEIGHTS = (30, 32, 5, 6, 5, 5, 5, 14)
ERRORS = ("not found", "unknown city", "timeout", "city not found", "service unavailable", "no connection", "division by zero",
          "too many requests", "invalid argument", "permission denied", "internal error", "no data", "unknown unit")
ARITHMETIC = ("add", "sub", "mul")


def some_kind(rng):
    return rng.choices(KINDS, WEIGHTS)[0](rng)


def name_of(kind):
    return kind.tool["function"]["name"]


def box(rng, target=None, most=3):
    """One to `most` kinds of tools in any order, with `target` among them, of different names and purposes."""
    kinds = [target] if target else []
    number = rng.choice((1, 1, 2, 2, 3, 3)) if rng.random() < 0.9 else most
    while len(kinds) < number:
        new = some_kind(rng)
        same = [k for k in kinds if name_of(k) == name_of(new) or k.kind == new.kind != "named"
                or isinstance(k, Calculator) and isinstance(new, Calculator) and not (k.sign and new.sign)]
        if not same:
            kinds.append(new)
    rng.shuffle(kinds)
    return kinds


def tools_of(rng, kinds):
    """Their tools; now and then one in another shape that OpenAI's clients send, too."""
    tools = [k.tool for k in kinds]
    if rng.random() < 0.03:
        tools.append(function(corpus.some_word(rng), "Does nothing.", {}, []))
    return tools


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def calls(*pairs):
    """An assistant's message that calls (kind, arguments)."""
    return {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "function": {"name": name_of(k), "arguments": a}} for k, a in pairs]}


def returned(value):
    return {"role": "tool", "content": value if isinstance(value, str) else dumps(value)}


def failed(rng):
    error = rng.choice(ERRORS) if rng.random() < 0.6 else " ".join(corpus.some_word(rng) for _ in range(rng.randint(1, 4)))
    value = rng.choice(({"error": error}, {"error": error}, f"Error: {error}", f"error: {error}"))
    return value, f"Sorry, the tool failed: {error}."


# Each of these gives the messages of one exchange, whose last is the assistant's. `steps` says how many
# of the assistant's messages there are: 1 is the call, 2 also the answer from its result.

def used(rng, kind, request, steps=2, error=0.12):
    messages = [user(request.prompt), calls((kind, request.arguments))]
    if steps > 1:
        value, answer = failed(rng) if rng.random() < error else kind.result(rng, request.arguments)
        messages += [returned(value), said(answer)]
    return messages


def two(rng, weather, steps=2):
    """The weather of two cities at once."""
    cities = [some_city(rng) for _ in range(2)]
    form = rng.choice(("What is the weather in {a} and {b}?", "What is the weather in {a} and in {b}?", "weather in {a} and {b}",
                       "Compare the weather in {a} and {b}.", "How is the weather in {a} and {b}?"))
    arguments = [weather.arguments(city) for city in cities]
    messages = [user(form.format(a=cities[0], b=cities[1])), calls(*((weather, a) for a in arguments))]
    if steps > 1:
        results = [weather.result(rng, a) for a in arguments]
        messages += [returned(value) for value, _ in results] + [said(" ".join(answer for _, answer in results))]
    return messages


def unclear(rng, weather, steps=2):
    city = some_city(rng)
    messages = [user(rng.choice(weather.unclear)), said(weather.which)]
    if steps > 1:
        arguments = weather.arguments(city)
        messages += used(rng, weather, weather.ask(rng, city, (city, f"{city}.", f"In {city}.")))
        messages[3] = calls((weather, arguments))
    return messages


def unneeded(rng, kinds):
    """A question that none of these tools is for: answered as without any."""
    have = {k.kind.split()[0] for k in kinds}
    if rng.random() < 0.25:
        other = some_kind(rng)
        while other.kind.split()[0] in have | {"named", "calculator", "message"}:
            other = some_kind(rng)
        return [user(other.ask(rng).prompt), said(corpus.UNKNOWN)]
    turn = corpus.any_turn(rng, ("unknown",) + (ARITHMETIC if "calculator" in have else ()))
    return [user(turn.prompt), said(turn.answer)]


def exchange(rng, kinds):
    kind = rng.choices(kinds, [2 if k.kind == "named" else 3 for k in kinds])[0]
    roll = rng.random()
    if roll < 0.2:
        return unneeded(rng, kinds)
    if kind.kind == "weather":
        if roll < 0.27:
            return two(rng, kind)
        if roll < 0.3:
            return unclear(rng, kind)
    messages = used(rng, kind, kind.ask(rng))
    if kind.kind == "weather" and rng.random() < 0.25:
        messages += used(rng, kind, kind.ask(rng, forms=kind.again))
    return messages


def talk(rng, turns=None):
    """(tools, messages) of a whole conversation."""
    kinds = box(rng, most=rng.choice((3, 4, 5)))
    messages = [{"role": "system", "content": rng.choice(corpus.NEUTRAL)}] if rng.random() < 0.2 else []
    for _ in range(turns or rng.choice((1, 1, 1, 1, 2, 2, 3))):
        messages += exchange(rng, kinds)
    return tools_of(rng, kinds), messages


def is_heldout(messages):
    """By the user's questions: a tenth of them is never trained on."""
    asked = [m["content"].lower() for m in messages if m["role"] == "user"]
    return any(corpus.is_heldout("tool", text) for text in asked if any(c.isdigit() for c in text) or len(text) > 24)


def conversation(rng, turns=None):
    """As `corpus.conversation`, of training alone."""
    while True:
        tools, messages = talk(rng, turns)
        if not is_heldout(messages):
            return spell(messages, tools)


def asked(rng, make):
    """Messages of `make` whose last question is held out."""
    while True:
        kinds, messages = make(rng)
        questions = [m for m in messages if m["role"] == "user"]
        if is_heldout(questions[-1:]):
            return spell(messages, tools_of(rng, kinds))


def case(rng, name):
    """Messages of the measured family `name`, as (role, text); the last is the expected answer."""
    def make(rng):
        target = {"weather": Weather, "calculator": Calculator}.get(name.split()[0])
        kind = target(rng) if target else Named(rng) if name == "named call" else None
        while kind is None or name == "other call" and kind.kind in ("weather", "named") or isinstance(kind, Calculator) and not target:
            kind = some_kind(rng)
        if name in ("two calls", "three turns"):
            kind = Weather(rng)
        kinds = box(rng, kind)
        if name == "no call":
            return kinds, unneeded(rng, kinds)
        if name == "two calls":
            return kinds, two(rng, kind, 1)
        if name == "three turns":
            before = exchange(rng, kinds) + exchange(rng, kinds)
            last = rng.choice([k for k in kinds if k.kind != "named"])
            return kinds, before + used(rng, last, last.ask(rng), 1)
        steps = 1 if "call" in name.split() else 2
        return kinds, used(rng, kind, kind.ask(rng), steps, {"answer after an error": 1}.get(name, 0))
    return asked(rng, make)


CASES = ("weather call", "calculator call", "other call", "named call", "two calls", "no call", "weather answer",
         "calculator answer", "other answer", "answer after an error", "three turns")
