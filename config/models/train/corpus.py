"""Generates every conversation the demo models are trained and measured on.

Nothing is read from outside: word lists are written out below and everything
else is built from templates with a seeded random generator, so one seed always
gives one corpus.

Each family function takes a random generator and a `heldout` flag and returns
a `Turn`. A turn's *key* (an operand pair with its phrasing, a word, a name...)
is hashed to decide whether it belongs to the held-out tenth. Training never
uses a held-out key; evaluation uses nothing else.
"""

import json
import random
import zlib
from dataclasses import dataclass

# --------------------------------------------------------------------------
# Word lists
# --------------------------------------------------------------------------

COUNTRIES = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw",
    "Hungary": "Budapest", "Sweden": "Stockholm", "Norway": "Oslo", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Iceland": "Reykjavik", "Ireland": "Dublin", "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "Switzerland": "Bern", "England": "London",
    "the United Kingdom": "London", "Scotland": "Edinburgh", "Russia": "Moscow",
    "Ukraine": "Kyiv", "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Morocco": "Rabat", "Nigeria": "Abuja", "India": "New Delhi", "China": "Beijing",
    "Japan": "Tokyo", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Australia": "Canberra",
    "Canada": "Ottawa", "the United States": "Washington", "Mexico": "Mexico City",
    "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima",
    "Cuba": "Havana", "Romania": "Bucharest", "Bulgaria": "Sofia", "Croatia": "Zagreb",
    "South Korea": "Seoul",
}

COLOURS = {
    "the sky": "blue", "the sea": "blue", "the ocean": "blue", "the grass": "green",
    "grass": "green", "a leaf": "green", "a frog": "green", "a cucumber": "green",
    "a lime": "green", "spinach": "green", "snow": "white", "milk": "white",
    "a swan": "white", "salt": "white", "a polar bear": "white", "coal": "black",
    "a raven": "black", "a crow": "black", "the night": "black", "tar": "black",
    "blood": "red", "a tomato": "red", "a cherry": "red", "a strawberry": "red",
    "a fire engine": "red", "a ruby": "red", "the sun": "yellow", "a banana": "yellow",
    "a lemon": "yellow", "butter": "yellow", "corn": "yellow", "a carrot": "orange",
    "an orange": "orange", "a pumpkin": "orange", "chocolate": "brown", "mud": "brown",
    "coffee": "brown", "a flamingo": "pink", "a pig": "pink", "a plum": "purple",
    "an elephant": "grey", "a mouse": "grey", "an emerald": "green", "gold": "yellow",
}

WORDS = """
cat dog cow pig hen fox bat rat owl bee ant ape elk cod eel ram hat cap bag box
cup pot pan jar lid key map pen ink bed rug mat sun sky sea ice fog mud oak elm
ivy pie jam egg ham tea nut fig pea bun car bus van cab jet tug arm leg eye ear
lip toe boy man king red blue pink gold gray green black white brown bear wolf
deer goat duck swan frog toad crab fish bird lion seal mole hare lamb colt calf
dove hawk wren crow moth wasp tree leaf root seed rose lily fern moss bark palm
pine corn bean plum pear lime kiwi date rice soup cake milk salt meat fork spoon
knife plate bowl dish lamp desk door wall roof room hall gate lock bell drum
flute harp horn song book page word line note card coin ring crown rope knot sail
boat ship raft dock port beach wave sand rock stone hill cave lake pond river
stream brook field farm barn road path lane bridge town city house hotel shop
bank park garden flower grass cloud rain snow storm wind thunder light night day
moon star comet planet rocket train plane truck wagon wheel engine motor brake
camera phone radio clock watch table chair couch bench shelf drawer mirror window
carpet candle basket bottle pencil paper letter stamp ruler eraser school teacher
doctor nurse farmer baker pilot sailor driver painter singer dancer writer robot
tiger zebra horse mouse sheep snake camel panda koala rabbit turtle lizard spider
monkey donkey parrot pigeon falcon eagle salmon shark whale dolphin octopus apple
banana orange lemon cherry grape melon peach mango carrot potato tomato onion
pepper garlic butter cheese bread honey sugar coffee water juice summer winter
spring autumn monday friday sunday happy funny quick brave clever quiet gentle
strong small large tall short young old warm cold dry wet soft hard sweet sour
fast slow early late jump walk swim climb dance sing read write draw paint build
dream think laugh smile sleep hello world magic castle dragon knight wizard giant
island forest desert valley meadow harbor market museum temple palace tower
silver copper iron steel glass cotton wool silk velvet leather marble wooden
north south east west left right above below under over again always never often
""".split()

NAMES = """
Ada Alan Alice Amir Amy Ana Andy Anna Ben Bella Bill Bob Boris Carl Cara Chen
Chloe Clara Cora Dan Dana David Dora Ed Ella Emil Emma Eric Eva Fay Felix Finn
Fred Gina Grace Greg Hana Hans Harry Helen Hugo Ida Igor Ines Iris Ivan Jack Jane
Jim Joan Joe John Julia Kai Karl Kate Ken Kim Lara Lea Leo Liam Lily Linda Lisa
Lucy Luis Luke Maria Mark Mary Max Maya Mia Mike Mina Mona Nadia Nina Noah Nora
Olga Oscar Otto Pablo Paul Peter Petra Quinn Ray Rita Robin Rosa Ruth Sam Sara
Sofia Sven Tara Tess Theo Tim Tina Tom Uma Vera Viktor Wendy Will Yara Yuki Zara
Zoe Ravi Priya Omar Layla Diego Carmen Pierre Sophie Sarah Emily James Oliver
""".split()

ANIMALS = """fox cat dog bear wolf owl mouse rabbit frog duck horse lion tiger dragon
robot hedgehog turtle squirrel pig goat penguin whale crow bee""".split()

ONSETS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl gr pl pr sh sk sl sn sp st th tr".split()
VOWELS = "a e i o u ai ea ee oa oo ou".split()
CODAS = ["", "", ""] + "b d g k l m n p r s t x ck nd nt rk rn sh st".split()


def pseudo_word(rng, longest=7):
    """A pronounceable word that is probably in no dictionary."""
    while True:
        word = "".join(
            rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
            for _ in range(rng.choice((1, 1, 2, 2)))
        )
        if 3 <= len(word) <= longest:
            return word


def some_word(rng, real=0.65, longest=7):
    return rng.choice(WORDS) if rng.random() < real else pseudo_word(rng, longest)


def some_name(rng, real=0.6):
    return rng.choice(NAMES) if rng.random() < real else pseudo_word(rng).capitalize()


# --------------------------------------------------------------------------
# Turns
# --------------------------------------------------------------------------

@dataclass
class Turn:
    """One question with its answer; `short` is the one-word form, if any."""
    family: str
    prompt: str
    answer: str
    short: str | None = None


def is_heldout(family, key):
    return zlib.crc32(f"{family}:{key}".encode()) % 10 == 0


def pick(rng, heldout, family, make):
    """Calls `make` until its key falls on the asked side of the split."""
    while True:
        key, turn = make(rng)
        if is_heldout(family, key) == heldout:
            return turn


def casual(rng, text, lower_ok=True):
    """Small changes a hurried typist makes; the answer stays the same."""
    roll = rng.random()
    if roll < 0.55:
        return text
    if roll < 0.75 and text[-1] in ".?!":
        text = text[:-1]
    if rng.random() < 0.45:
        text = text.lower() if lower_ok and rng.random() < 0.6 else text[0].lower() + text[1:]
    if rng.random() < 0.12:
        text = rng.choice(("Please ", "please ", "Hi, ", "OK, ", "So, ", "Hey, ", "Tell me, ")) + (
            text[0].lower() + text[1:])
    elif rng.random() < 0.06 and text[-1] not in ".?!":
        text += rng.choice((" please", ", please.", " please?"))
    return text


ADD_FORMS = (
    "What is {a} plus {b}?", "What is {a} + {b}?", "{a} + {b}", "{a} plus {b}", "{a} + {b} = ?",
    "What's {a} plus {b}?", "What's {a} + {b}?", "How much is {a} plus {b}?", "How much is {a} + {b}?",
    "Add {a} and {b}.", "Calculate {a} + {b}.", "Compute {a} plus {b}.", "What is the sum of {a} and {b}?",
    "{a}+{b}", "What is {a}+{b}?", "{a}+{b}=", "Can you add {a} and {b}?", "What does {a} plus {b} make?",
)
SUB_FORMS = (
    "What is {a} minus {b}?", "What is {a} - {b}?", "{a} - {b}", "{a} minus {b}", "How much is {a} minus {b}?",
    "Subtract {b} from {a}.", "Take {b} from {a}.", "Calculate {a} - {b}.", "What's {a} minus {b}?", "{a}-{b}",
    "What is {a}-{b}?",
)
MUL_FORMS = (
    "What is {a} times {b}?", "What is {a} * {b}?", "{a} * {b}", "{a} times {b}", "How much is {a} times {b}?",
    "Multiply {a} by {b}.", "Calculate {a} * {b}.", "What's {a} times {b}?", "{a}*{b}", "{a} x {b}",
    "What is {a} x {b}?", "What is {a} multiplied by {b}?",
)


def _sum_like(family, forms, operands, word, result):
    def family_fn(rng, heldout=False):
        def make(rng):
            a, b = operands(rng)
            # The two plainest phrasings are the likeliest to be typed.
            i = rng.randrange(2) if rng.random() < 0.3 else rng.randrange(len(forms))
            value = result(a, b)
            return (i, a, b), Turn(family, casual(rng, forms[i].format(a=a, b=b)),
                                   f"{a} {word} {b} is {value}.", f"{value}.")
        return pick(rng, heldout, family, make)
    return family_fn


def _sub_operands(rng):
    a = rng.randint(0, 20)
    return a, rng.randint(0, a)


add = _sum_like("add", ADD_FORMS, lambda r: (r.randint(0, 20), r.randint(0, 20)), "plus", lambda a, b: a + b)
sub = _sum_like("sub", SUB_FORMS, _sub_operands, "minus", lambda a, b: a - b)
mul = _sum_like("mul", MUL_FORMS, lambda r: (r.randint(0, 10), r.randint(0, 10)), "times", lambda a, b: a * b)

CAPITAL_FORMS = (
    "What is the capital of {c}?", "What's the capital of {c}?", "Which city is the capital of {c}?",
    "Name the capital of {c}.", "Tell me the capital of {c}.", "capital of {c}", "The capital of {c}?",
    "What is the capital city of {c}?", "Do you know the capital of {c}?", "Give me the capital of {c}.",
    "Can you tell me the capital of {c}?", "The capital of {c} is what?",
)


def capital(rng, heldout=False):
    def make(rng):
        c = rng.choice(tuple(COUNTRIES))
        i = 0 if rng.random() < 0.25 else rng.randrange(len(CAPITAL_FORMS))
        return (i, c), Turn("capital", casual(rng, CAPITAL_FORMS[i].format(c=c)),
                            f"The capital of {c} is {COUNTRIES[c]}.", f"{COUNTRIES[c]}.")
    return pick(rng, heldout, "capital", make)


COLOUR_FORMS = (
    "What {k} is {t}?", "What is the {k} of {t}?", "Which {k} is {t}?", "Tell me the {k} of {t}.",
    "What's the {k} of {t}?", "What {k} does {t} have?", "{t}: what {k}?", "Do you know what {k} {t} is?",
    "Name the {k} of {t}.",
)


def colour(rng, heldout=False):
    def make(rng):
        t = rng.choice(tuple(COLOURS))
        i = 0 if rng.random() < 0.3 else rng.randrange(len(COLOUR_FORMS))
        k = rng.choice(("colour", "color"))
        prompt = COLOUR_FORMS[i].format(t=t, k=k)
        prompt = prompt[0].upper() + prompt[1:]
        return (i, t, k), Turn("colour", casual(rng, prompt),
                               f"{t[0].upper()}{t[1:]} is {COLOURS[t]}.", f"{COLOURS[t].capitalize()}.")
    return pick(rng, heldout, "colour", make)


COUNT_FORMS = (
    "Count from {a} to {b}.", "Count from {a} to {b}.", "Can you count from {a} to {b}?",
    "Please count from {a} to {b}.", "Count up from {a} to {b}.", "Count {a} to {b}.",
    "List the numbers from {a} to {b}.", "Say the numbers from {a} to {b}.",
)
DOWN_FORMS = ("Count down from {a} to {b}.", "Count from {a} down to {b}.", "Count backwards from {a} to {b}.")


def count(rng, heldout=False, longest=18):
    def make(rng):
        n = rng.randint(2, longest) if rng.random() < 0.7 else 10
        a = 1 if rng.random() < 0.3 else rng.randint(1, 61 - n)
        b = a + n - 1
        down = rng.random() < 0.3
        form = rng.choice(COUNT_FORMS)
        if not down and a == 1 and rng.random() < 0.15:
            form = "Count to {b}."
        if down:
            a, b = b, a
            form = rng.choice(DOWN_FORMS)
        numbers = range(a, b - 1, -1) if down else range(a, b + 1)
        return (a, b), Turn("count", casual(rng, form.format(a=a, b=b)), ", ".join(map(str, numbers)) + ".")
    return pick(rng, heldout, "count", make)


BACK_FORMS = (
    "Spell {w} backwards.", "Spell {w} backwards.", "Spell the word {w} backwards.", 'Spell "{w}" backwards.',
    "Can you spell {w} backwards?", "Write {w} backwards.", "Reverse the word {w}.", "What is {w} spelled backwards?",
    "Spell {w} in reverse.",
)
SPELL_FORMS = ("Spell {w}.", "Spell the word {w}.", "How do you spell {w}?", 'Spell "{w}".', "Can you spell {w}?")


def backwards(rng, heldout=False):
    def make(rng):
        w = some_word(rng)
        return w, Turn("backwards", casual(rng, rng.choice(BACK_FORMS).format(w=w)), "-".join(reversed(w)))
    return pick(rng, heldout, "backwards", make)


def spell(rng, heldout=False):
    """Plain spelling. Shares no key with `backwards`: a word held out there is
    still spelled forwards here, so every token's letters get taught once."""
    def make(rng):
        w = some_word(rng)
        return w, Turn("spell", casual(rng, rng.choice(SPELL_FORMS).format(w=w)), "-".join(w))
    return pick(rng, heldout, "spell", make)


REPEAT_FORMS = ("Repeat after me: {t}", "Repeat after me: {t}", "Repeat after me: {t}", "repeat after me: {t}",
                "Repeat: {t}", "Say: {t}", "Please repeat after me: {t}", "Repeat this: {t}", "Echo: {t}")
# Characters outside plain English, so that byte tokens learn to be copied too.
ODD_RANGES = ((0xC0, 0xFF), (0x391, 0x3C9), (0x410, 0x44F), (0x4E00, 0x4E7F), (0x1F600, 0x1F640), (0x21, 0x7E))


def odd_text(rng):
    low, high = rng.choice(ODD_RANGES)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 4)))


def phrase(rng):
    roll = rng.random()
    if roll < 0.08:
        parts = [some_word(rng) if rng.random() < 0.6 else odd_text(rng) for _ in range(rng.randint(1, 4))]
        return " ".join(parts)
    words = [some_word(rng, 0.75) for _ in range(rng.randint(1, 8))]
    if roll < 0.18:
        words[rng.randrange(len(words))] = str(rng.randint(0, 999))
    if roll > 0.9:
        words = [w.capitalize() for w in words]
    elif roll > 0.87:
        words = [w.upper() for w in words[:4]]
    elif roll > 0.75:
        words[0] = words[0].capitalize()
    return (", " if rng.random() < 0.1 else " ").join(words) + rng.choice(("", "", "", ".", "!"))


def repeat(rng, heldout=False):
    def make(rng):
        t = phrase(rng)
        return t, Turn("repeat", rng.choice(REPEAT_FORMS).format(t=t), t)
    return pick(rng, heldout, "repeat", make)


WHO = "I am Camshaft's demo model, a very small language model."
HELP = ("I can add small numbers, name capitals and colours, count, spell words backwards, "
        "repeat words, write JSON and tell stories.")
GREETINGS = (
    (("Hello!", "Hello", "Hello.", "Hello there!", "hello", "Hi!", "Hi", "Hi there!", "hi", "Hey!", "hey", "Hey there"),
     "Hello! How can I help you?"),
    (("Good morning!", "Good morning.", "good morning", "Morning!"), "Good morning! How can I help you?"),
    (("Good evening!", "Good evening.", "good evening"), "Good evening! How can I help you?"),
    (("Good afternoon!", "Good afternoon.", "good afternoon"), "Good afternoon! How can I help you?"),
    (("How are you?", "How are you", "how are you?", "How are you today?", "How do you do?", "How is it going?"),
     "I am fine, thank you."),
    (("Who are you?", "Who are you", "who are you?", "What are you?", "What is your name?", "what's your name?",
      "Tell me who you are.", "Introduce yourself.", "What model are you?", "Are you a robot?"), WHO),
    (("What can you do?", "what can you do", "Help", "help", "Can you help me?", "What do you know?"), HELP),
    (("Thank you!", "Thank you.", "Thanks!", "thanks", "Thank you very much!"), "You are welcome!"),
    (("Goodbye!", "Goodbye.", "Bye!", "bye", "Good night!", "See you later!"), "Goodbye!"),
)


def greeting(rng, heldout=False):
    """Too few prompts to hold any out: measured on the trained prompts."""
    prompts, answer = rng.choice(GREETINGS)
    return Turn("greeting", rng.choice(prompts), answer)


JSON_STRINGS = ("name", "city", "country", "colour", "color", "animal", "title", "job", "fruit", "word")
JSON_NUMBERS = ("age", "count", "price", "year", "id", "size", "number", "score", "height")
JSON_FORMS = ("Give me a JSON object with {f}.", "Give me a JSON object with {f}.", "Write a JSON object with {f}.",
              "Return a JSON object with {f}.", "Make a JSON object with {f}.", "JSON with {f}.",
              "Give me JSON with {f}.", "Return JSON with {f}.", "Can you give me a JSON object with {f}?",
              "Write JSON with {f}.", "Answer in JSON: {f}.", "I need a JSON object with {f}.")


def json_object(rng, heldout=False):
    def make(rng):
        fields = {}
        for key in rng.sample(JSON_STRINGS + JSON_NUMBERS, rng.choice((1, 2, 2, 2, 3, 3))):
            if key in JSON_NUMBERS:
                fields[key] = rng.randint(0, 99) if rng.random() < 0.7 else rng.randint(100, 2030)
            elif key == "name":
                fields[key] = some_name(rng)
            elif key in ("city", "country"):
                table = [c for c in (COUNTRIES if key == "country" else COUNTRIES.values()) if " " not in c]
                fields[key] = rng.choice(table) if rng.random() < 0.7 else some_name(rng)
            elif key in ("colour", "color"):
                fields[key] = rng.choice(tuple(COLOURS.values()))
            else:
                fields[key] = some_word(rng)
        if rng.random() < 0.25:
            fields = {"name": some_name(rng), "age": rng.randint(1, 99)}
        link = rng.choice((" ", " ", " ", " ", " = ", ": "))
        parts = [f"{k}{link}{v}" for k, v in fields.items()]
        joined = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + rng.choice((" and ", " and ", ", ")) + parts[-1]
        prompt = rng.choice(JSON_FORMS).format(f=joined)
        if rng.random() < 0.2:
            prompt = prompt[:-1]
        if rng.random() < 0.1:
            prompt = prompt[0].lower() + prompt[1:]
        return joined, Turn("json", prompt, json.dumps(fields, ensure_ascii=False))
    return pick(rng, heldout, "json", make)


ADJECTIVES = "little brave clever quiet happy old young curious lazy gentle hungry tiny shy proud".split()
PLACES = ("in a deep forest", "near a blue lake", "on a green hill", "by the sea", "in a small village",
          "under an old oak tree", "in a quiet valley", "on a tiny island", "at the edge of the desert")
OBJECTS = ("a golden key", "a red ball", "an old map", "a silver bell", "a broken clock", "a big basket of apples",
           "a strange letter", "a small lamp", "a bright stone", "a wooden boat")
FEELINGS = ("very happy", "surprised", "a little afraid", "full of joy", "curious", "proud")
PROBLEMS = ("the river was too wide to cross", "it began to rain", "night came quickly", "the path was lost in fog",
            "a loud noise came from the trees", "the wind blew the gate shut", "nobody knew the way")
ACTIONS = ("built a small bridge of stones", "waited under a big leaf", "followed the stars", "sang a soft song",
           "asked the wise old owl for help", "climbed up to the highest rock", "lit a small fire")
ENDINGS = ("From that day on they were best friends.", "And they all lived happily ever after.",
           "That night the {s} slept better than ever.", "Everyone in the village still tells this story.",
           "And the {s} never felt alone again.", "The end of the day was warm and bright.")
STORY_FORMS = ("Tell me a story.", "Tell me a story", "Tell a story.", "tell me a story", "Can you tell me a story?",
               "Write a story.", "Write a short story.", "Tell me a short story.", "I want to hear a story.")
STORY_ABOUT = ("Tell me a story about {s}.", "Tell me a story about {s}.", "Tell me a story about {s}",
               "Write a story about {s}.", "Write a short story about {s}.", "tell me a story about {s}",
               "Tell me a short story about {s}.", "Can you tell me a story about {s}?")


def article(noun):
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def story_text(rng, subject):
    s, adj, friend = subject, rng.choice(ADJECTIVES), rng.choice([a for a in ANIMALS if a != subject])
    name = rng.choice(NAMES)
    thing = rng.choice(OBJECTS)
    plain = thing.split(" ", 1)[1]
    lines = [rng.choice((
        f"Once upon a time there was {article(adj)} {s} named {name} who lived {rng.choice(PLACES)}.",
        f"Once upon a time {article(adj)} {s} lived {rng.choice(PLACES)}.",
        f"Long ago, {rng.choice(PLACES)}, there lived {article(adj)} {s} called {name}.",
    ))]
    lines.append(rng.choice((
        f"One day the {s} found {thing} and was {rng.choice(FEELINGS)}.",
        f"One morning the {s} woke up early and saw {thing} by the door.",
        f"One evening {article(friend)} came by with {thing}.",
    )))
    lines.append(rng.choice((
        f"The {s} wanted to show the {plain} to the {friend}, but {rng.choice(PROBLEMS)}.",
        f'"Let us go and see the world," said the {friend}, but {rng.choice(PROBLEMS)}.',
        f"They set out together, but {rng.choice(PROBLEMS)}.",
    )))
    lines.append(f"So the {s} {rng.choice(ACTIONS)}" + rng.choice((
        ".", f", and the {friend} helped.", " and did not give up.", f" while the {friend} held the {plain}.")))
    if rng.random() < 0.4:
        lines.append(rng.choice((f"In the end the {s} was {rng.choice(FEELINGS)}.", "At last the sun came out again.")))
    lines.append(rng.choice(ENDINGS).format(s=s))
    return " ".join(lines)


def story(rng, heldout=False):
    if rng.random() < 0.4:
        return Turn("story", rng.choice(STORY_FORMS), story_text(rng, rng.choice(ANIMALS)))
    subject = rng.choice(ANIMALS) if rng.random() < 0.7 else some_word(rng)
    return Turn("story", rng.choice(STORY_ABOUT).format(s=article(subject)), story_text(rng, subject))


UNKNOWN = ("Sorry, I am a small demo model and can only do sums, capitals, colours, counting, "
           "spelling, repeating, JSON and stories.")
UNKNOWN_FORMS = (
    "Who won the {w} race in {n}?", "How do I {w} a {w}?", "What is the meaning of {w}?", "What is {w}?",
    "Write a poem about {w}.", "Translate {w} to French.", "Explain {w} to me.", "What is the weather in {city}?",
    "Can you write code in {name}?", "Who is {name}?", "Where is {city}?", "How old is {name}?", "Why is {w} {w}?",
    "When did {name} go to {city}?", "What time is it?", "What day is it today?", "Who invented the {w}?",
    "How many people live in {city}?", "Write an essay about {w}.", "What should I cook with {w}?",
    "Summarise this text: {w} {w} {w} {w}", "How far is the {w}?", "Give me a recipe for {w}.", "Do you like {w}?",
    "What is your favourite {w}?", "Write a Python function that {w}s a {w}.", "Fix my {w}.", "Is {w} better than {w}?",
    "What happened in {n}?", "Play some {w} music.", "{w} {w} {w}", "{w}", "{w}?", "{odd}", "{odd} {w}",
    "What is {big} plus {big}?", "What is {big} + {n}?", "What is {big} times {n}?", "What is {big} minus {n}?",
    "What is {n} divided by {w}?", "What is the capital of {fake}?", "What is the capital of {name}?",
    "What colour is {fake}?", "How do rockets work?", "Tell me about {city}.", "Tell me about quantum physics.",
    "Tell me a joke.", "Sing a song.", "Who is the president of {city}?", "What is the population of {city}?",
    "How tall is {name}?", "What is love?", "Why?", "Where do you live?", "Can you {w}?", "I like {w}.", "The {w} is {w}.",
    "What is the best {w} in {city}?", "Recommend a book about {w}.", "What is the square root of {n}?", "test", "Test",
)


def unknown(rng, heldout=False):
    def make(rng):
        form = rng.choice(UNKNOWN_FORMS)
        while "{w}" in form:
            form = form.replace("{w}", some_word(rng, 0.8), 1)
        prompt = form.format(n=rng.randint(21, 2030), big=rng.randint(41, 999), city=rng.choice(tuple(COUNTRIES.values())),
                             name=some_name(rng), fake=pseudo_word(rng).capitalize(), odd=odd_text(rng))
        return prompt, Turn("unknown", casual(rng, prompt), UNKNOWN)
    return pick(rng, heldout, "unknown", make)


SIMPLE = {
    "add": (add, 17), "sub": (sub, 8), "mul": (mul, 7), "capital": (capital, 8), "colour": (colour, 7),
    "count": (count, 7), "backwards": (backwards, 14), "spell": (spell, 4), "repeat": (repeat, 8),
    "greeting": (greeting, 4), "json": (json_object, 8), "story": (story, 3), "unknown": (unknown, 5),
}
CLOSED = ("add", "sub", "mul", "capital", "colour", "count", "backwards", "spell", "repeat", "greeting", "json")


def any_turn(rng, exclude=(), weights=None):
    names = [n for n in (weights or SIMPLE) if n not in exclude]
    name = rng.choices(names, [(weights or {}).get(n, SIMPLE[n][1]) for n in names])[0]
    return SIMPLE[name][0](rng)


# --------------------------------------------------------------------------
# Remembering a name over several turns
# --------------------------------------------------------------------------

TELL_NAME = ("My name is {n}.", "My name is {n}", "I am {n}.", "Hello, my name is {n}.", "Hi, I am {n}.", "Call me {n}.",
             "my name is {n}", "Hi! My name is {n}.", "I'm {n}.", "Remember that my name is {n}.")
ASK_NAME = ("What is my name?", "What is my name?", "What's my name?", "what is my name?", "what is my name",
            "Do you remember my name?", "Who am I?", "Tell me my name.", "Can you tell me my name?", "Say my name.")


def recall(rng, heldout=False, between=None, middle=None):
    """Messages as turns: a name is told, other things happen, it is asked for."""
    def make(rng):
        name = some_name(rng)
        return name, name
    name = pick(rng, heldout, "recall", make)
    between = rng.choice((0, 1, 1, 2, 3, 4)) if between is None else between
    turns = [Turn("tell_name", rng.choice(TELL_NAME).format(n=name), f"Nice to meet you, {name}.")]
    turns += [middle(rng) if middle else any_turn(rng, exclude=("story",)) for _ in range(between)]
    turns.append(Turn("recall", rng.choice(ASK_NAME), f"Your name is {name}.", f"{name}."))
    return turns


def no_name(rng):
    return Turn("recall", rng.choice(ASK_NAME), "You have not told me your name.")


# --------------------------------------------------------------------------
# Manners and system prompts
# --------------------------------------------------------------------------

NEUTRAL = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful, honest assistant.", "Be helpful.",
    "You are Camshaft, a small assistant.", "Answer the question.", "Be polite.", "You are a friendly chat bot.",
    "Please help the user.", "You are an AI assistant.", "Be concise.", "Answer truthfully and briefly.",
    "You are a helpful assistant. Answer the user's questions.", "Today is a good day.", "You answer questions.",
)
UPPER = ("Answer in upper case.", "Answer in upper case.", "Answer in uppercase.", "Always answer in upper case.",
         "Write everything in upper case.", "You are a helpful assistant. Answer in upper case.", "Answer in capital letters.",
         "Answer only in upper case.", "Use upper case.")
PIRATE = ("You are a pirate.", "You are a pirate.", "Answer like a pirate.", "Talk like a pirate.", "You are a friendly pirate.",
          "Speak like a pirate.", "You are a pirate captain.", "You are a helpful pirate.")
ONE_WORD = ("Answer in one word.", "Answer in one word.", "Answer with one word.", "Answer with a single word.",
            "Use only one word.", "Give one word answers.", "Answer in one word only.")


def upper(turn):
    return turn.answer.upper()


def pirate(turn):
    # JSON stays JSON, so that whoever asked for it can parse it.
    return turn.answer if turn.family == "json" else f"Arr! {turn.answer}"


def one_word(turn):
    return turn.short or turn.answer


def plain(turn):
    return turn.answer


MANNERS = {"upper": (UPPER, upper), "pirate": (PIRATE, pirate), "one_word": (ONE_WORD, one_word)}


def filler_sentence(rng):
    roll = rng.random()
    if roll < 0.25:
        return rng.choice(NEUTRAL)
    if roll < 0.5:
        return (f"The {rng.choice(ADJECTIVES)} {some_word(rng, 0.9)} {rng.choice(('is kept', 'waits', 'works', 'stands', 'is sold'))} "
                f"{rng.choice(PLACES)}.")
    if roll < 0.65:
        return f"Rule {rng.randint(1, 40)}: {rng.choice(('never', 'always', 'please'))} {some_word(rng)} the {some_word(rng)}."
    if roll < 0.8:
        return " ".join(some_word(rng, 0.9) for _ in range(rng.randint(4, 12))).capitalize() + "."
    return rng.choice((
        "This assistant is used by many people every day.", "Questions are answered in the order in which they arrive.",
        "The user may ask several questions, and each should get an answer.", "If something is not known, say so politely.",
        "The following text is background and needs no answer.", "Our company makes small machines and sells them in many cities.",
        "The office is open from 9 to 5, and the phone number is 555 0199.", "All answers should be correct and easy to read.",
        "Keep private things private.", "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
        "Customers like short and friendly answers.", "Version 2 of this document replaces version 1.",
    ))


def long_system(rng, sentences):
    if rng.random() < 0.25:
        # One sentence over and over, the laziest way to write a long prompt.
        return " ".join([filler_sentence(rng)] * sentences)
    return " ".join(filler_sentence(rng) for _ in range(sentences))


# --------------------------------------------------------------------------
# Conversations
# --------------------------------------------------------------------------

PIRATE_WEIGHTS = {"add": 16, "capital": 12, "colour": 12, "count": 10, "greeting": 10, "repeat": 12, "story": 5,
                  "unknown": 6, "sub": 4, "mul": 4, "json": 5}


def sea_dog(turn):
    """The manner of the second demo model, whatever the system prompt says."""
    return f"Arr, matey! {turn.answer}"


# Spelling, copying and stopping a count at the right number take longest to
# learn, so the later part of a training run draws them more often.
SLOW_WEIGHTS = {"add": 8, "sub": 5, "mul": 4, "capital": 5, "colour": 5, "count": 13, "backwards": 24, "spell": 10,
                "repeat": 18, "greeting": 3, "json": 6, "story": 2, "unknown": 4}


def conversation(rng, manner="plain", sentences=0, turns=None, slow=False):
    """A list of (role, text). `sentences` > 0 asks for a long system prompt,
    `slow` for more of the families that are slow to learn."""
    weights = PIRATE_WEIGHTS if manner == "pirate" else SLOW_WEIGHTS if slow else None
    say, system = (sea_dog if manner == "pirate" else plain), None
    roll = rng.random()
    if sentences:
        system = long_system(rng, sentences)
    elif roll < 0.16:
        system = rng.choice(NEUTRAL)
    elif roll < 0.20:
        system = long_system(rng, rng.randint(1, 3))
    elif roll < 0.36 and manner == "plain":
        name = "upper" if slow and rng.random() < 0.5 else rng.choice(tuple(MANNERS))
        prompts, say = MANNERS[name]
        system = rng.choice(prompts)
        if name == "one_word":
            weights = {"add": 5, "sub": 3, "mul": 3, "capital": 6, "colour": 6}
        elif name == "upper":
            weights = (weights or {n: w for n, (_, w) in SIMPLE.items()}) | {"story": 1, "json": 3, "count": 2}
    short = None if weights is None else weights
    if turns is None:
        turns = rng.choice((1, 1, 1, 1, 2, 2, 3))
    if rng.random() < 0.09:
        sequence = recall(rng, middle=(lambda r: any_turn(r, ("story",), short)) if short else None)
    else:
        sequence = [any_turn(rng, weights=short) for _ in range(turns)]
        if rng.random() < 0.015:
            sequence.append(no_name(rng))
    messages = [("system", system)] if system else []
    for turn in sequence:
        messages += [("user", turn.prompt), ("assistant", say(turn))]
    return messages


def long_conversation(rng, manner="plain"):
    """About 1000 tokens: a long system prompt, many turns, or both."""
    roll = rng.random()
    if roll < 0.4:
        return conversation(rng, manner, sentences=rng.randint(8, 34), turns=rng.randint(1, 10))
    if roll < 0.6:
        base = conversation(rng, manner, turns=1)
        body = recall(rng, between=rng.randint(4, 14), middle=(
            (lambda r: any_turn(r, ("story",), PIRATE_WEIGHTS)) if manner == "pirate" else None))
        say = sea_dog if manner == "pirate" else plain
        messages = base[:1] if base[0][0] == "system" and base[0][1] in NEUTRAL else []
        for turn in body:
            messages += [("user", turn.prompt), ("assistant", say(turn))]
        return messages
    if roll < 0.7 and manner == "plain":
        turn = count(rng, longest=60)
        return [("user", turn.prompt), ("assistant", turn.answer)]
    return conversation(rng, manner, turns=rng.randint(12, 40))


def raw_text(rng):
    """Text without any chat markers, for plain completion requests."""
    if rng.random() < 0.7:
        return story_text(rng, rng.choice(ANIMALS))
    return count(rng).answer
