//! Both halves together.
use super::fixed::Fixed;
use super::live::Live;
use super::origins::Origins;

/// Everything the server needs to know, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub live: Live,
    pub fixed: Fixed,
    /// Who wrote what.
    pub origins: Origins,
}

impl Config {
    /// Fills in what follows from other keys.
    pub(super) fn complete(&mut self) {
        let low = self.live.queue.low_watermark();
        self.live.queue.low_watermark = Some(low);
        for (number, model) in self.live.model.iter_mut().enumerate() {
            model.complete();
            model.origins = self.origins.below(&format!("model.{number}"));
        }
    }
}
