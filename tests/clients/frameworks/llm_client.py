"""What the command line tool `llm` sees of a Camshaft server, configured as its manual says. Arguments and report: `kit`."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import kit
from samples import PLACE, is_place

served = kit.server()
home = tempfile.TemporaryDirectory(prefix="camshaft-llm-")
MODELS = """\
- {model_id: demo, model_name: demo, api_base: "URL", api_key_name: demo, supports_tools: true, supports_schema: true}
- {model_id: demo-text, model_name: demo, api_base: "URL", api_key_name: demo, completion: true}
- {model_id: demo-responses, model_name: demo, api_base: "URL", api_key_name: demo, responses: true, supports_schema: true}
- {model_id: nope, model_name: nope, api_base: "URL", api_key_name: demo}
"""
pathlib.Path(home.name, "extra-openai-models.yaml").write_text(MODELS.replace("URL", f"{served.url}/v1"))
SUM = "What is 3 plus 4?"
WEATHER = "What is the weather in Oslo?"
GREEDY = ["-o", "temperature", "0"]


def llm(*arguments, succeeds=True):
    """What the tool writes: to standard output, or to standard error where it has to fail."""
    environment = {**os.environ, "LLM_USER_PATH": home.name}
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments], env=environment, capture_output=True, text=True, timeout=kit.PATIENCE_S,
        stdin=subprocess.DEVNULL, check=False)
    assert (done.returncode == 0) == succeeds, (arguments, done)
    return done.stdout if succeeds else done.stderr


def keeps_a_key():
    llm("keys", "set", "demo", "--value", served.key)
    assert "demo" in llm("models")


def prompts():
    assert "7" in llm("-m", "demo", *GREEDY, "--no-stream", SUM)


def streams():
    assert llm("-m", "demo", *GREEDY, SUM) == llm("-m", "demo", *GREEDY, "--no-stream", SUM)


def sends_a_system_prompt():
    assert llm("-m", "demo", *GREEDY, "-s", "Answer briefly.", SUM).strip()


def goes_on_with_a_talk():
    llm("-m", "demo", *GREEDY, SUM)
    assert llm("-c", *GREEDY, "What is 2 plus 2?").strip()


def logs_what_was_used():
    llm("-m", "demo", *GREEDY, SUM)
    [logged] = json.loads(llm("logs", "-n", "1", "--json"))
    assert logged["input_tokens"] > 0 and logged["output_tokens"] > 0, logged


def completes():
    assert llm("-m", "demo-text", *GREEDY, "-o", "max_tokens", "8", "1, 2, 3,").strip()


def responds():
    assert "7" in llm("-m", "demo-responses", *GREEDY, SUM)


def follows_a_schema():
    for model in ("demo", "demo-responses"):
        for more in ([], ["--no-stream"]):
            said = llm("-m", model, *more, "--schema", json.dumps(PLACE), WEATHER)
            assert is_place(json.loads(said)), (model, said)


def may_call_a_tool():
    tool = "def get_weather(city: str) -> str:\n    'The weather of a city.'\n    return 'sunny'\n"
    assert llm("-m", "demo", *GREEDY, "-o", "max_tokens", "200", "--functions", tool, WEATHER).strip()


def says_which_error_it_was():
    assert "does not exist" in llm("-m", "nope", SUM, succeeds=False)
    assert "401" in llm("-m", "demo", "--key", "sk-wrong", SUM, succeeds=False)
    assert "403" in llm("-m", "demo", "--key", served.other_key, SUM, succeeds=False)
    assert "7" in llm("-m", "demo", *GREEDY, "-o", "max_tokens", "100000", SUM)
    assert "temperature" in llm("-m", "demo", "-o", "temperature", "9", SUM, succeeds=False)


def a_process_that_is_killed_ends_its_request():
    with subprocess.Popen(
            [sys.executable, "-m", "llm", "-m", "demo", "-o", "max_tokens", "900", "Tell me a story."],
            env={**os.environ, "LLM_USER_PATH": home.name}, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        process.stdout.read(1)
        process.kill()
    kit.wait_until_idle(served)


kit.run(
    keeps_a_key, prompts, streams, sends_a_system_prompt, goes_on_with_a_talk, logs_what_was_used, completes, responds,
    follows_a_schema, may_call_a_tool, says_which_error_it_was, a_process_that_is_killed_ends_its_request)
