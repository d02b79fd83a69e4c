"""What lm-evaluation-harness measures through `/v1/completions`, next to the same model computed by numpy. Arguments and report: `kit`."""

import functools
import json
import os
import pathlib
import tempfile
import urllib.request

home = tempfile.TemporaryDirectory(prefix="camshaft-scores-")
# What it caches of the questions. Nothing comes from elsewhere.
os.environ.update(HF_HOME=home.name, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval
import lm_eval.tasks
from lm_eval.models.openai_completions import LocalCompletionsAPI

import kit
import reference

served = kit.server()
folder = pathlib.Path(__file__).parent
TASK = "camshaft_questions"
MODEL_FILE = folder.parents[2] / "config/models/demo.gguf"
# Of an answer's log-likelihood, in natural logarithms: the server multiplies 8-bit weights with activations rounded to 8 bits, which
# counts most where a token is least likely.
NOISE, SHARE = 0.1, 0.03


def post(path, body):
    headers = {"authorization": f"Bearer {served.key}", "content-type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{served.url}{path}", json.dumps(body).encode(), headers)
    with opener.open(request, timeout=kit.PATIENCE_S) as response:
        return json.load(response)


class ServersTokens:
    """The tokenizer of the served model."""

    @functools.cache
    def encode(self, text):
        return post("/v1/tokenize", {"model": "demo", "text": text, "parse_special": True})["tokens"]


class Served(LocalCompletionsAPI):
    """`local-completions`, with the server's tokens: prompts and answers are sent as lists of them."""

    def __init__(self, **fields):
        super().__init__(tokenizer_backend="None", **fields)
        self.tokenizer_backend, self.tokenizer, self.tokenized_requests = "served", ServersTokens(), True

    @property
    def api_key(self):
        return served.key


@functools.cache
def measured():
    """What the harness says, with each request and its log-likelihoods."""
    os.chdir(folder)
    model = Served(pretrained="demo", base_url=f"{served.url}/v1/completions", batch_size=8, max_length=1024, max_retries=1)
    tasks = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(model, tasks=[TASK], task_manager=tasks, bootstrap_iters=0, log_samples=True)


def accuracy():
    return measured()["results"][TASK]["acc,none"]


@functools.cache
def expected(network):
    """For each question, the log-likelihood of each answer by a reference."""
    network, tokens = network(MODEL_FILE), ServersTokens()
    scores = []
    for sample in measured()["samples"][TASK]:
        likelihoods = []
        for argument in sample["arguments"]:
            context, whole = (tokens.encode(text) for text in (argument[0], argument[0] + argument[1]))
            likelihoods.append(float(network.log_probabilities(whole)[len(context) - 1:].sum()))
        scores.append(likelihoods)
    return scores


def scores_every_question():
    assert len(measured()["samples"][TASK]) == len((folder / "questions.jsonl").read_text().splitlines())


def the_demo_model_knows_what_it_was_trained_on():
    assert accuracy() >= 0.9, accuracy()


def compare_likelihoods(network):
    pairs = [
        (float(found[0][0] if isinstance(found[0], (list, tuple)) else found[0]), wanted)
        for sample, likelihoods in zip(measured()["samples"][TASK], expected(network), strict=True)
        for found, wanted in zip(sample["resps"], likelihoods, strict=True)
    ]
    far = [pair for pair in pairs if abs(pair[0] - pair[1]) > NOISE + SHARE * abs(pair[1])]
    mean = sum(abs(found - wanted) for found, wanted in pairs) / len(pairs)
    print(f"{len(pairs)} answers: mean difference {mean:.4f} from {network.__name__}")
    assert not far, far


def compare_accuracy(network):
    samples = measured()["samples"][TASK]
    right = [likelihoods.index(max(likelihoods)) == sample["doc"]["answer"]
             for sample, likelihoods in zip(samples, expected(network), strict=True)]
    wanted = sum(right) / len(right)
    print(f"accuracy {accuracy():.4f}, by {network.__name__} {wanted:.4f}")
    # One question more or less, where two answers are as likely.
    assert abs(accuracy() - wanted) <= 1 / len(right) + 1e-9, (accuracy(), wanted)


def log_likelihoods_are_those_of_the_weights():
    compare_likelihoods(reference.Llama)


def the_accuracy_is_that_of_the_weights():
    compare_accuracy(reference.Llama)


def scores_are_those_of_llama_cpp_python():
    compare_likelihoods(reference.LlamaCpp)
    compare_accuracy(reference.LlamaCpp)


behaviours = [scores_every_question, the_demo_model_knows_what_it_was_trained_on, log_likelihoods_are_those_of_the_weights,
              the_accuracy_is_that_of_the_weights]
if os.environ.get("CAMSHAFT_LLAMA_CPP_PYTHON") is None:
    print("not compared with llama-cpp-python: CAMSHAFT_LLAMA_CPP_PYTHON does not name its folder")
else:
    behaviours.append(scores_are_those_of_llama_cpp_python)
kit.run(*behaviours)
