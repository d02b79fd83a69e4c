//! Loads a model: preflight, digest, llama.cpp, adapter, and the facts that core needs.
use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::engine::{InfillTokens, ModelInfo, ModelKind, Reuse};
use camshaft_core::ids::{AdapterDigest, Token};
use camshaft_core::vocabulary::Vocabulary;
use llama_cpp_sys_2 as sys;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::adapter::{AdapterShelf, LoadedAdapter, load_lora};
use crate::backend::backend;
use crate::defaults;
use crate::devices::{Lost, Offload};
use crate::encoder::Encoder;
use crate::error::EngineLoadError;
use crate::footprint::ModelOutline;
use crate::gguf::Header;
use crate::kind::Traits;
use crate::model::{Lora, Model};
use crate::parts::ModelFiles;
use crate::vocab::Vocab;

/// How to load a model.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Hexadecimal SHA-256 that the file must have. Of a split model: the SHA-256 of its parts' digests, each in lower-case
    /// hexadecimal on a line of its own.
    pub verify_sha256: Option<String>,
    /// Compute the digest even without `verify_sha256`.
    pub digest: bool,
    /// The wanted kind; `None`: the kind that the model was trained for, according to its file.
    pub kind: Option<ModelKind>,
    pub adapter: Option<AdapterOptions>,
    /// Copy the weights into memory, so that changes of the file do not matter. Otherwise the file is mapped.
    pub copy: bool,
    /// Receives the progress of loading.
    pub progress: Option<LoadProgress>,
    pub placement: Placement,
    /// Keep the weights that stay in the host's memory from being swapped out, as far as the system allows it.
    pub lock: bool,
}

/// Where weights are loaded to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum Placement {
    /// The memory of the host, and no device is used.
    #[default]
    Host,
    /// Nowhere: what the file says about the model is all that is wanted. It must not compute.
    Nowhere,
    Devices(Offload),
}

/// Called with the fraction that is loaded, from 0 to 1. Where it breaks off, the model is not loaded.
#[derive(Clone)]
pub struct LoadProgress(pub Arc<dyn Fn(f32) -> ControlFlow<()> + Send + Sync>);

impl fmt::Debug for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadProgress")
    }
}

/// A LoRA adapter, in a GGUF file of its own, that modifies the model's weights.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterOptions {
    pub path: PathBuf,
    /// Weight of the adapter; it was trained for 1.
    pub scale: f32,
}

/// A loaded adapter. Contexts of the model apply it.
pub(crate) struct Adapter {
    pub(crate) lora: Lora,
    pub(crate) scale: f32,
}

/// Weights and vocabulary. All contexts of the model and all threads that tokenize share them.
pub struct LoadedModel {
    /// Not dropped if its device is lost.
    pub(crate) model: ManuallyDrop<Arc<Model>>,
    shelf: AdapterShelf,
    pub(crate) adapter: Option<Adapter>,
    pub(crate) encoder: Encoder,
    identity: Option<String>,
    outline: ModelOutline,
    /// `None`: it uses no device.
    lost: Option<Lost>,
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedModel").field("info", self.info()).finish_non_exhaustive()
    }
}

impl LoadedModel {
    /// Loads a GGUF file, or, by the name of the first, the parts of a split one. Maps the weights unless the options say to
    /// copy them.
    ///
    /// # Errors
    /// A file is missing, truncated, corrupt, has another digest or is replaced meanwhile, or llama.cpp refuses it.
    pub fn from_file(path: &Path, options: &LoadOptions) -> Result<Arc<Self>, EngineLoadError> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::load(path, path, &stem, options).map(Arc::new)
    }

    /// Loads a GGUF file that is in memory, for which llama.cpp needs a path. No disk is written to, so nothing stays behind.
    ///
    /// # Errors
    /// As [`LoadedModel::from_file`], or there is no memory for it.
    pub fn from_bytes(name: &str, bytes: &[u8], options: &LoadOptions) -> Result<Arc<Self>, EngineLoadError> {
        let file = in_memory(name, bytes).map_err(EngineLoadError::Unpack)?;
        // llama.cpp maps the file, which outlives its descriptor.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Self::load(&path, Path::new(name), name, options).map(Arc::new)
    }

    fn load(path: &Path, shown: &Path, stem: &str, options: &LoadOptions) -> Result<Self, EngineLoadError> {
        let (mut files, Header { tokenizer, lists, adapter: keys, tensors, .. }) = ModelFiles::open(path, shown)?;
        let shelf = AdapterShelf::new(keys, tensors);
        // Weights that are only looked at are read when they are loaded.
        let wanted = options.verify_sha256.as_ref().filter(|_| options.placement != Placement::Nowhere);
        let sha256 = (options.digest || wanted.is_some()).then(|| files.digest()).transpose()?;
        if let (Some(wanted), Some(found)) = (wanted, &sha256)
            && !wanted.eq_ignore_ascii_case(found)
        {
            let (wanted, found) = (wanted.clone(), found.clone());
            return Err(EngineLoadError::WrongDigest { path: shown.to_owned(), wanted, found });
        }
        let model = load_weights(path, shown, options)?;
        files.check_unchanged()?;
        let kind = Traits::of(&model).serve_as(options.kind);
        let kind = kind.map_err(|why| EngineLoadError::WrongKind { path: shown.to_owned(), why })?;
        let mut identity = sha256.clone();
        let adapter = match &options.adapter {
            None => None,
            // It lies where the weights do.
            Some(_) if options.placement == Placement::Nowhere => None,
            Some(adapter) => {
                let (files, digest) = shelf.examine(&adapter.path)?;
                if let Some(weights) = &mut identity {
                    *weights = format!("{weights}+{digest}*{}", adapter.scale);
                }
                let lora = load_lora(&model, &adapter.path)?;
                files.check_unchanged()?;
                Some(Adapter { lora, scale: adapter.scale })
            }
        };
        let info = describe(&model, stem, kind, sha256);
        let bad = |why| EngineLoadError::BadFile { path: shown.to_owned(), why };
        if info.vocabulary.size() == 0 {
            return Err(bad("the model has no vocabulary".to_owned()));
        }
        let encoder = Encoder::new(&model, info.vocabulary.clone(), &tokenizer).map_err(bad)?;
        let lost = matches!(options.placement, Placement::Devices(_)).then(Lost::default);
        let model = ManuallyDrop::new(Arc::new(model));
        let outline = ModelOutline::of(&model, &lists, info);
        Ok(Self { model, shelf, adapter, encoder, identity, outline, lost })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.outline.info
    }

    pub fn outline(&self) -> &ModelOutline {
        &self.outline
    }

    /// Loads an adapter beside the model, for requests that name it by its digest. One with the same file is loaded once. It is
    /// in memory for as long as anybody holds it.
    ///
    /// # Errors
    /// The file is missing, bad, or of another model, or llama.cpp refuses it.
    pub fn load_adapter(&self, path: &Path) -> Result<Arc<LoadedAdapter>, EngineLoadError> {
        self.shelf.load(path, &self.model, self.lost.as_ref())
    }

    /// An adapter that somebody holds.
    pub fn find_adapter(&self, digest: AdapterDigest) -> Option<Arc<LoadedAdapter>> {
        self.shelf.find(digest)
    }

    /// Whether some of its layers are on devices.
    pub fn is_on_devices(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether a device failed on which it is: it computes nothing any more.
    pub fn is_lost(&self) -> bool {
        self.lost.as_ref().is_some_and(Lost::is_set)
    }

    /// Notes that a device failed. False if it uses none.
    pub(crate) fn lose(&self) -> bool {
        self.lost.as_ref().inspect(|lost| lost.set()).is_some()
    }

    /// Numbers of a vector that it gives for a text.
    pub(crate) fn dimensions(&self) -> u32 {
        self.model.dimensions()
    }

    /// Identifies what the model computes: digests of weights and adapter. `None` if the options asked for no digest.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }
}

impl Drop for LoadedModel {
    fn drop(&mut self) {
        // To free what lies on a device that is lost would end the process.
        if !self.is_lost() {
            // SAFETY: it is dropped only here, and not used afterwards. llama.cpp frees the adapter with it.
            unsafe { ManuallyDrop::drop(&mut self.model) };
        }
    }
}

/// A file without a directory, which holds these bytes.
fn in_memory(name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Has llama.cpp load a file.
fn load_weights(path: &Path, shown: &Path, options: &LoadOptions) -> Result<Model, EngineLoadError> {
    unsafe extern "C" fn report(fraction: f32, progress: *mut c_void) -> bool {
        // SAFETY: it points to the progress below, which lives until the model is loaded.
        let LoadProgress(report) = unsafe { &*progress.cast::<LoadProgress>() };
        report(fraction).is_continue()
    }
    backend()?;
    let offload = match &options.placement {
        Placement::Devices(offload) => Some(offload),
        Placement::Host | Placement::Nowhere => None,
    };
    // A list without devices; without a list llama.cpp would use all.
    let none = || Ok(vec![std::ptr::null_mut()]);
    let mut devices = offload.map_or_else(none, Offload::raw_devices)?;
    let split = offload.filter(|offload| !offload.split.is_empty()).map(Offload::raw_split);
    let is_sketch = options.placement == Placement::Nowhere;
    // SAFETY: the function takes and touches nothing.
    let mut params = unsafe { sys::llama_model_default_params() };
    params.devices = devices.as_mut_ptr();
    params.n_gpu_layers = offload.map_or(0, |offload| i32::try_from(offload.layers).unwrap_or(i32::MAX));
    params.tensor_split = split.as_ref().map_or(std::ptr::null(), |split| split.as_ptr());
    params.no_alloc = is_sketch;
    params.load_mode = match (options.copy || is_sketch, options.lock && !is_sketch) {
        (true, false) => sys::LLAMA_LOAD_MODE_NONE,
        (false, false) => sys::LLAMA_LOAD_MODE_MMAP,
        (true, true) => sys::LLAMA_LOAD_MODE_MLOCK,
        (false, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
    };
    if let Some(progress) = &options.progress {
        params.progress_callback = Some(report);
        params.progress_callback_user_data = std::ptr::from_ref(progress).cast_mut().cast();
    }
    // SAFETY: llama.cpp is started, and everything that the parameters point to lives until this returns.
    let model = unsafe { Model::load(path, params) };
    model.map_err(|source| EngineLoadError::NotLoaded { path: shown.to_owned(), source })
}

fn describe(model: &Model, stem: &str, kind: ModelKind, sha256: Option<String>) -> ModelInfo {
    let vocab = model.vocab();
    let trained = model.context_tokens();
    ModelInfo {
        name: model.metadata("general.name").unwrap_or_else(|| stem.to_owned()),
        kind,
        parameters: model.parameters(),
        weight_bytes: model.bytes(),
        trained_context_tokens: trained,
        context_tokens: trained,
        reuse: reuse(model),
        sampling: defaults::sampling(|key| model.metadata(key)),
        quantization: model.quantization(),
        infill: infill(vocab),
        chat_template: model.chat_template(None),
        tool_template: model.chat_template(Some(c"tool_use")),
        bos_text: special_text(vocab, vocab.bos()),
        eos_text: special_text(vocab, vocab.eos()),
        sha256,
        vocabulary: Arc::new(vocabulary(vocab)),
    }
}

/// Recurrent layers keep one state for all positions, and layers with a sliding window save only the positions inside
/// it. Such a state cannot be cut at another position than its end.
fn reuse(model: &Model) -> Reuse {
    if model.window_tokens() > 0 || model.is_recurrent() { Reuse::Whole } else { Reuse::Ranges }
}

/// The tokens for what is missing of a text: all three, or the model cannot fill it in.
fn infill(vocab: Vocab<'_>) -> Option<InfillTokens> {
    let [prefix, suffix, middle] = vocab.infill();
    Some(InfillTokens { prefix: prefix?, suffix: suffix?, middle: middle? })
}

/// The text of a special token; empty if the model has none.
fn special_text(vocab: Vocab<'_>, token: Option<Token>) -> String {
    token.map(|token| String::from_utf8_lossy(vocab.text(token)).into_owned()).unwrap_or_default()
}

fn vocabulary(vocab: Vocab<'_>) -> Vocabulary {
    let ends = vocab.tokens().filter(|&token| vocab.is_end(token)).collect();
    Vocabulary::new(vocab.tokens().map(|token| vocab.piece(token)), ends)
}
