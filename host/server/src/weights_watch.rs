//! Looks at the files that weights are mapped from, and takes a model out of service whose weights were changed in place.
use std::sync::Arc;
use std::time::Duration;

use camshaft_api::Readiness;
use camshaft_engine::{FileDamage, MappedFile};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// The files of each model that serves.
#[derive(Debug, Default)]
pub(crate) struct WeightsWatch {
    files: Vec<(String, Arc<MappedFile>)>,
}

impl WeightsWatch {
    pub(crate) fn add(&mut self, model: &str, files: Vec<Arc<MappedFile>>) {
        self.files.extend(files.into_iter().map(|file| (model.to_owned(), file)));
    }

    /// Looks at the files for as long as the server runs.
    pub(crate) async fn run(mut self, readiness: Arc<Readiness>) {
        while !self.files.is_empty() {
            tokio::time::sleep(INTERVAL).await;
            let readiness = readiness.clone();
            // A file system that does not answer holds up nobody else.
            let look = move || {
                self.look(&readiness);
                self
            };
            let Ok(looked) = tokio::task::spawn_blocking(look).await else { return };
            self = looked;
        }
    }

    /// Says once what happened to a file. What is not mapped any more after a restart is safe again.
    fn look(&mut self, readiness: &Readiness) {
        self.files.retain(|(model, file)| {
            let why = match file.damage() {
                None => return true,
                Some(FileDamage::Touched) => {
                    tracing::warn!(
                        model,
                        "the file of its weights was written to or touched while in use; it is the same wherever it was \
                         compared, so that the model goes on serving; replace files by moving new ones to their names"
                    );
                    return true;
                }
                Some(FileDamage::Shrunk { was, is }) => {
                    format!("the file of its weights was cut from {was} to {is} bytes; reading what is missing ends the process")
                }
                Some(FileDamage::Written) => "other weights were written to their file while it was in use".to_owned(),
            };
            tracing::error!(model, why, "the model serves no more; restore the file and restart, and replace files by moving new ones to their names");
            readiness.set_damaged(model, why);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn regression_a_model_whose_file_was_cut_short_serves_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, [1; 100]).unwrap();
        let readiness = Readiness::new();
        readiness.set_ready();
        readiness.health("m").up();
        let mut watch = WeightsWatch::default();
        watch.add("m", vec![Arc::new(MappedFile::open(&path).unwrap())]);
        watch.look(&readiness);
        assert!(readiness.damage("m").is_none());
        fs::File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        watch.look(&readiness);
        assert!(readiness.damage("m").is_some_and(|why| why.contains("from 100 to 10 bytes")));
        assert!(watch.files.is_empty(), "it is said once");
    }

    #[test]
    fn regression_a_model_whose_file_was_touched_goes_on_serving_and_one_with_other_weights_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, [1; 100]).unwrap();
        let readiness = Readiness::new();
        let mut watch = WeightsWatch::default();
        watch.add("m", vec![Arc::new(MappedFile::open(&path).unwrap())]);
        let write = |bytes: [u8; 100], seconds| {
            let mut file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all(&bytes).unwrap();
            file.set_modified(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
        };
        write([1; 100], 10);
        watch.look(&readiness);
        assert!(readiness.damage("m").is_none() && watch.files.len() == 1);
        write([2; 100], 20);
        watch.look(&readiness);
        assert!(readiness.damage("m").is_some_and(|why| why.contains("other weights")));
    }
}
