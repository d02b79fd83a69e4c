"""Tools that the demo model learns to call: how they look, what is asked of them, what they return.

A tool has OpenAI's shape. What is copied from it (names, parameters, values of an enumeration)
is drawn anew each time, so that the model reads the list of tools instead of knowing it by heart.
"""

from dataclasses import dataclass

import corpus

CITIES = tuple(c for c in corpus.COUNTRIES.values()) + tuple("""
Munich Hamburg Cologne Milan Naples Venice Barcelona Valencia Porto Lyon Nice Zurich Geneva Krakow Prague Oxford
Manchester Dublin Boston Chicago Denver Dallas Seattle Miami Houston Toronto Montreal Lagos Mumbai Osaka Kyoto Sydney
Melbourne Auckland Dubai Doha Singapore Manila Jakarta Bogota Quito
""".split()) + ("New York", "San Francisco", "Los Angeles", "Hong Kong", "Cape Town", "Tel Aviv")


@dataclass
class Request:
    """What a user asks, and the arguments of the call that answers it."""
    prompt: str
    arguments: dict


def function(name, description, properties, required):
    """A tool in OpenAI's shape."""
    shown = {"name": name}
    if description:
        shown["description"] = description
    return {"type": "function", "function": shown | {
        "parameters": {"type": "object", "properties": properties, "required": required}}}


def some_city(rng):
    roll = rng.random()
    if roll < 0.6:
        return rng.choice(CITIES)
    if roll < 0.65:
        return f"{rng.choice(CITIES)}, {rng.choice([c for c in corpus.COUNTRIES if ' ' not in c])}"
    return corpus.some_name(rng, 0.3)


def typed(rng, text):
    return corpus.casual(rng, text, lower_ok=False)


def wrapped(rng, keys, value):
    """A result as it is, or in an object."""
    return value if rng.random() < 0.35 else {rng.choice(keys): value}


class Weather:
    kind, names = "weather", (
        "get_weather", "get_weather", "weather", "current_weather", "get_current_weather", "check_weather", "weather_lookup",
        "get_forecast", "forecast", "fetch_weather", "weather_now", "getWeather", "city_weather", "weather_in")
    descriptions = (
        None, "Get the weather of a city.", "Get the current weather in a given location", "Current weather.",
        "Get the weather", "Tells the weather.", "Weather of a place", "Returns temperature and conditions.",
        "Get current temperature for a given location.", "Weather for a city, now.")
    places = ("city", "city", "location", "location", "place", "town", "city_name", "where")
    forms = (
        "What is the weather in {c}?", "What is the weather in {c}?", "What's the weather in {c}?", "What is the weather like in {c}?",
        "What's the weather like in {c} today?", "How is the weather in {c}?", "weather in {c}", "Weather in {c}?",
        "Is it raining in {c}?", "Will it rain in {c}?", "Is it sunny in {c}?", "Is it cold in {c}?", "How warm is it in {c}?",
        "How hot is it in {c}?", "What is the temperature in {c}?", "What's the temperature in {c}?",
        "Do I need an umbrella in {c}?", "Tell me the weather in {c}.", "Get the weather for {c}.", "Check the weather in {c}.",
        "What is the weather in {c} right now?", "Can you tell me the weather in {c}?", "How is the weather in {c} today?")
    unclear = ("What is the weather?", "How is the weather?", "What's the weather like?", "How is the weather today?",
               "Is it raining?", "What is the temperature?")
    which, again = "Which city do you mean?", ("And in {c}?", "What about {c}?", "And {c}?", "How about {c}?", "And in {c}")
    conditions = ("sunny cloudy rainy windy foggy snowy clear stormy mild dry wet humid hazy overcast freezing".split()
                  + ["partly cloudy", "very windy", "mostly sunny"])

    def __init__(self, rng):
        self.place, self.unit, self.must, units = rng.choice(self.places), None, False, None
        properties = {self.place: {"type": "string"}}
        if rng.random() < 0.4:
            self.unit, self.must = rng.choice(("unit", "unit", "units", "scale")), rng.random() < 0.25
            units = ["celsius", "fahrenheit"] if rng.random() < 0.7 else ["fahrenheit", "celsius"]
            properties[self.unit] = {"type": "string"} | ({"enum": units} if rng.random() < 0.8 else {})
        required = [self.place] + ([self.unit] if self.must else [])
        self.tool = function(rng.choice(self.names), rng.choice(self.descriptions), properties, required)

    def arguments(self, city, unit=None):
        unit = unit or ("celsius" if self.must else None)
        return {self.place: city} | ({self.unit: unit} if unit else {})

    def ask(self, rng, city=None, forms=None):
        city, unit = city or some_city(rng), None
        prompt = rng.choice(forms or self.forms).format(c=city)
        if self.unit and rng.random() < 0.4:
            unit = rng.choice(("celsius", "fahrenheit"))
            spelled = unit if rng.random() < 0.5 else unit.capitalize()
            prompt = (prompt[:-1] + f" in {spelled}" + prompt[-1] if prompt[-1] in ".?" else prompt + f" in {spelled}"
                      ) if rng.random() < 0.6 else f"{prompt} {rng.choice(('Use', 'In', 'Please use'))} {spelled}."
        return Request(typed(rng, prompt), self.arguments(city, unit))

    def result(self, rng, arguments):
        city, sky = arguments[self.place], rng.choice(self.conditions)
        degrees = rng.randint(-15, 42) if rng.random() < 0.8 else round(rng.uniform(-10, 40), 1)
        if rng.random() < 0.25:
            text = rng.choice((f"{sky}, {degrees} degrees", f"{degrees}°C, {sky}", f"{sky}", f"{degrees}°C", f"{sky} and {degrees}°F",
                               f"{sky.capitalize()}, {degrees}°C", f"{corpus.some_word(rng)} and {sky}"))
            return text, f"The weather in {city}: {text}."
        unit = arguments.get(self.unit) or rng.choice((None, None, "celsius", "fahrenheit", "C"))
        value = {}
        if rng.random() < 0.3:
            value[rng.choice(("city", "location", self.place))] = city
        show = rng.choice(("both", "both", "degrees", "sky"))
        parts = {}
        if show != "sky":
            parts["degrees"] = {rng.choice(("temperature", "temperature", "temp", "degrees")): degrees}
            if unit:
                parts["degrees"]["unit"] = unit
        if show != "degrees":
            parts["sky"] = {rng.choice(("condition", "conditions", "weather", "sky", "description")): sky}
        if rng.random() < 0.25:
            parts["more"] = {rng.choice(("humidity", "wind", "pressure")): rng.randint(0, 99)}
        for name in rng.sample(sorted(parts), len(parts)):
            value |= parts[name]
        warm = f"{degrees} degrees {unit}" if unit else f"{degrees} degrees"
        said = {"both": f"{sky} and {warm}", "degrees": warm, "sky": sky}[show]
        return value, f"It is {said} in {city}."


class Time:
    kind, names = "time", ("get_time", "current_time", "time_in", "clock", "world_clock", "get_current_time", "local_time")
    descriptions = (None, "Get the time in a city.", "Current time of a place.", "Tells the local time.", "What time it is somewhere")
    forms = ("What time is it in {c}?", "What time is it in {c}?", "What's the time in {c}?", "Tell me the time in {c}.",
             "time in {c}", "What is the local time in {c}?", "How late is it in {c}?")

    def __init__(self, rng):
        self.place = rng.choice(("city", "location", "place", "timezone", "zone"))
        self.tool = function(rng.choice(self.names), rng.choice(self.descriptions), {self.place: {"type": "string"}}, [self.place])

    def ask(self, rng):
        city = some_city(rng)
        return Request(typed(rng, rng.choice(self.forms).format(c=city)), {self.place: city})

    def result(self, rng, arguments):
        time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        return wrapped(rng, ("time", "time", "local_time", "result", "now"), time), f"It is {time} in {arguments[self.place]}."


class Search:
    kind, names = "search", ("search", "web_search", "search_web", "find", "lookup", "search_docs", "google", "find_pages")
    descriptions = (None, "Search the web.", "Find pages about something.", "Search for a text", "Looks something up.")
    forms = ("Search for {t}", "Search for {t}", "Look up {t}", "Find {t}", "Search the web for {t}", "Find pages about {t}",
             "Please search for {t}")

    def __init__(self, rng):
        self.query = rng.choice(("query", "query", "q", "text", "term", "keywords"))
        self.tool = function(rng.choice(self.names), rng.choice(self.descriptions), {self.query: {"type": "string"}}, [self.query])

    def ask(self, rng):
        text = " ".join(corpus.some_word(rng, 0.75) for _ in range(rng.randint(1, 4)))
        return Request(rng.choice(self.forms).format(t=text) + rng.choice(("", ".")), {self.query: text})

    def result(self, rng, arguments):
        text = " ".join(corpus.some_word(rng, 0.75) for _ in range(rng.randint(2, 6)))
        return wrapped(rng, ("result", "text", "snippet", "answer", "page"), text), f"I found this: {text}."


class Message:
    kind, names = "message", ("send_message", "send_email", "notify", "message", "send_text", "email", "write_to", "send_mail")
    descriptions = (None, "Send a message to a person.", "Sends an email.", "Write to somebody", "Notify a person.")
    forms = ("Send {n} the message: {t}", "Tell {n}: {t}", "Write to {n}: {t}", "Send a message to {n}: {t}", "Email {n}: {t}",
             "Message {n}: {t}", "Send {n} an email: {t}")

    def __init__(self, rng):
        self.to, self.text = rng.choice(("to", "recipient", "name", "person")), rng.choice(("text", "message", "body", "content"))
        names = [self.to, self.text] if rng.random() < 0.7 else [self.text, self.to]
        self.tool = function(rng.choice(self.names), rng.choice(self.descriptions), {n: {"type": "string"} for n in names}, names)
        self.order = names

    def ask(self, rng):
        said = {self.to: corpus.some_name(rng), self.text: " ".join(corpus.some_word(rng, 0.75) for _ in range(rng.randint(1, 5)))}
        return Request(rng.choice(self.forms).format(n=said[self.to], t=said[self.text]), {n: said[n] for n in self.order})

    def result(self, rng, arguments):
        value = rng.choice(("ok", "sent", "done", {"status": "sent"}, {"status": "ok"}, {"ok": True}, {"sent": True}))
        return value, f"The message to {arguments[self.to]} is sent."


class Timer:
    kind, names = "timer", ("set_timer", "timer", "start_timer", "set_alarm", "countdown", "create_timer")
    descriptions = (None, "Set a timer.", "Starts a timer of some minutes.", "Rings after a time", "Start a countdown.")
    forms = ("Set a timer for {n} minutes.", "Set a timer for {n} minutes.", "Start a timer of {n} minutes.", "Timer for {n} minutes",
             "Wake me in {n} minutes.", "Remind me in {n} minutes.", "Set a {n} minute timer.")

    def __init__(self, rng):
        self.minutes = rng.choice(("minutes", "minutes", "duration", "length", "time"))
        self.tool = function(rng.choice(self.names), rng.choice(self.descriptions),
                             {self.minutes: {"type": rng.choice(("integer", "number"))}}, [self.minutes])

    def ask(self, rng):
        minutes = rng.randint(2, 90)
        return Request(typed(rng, rng.choice(self.forms).format(n=minutes)), {self.minutes: minutes})

    def result(self, rng, arguments):
        value = rng.choice(("ok", "started", "done", {"status": "started"}, {"status": "ok"}, {"ok": True}))
        return value, f"The timer is set for {arguments[self.minutes]} minutes."


class Price:
    kind, names = "price", ("get_price", "price_of", "price", "lookup_price", "product_price", "check_price", "get_cost")
    descriptions = (None, "Get the price of a product.", "What an item costs.", "Price of a product", "Looks up a price.")
    forms = ("What is the price of {t}?", "What does {t} cost?", "How much does {t} cost?", "How much is {t}?", "price of {t}",
             "Tell me the price of {t}.", "Check the price of {t}.")

    def __init__(self, rng):
        self.item = rng.choice(("item", "product", "name", "article"))
        self.tool = function(rng.choice(self.names), rng.choice(self.descriptions), {self.item: {"type": "string"}}, [self.item])

    def ask(self, rng):
        words = [corpus.some_word(rng, 0.75) for _ in range(rng.choice((1, 1, 2)))]
        item = " ".join(words)
        shown = corpus.article(item) if rng.random() < 0.5 else item
        return Request(typed(rng, rng.choice(self.forms).format(t=shown)), {self.item: item})

    def result(self, rng, arguments):
        price = rng.randint(1, 200) if rng.random() < 0.6 else round(rng.uniform(1, 99), 2)
        return wrapped(rng, ("price", "price", "cost", "result", "value"), price), f"The price of {arguments[self.item]} is {price}."


class Named:
    """A tool that means nothing: it is called where the user names it."""
    kind = "named"
    forms = ("Call {f} with {a}.", "Call {f} with {a}.", "Use {f} with {a}.", "Run {f} with {a}.", "Call the tool {f} with {a}.",
             "Please call {f} with {a}.", "{f} with {a}")
    bare = ("Call {f}.", "Use {f}.", "Run {f}.", "Call the tool {f}.", "Please call {f}.")

    def __init__(self, rng):
        words = [corpus.some_word(rng, 0.6) for _ in range(rng.choice((1, 2, 2, 3)))]
        names = list(dict.fromkeys(corpus.some_word(rng, 0.8) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))))
        if names and rng.random() < 0.15:
            names[0] = rng.choice(("city", "location", "x", "y", "a", "b", "query", "name", "text", "id", "count", "user_id"))
        self.types = {n: rng.choice(("string", "string", "integer", "number", "boolean")) for n in dict.fromkeys(names)}
        description = None if rng.random() < 0.5 else " ".join(
            corpus.some_word(rng, 0.9) for _ in range(rng.randint(2, 5))).capitalize() + rng.choice(("", "."))
        self.tool = function("_".join(words), description, {n: {"type": t} for n, t in self.types.items()}, list(self.types))

    def value(self, rng, kind):
        if kind == "string":
            return corpus.some_word(rng) if rng.random() < 0.7 else some_city(rng).replace(",", "")
        return rng.randint(0, 999) if kind != "boolean" else rng.random() < 0.5

    def ask(self, rng):
        values = {n: self.value(rng, t) for n, t in self.types.items()}
        shown = {n: str(v).lower() if isinstance(v, bool) else v for n, v in values.items()}
        link = rng.choice((" ", " ", " = ", "="))
        parts = [f"{n}{link}{v}" for n, v in shown.items()]
        given = ", ".join(parts[:-1]) + (rng.choice((" and ", ", ")) if len(parts) > 1 else "") + (parts or [""])[-1]
        prompt = rng.choice(self.forms if parts else self.bare).format(f=self.tool["function"]["name"], a=given)
        return Request(prompt[:-1] if rng.random() < 0.2 and prompt.endswith(".") else prompt, values)

    def result(self, rng, arguments):
        value = rng.choice((corpus.some_word(rng), rng.randint(0, 9999), " ".join(corpus.some_word(rng) for _ in range(3))))
        return wrapped(rng, ("result", "value", "output", "answer"), value), f"The result is {value}."
