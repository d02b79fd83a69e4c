//! GGUF files with random weights, for architectures that have no small published model. They generate noise.
use std::io::Write as _;

use tempfile::NamedTempFile;

/// Vocabulary: one token per byte, and an end token.
pub(crate) const TOKENS: usize = 257;
const END: u32 = 256;
const ALIGNMENT: usize = 32;
/// Type numbers of GGUF.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Builds a GGUF file.
#[derive(Default)]
pub(crate) struct Gguf {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
    /// State of the random generator for weights.
    state: u64,
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Gguf {
    fn key(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        string(&mut self.keys, key);
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
        self
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        string(&mut bytes, value);
        self.key(key, STRING, &bytes)
    }

    pub(crate) fn number(&mut self, key: &str, value: u32) -> &mut Self {
        self.key(key, U32, &value.to_le_bytes())
    }

    pub(crate) fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.key(key, F32, &value.to_le_bytes())
    }

    fn list(&mut self, key: &str, kind: u32, count: usize, items: &[u8]) -> &mut Self {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend((count as u64).to_le_bytes());
        value.extend(items);
        self.key(key, ARRAY, &value)
    }

    pub(crate) fn numbers(&mut self, key: &str, values: &[u32]) -> &mut Self {
        self.list(key, U32, values.len(), &values.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Adds one number for all layers, or a list with one for each.
    pub(crate) fn layers(&mut self, key: &str, values: &[u32]) -> &mut Self {
        match values {
            [all] => self.number(key, *all),
            each => self.list(key, I32, each.len(), &each.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()),
        }
    }

    /// Adds a tensor of random weights, uniform in `-size..size`.
    pub(crate) fn random(&mut self, name: &str, shape: &[u64], size: f32) -> &mut Self {
        let count = shape.iter().product::<u64>() as usize;
        let mut next = || {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * size
        };
        let values = (0..count).map(|_| next()).collect();
        self.tensors.push((name.to_owned(), shape.to_vec(), values));
        self
    }

    pub(crate) fn constant(&mut self, name: &str, shape: &[u64], value: f32) -> &mut Self {
        let count = shape.iter().product::<u64>() as usize;
        self.tensors.push((name.to_owned(), shape.to_vec(), vec![value; count]));
        self
    }

    /// Adds a vocabulary of bytes, in the spelling of GPT-2.
    fn vocabulary(&mut self) -> &mut Self {
        let mut shifted = 0x100..;
        let mut tokens = Vec::new();
        for byte in 0..=255u32 {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable { byte } else { shifted.next().unwrap() };
            string(&mut tokens, &char::from_u32(code).unwrap().to_string());
        }
        string(&mut tokens, "<end>");
        let kinds: Vec<u8> = (0..TOKENS).flat_map(|i| if i == 256 { 3i32 } else { 1 }.to_le_bytes()).collect();
        let mut merge = Vec::new();
        string(&mut merge, "e e");
        self.text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "gpt-2")
            .list("tokenizer.ggml.tokens", STRING, TOKENS, &tokens)
            .list("tokenizer.ggml.token_type", I32, TOKENS, &kinds)
            .list("tokenizer.ggml.merges", STRING, 1, &merge)
            .number("tokenizer.ggml.eos_token_id", END)
            .number("tokenizer.ggml.bos_token_id", END)
    }

    pub(crate) fn write(&self) -> NamedTempFile {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.to_le_bytes());
        out.extend(&self.keys);
        let mut at = 0u64;
        for (name, shape, values) in &self.tensors {
            string(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(0u32.to_le_bytes());
            out.extend(at.to_le_bytes());
            at += (values.len() * 4).next_multiple_of(ALIGNMENT) as u64;
        }
        for (_, _, values) in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        file.write_all(&out).unwrap();
        file
    }
}

const WIDTH: u64 = 64;
const LAYERS: u32 = 2;

fn model(architecture: &str) -> Gguf {
    let mut file = Gguf { state: 7, ..Gguf::default() };
    file.text("general.architecture", architecture).text("general.name", "synthetic").vocabulary();
    let key = |name: &str| format!("{architecture}.{name}");
    let norm = match architecture {
        "lfm2" | "bert" => "token_embd_norm",
        "t5" => "dec.output_norm",
        _ => "output_norm",
    };
    file.number(&key("context_length"), 512)
        .number(&key("embedding_length"), WIDTH as u32)
        .number(&key("block_count"), LAYERS)
        .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .random("token_embd.weight", &[WIDTH, TOKENS as u64], 1.0)
        .constant(&format!("{norm}.weight"), &[WIDTH], 1.0);
    file
}

/// A recurrent model (Gu and Dao 2023).
pub(crate) fn mamba() -> NamedTempFile {
    let (inner, states, rank) = (2 * WIDTH, 16, 4);
    let mut file = model("mamba");
    file.number("mamba.feed_forward_length", 0)
        .number("mamba.attention.head_count", 0)
        .number("mamba.ssm.conv_kernel", 4)
        .number("mamba.ssm.inner_size", inner as u32)
        .number("mamba.ssm.state_size", states as u32)
        .number("mamba.ssm.time_step_rank", rank as u32);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        file.constant(&name("attn_norm.weight"), &[WIDTH], 1.0)
            .random(&name("ssm_in.weight"), &[WIDTH, 2 * inner], 0.2)
            .random(&name("ssm_conv1d.weight"), &[4, inner], 0.5)
            .random(&name("ssm_conv1d.bias"), &[inner], 0.1)
            .random(&name("ssm_x.weight"), &[inner, rank + 2 * states], 0.2)
            .random(&name("ssm_dt.weight"), &[rank, inner], 0.2)
            .random(&name("ssm_dt.bias"), &[inner], 0.1)
            .constant(&name("ssm_a"), &[states, inner], -1.0)
            .random(&name("ssm_d"), &[inner], 1.0)
            .random(&name("ssm_out.weight"), &[inner, WIDTH], 0.2);
    }
    file.write()
}

/// A model in which every other layer attends to the last 16 tokens only (Gemma 2).
pub(crate) fn sliding_window() -> NamedTempFile {
    gemma(&[4], &[128])
}

/// A Gemma 2 with 4 heads, and the same number of KV heads and the same feed-forward width in all layers.
pub(crate) fn gemma(kv_heads: &[u32], feed_forward: &[u32]) -> NamedTempFile {
    windowed(kv_heads, feed_forward, Some(16))
}

/// The same; without a window in its metadata it has the architecture's.
pub(crate) fn gemma_of(window: Option<u32>) -> NamedTempFile {
    windowed(&[4], &[128], window)
}

fn windowed(kv_heads: &[u32], feed_forward: &[u32], window: Option<u32>) -> NamedTempFile {
    let (kv_width, inner) = (16 * u64::from(kv_heads[0]), u64::from(feed_forward[0]));
    let mut file = model("gemma2");
    file.layers("gemma2.feed_forward_length", feed_forward)
        .number("gemma2.attention.head_count", 4)
        .layers("gemma2.attention.head_count_kv", kv_heads)
        .number("gemma2.attention.key_length", 16)
        .number("gemma2.attention.value_length", 16)
        .number("gemma2.rope.dimension_count", 16);
    if let Some(window) = window {
        file.number("gemma2.attention.sliding_window", window);
    }
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            file.constant(&name(norm), &[WIDTH], 1.0);
        }
        for (part, width) in [("attn_q", WIDTH), ("attn_k", kv_width), ("attn_v", kv_width), ("attn_output", WIDTH)] {
            file.random(&name(part), &[WIDTH, width], 0.2);
        }
        file.random(&name("ffn_gate"), &[WIDTH, inner], 0.2).random(&name("ffn_up"), &[WIDTH, inner], 0.2).random(
            &name("ffn_down"),
            &[inner, WIDTH],
            0.2,
        );
    }
    file.write()
}

/// A model whose first layer is a convolution and whose second attends, with 2 KV heads of width 16 (LFM2).
pub(crate) fn hybrid() -> NamedTempFile {
    let (inner, kv_width) = (128, 32);
    let mut file = model("lfm2");
    file.number("lfm2.feed_forward_length", inner as u32)
        .number("lfm2.attention.head_count", 4)
        .layers("lfm2.attention.head_count_kv", &[0, 2])
        .number("lfm2.shortconv.l_cache", 3);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        file.constant(&name("attn_norm"), &[WIDTH], 1.0)
            .constant(&name("ffn_norm"), &[WIDTH], 1.0)
            .random(&name("ffn_gate"), &[WIDTH, inner], 0.2)
            .random(&name("ffn_up"), &[WIDTH, inner], 0.2)
            .random(&name("ffn_down"), &[inner, WIDTH], 0.2);
    }
    file.random("blk.0.shortconv.conv.weight", &[3, WIDTH], 0.5)
        .random("blk.0.shortconv.in_proj.weight", &[WIDTH, 3 * WIDTH], 0.2)
        .random("blk.0.shortconv.out_proj.weight", &[WIDTH, WIDTH], 0.2)
        .constant("blk.1.attn_q_norm.weight", &[16], 1.0)
        .constant("blk.1.attn_k_norm.weight", &[16], 1.0)
        .random("blk.1.attn_q.weight", &[WIDTH, WIDTH], 0.2)
        .random("blk.1.attn_k.weight", &[WIDTH, kv_width], 0.2)
        .random("blk.1.attn_v.weight", &[WIDTH, kv_width], 0.2)
        .random("blk.1.attn_output.weight", &[WIDTH, WIDTH], 0.2);
    file.write()
}

/// An encoder (Devlin et al. 2019), with 4 heads of width 16.
pub(crate) fn encoder() -> NamedTempFile {
    let inner = 128;
    let mut file = model("bert");
    file.number("bert.feed_forward_length", inner as u32)
        .number("bert.attention.head_count", 4)
        .float("bert.attention.layer_norm_epsilon", 1e-5)
        .key("bert.attention.causal", BOOL, &[0])
        .number("tokenizer.ggml.token_type_count", 1)
        .random("position_embd.weight", &[WIDTH, 512], 1.0)
        .constant("token_embd_norm.bias", &[WIDTH], 0.0);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        for norm in ["attn_output_norm", "layer_output_norm"] {
            file.constant(&name(&format!("{norm}.weight")), &[WIDTH], 1.0);
            file.constant(&name(&format!("{norm}.bias")), &[WIDTH], 0.0);
        }
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            file.random(&name(&format!("{part}.weight")), &[WIDTH, WIDTH], 0.4);
        }
        file.random(&name("ffn_up.weight"), &[WIDTH, inner], 0.2).random(
            &name("ffn_down.weight"),
            &[inner, WIDTH],
            0.2,
        );
    }
    file.write()
}

/// A model that does not continue texts: T5 (Raffel et al. 2020), or a diffusion model with the tensors of llama.
pub(crate) fn other(architecture: &str) -> NamedTempFile {
    let inner = 128;
    let mut file = model(architecture);
    let key = |name: &str| format!("{architecture}.{name}");
    file.number(&key("feed_forward_length"), inner as u32).number(&key("attention.head_count"), 4);
    file.number(&key("attention.relative_buckets_count"), 8);
    let (sides, mixes): (&[&str], _) = match architecture {
        "t5" => (&["enc.", "dec."], ["attn_q", "attn_k", "attn_v", "attn_o"]),
        _ => (&[""], ["attn_q", "attn_k", "attn_v", "attn_output"]),
    };
    if architecture == "t5" {
        file.constant("enc.output_norm.weight", &[WIDTH], 1.0);
    }
    for (layer, side) in (0..LAYERS).flat_map(|layer| sides.iter().map(move |side| (layer, side))) {
        let name = |part: &str| format!("{side}blk.{layer}.{part}.weight");
        let crosses: &[&str] =
            if *side == "dec." { &["cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o"] } else { &[] };
        let norms: &[&str] =
            if crosses.is_empty() { &["attn_norm", "ffn_norm"] } else { &["attn_norm", "ffn_norm", "cross_attn_norm"] };
        for norm in norms {
            file.constant(&name(norm), &[WIDTH], 1.0);
        }
        for mix in mixes.iter().chain(crosses) {
            file.random(&name(mix), &[WIDTH, WIDTH], 0.2);
        }
        for (part, shape) in [("ffn_gate", [WIDTH, inner]), ("ffn_up", [WIDTH, inner]), ("ffn_down", [inner, WIDTH])] {
            file.random(&name(part), &shape, 0.2);
        }
    }
    file.write()
}

/// A LoRA adapter of rank 4 for the attention of a llama model's first layer.
pub(crate) fn adapter(width: u64) -> NamedTempFile {
    lora(width).write()
}

/// The same, to be active only after two tokens.
pub(crate) fn activated_adapter(width: u64) -> NamedTempFile {
    lora(width).numbers("adapter.alora.invocation_tokens", &[1, 2]).write()
}

fn lora(width: u64) -> Gguf {
    let mut file = Gguf { state: 11, ..Gguf::default() };
    file.text("general.architecture", "llama")
        .text("general.type", "adapter")
        .text("adapter.type", "lora")
        .float("adapter.lora.alpha", 4.0);
    for part in ["attn_q", "attn_output"] {
        file.random(&format!("blk.0.{part}.weight.lora_a"), &[width, 4], 0.3);
        file.random(&format!("blk.0.{part}.weight.lora_b"), &[4, width], 0.3);
    }
    file
}
