//! Runs the standard chain as the native sampler.
use crate::ids::Token;
use crate::policy::{Fault, FaultKind, TokenSampler};
use crate::sampling::{Row, StandardChain};

impl TokenSampler for StandardChain {
    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
        self.shape(row).map(|()| None).map_err(|error| Fault {
            plugin: "native".into(),
            kind: FaultKind::InvalidOutput,
            detail: error.to_string(),
        })
    }
}
