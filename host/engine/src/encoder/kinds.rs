//! How the pre-tokenizers of BPE vocabularies cut a text into words, as llama.cpp's `llm_tokenizer_bpe` does.
//!
//! llama.cpp runs most of them through `std::regex`, which recurses for every character that a `+` or `*` takes: a few
//! kilobytes without a space overflow a thread's stack. Those are listed here and cut by [`super::words`], and so are those
//! with thousands of user-defined tokens, for each of which llama.cpp would read the text. For the others it has loops of
//! its own, which do not recurse.

/// What becomes of a run of white space that a pattern matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blanks {
    /// It is a word.
    Keep,
    /// Its last character goes to what follows: `\s+(?!\S)|\s+`.
    LeaveOne,
    /// The same, unless it ends in a line break: then the pattern's `\s*[\r\n]+` matched it.
    LeaveOneOnLine,
    /// As [`Blanks::LeaveOneOnLine`], cut into powers of two from 512 down.
    Powers,
}

/// One pass over the words of the pass before.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pass {
    /// A regular expression over characters. `\p{N}`, `L`, `P`, `M` and `S` are Unicode's categories, and `\p{0}` to
    /// `\p{3}` the `sets`. Characters between matches form words, too.
    Pattern { pattern: &'static str, sets: &'static [&'static str], blanks: Blanks },
    /// Numbers are cut into threes from the right. The first group keeps what precedes the number.
    Thousands,
    /// ASCII digits are cut into threes from the right.
    AsciiThousands,
}

/// A pre-tokenizer that is not left to llama.cpp.
#[derive(Debug)]
pub(super) struct Kind {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    pub(super) passes: &'static [Pass],
    pub(super) whole: Whole,
    /// The vocabulary spells bytes as GPT-2 does. Otherwise it spells text as it is.
    pub(super) byte_level: bool,
    /// The vocabulary spells spaces as SentencePiece does.
    pub(super) escapes_spaces: bool,
}

/// Words that stay whole if they are tokens, whatever the merges say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    Never,
    Any,
    /// Those of line breaks.
    Lines,
}

impl Whole {
    pub(super) fn applies(self, word: &str) -> bool {
        match self {
            Self::Never => false,
            Self::Any => true,
            Self::Lines => word.bytes().all(|byte| byte == b'\n'),
        }
    }
}

/// The kind that a value of `tokenizer.ggml.pre` selects (empty: the file has none); `None` where llama.cpp cuts.
pub(super) fn of(pre: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.names.contains(&pre))
}

/// Whether every byte of a text has a token, if the vocabulary has one for each.
pub(crate) fn spells_bytes(pre: &str) -> bool {
    of(pre).is_some_and(|kind| kind.byte_level)
}

/// Whether llama.cpp's own loops cut a text for this value of `tokenizer.ggml.pre`.
pub(super) fn is_loop(pre: &str) -> bool {
    LOOPS.contains(&pre)
}

const fn pattern(pattern: &'static str) -> Pass {
    Pass::Pattern { pattern, sets: &[], blanks: Blanks::Keep }
}

const fn leaving_one(pattern: &'static str) -> Pass {
    Pass::Pattern { pattern, sets: &[], blanks: Blanks::LeaveOneOnLine }
}

const fn with_sets(pattern: &'static str, sets: &'static [&'static str]) -> Pass {
    Pass::Pattern { pattern, sets, blanks: Blanks::Keep }
}

const fn kind(names: &'static [&'static str], passes: &'static [Pass]) -> Kind {
    Kind { names, passes, whole: Whole::Never, byte_level: true, escapes_spaces: false }
}

/// Words are lines. Text and spaces are spelled as in SentencePiece's vocabularies.
const fn of_lines(names: &'static [&'static str], whole: Whole) -> Kind {
    Kind { names, passes: LINES, whole, byte_level: false, escapes_spaces: true }
}

const LINES: &[Pass] = &[pattern(r"[^\n]+|[\n]+")];
/// GPT-2's own words.
const GPT2: Pass = Pass::Pattern {
    pattern: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
    sets: &[],
    blanks: Blanks::LeaveOne,
};
const NUMBERS: Pass = pattern(r"\p{N}");
const THREE_NUMBERS: Pass = pattern(r"\p{N}{1,3}");
const LINE_BREAK: Pass = pattern(r"[\r\n]");
const HAN_AND_KANA: Pass = with_sets(r"\p{0}+", &["[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]"]);
const HAN_TO_HANGUL: Pass = with_sets(r"\p{0}+", &["[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]"]);
const NOT_PUNCTUATION: Pass =
    with_sets(r" ?[^(\s|.,!?\p{0})]+", &["[\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c}]"]);
const DEEPSEEK: Pass = leaving_one(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
);
/// Letters of the scripts that have cases, as DeepSeek's first tokenizer lists them.
const CASED: &str = "[\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\
    \u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\
    \u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\
    \u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\
    \u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\
    \u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\
    \u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\
    \u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\
    \u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\
    \u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\
    \u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\
    \u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\
    \u{118a0}-\u{118df}\u{1e900}-\u{1e943}]";

const KINDS: &[Kind] = &[
    kind(&["", "default"], &[pattern(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, pattern(r"\p{N}+"), pattern("[0-9][0-9][0-9]")]),
    kind(&["falcon"], &[pattern(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, pattern("[0-9][0-9][0-9]")]),
    kind(
        &["jais-2"],
        &[Pass::Pattern {
            pattern: r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            sets: &[],
            blanks: Blanks::Powers,
        }],
    ),
    kind(
        &["deepseek-llm"],
        &[
            LINE_BREAK,
            with_sets(r"\s?[A-Za-z\p{0}]+", &[CASED]),
            with_sets(
                r"\s?[!-/:-~\p{0}]+",
                &["[\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]"],
            ),
            pattern(r"\s+$"),
            HAN_TO_HANGUL,
            pattern(r"\p{N}+"),
        ],
    ),
    kind(&["deepseek-coder"], &[LINE_BREAK, pattern(r"\s?\p{L}+"), pattern(r"\s?\p{P}+"), HAN_TO_HANGUL, NUMBERS]),
    kind(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[THREE_NUMBERS, HAN_AND_KANA, DEEPSEEK]),
    kind(
        &["spark2_5"],
        &[
            THREE_NUMBERS,
            HAN_AND_KANA,
            Pass::Pattern {
                pattern: r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+"##,
                sets: &[],
                blanks: Blanks::LeaveOne,
            },
            NUMBERS,
        ],
    ),
    Kind {
        names: &["youtu"],
        passes: &[
            with_sets(
                r"\p{0}+|\p{1}+|\p{2}+|\p{3}+",
                &[
                    "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]",
                    "[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]",
                    "[\u{3105}-\u{312f}]",
                    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]",
                ],
            ),
            leaving_one(
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
            ),
        ],
        whole: Whole::Any,
        byte_level: true,
        escapes_spaces: false,
    },
    kind(&["poro-chat", "bloom", "gpt3-finnish"], &[NOT_PUNCTUATION]),
    kind(&["viking"], &[NOT_PUNCTUATION, NUMBERS]),
    Kind {
        names: &["tekken"],
        passes: &[leaving_one(
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
        )],
        whole: Whole::Any,
        byte_level: true,
        escapes_spaces: false,
    },
    kind(
        &["chameleon"],
        &[
            pattern("<sentinel:[0-9]+>"),
            pattern("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            pattern(r"([\t\n]|    |  )"),
            NUMBERS,
            pattern(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
    ),
    kind(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[leaving_one(
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
        )],
    ),
    Kind {
        names: &["granite-embed-multi-97m"],
        passes: &[leaving_one(
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^a-z]]*[\p{L}\p{M}&&[^A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^a-z]]+[\p{L}\p{M}&&[^A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
        )],
        whole: Whole::Any,
        byte_level: true,
        escapes_spaces: false,
    },
    kind(
        &["tiny_aya", "cohere2moe"],
        &[
            Pass::Thousands,
            leaving_one(
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
            ),
        ],
    ),
    kind(&["superbpe"], &[pattern(r"\p{N}+"), Pass::AsciiThousands]),
    kind(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[leaving_one(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
        )],
    ),
    kind(
        &["seed-coder"],
        &[leaving_one(
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
        )],
    ),
    kind(&["ufakzeka"], &[leaving_one(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")]),
    kind(
        &["afmoe"],
        &[
            Pass::Thousands,
            with_sets(
                r"\p{0}+",
                &[
                    "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{8c48}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]",
                ],
            ),
            DEEPSEEK,
        ],
    ),
    kind(
        &["exaone-moe"],
        &[leaving_one(
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+",
        )],
    ),
    Kind {
        names: &["minicpm5"],
        passes: &[
            THREE_NUMBERS,
            leaving_one(
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            ),
        ],
        whole: Whole::Any,
        byte_level: true,
        escapes_spaces: false,
    },
    Kind { byte_level: false, ..kind(&["whitespace"], &[pattern(r"\S+")]) },
    of_lines(&["gemma4", "granite-embed-multi-311m"], Whole::Lines),
    of_lines(&["sarvam-moe"], Whole::Never),
];

/// Kinds whose every unbounded pattern is a loop in llama.cpp's `unicode.cpp`.
const LOOPS: &[&str] = &[
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "mpt",
    "starcoder",
    "gpt-2",
    "phi-2",
    "jina-es",
    "jina-de",
    "gigachat",
    "jina-v2-es",
    "jina-v2-de",
    "a.x-4.0",
    "mellum",
    "modern-bert",
    "mmbert",
    "jina-v1-en",
    "jina-v2-code",
    "roberta-bpe",
    "refact",
    "command-r",
    "qwen2",
    "deepseek-r1-qwen",
    "kormo",
    "f2llmv2",
    "qwen35",
    "stablelm2",
    "olmo",
    "dbrx",
    "smaug-bpe",
    "chatglm-bpe",
    "glm4",
    "glm5",
    "jais",
    "smollm",
    "codeshell",
    "exaone",
    "exaone4",
    "minerva-7b",
    "megrez",
    "trillion",
    "granite-docling",
    "hunyuan",
    "kimi-k2",
    "grok-2",
    "laguna",
    "solar-open",
    "mellum2",
];

/// Every value of `tokenizer.ggml.pre` that has a way to be tokenized.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.names).chain(LOOPS).copied()
}

/// One name of each kind in the list.
#[cfg(test)]
pub(crate) fn first_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter_map(|kind| kind.names.first()).copied()
}
