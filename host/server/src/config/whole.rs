//! Both halves together.
use super::fixed::Fixed;
use super::live::Live;
use super::model::ModelConfig;

/// Everything the server needs to know, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub live: Live,
    pub fixed: Fixed,
}

impl Config {
    /// Fills in what follows from other keys.
    pub(super) fn complete(&mut self) {
        let low = self.live.queue.low_watermark();
        self.live.queue.low_watermark = Some(low);
        self.fixed.model.iter_mut().for_each(ModelConfig::complete);
    }
}
