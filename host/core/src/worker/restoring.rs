//! How much a step restores, so that streams that decode beside it do not wait for long.

/// What a step restores at most, but for its first segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestoreBounds {
    /// Of segments.
    pub(super) bytes: u64,
    pub(super) segments: u32,
}

impl Default for RestoreBounds {
    fn default() -> Self {
        Self { bytes: 32 << 20, segments: 64 }
    }
}

/// What a step may still restore. The first segment of a step is always restored, whatever its size.
#[derive(Debug)]
pub(super) struct RestoreBudget {
    bytes: u64,
    segments: u32,
    /// See [`crate::engine::Engine::restores_in_place`].
    in_place: bool,
}

impl RestoreBudget {
    pub(super) fn of_step(RestoreBounds { bytes, segments }: RestoreBounds, in_place: bool) -> Self {
        Self { bytes, segments, in_place }
    }

    /// Nothing may be restored.
    pub(super) fn none() -> Self {
        Self { bytes: 0, segments: 0, in_place: true }
    }

    /// Whether a sequence may restore more. `begun`: it has restored some in this step. If the engine copies the whole
    /// sequence with each call, it goes on to the end.
    pub(super) fn allows_more(&self, begun: bool) -> bool {
        (begun && !self.in_place) || (self.bytes > 0 && self.segments > 0)
    }

    /// Tokens of `token_bytes` each that a sequence may restore of one copy, at least one.
    pub(super) fn tokens(&self, token_bytes: u64) -> u32 {
        if !self.in_place {
            return u32::MAX;
        }
        u32::try_from(self.bytes / token_bytes.max(1)).unwrap_or(u32::MAX).max(1)
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.segments = self.segments.saturating_sub(1);
    }
}
