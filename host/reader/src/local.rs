//! Reads on threads of this process, where no bound holds but those of the operating system: for tests, for programs that embed the
//! server, and for systems without processes that may be forked.
use std::sync::Arc;

use camshaft_template::ChatTemplate;
use futures_util::future::BoxFuture;

use crate::model::ModelReader;
use crate::task::{Answer, Asker, Facts, ReadError, Reader, Task};
use crate::turns::Turns;

/// See the module.
#[derive(Debug)]
pub struct LocalReader {
    model: Arc<ModelReader>,
    facts: Facts,
    turns: Turns,
}

impl LocalReader {
    /// `markers`: texts whose tokens are to be known.
    pub fn new(model: ModelReader, markers: Vec<String>) -> Self {
        let read = match model.read(Facts::of_markers(&markers), &|_| {}) {
            Ok(Answer::Texts(read)) => read,
            _ => Vec::new(),
        };
        let template = model.template().map(ChatTemplate::traits).map_err(Clone::clone);
        let facts = Facts::new(markers, read, template);
        Self { model: Arc::new(model), facts, turns: Turns::default() }
    }
}

impl Reader for LocalReader {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn read<'a>(&'a self, asker: Asker<'a>, task: Task) -> BoxFuture<'a, Result<Answer, ReadError>> {
        Box::pin(async move {
            let permit = self.turns.take(asker).await?;
            let model = self.model.clone();
            let read = tokio::task::spawn_blocking(move || {
                // Others are read when the thread is done, whether or not somebody still waits for it.
                let _permit = permit;
                model.read(task, &|_| {})
            });
            read.await.unwrap_or_else(|error| Err(ReadError::Lost(error.to_string())))
        })
    }
}
