//! The bounds of a client's request, in one place.
use std::time::Duration;

/// The range of a request field. Past it, the request is refused with a 400 that names field, value and bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    pub min: f64,
    pub max: f64,
}

impl Range {
    /// Whether `value` is in the range; NaN never is.
    pub fn contains(self, value: f64) -> bool {
        value >= self.min && value <= self.max
    }
}

pub const TEMPERATURE: Range = Range { min: 0.0, max: 2.0 };
pub const TOP_P: Range = Range { min: 0.0, max: 1.0 };
pub const MIN_P: Range = Range { min: 0.0, max: 1.0 };
pub const TYPICAL_P: Range = Range { min: 0.0, max: 1.0 };
pub const TOP_K: Range = Range { min: 0.0, max: 1_000_000.0 };
pub const REPEAT_PENALTY: Range = Range { min: 0.01, max: 10.0 };
pub const REPEAT_LAST_N: Range = Range { min: 0.0, max: 4096.0 };
pub const FREQUENCY_PENALTY: Range = Range { min: -2.0, max: 2.0 };
pub const PRESENCE_PENALTY: Range = Range { min: -2.0, max: 2.0 };
pub const LOGIT_BIAS: Range = Range { min: -100.0, max: 100.0 };
/// Tokens that a plain completion generates unless it says how many: OpenAI's default.
pub const COMPLETION_TOKENS: u32 = 16;
/// Number of choices of a request (`n`).
pub const CHOICES: Range = Range { min: 1.0, max: 128.0 };
/// Maximum inputs of an embedding request.
pub const EMBED_INPUTS: usize = 2048;
/// Maximum bytes of all tensors that computing a request of a tensor model makes, and of those of a batch.
pub const RUN_BYTES: u64 = 1 << 30;
/// Rows of a batch of several requests of a tensor model, at most and unless configured.
pub const BATCH_ROWS: u32 = 4096;
pub const DEFAULT_BATCH_ROWS: u32 = 32;
/// The longest that a request to a tensor model waits for others.
pub const BATCH_WINDOW: Duration = Duration::from_secs(1);
/// `top_logprobs` of a chat request.
pub const TOP_LOGPROBS: Range = Range { min: 0.0, max: 20.0 };
/// `logprobs` of a completion request.
pub const COMPLETION_LOGPROBS: Range = Range { min: 0.0, max: 5.0 };
/// Maximum entries of `logit_bias`.
pub const LOGIT_BIAS_ENTRIES: usize = 1024;
/// Maximum stop strings of a request, and maximum bytes of one.
pub const STOP_STRINGS: usize = 16;
pub const STOP_BYTES: usize = 512;
/// Maximum `stop_token_ids` of a request.
pub const STOP_TOKENS: usize = 128;
/// The longest that a generation may ask for (`max_duration`) where the operator sets no bound.
pub const DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// `truncate_prompt_tokens`, as long as the longest context.
pub const TRUNCATED_TOKENS: Range = Range { min: 1.0, max: 2_147_483_647.0 };
/// Characters of an end user's name that its hash is of.
pub const USER_CHARS: usize = 512;
/// Maximum bytes of `prompt_cache_key`.
pub const CACHE_KEY_BYTES: usize = 128;
/// Maximum messages of a chat request.
pub const MESSAGES: usize = 4096;
/// Maximum prompts of a completion request.
pub const PROMPTS: usize = 128;
/// Maximum samplers that a request may name.
pub const SAMPLERS: usize = 16;
/// Scale of an adapter of a request, and of one in the configuration.
pub const ADAPTER_SCALE: Range = Range { min: -100.0, max: 100.0 };
/// Maximum adapters of a request.
pub const ADAPTERS_OF_REQUEST: usize = 8;
/// Maximum adapters of a model.
pub const ADAPTERS_OF_MODEL: usize = 64;
/// Maximum characters of the name of a model, and of an adapter.
pub const NAME_CHARS: usize = 256;
/// Maximum characters of a session's name.
pub const SESSION_ID: usize = 128;
/// Maximum entries of `hints`, characters of a name, and bytes of a value.
pub const HINTS: usize = 8;
pub const HINT_NAME_BYTES: usize = 64;
pub const HINT_VALUE_BYTES: usize = 256;
/// Maximum entries of `metadata`, characters of a name, and characters of a value, as OpenAI has them.
pub const METADATA: usize = 16;
pub const METADATA_NAME_CHARS: usize = 64;
pub const METADATA_VALUE_CHARS: usize = 512;
/// Tokens for thinking that a message may ask for (`thinking.budget_tokens`): at least as many as Anthropic's API takes.
pub const THINKING_TOKENS: Range = Range { min: 1024.0, max: u32::MAX as f64 };
/// `thinking_budget`, in tokens; -1: any number.
pub const THINKING_BUDGET: Range = Range { min: -1.0, max: u32::MAX as f64 };
/// Tokens for thinking from which on a model is asked for medium effort, and for high effort; with fewer, for low.
pub const THINKING_MEDIUM: u32 = 4096;
pub const THINKING_HIGH: u32 = 16_384;
/// Maximum documents that a request ranks, and pairs of texts that one scores.
pub const RANKED: usize = 1000;
/// Maximum draft tokens of a sequence in one step.
pub const DRAFT_TOKENS: u32 = 16;
/// The largest bound of one tenant's sequences: those of as many workers as a model may have.
pub const TENANT_SEQUENCES: u32 = 64 * SEQUENCES;
/// Maximum sequences of a worker. llama.cpp allows 256, one of which the engine needs for copies of state.
pub const SEQUENCES: u32 = 255;
/// Maximum tools of a request.
pub const TOOLS: usize = 128;
/// Maximum bytes of the descriptions and parameters of a request's tools, as JSON.
pub const TOOLS_BYTES: usize = 512 << 10;
/// Maximum bytes of a tool's name.
pub const TOOL_NAME_BYTES: usize = 128;
/// Maximum calls of an answer. What begins as another is text.
pub const CALLS: usize = 128;
/// Maximum bytes of a grammar: of a JSON schema, or of a text in Lark or GBNF.
pub const GRAMMAR_BYTES: usize = 256 << 10;
/// Maximum schemas within each other in a JSON schema, counted along its references until the first that is met again.
pub const SCHEMA_DEPTH: usize = 48;
/// Maximum schemas in a JSON schema, all together. What an alternative of a `oneOf` refers to counts for each.
pub const SCHEMA_NODES: usize = 10_000;
/// The largest size of a bound of numbers in a JSON schema.
pub const SCHEMA_BOUND: i64 = 1_000_000_000_000_000_000;
/// Maximum spaces and tabs behind a line break between two parts of generated JSON.
pub const JSON_INDENT: usize = 20;
/// Time that the masks of one generation may take together, in microseconds: this much, and so much for each token. Masks of usual
/// grammars take a hundredth of it. What an ambiguous grammar makes its parser do is counted by no other bound.
pub const MASKS_MICROS: u64 = 500_000;
pub const MASK_MICROS: u64 = 10_000;
/// States of a grammar's lexer, of 1 to 2 KiB each. Its other bounds are the defaults of `llguidance`.
pub const GRAMMAR_LEXER_STATES: usize = 20_000;
/// Bytes of what a lexer has learned that are kept between generations. A usual schema's takes some hundred KiB.
pub const GRAMMAR_LEARNED_BYTES: usize = 1 << 20;
/// Compiled grammars that a model keeps, and their bytes.
pub const GRAMMARS: usize = 64;
pub const GRAMMARS_BYTES: usize = 64 << 20;
/// Refusals and proofs of grammars that a model remembers, so that a grammar is not compiled again and again.
pub const GRAMMAR_VERDICTS: usize = 1024;
/// Maximum tokens that a grammar's certain text adds to one step of a sequence.
pub const FORCED_TOKENS: u32 = 32;
