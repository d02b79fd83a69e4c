//! One model: where its weights are, and what its workers are made with.
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use camshaft_api::Naming;
use camshaft_core::engine::ModelKind;
use camshaft_core::family::description::Family;
use camshaft_core::family::detect::{FamilyName, names};
use camshaft_core::limits;
use camshaft_core::reserve::Reserve;
use camshaft_core::sampling::SamplingDefaults;
use camshaft_core::sizes::Wishes;
use camshaft_engine::AdapterOptions;
use camshaft_registry::Source;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::choices::{
    BackendKey, FlashKey, IsolationKey, KindKey, KvLayoutKey, KvTypeKey, LoadKey, NumaKey, ReserveKey, SwapKey,
};
use super::tree::Origins;
use super::values::{Auto, DurationValue};

/// Name the models in the binary where a path is expected.
pub(super) const DEMO: &str = "demo";
pub(super) const DIGITS: &str = "digits";
/// Drafted by a draft model unless a number is set.
const DRAFT_TOKENS: u32 = 4;

/// A model and its workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct ModelConfig {
    /// The name that clients use. Unset: the file's name without its ending.
    pub id: String,
    /// The GGUF file, the ONNX file (its name ends with .onnx), or the weights (.mpk, .bpk, .safetensors, .pt, .pth) or the manifest
    /// (.toml) of another tensor model. Unset or "demo": the model in the binary that generates. "digits": the one that classifies.
    #[schemars(extend("format" = "path", "x-builtin" = ["demo", "digits"]))]
    pub path: Option<PathBuf>,
    /// Where the model is pulled from if it is not in the cache of models, instead of `path`: "hf:ORG/REPO/FILE@REV",
    /// "https://..." with `sha256`, "ollama:NAME:TAG" or "HOST/NAMESPACE/NAME:TAG".
    pub source: Option<String>,
    /// SHA-256 digest that the file must have, in hexadecimal. Of a split model: the digest of its parts' digests.
    pub sha256: Option<String>,
    /// Map the file instead of copying it into memory. Faster to start, and processes share the memory; but if the file is
    /// changed in place, the model stops serving, and a file that is cut short may end the process.
    pub mmap: bool,
    /// Keep the weights that stay in the host's memory from being swapped out, as far as the system allows it.
    pub mlock: bool,
    /// Where threads and memory are on a machine whose memory has several nodes. The same for all models. "distribute": evenly
    /// on all; "isolate": on the one where the process was started; "numactl": as `numactl` was told.
    pub numa: NumaKey,
    /// Layers that GPUs compute, with the one that makes logits. "auto": as many as their memory has room for. 0: none.
    #[schemars(range(min = 0, max = 65_536))]
    pub gpu_layers: Auto<u32>,
    /// GPUs that get layers, by the names that `camshaft devices` shows. None: all that do not share the host's memory.
    #[schemars(length(max = 16))]
    pub devices: Vec<String>,
    /// The one GPU that gets all layers.
    pub main_device: Option<String>,
    /// A number for each GPU: its part of the layers. None: by their free memory.
    #[schemars(length(max = 16), inner(range(min = 0.0, max = 1_000_000.0)))]
    pub tensor_split: Vec<f32>,
    /// Keep KV entries where their layers are.
    pub kv_on_gpu: bool,
    /// Compute attention in one piece, without the matrix of all scores. "auto": where model and device allow it.
    pub flash_attention: FlashKey,
    /// What the model is served for. "auto": what its file says it was made for. "predict": tensors, of a tensor model's file.
    pub kind: KindKey,
    /// What computes a tensor model of weights and a manifest. "cpu", "wgpu": a GPU, and the CPU where there is none. "auto": the CPU,
    /// unless the program was built for GPUs.
    pub backend: BackendKey,
    /// Another way to write kind = "embed".
    pub embeddings: bool,
    /// Contexts that share the weights, each with a thread and a KV cache of its own.
    #[schemars(range(min = 1, max = 64))]
    pub workers: u32,
    /// Generations that one worker runs at the same time. "auto": 32, or fewer where memory, or `context-tokens` if it is
    /// set, holds 8 to 31 contexts, of each of which 8192 tokens at most are counted.
    #[schemars(range(min = 1, max = limits::SEQUENCES))]
    pub sequences: Auto<u32>,
    /// KV cache of one worker in tokens, for its sequences together. "auto": what memory has room for, at most the context
    /// that the model was trained for, for each sequence.
    #[schemars(range(min = 16, max = 16_777_216))]
    pub context_tokens: Auto<u32>,
    /// Generations that one worker runs at once, where fewer than `sequences`; can be changed while the model runs. What runs goes
    /// on.
    #[schemars(range(min = 1, max = limits::SEQUENCES))]
    pub max_sequences: Option<u32>,
    /// Generations of one tenant that run at once, on all workers of the model together; more of its requests wait. Can be changed
    /// while the model runs.
    #[schemars(range(min = 1, max = limits::TENANT_SEQUENCES))]
    pub max_tenant_sequences: Option<u32>,
    /// Tokens of one step, or of a batch of texts, where fewer than `batch-tokens`; as many as `sequences` at least. Can be changed
    /// while the model runs.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_step_tokens: Option<u32>,
    /// Tokens of one step; at least `sequences`. "auto": 512, or fewer if memory is short.
    #[schemars(range(min = 1, max = 65_536))]
    pub batch_tokens: Auto<u32>,
    /// Threads of each worker that compute. "auto" or 0: the physical cores that this process may use, divided among the
    /// model's workers.
    #[schemars(range(min = 0, max = 1024))]
    pub threads: Auto<u32>,
    /// Type of the numbers in the KV cache. "auto": "f16", or "q8_0" if memory is too short for a useful context.
    pub kv_type: Auto<KvTypeKey>,
    /// How sequences divide a worker's KV cache. "pooled": one may take all of it, and prefixes are shared without a copy;
    /// "per-sequence": each has an equal part, which is faster with many streams. "auto": "per-sequence" if there is
    /// room for at least eight parts (or `sequences`, if fewer) that each hold the model's whole context, or 8192 tokens.
    pub kv_layout: Auto<KvLayoutKey>,
    /// KV that a request is admitted with beside its prompt. With "full" nothing is ever preempted.
    pub kv_reserve: ReserveKey,
    /// The longest step while one prompt is prefilled beside eight streams or more: this, or 2.8 times a step without prefill,
    /// whichever is longer. The time that this leaves for prefill is six times as much beside one to four streams, and up to seven
    /// times as much where more prompts wait for each stream.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub step_target: DurationValue,
    /// Rows of tensors that requests of several clients are computed together with, at most. One request may have more. 1: each is
    /// computed alone.
    #[schemars(range(min = 1, max = limits::BATCH_ROWS))]
    pub batch_size: u32,
    /// How long a request to a tensor model that is busy waits for as many others as the last batch was of. A client that is alone
    /// never waits.
    #[schemars(extend("x-maximum" = "1s"))]
    pub batch_window: DurationValue,
    /// Shorter vectors that an embedding model was trained to give.
    #[schemars(inner(range(min = 1, max = 1_048_576)))]
    pub dimensions: Vec<u32>,
    /// Whether inputs of embeddings may be token ids. They mean other words in other vocabularies, of which clients do not know.
    pub embed_token_ids: bool,
    pub sampling: SamplingConfig,
    /// A file with the chat template in Jinja, instead of those in the model's file.
    #[schemars(extend("format" = "path"))]
    pub chat_template: Option<PathBuf>,
    /// How its answers have tool calls and thinking. Unset: as its chat template shows.
    pub family: Option<FamilyKey>,
    /// LoRA adapters that requests may name, by `lora` or by the model name `id:adapter`.
    pub adapter: Vec<AdapterConfig>,
    /// A LoRA adapter for the weights, of all requests.
    #[schemars(extend("format" = "path"))]
    pub lora: Option<PathBuf>,
    /// The adapter's weight.
    #[schemars(range(min = -100.0, max = 100.0))]
    pub lora_scale: f32,
    /// Tokens that speculative decoding drafts for a sequence in one step. Unset: 0, or 4 with a draft model.
    #[schemars(range(min = 0, max = limits::DRAFT_TOKENS))]
    pub draft_tokens: Option<u32>,
    /// A smaller model of the same vocabulary that drafts. Unset: drafts repeat what stands in the text.
    #[schemars(extend("format" = "path"))]
    pub draft_model: Option<PathBuf>,
    /// Its part of the requests that name no version, among the weights of all models whose ids are `name@version` with the same
    /// name. One tenant, or one session, stays with one version.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub weight: f64,
    /// Other names of the model, or of all its versions. One with a star at its end (`claude-*`) stands for all names that begin so and
    /// lead nowhere else.
    #[schemars(length(max = 16))]
    pub aliases: Vec<String>,
    /// The model that answers while this one is loading, is broken or has a full queue; the response's header
    /// `x-camshaft-fallback-for` then names this one.
    pub fallback: Option<String>,
    /// When the model is loaded. "on-demand": when a request asks for it, which waits.
    pub load: LoadKey,
    /// Unload the model when no request has asked for it for so long; the next one loads it again. Unset: it stays.
    #[schemars(extend("x-minimum" = "1s"))]
    pub keep_alive: Option<DurationValue>,
    /// Where the model's workers compute, and where what comes with its file is read: its chat template, its vocabulary, and clients'
    /// grammars for it. "process": in processes that may end, and others take their place; "thread": in the server's own, which ends
    /// with them. (Models that embed, tensor models, and those with layers on devices compute on threads.)
    pub isolation: IsolationKey,
    /// How another version takes its place while the server runs. "beside": it is loaded beside it, and then takes over;
    /// "replace": the old one ends first, for which requests wait.
    pub swap: SwapKey,
    /// Who wrote these keys.
    #[serde(skip)]
    pub origins: Origins,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            path: None,
            source: None,
            sha256: None,
            mmap: true,
            mlock: false,
            numa: NumaKey::default(),
            gpu_layers: Auto::Auto,
            devices: Vec::new(),
            main_device: None,
            tensor_split: Vec::new(),
            kv_on_gpu: true,
            flash_attention: FlashKey::default(),
            kind: KindKey::default(),
            backend: BackendKey::default(),
            embeddings: false,
            workers: 1,
            sequences: Auto::Auto,
            context_tokens: Auto::Auto,
            max_sequences: None,
            max_tenant_sequences: None,
            max_step_tokens: None,
            batch_tokens: Auto::Auto,
            threads: Auto::Auto,
            kv_type: Auto::Auto,
            kv_layout: Auto::Auto,
            kv_reserve: ReserveKey::default(),
            step_target: DurationValue::millis(6),
            batch_size: limits::DEFAULT_BATCH_ROWS,
            batch_window: DurationValue::millis(2),
            dimensions: Vec::new(),
            embed_token_ids: false,
            sampling: SamplingConfig::default(),
            chat_template: None,
            family: None,
            adapter: Vec::new(),
            lora: None,
            lora_scale: 1.0,
            draft_tokens: None,
            draft_model: None,
            weight: 1.0,
            aliases: Vec::new(),
            fallback: None,
            load: LoadKey::default(),
            keep_alive: None,
            isolation: IsolationKey::default(),
            swap: SwapKey::default(),
            origins: Origins::default(),
        }
    }
}

/// A LoRA adapter that requests may name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
#[schemars(inline)]
pub struct AdapterConfig {
    /// The name that clients use. Unset: the file's name without its ending.
    pub id: String,
    /// A GGUF file of an adapter of the model.
    #[schemars(extend("format" = "path"))]
    pub path: PathBuf,
    /// The adapter's weight, for requests that name none.
    #[schemars(range(min = -100.0, max = 100.0))]
    pub scale: f32,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self { id: String::new(), path: PathBuf::new(), scale: 1.0 }
    }
}

/// How the answers of a model have tool calls and thinking, by the family's name.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema)]
#[schemars(inline, extend("enum" = names().collect::<Vec<_>>()))]
pub struct FamilyKey(#[schemars(with = "String")] pub &'static Family);

impl Serialize for FamilyKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

impl<'de> Deserialize<'de> for FamilyKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map(|FamilyName(family)| Self(family)).map_err(Error::custom)
    }
}

/// Sampling parameters of requests that name none. Unset: what the model's file says, else OpenAI's defaults (temperature 1,
/// nothing cut off). Can be changed while the model runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
#[schemars(inline)]
pub struct SamplingConfig {
    /// 0: the most probable token.
    #[schemars(range(min = limits::TEMPERATURE.min, max = limits::TEMPERATURE.max))]
    pub temperature: Option<f32>,
    /// Tokens that are left, the most probable ones. 0: all.
    #[schemars(range(min = limits::TOP_K.min, max = limits::TOP_K.max))]
    pub top_k: Option<u32>,
    /// The share of probability that is left. 1: all.
    #[schemars(range(min = limits::TOP_P.min, max = limits::TOP_P.max))]
    pub top_p: Option<f32>,
    /// The least probability, as a part of that of the most probable token. 0: any.
    #[schemars(range(min = limits::MIN_P.min, max = limits::MIN_P.max))]
    pub min_p: Option<f32>,
    /// The share of probability that is left, of tokens whose information is near the row's entropy. 1: all.
    #[schemars(range(min = limits::TYPICAL_P.min, max = limits::TYPICAL_P.max))]
    pub typical_p: Option<f32>,
    /// Divides the logits of tokens that have occurred. 1: off.
    #[schemars(range(min = limits::REPEAT_PENALTY.min, max = limits::REPEAT_PENALTY.max))]
    pub repeat_penalty: Option<f32>,
    /// Tokens that the repetition penalty looks at.
    #[schemars(range(min = limits::REPEAT_LAST_N.min, max = limits::REPEAT_LAST_N.max))]
    pub repeat_last_n: Option<u32>,
    /// Subtracted for each occurrence of a token in the output.
    #[schemars(range(min = limits::FREQUENCY_PENALTY.min, max = limits::FREQUENCY_PENALTY.max))]
    pub frequency_penalty: Option<f32>,
    /// Subtracted once for each token that occurs in the output.
    #[schemars(range(min = limits::PRESENCE_PENALTY.min, max = limits::PRESENCE_PENALTY.max))]
    pub presence_penalty: Option<f32>,
}

impl From<&SamplingConfig> for SamplingDefaults {
    fn from(config: &SamplingConfig) -> Self {
        let SamplingConfig { temperature, top_k, top_p, min_p, typical_p, repeat_penalty, .. } = *config;
        let SamplingConfig { repeat_last_n, frequency_penalty, presence_penalty, .. } = *config;
        Self {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repeat_penalty,
            repeat_last_n,
            frequency_penalty,
            presence_penalty,
        }
    }
}

/// Where a model's weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The demo model in the binary.
    Demo,
    /// The classifier in the binary.
    Digits,
    File(PathBuf),
    /// Has to be pulled, and has a path then.
    Remote(String),
}

/// What a model's file is read by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Gguf,
    /// Of a tensor model.
    Tensors,
}

impl Format {
    /// By the name of the file.
    pub fn of(path: &Path) -> Self {
        let is_tensors = path.as_os_str() == DIGITS || camshaft_tensor::is_tensor_model(path);
        if is_tensors { Self::Tensors } else { Self::Gguf }
    }
}

impl ModelConfig {
    pub fn source(&self) -> ModelSource {
        match (&self.path, &self.source) {
            (None, Some(source)) => ModelSource::Remote(source.clone()),
            (None, None) => ModelSource::Demo,
            (Some(path), _) if path.as_os_str() == DEMO => ModelSource::Demo,
            (Some(path), _) if path.as_os_str() == DIGITS => ModelSource::Digits,
            (Some(path), _) => ModelSource::File(path.clone()),
        }
    }

    /// Its file, by whose name its format is known; of a bundled model, its name.
    pub fn file_name(&self) -> PathBuf {
        match self.source() {
            ModelSource::Demo => DEMO.into(),
            ModelSource::Digits => DIGITS.into(),
            ModelSource::File(path) => path,
            // Checked when the configuration was read.
            ModelSource::Remote(source) => {
                Source::parse(&source).map(|source| source.file_name()).unwrap_or_default().into()
            }
        }
    }

    /// What is said of it otherwise than by default, and its id.
    pub(crate) fn settings(&self) -> Map<String, Value> {
        let written = |config: &Self| match serde_json::to_value(config) {
            Ok(Value::Object(keys)) => keys,
            _ => Map::new(),
        };
        let mut usual = Self::default();
        usual.complete();
        let (mut settings, usual) = (written(self), written(&usual));
        settings.retain(|key, value| key == "id" || usual.get(key) != Some(value));
        settings
    }

    /// Fills in what follows from other keys.
    pub(super) fn complete(&mut self) {
        if self.id.is_empty() {
            self.id = match self.source() {
                ModelSource::Remote(source) => {
                    Source::parse(&source).map(|source| source.default_id()).unwrap_or_default()
                }
                _ => self.file_name().file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            };
        }
        for adapter in self.adapter.iter_mut().filter(|adapter| adapter.id.is_empty()) {
            adapter.id = adapter.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        if self.embeddings && self.kind == KindKey::Auto {
            self.kind = KindKey::Embed;
        }
        if let Some(digest) = &mut self.sha256 {
            digest.make_ascii_lowercase();
        }
        self.draft_tokens.get_or_insert(if self.draft_model.is_some() { DRAFT_TOKENS } else { 0 });
    }

    /// Tokens drafted for a sequence in one step; 0: none.
    pub fn draft_tokens(&self) -> u32 {
        self.draft_tokens.unwrap_or_default()
    }

    /// The adapter, if there is one.
    pub fn adapter(&self) -> Option<AdapterOptions> {
        self.lora.clone().map(|path| AdapterOptions { path, scale: self.lora_scale })
    }

    /// KV that a request is admitted with beside its prompt.
    pub fn reserve(&self) -> Reserve {
        match self.kv_reserve {
            ReserveKey::None => Reserve::None,
            ReserveKey::Expected => Reserve::Expected,
            ReserveKey::Full => Reserve::Full,
        }
    }

    /// The longest a step shall take while prompts are prefilled beside streams.
    pub fn step_target(&self) -> Duration {
        self.step_target.0
    }

    /// What it asks of the sizes that are chosen when all models are loaded.
    pub fn wishes(&self) -> Wishes {
        Wishes {
            sequences: self.sequences.set(),
            kv_tokens: self.context_tokens.set(),
            layout: self.kv_layout.set().map(KvLayoutKey::layout),
            batch_tokens: self.batch_tokens.set(),
            threads: self.threads.set().filter(|&threads| threads > 0),
            may_quantize: self.kv_type == Auto::Auto && self.flash_attention != FlashKey::Off,
        }
    }

    /// How clients reach it.
    pub fn naming(&self) -> Naming {
        let (name, version) = match self.id.split_once('@') {
            Some((name, version)) => (name, Some(version.to_owned())),
            None => (self.id.as_str(), None),
        };
        let (aliases, fallback) = (self.aliases.clone(), self.fallback.clone());
        Naming { name: name.to_owned(), version, weight: self.weight, aliases, fallback }
    }

    /// Its kind, as far as it is known before its file is read.
    pub fn expected_kind(&self) -> Option<ModelKind> {
        self.kind.wanted().or_else(|| match (self.source(), Format::of(&self.file_name())) {
            (ModelSource::Demo, _) => Some(ModelKind::Generate),
            (_, Format::Tensors) => Some(ModelKind::Predict),
            (_, Format::Gguf) => None,
        })
    }

    /// Whether it may be taken out of memory while nobody uses it.
    pub fn may_sleep(&self) -> bool {
        self.load == LoadKey::OnDemand || self.keep_alive.is_some()
    }

    /// The sequences that a batch must have room for.
    pub(super) fn least_sequences(&self) -> u32 {
        self.sequences.set().unwrap_or(1)
    }
}
