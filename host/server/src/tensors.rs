//! Files of tensor models: read within a bound, and loaded.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use camshaft_core::jobs::BatchModel;
use camshaft_engine::EngineLoadError;
use camshaft_tensor::{Predictor, TensorModel};
use sha2::{Digest, Sha256};

use crate::error::ModelProblem;

/// Bound of a file: the format itself holds no more.
const FILE_BYTES: u64 = 1 << 31;

/// The bytes of a model's file.
#[derive(Debug)]
pub(crate) struct ReadModel {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// # Errors
/// The file cannot be read, is no regular file, or is too large.
pub(crate) fn read(path: &Path) -> Result<ReadModel, ModelProblem> {
    let unreadable = |source| ModelProblem::Load(EngineLoadError::Unreadable { path: path.to_owned(), source });
    let file: File = camshaft_engine::open_regular(path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    if size > FILE_BYTES {
        let why = format!("it has {size} bytes, at most {FILE_BYTES}");
        return Err(ModelProblem::Refused { path: path.to_owned(), why });
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // It may grow meanwhile.
    file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(ReadModel { path: path.to_owned(), bytes })
}

impl ReadModel {
    /// Lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// # Errors
    /// It is no model that can be served.
    pub(crate) fn load(self) -> Result<TensorModel, ModelProblem> {
        let Self { path, bytes } = self;
        camshaft_tensor::load(&mut bytes.as_slice())
            .map_err(|error| ModelProblem::Refused { path, why: error.to_string() })
    }
}

/// What the process that tries a file does: loads the model, and computes one input.
///
/// # Errors
/// It cannot be served.
pub(crate) fn try_here(path: &Path) -> Result<(), ModelProblem> {
    let model = read(path)?.load()?;
    // A model may not take the numbers that are tried. What ends the process would end the server, too.
    let _ = Predictor::new(model.into(), 1, Duration::ZERO).warm_up();
    Ok(())
}
