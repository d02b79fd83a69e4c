//! Looks at the files that weights are mapped from, and takes a model out of service whose file was changed in place.
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
            self.look(&readiness);
        }
    }

    /// Says once what happened to a file. What is not mapped any more after a restart is safe again.
    fn look(&mut self, readiness: &Readiness) {
        self.files.retain(|(model, file)| {
            let why = match file.damage() {
                None => return true,
                Some(FileDamage::Shrunk { was, is }) => {
                    format!("the file of its weights was cut from {was} to {is} bytes; reading what is missing ends the process")
                }
                Some(FileDamage::Written) => "the file of its weights was written to while it was in use".to_owned(),
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
}
