"""What the suites in Python share: their arguments, how they wait for the server, and how they report.

A suite is called as `suite.py URL KEY OTHER_KEY LIMITED_KEY ADMIN_URL`: OTHER_KEY may use another model only, LIMITED_KEY may
make one request a minute. It prints a line for each behaviour, and `N passed` as the last one.
"""

import asyncio
import collections
import inspect
import json
import sys
import time
import traceback
import urllib.request

Server = collections.namedtuple("Server", "url key other_key limited_key admin")
# Bounds a wait that goes wrong; nothing is measured by it.
PATIENCE_S = 180


def server():
    """The server under test, from the command line."""
    return Server(*sys.argv[1:6])


def get(url, key=""):
    """A page of the server."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # No proxy of the environment: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=PATIENCE_S) as response:
        return json.load(response)


def busy(served):
    """The number of requests that run or wait, over all models."""
    queues = [model["queue"] for model in get(f"{served.admin}/server/stats")["models"].values()]
    return sum(queue["running"] + queue["waiting"] for queue in queues)


def wait_until(what, condition):
    """Asks until it is so."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < PATIENCE_S, f"never came true: {what}"
        time.sleep(0.05)


def wait_until_idle(served):
    """Waits until no request runs or waits."""
    wait_until("the server is idle", lambda: busy(served) == 0)


def embedding_model(served):
    """The id of a served model that embeds, or None."""
    for model in get(f"{served.url}/v1/models", served.key)["data"]:
        if get(f"{served.url}/v1/models/{model['id']}", served.key)["task"] == "embed":
            return model["id"]
    return None


def raised(call, kind):
    """The exception that a call raises, which has to be of this very class."""
    try:
        call()
    except kind as error:
        assert type(error) is kind, (kind, type(error), error)
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def raised_in_a_row(call, kind):
    """The exception that one of a few calls in a row raises: the first may still be within a quota."""
    for _ in range(3):
        try:
            call()
        except kind as error:
            return error
    raise AssertionError(f"{kind.__name__} was not raised")


def told(error):
    """What failed, and where in the suite: the clients' own frames are left out."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in (__file__, asyncio.runners.__file__)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename]
    return "".join(traceback.format_list(frames[-3:])) + "".join(traceback.format_exception_only(error))


def run(*behaviours):
    """Checks all behaviours, and ends the process with 1 if one failed."""
    failed = 0
    # One loop for all: clients keep connections that belong to it.
    with asyncio.Runner() as runner:
        for behaviour in behaviours:
            name = behaviour.__name__.replace("_", " ")
            try:
                runner.run(behaviour()) if inspect.iscoroutinefunction(behaviour) else behaviour()
                print(f"passed: {name}", flush=True)
            except Exception as error:
                failed += 1
                print(f"failed: {name}\n{told(error)}", flush=True)
    print(f"{len(behaviours) - failed} passed" + (f", {failed} failed" if failed else ""), flush=True)
    sys.exit(1 if failed else 0)
