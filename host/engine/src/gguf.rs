//! Validates a GGUF file's header before llama.cpp parses it.
//!
//! llama.cpp aborts on some inputs. The preflight refuses files that are truncated, inconsistent or known to make it
//! abort, with a reason that names the place. Format: the GGUF specification (versions 2 and 3, little endian).
use std::borrow::Cow;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

mod adapter;
mod layers;
mod tensors;
mod tokens;

pub(crate) use adapter::AdapterKeys;
pub(crate) use layers::LayerLists;
pub(crate) use tensors::{TensorEntry, Tensors};
use tokens::Tokens;

/// Why the preflight refuses a file.
#[derive(Debug)]
pub(crate) enum Refused {
    Io(io::Error),
    Bad(String),
}

const MAGIC: &[u8; 4] = b"GGUF";
/// Bounds above what any model has.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 16;
const MAX_DIMENSIONS: u32 = 4;
const MAX_KEY_BYTES: u64 = 1 << 16;
const MAX_ALIGNMENT: u32 = 1 << 20;
const MAX_NESTING: u32 = 4;
/// Everything before the tensors. llama.cpp keeps it in memory.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// What may follow the last tensor: padding, a signature. llama.cpp maps the whole file and has all of it read.
const MAX_TRAILING_BYTES: u64 = 16 << 20;
/// No type of tensor takes more for an element.
const MAX_ELEMENT_BYTES: u64 = 8;
/// llama.cpp counts positions in signed numbers.
const MAX_CONTEXT_LENGTH: u32 = i32::MAX as u32;

/// What a file says that llama.cpp does not tell.
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) tokenizer: TokenizerKeys,
    pub(crate) lists: LayerLists,
    /// `split.count`: the files of the model. 0 if it says nothing.
    pub(crate) split_count: u16,
    pub(crate) adapter: AdapterKeys,
    pub(crate) tensors: Tensors,
}

/// What a file says of its vocabulary. All empty if it says nothing.
#[derive(Debug, Default)]
pub(crate) struct TokenizerKeys {
    /// `tokenizer.ggml.model`.
    pub(crate) model: String,
    /// `tokenizer.ggml.pre`.
    pub(crate) pre: String,
    /// `tokenizer.ggml.merges`, best first.
    pub(crate) merges: Vec<Box<[u8]>>,
}

/// Reads the header and checks that everything it refers to lies within the file.
pub(crate) fn preflight(file: &mut (impl Read + Seek)) -> Result<Header, Refused> {
    let size = file.seek(SeekFrom::End(0)).map_err(Refused::Io)?;
    file.seek(SeekFrom::Start(0)).map_err(Refused::Io)?;
    HeaderReader { input: BufReader::new(file), at: 0, size }.header()
}

struct HeaderReader<'a, R> {
    input: BufReader<&'a mut R>,
    at: u64,
    size: u64,
}

/// The metadata that the checks need.
#[derive(Default)]
struct Seen {
    alignment: Option<u32>,
    tokens: Tokens,
    header: Header,
}

/// Where tensors' data ends, as offsets into the data section: both are the same unless a type of tensor is not known here.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    least: u64,
    most: u64,
}

fn bad<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Bad(why.into()))
}

fn lossy(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text)
}

impl<R: Read + Seek> HeaderReader<'_, R> {
    fn header(&mut self) -> Result<Header, Refused> {
        let magic: [u8; 4] = self.bytes("the magic number")?;
        if &magic != MAGIC {
            return bad(format!("not a GGUF file: it begins with {magic:02x?}"));
        }
        let version = self.u32("the version")?;
        if !(2..=3).contains(&version) {
            return bad(format!("GGUF version {version}; 2 and 3 are known"));
        }
        let tensors = self.u64("the number of tensors")?;
        let keys = self.u64("the number of keys")?;
        if tensors > MAX_TENSORS || keys > MAX_KEYS {
            return bad(format!("{tensors} tensors and {keys} keys cannot be right"));
        }
        let mut seen = Seen::default();
        for _ in 0..keys {
            self.key_value(&mut seen)?;
        }
        seen.tokens.check(&seen.header.tokenizer.model).map_err(Refused::Bad)?;
        let alignment = seen.alignment.unwrap_or(32);
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return bad(format!("general.alignment = {alignment} is not a power of two up to {MAX_ALIGNMENT}"));
        }
        let mut extent = Extent::default();
        for _ in 0..tensors {
            let Extent { least, most } = self.tensor(u64::from(alignment), &mut seen.header.tensors)?;
            extent = Extent { least: extent.least.max(least), most: extent.most.max(most) };
        }
        let data = self.at.div_ceil(u64::from(alignment)) * u64::from(alignment);
        seen.header.tensors.begin_at(data);
        let Some(needed) = data.checked_add(extent.least) else { return bad("tensor offsets overflow") };
        if tensors > 0 && needed > self.size {
            return bad(format!("truncated: its tensors end at byte {needed}, the file has {}", self.size));
        }
        let end = data.saturating_add(extent.most);
        if self.size.saturating_sub(end) > MAX_TRAILING_BYTES {
            let most = format!("more than the {MAX_TRAILING_BYTES} bytes that may follow");
            return bad(format!("its tensors end at byte {end} of {}, {most}", self.size));
        }
        Ok(seen.header)
    }

    fn key_value(&mut self, seen: &mut Seen) -> Result<(), Refused> {
        let key = self.string("a key", MAX_KEY_BYTES)?;
        let kind = self.u32("a value's type")?;
        let Header { tokenizer, lists, split_count, adapter, .. } = &mut seen.header;
        match (key.as_slice(), kind) {
            // llama.cpp would take it for a shorter key.
            (key, _) if key.contains(&0) => return bad(format!("the key {:?} contains a NUL", lossy(key))),
            (b"general.alignment", 4) => seen.alignment = Some(self.u32("general.alignment")?),
            (b"split.count", 2) => *split_count = u16::from_le_bytes(self.bytes("split.count")?),
            (b"general.type", 8) => adapter.general_type = Some(self.text("general.type")?),
            (b"general.architecture", 8) => adapter.architecture = Some(self.text("general.architecture")?),
            (b"adapter.type", 8) => adapter.kind = Some(self.text("adapter.type")?),
            (b"adapter.lora.alpha", 6) => {
                adapter.alpha = Some(f32::from_le_bytes(self.bytes("adapter.lora.alpha")?));
            }
            (b"tokenizer.ggml.model", 8) => tokenizer.model = self.text("tokenizer.ggml.model")?,
            (b"tokenizer.ggml.pre", 8) => tokenizer.pre = self.text("tokenizer.ggml.pre")?,
            (b"tokenizer.ggml.merges", 9) => tokenizer.merges = self.merges()?,
            (b"tokenizer.ggml.token_type", 9) => self.token_kinds()?,
            (b"tokenizer.ggml.tokens", 9) => self.tokens(&mut seen.tokens)?,
            (key, 9) if LayerLists::keeps(key) => self.layers(key, lists)?,
            (key, 4) if key.ends_with(b".context_length") => self.context_length(key)?,
            (key, _) => {
                adapter.mistyped |= adapter::KEYS.contains(&key);
                self.value(kind, &lossy(key), 0)?;
            }
        }
        Ok(())
    }

    fn context_length(&mut self, key: &[u8]) -> Result<(), Refused> {
        match self.u32("the context length")? {
            0..=MAX_CONTEXT_LENGTH => Ok(()),
            tokens => bad(format!("{} = {tokens} is more than {MAX_CONTEXT_LENGTH}", lossy(key))),
        }
    }

    fn token_kinds(&mut self) -> Result<(), Refused> {
        let kind = self.u32("an array's type")?;
        let count = self.u64("an array's length")?;
        if kind != 5 && kind != 4 {
            return bad("tokenizer.ggml.token_type is not a list of 32-bit integers");
        }
        self.items(kind, count, "tokenizer.ggml.token_type", 0)
    }

    fn merges(&mut self) -> Result<Vec<Box<[u8]>>, Refused> {
        let kind = self.u32("an array's type")?;
        let count = self.u64("an array's length")?;
        if kind != 8 {
            return bad("tokenizer.ggml.merges is not a list of strings");
        }
        self.within(count.checked_mul(8), "tokenizer.ggml.merges")?;
        (0..count).map(|_| self.string("a merge", MAX_KEY_BYTES).map(Vec::into_boxed_slice)).collect()
    }

    fn tokens(&mut self, tokens: &mut Tokens) -> Result<(), Refused> {
        let kind = self.u32("an array's type")?;
        let count = self.u64("an array's length")?;
        if kind != 8 {
            return bad("tokenizer.ggml.tokens is not a list of strings");
        }
        self.within(count.checked_mul(8), "tokenizer.ggml.tokens")?;
        (0..count).try_for_each(|_| tokens.add(self.string("a token", MAX_KEY_BYTES)?).map_err(Refused::Bad))
    }

    /// Keeps a list of numbers that are as wide as llama.cpp takes them, and skips any other.
    fn layers(&mut self, key: &[u8], lists: &mut LayerLists) -> Result<(), Refused> {
        let kind = self.u32("an array's type")?;
        let count = self.u64("an array's length")?;
        match (kind, count) {
            (4 | 5, ..=layers::MAX_LAYERS) => {
                let values: Result<_, _> = (0..count).map(|_| self.u32("a layer's number")).collect();
                lists.add(key, values?);
                Ok(())
            }
            _ => self.items(kind, count, &lossy(key), 0),
        }
    }

    fn value(&mut self, kind: u32, key: &str, depth: u32) -> Result<(), Refused> {
        match kind {
            8 => self.skip_string(key),
            9 => {
                let kind = self.u32("an array's type")?;
                let count = self.u64("an array's length")?;
                self.items(kind, count, key, depth)
            }
            _ => match fixed_size(kind) {
                Some(size) => self.skip(Some(size), key),
                None => bad(format!("{key} has the unknown type {kind}")),
            },
        }
    }

    /// Skips the items of an array.
    fn items(&mut self, kind: u32, count: u64, key: &str, depth: u32) -> Result<(), Refused> {
        match fixed_size(kind) {
            Some(size) => self.skip(count.checked_mul(size), key),
            None if depth >= MAX_NESTING => bad(format!("{key} is nested too deeply")),
            // A string or an array takes at least eight bytes, so the size of the file bounds the loop.
            None => {
                self.within(count.checked_mul(8), key)?;
                (0..count).try_for_each(|_| self.value(kind, key, depth + 1))
            }
        }
    }

    /// Checks the description of a tensor. Returns where its data ends.
    fn tensor(&mut self, alignment: u64, tensors: &mut Tensors) -> Result<Extent, Refused> {
        let name = self.string("a tensor's name", MAX_KEY_BYTES)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        let dimensions = self.u32("a tensor's dimensions")?;
        if dimensions > MAX_DIMENSIONS {
            return bad(format!("tensor {name} has {dimensions} dimensions"));
        }
        let mut shape = [1; MAX_DIMENSIONS as usize];
        let mut elements = 1u64;
        let mut row = 1u64;
        for i in 0..dimensions {
            let extent = self.u64("a tensor's extent")?;
            if i == 0 {
                row = extent;
            }
            shape[i as usize] = extent;
            match elements.checked_mul(extent) {
                Some(product) if extent > 0 && i64::try_from(product).is_ok() => elements = product,
                _ => return bad(format!("tensor {name} has an impossible shape")),
            }
        }
        let kind = self.u32("a tensor's type")?;
        let offset = self.u64("a tensor's offset")?;
        if !offset.is_multiple_of(alignment) {
            return bad(format!("tensor {name} begins at {offset}, which is not a multiple of {alignment}"));
        }
        tensors.add(&name, TensorEntry { shape, kind, offset });
        // llama.cpp checks the types that are not listed here.
        let Some((block, bytes)) = block_of(kind) else {
            return Ok(Extent {
                least: offset,
                most: elements.saturating_mul(MAX_ELEMENT_BYTES).saturating_add(offset),
            });
        };
        if !row.is_multiple_of(block) {
            return bad(format!("tensor {name} has rows of {row}, not a multiple of {block}"));
        }
        let end = (elements / block).checked_mul(bytes).and_then(|bytes| bytes.checked_add(offset));
        match end {
            Some(end) => Ok(Extent { least: end, most: end }),
            None => bad(format!("tensor {name} is impossibly large")),
        }
    }

    /// Checks that the file has `len` more bytes, and that a header may have them.
    fn within(&self, len: Option<u64>, what: &str) -> Result<u64, Refused> {
        match len {
            Some(len) if len <= self.size - self.at => match self.at + len {
                ..=MAX_HEADER_BYTES => Ok(len),
                end => {
                    bad(format!("{what} ends at byte {end}, past the {MAX_HEADER_BYTES} bytes that a header may have"))
                }
            },
            _ => bad(format!("truncated at byte {}: {what} does not fit into the file's {} bytes", self.at, self.size)),
        }
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Refused> {
        self.within(Some(N as u64), what)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(Refused::Io)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Refused> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Refused> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str, max: u64) -> Result<Vec<u8>, Refused> {
        let len = self.u64(what)?;
        if len > max {
            return bad(format!("{what} at byte {} is {len} bytes long, more than {max}", self.at));
        }
        let len = self.within(Some(len), what)?;
        let mut text = vec![0; len as usize];
        self.input.read_exact(&mut text).map_err(Refused::Io)?;
        self.at += len;
        Ok(text)
    }

    /// As llama.cpp reads it: up to the first NUL.
    fn text(&mut self, what: &str) -> Result<String, Refused> {
        let text = tokens::up_to_nul(self.string(what, MAX_KEY_BYTES)?);
        String::from_utf8(text).or_else(|_| bad(format!("{what} is not UTF-8")))
    }

    fn skip_string(&mut self, what: &str) -> Result<(), Refused> {
        let len = self.u64(what)?;
        self.skip(Some(len), what)
    }

    fn skip(&mut self, len: Option<u64>, what: &str) -> Result<(), Refused> {
        let len = self.within(len, what)?;
        let step = i64::try_from(len).map_err(|error| Refused::Bad(error.to_string()))?;
        self.input.seek_relative(step).map_err(Refused::Io)?;
        self.at += len;
        Ok(())
    }
}

/// Size of a metadata value in bytes; `None` for strings, arrays and unknown types.
fn fixed_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Number of elements and of bytes in a block of a tensor type.
pub(crate) fn block_of(kind: u32) -> Option<(u64, u64)> {
    Some(match kind {
        0 | 26 => (1, 4),
        1 | 30 | 25 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        15 => (256, 292),
        _ => return None,
    })
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
