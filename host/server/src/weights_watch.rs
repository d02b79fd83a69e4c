//! Looks at the files that weights are mapped from, and takes a model out of service whose weights were changed in place.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use camshaft_api::ModelHealth;
use camshaft_engine::{FileDamage, MappedFile};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// The files of each model that serves.
#[derive(Debug, Default)]
pub(crate) struct WeightsWatch {
    files: Mutex<Vec<Watched>>,
}

#[derive(Debug)]
struct Watched {
    model: String,
    health: ModelHealth,
    /// Gone with the model.
    file: Weak<MappedFile>,
}

impl WeightsWatch {
    pub(crate) fn add(&self, model: &str, health: &ModelHealth, files: &[Arc<MappedFile>]) {
        let watched = |file| Watched { model: model.to_owned(), health: health.clone(), file: Arc::downgrade(file) };
        self.files().extend(files.iter().map(watched));
    }

    fn files(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the files for as long as the server runs.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let watch = self.clone();
            // A file system that does not answer holds up nobody else.
            let looked = tokio::task::spawn_blocking(move || watch.look()).await;
            if looked.is_err() {
                return;
            }
        }
    }

    /// Says once what happened to a file. What is not mapped any more after a restart is safe again.
    fn look(&self) {
        // What is added meanwhile waits for the next look, and nobody for a file system.
        let mut files = std::mem::take(&mut *self.files());
        files.retain(|Watched { model, health, file }| {
            let Some(file) = file.upgrade() else { return false };
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
            tracing::error!(model, why, "the model serves no more; restore the file and swap the model for itself, and replace files by moving new ones to their names");
            health.set_damaged(why);
            false
        });
        self.files().append(&mut files);
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
        let (health, watch) = (ModelHealth::default(), WeightsWatch::default());
        let file = Arc::new(MappedFile::open(&path).unwrap());
        watch.add("m", &health, std::slice::from_ref(&file));
        watch.look();
        assert!(health.damage().is_none());
        fs::File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        watch.look();
        assert!(health.damage().is_some_and(|why| why.contains("from 100 to 10 bytes")));
        assert!(watch.files().is_empty(), "it is said once");
    }

    #[test]
    fn regression_a_model_whose_file_was_touched_goes_on_serving_and_one_with_other_weights_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, [1; 100]).unwrap();
        let (health, watch) = (ModelHealth::default(), WeightsWatch::default());
        let mapped = Arc::new(MappedFile::open(&path).unwrap());
        watch.add("m", &health, std::slice::from_ref(&mapped));
        let write = |bytes: [u8; 100], seconds| {
            let mut file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all(&bytes).unwrap();
            file.set_modified(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
        };
        write([1; 100], 10);
        watch.look();
        assert!(health.damage().is_none() && watch.files().len() == 1);
        write([2; 100], 20);
        watch.look();
        assert!(health.damage().is_some_and(|why| why.contains("other weights")));
    }
}
