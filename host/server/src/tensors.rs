//! Files of tensor models: read within a bound, and loaded.
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use camshaft_engine::EngineLoadError;
use camshaft_tensor::{BackendChoice, Files, GatherError, TensorModel, Wanted};
use sha2::{Digest, Sha256};

use crate::digits;
use crate::error::ModelProblem;

/// The files of a model.
#[derive(Debug)]
pub(crate) struct ReadModel {
    path: PathBuf,
    files: Files,
}

/// Reads the model at `path`, with the manifest, the weights and the labels that belong to it.
///
/// # Errors
/// A file cannot be read, is no regular file, or is too large, or they are no model.
pub(crate) fn read(path: &Path) -> Result<ReadModel, ModelProblem> {
    let files = match path == Path::new(digits::NAME) {
        true => {
            camshaft_tensor::gather(Path::new(digits::FILE), |wanted| Ok(digits::file(wanted.path).map(<[u8]>::to_vec)))
        }
        false => camshaft_tensor::gather(path, read_file),
    };
    let files = files.map_err(|error| match error {
        GatherError::File(problem) => problem,
        GatherError::Model(error) => ModelProblem::Refused { path: path.to_owned(), why: error.to_string() },
    })?;
    Ok(ReadModel { path: path.to_owned(), files })
}

/// Bytes of a model's files. One that cannot be read counts as nothing: it is refused later.
pub(crate) fn files_bytes(path: &Path) -> u64 {
    let mut bytes = 0u64;
    let counted = camshaft_tensor::gather(path, |wanted| {
        let size = std::fs::metadata(wanted.path).map_or(0, |file| file.len());
        bytes = bytes.saturating_add(size.min(wanted.most));
        // Weights name no other file.
        if camshaft_tensor::FileFormat::of(wanted.path).is_some() { Ok(Some(Vec::new())) } else { read_file(wanted) }
    });
    // What was counted before an error is read before it, too.
    drop(counted);
    bytes
}

fn read_file(wanted: Wanted<'_>) -> Result<Option<Vec<u8>>, ModelProblem> {
    let Wanted { path, most, may_be_missing } = wanted;
    let unreadable = |source| ModelProblem::Load(EngineLoadError::Unreadable { path: path.to_owned(), source });
    let file = match camshaft_engine::open_regular(path) {
        Err(error) if may_be_missing && error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unreadable)?,
    };
    let size = file.metadata().map_err(unreadable)?.len();
    if size > most {
        let why = format!("it has {size} bytes, at most {most}");
        return Err(ModelProblem::Refused { path: path.to_owned(), why });
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // It may grow meanwhile.
    file.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(Some(bytes))
}

impl ReadModel {
    /// Lower-case hexadecimal: of the file, or, of several, of a text with a line for the digest of each.
    pub(crate) fn sha256(&self) -> String {
        let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let digests: Vec<String> = self.files.parts().map(hex).collect();
        match &digests[..] {
            [only] => only.clone(),
            several => hex(several.iter().map(|digest| format!("{digest}\n")).collect::<String>().as_bytes()),
        }
    }

    /// # Errors
    /// It is no model that can be served.
    pub(crate) fn load(self, backend: BackendChoice) -> Result<TensorModel, ModelProblem> {
        let Self { path, files } = self;
        camshaft_tensor::load(files, backend).map_err(|error| ModelProblem::Refused { path, why: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use camshaft_tensor::WEIGHTS_BYTES;

    use super::*;

    #[test]
    fn the_bytes_of_a_model_are_those_of_all_its_files_up_to_their_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let manifest = "weights = \"w.pt\"\n[postprocess]\nlabels-file = \"l.txt\"\n";
        std::fs::write(file("m.toml"), manifest).unwrap();
        std::fs::write(file("l.txt"), "one\ntwo\n").unwrap();
        let weights = std::fs::File::create(file("w.pt")).unwrap();
        let bytes = |weights_bytes: u64, path: &str| {
            weights.set_len(weights_bytes).unwrap();
            files_bytes(&file(path))
        };
        assert_eq!(bytes(1 << 20, "m.toml"), (1 << 20) + manifest.len() as u64 + 8);
        assert_eq!(bytes(1 << 20, "w.pt"), 1 << 20, "its manifest has another name");
        assert_eq!(bytes(WEIGHTS_BYTES, "w.pt"), WEIGHTS_BYTES);
        assert_eq!(bytes(WEIGHTS_BYTES + 1, "w.pt"), WEIGHTS_BYTES);
        assert_eq!((bytes(7, "none.pt"), files_bytes(Path::new(digits::NAME))), (0, 0));
    }
}
