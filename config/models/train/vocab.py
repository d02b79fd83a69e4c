"""Vocabulary and special tokens, and how a conversation becomes ids."""

import json
import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import chat
import corpus
import tool_talk

VOCAB_SIZE = 1024
SPECIAL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>"]
BOS, END, SYSTEM, USER, ASSISTANT, PAD = range(6)
ROLE_ID = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}

# llama.cpp's "qwen2" pre-tokenizer: digits stand alone, a word takes the one
# character (mostly a space) before it.
QWEN2_REGEX = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def dress(model):
    """A byte-level BPE tokenizer around `model`, the same for training and use."""
    tok = Tokenizer(model)
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_REGEX), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    return tok


def from_pieces(tokens, merges):
    """The tokenizer as read back from a GGUF's token and merge lists."""
    tok = dress(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tok.add_special_tokens(SPECIAL)
    return tok


def train(seed=0):
    """Learns the merges from generated text only; both models share them, so
    the seed stays fixed whichever model is trained."""
    rng = random.Random(seed)

    def lines():
        for _ in range(24000):
            for _, text in corpus.conversation(rng):
                yield text
        for _ in range(300):
            yield corpus.long_system(rng, 10)

    tok = dress(models.BPE())
    tok.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    assert tok.get_vocab_size() == VOCAB_SIZE
    return pieces(tok)


def pieces(tok):
    """(tokens in id order, merges as "left right")."""
    state = json.loads(tok.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    return tokens, merges


def text_ids(tok, text):
    """Ids of user-supplied text. Special-token spellings inside it do not count
    as special in the corpus, which never contains any."""
    return tok.encode(text, add_special_tokens=False).ids


def conversation_ids(tok, messages):
    """(ids, which ids are to be learned): answers and the end after each."""
    ids, learn = [BOS], [False]
    for role, text in messages:
        body = text_ids(tok, text.strip()) + [END]
        ids += [ROLE_ID[role]] + body
        learn += [False] + [role == "assistant"] * len(body)
    return ids, learn


def prompt_ids(tok, messages):
    return conversation_ids(tok, messages)[0] + [ASSISTANT]


def check(tok, rounds=2000, seed=1):
    """Round-trips arbitrary UTF-8 and compares the Jinja template with `prompt_ids`."""
    import jinja2
    rng = random.Random(seed)
    # As the server has it: blocks take their line, and JSON is that of Python.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = chat.dumps
    template = environment.from_string(chat.CHAT_TEMPLATE)
    for number in range(rounds):
        text = "".join(chr(rng.choice((rng.randint(1, 0x7F), rng.randint(0x80, 0xD7FF), rng.randint(0xE000, 0x10FFFF))))
                       for _ in range(rng.randint(1, 30)))
        assert tok.decode(text_ids(tok, text), skip_special_tokens=False) == text, repr(text)
        if number % 2:
            tools, messages = tool_talk.talk(rng)
        else:
            tools, messages = None, [{"role": r, "content": t} for r, t in corpus.conversation(rng)]
        messages = messages[:rng.randint(1, len(messages))]
        rendered = template.render(bos_token="<|bos|>", add_generation_prompt=True, messages=messages, tools=tools)
        assert tok.encode(rendered, add_special_tokens=False).ids == prompt_ids(tok, chat.spell(messages, tools or ())), rendered
