"""Tools, schemas and messages that the suites in Python send."""

MODEL = "demo"
SUM = [{"role": "user", "content": "What is 3 plus 4?"}]
STORY = [{"role": "user", "content": "Tell me a story."}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
CITIES = ["Oslo", "Rome"]

# Values of closed sets: a model that was not trained on tools still finishes them.
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "hourly": {"type": "boolean"}},
    "required": ["city", "hourly"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}}, "required": ["zone"],
         "additionalProperties": False}
GET_WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.", "parameters": PLACE, "strict": True}}
GET_TIME = {"type": "function", "function": {
    "name": "get_time", "description": "The time in a zone.", "parameters": CLOCK, "strict": True}}
NAMED = {"type": "function", "function": {"name": "get_time"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}


def is_place(value):
    """Whether a value follows `PLACE`."""
    return set(value) == {"city", "hourly"} and value["city"] in CITIES and isinstance(value["hourly"], bool)


def follows(name, arguments):
    """Whether a call's arguments follow its tool's schema."""
    if name == "get_weather":
        return is_place(arguments)
    return name == "get_time" and set(arguments) == {"zone"} and arguments["zone"] in ("UTC", "CET")
