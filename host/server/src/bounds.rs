//! Bounds of one model that a reload or an operator changes while it runs.
use std::time::Duration;

use camshaft_core::engine::ModelKind;
use camshaft_core::jobs::BatchLimits;
use camshaft_core::message::WorkerBounds;
use camshaft_core::pool::Bounds;

use crate::config::{DurationValue, ModelConfig};

/// Keys of the configuration for them.
pub(crate) const KEYS: [&str; 5] =
    ["max-sequences", "max-tenant-sequences", "max-step-tokens", "batch-size", "batch-window"];

/// Those for a model of this kind. `None`: one whose file is read by llama.cpp, and is not read yet.
pub(crate) fn keys(kind: Option<ModelKind>) -> impl Iterator<Item = &'static str> {
    let is_for = move |key: &&str| match kind {
        None | Some(ModelKind::Generate) => key.starts_with("max-"),
        Some(ModelKind::Embed) => *key == "max-step-tokens",
        Some(ModelKind::Predict) => key.starts_with("batch-"),
    };
    KEYS.into_iter().filter(is_for)
}

/// What a model runs at once and computes together, below what its memory has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelBounds {
    sequences: Option<u32>,
    tenant_sequences: Option<u32>,
    step_tokens: Option<u32>,
    batch_rows: u32,
    batch_window: Duration,
}

impl ModelBounds {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        Self {
            sequences: config.max_sequences,
            tenant_sequences: config.max_tenant_sequences,
            step_tokens: config.max_step_tokens,
            batch_rows: config.batch_size,
            batch_window: config.batch_window.0,
        }
    }

    /// A configuration without these, to tell whether two differ in anything else.
    pub(crate) fn unset(config: ModelConfig) -> ModelConfig {
        ModelConfig {
            max_sequences: None,
            max_tenant_sequences: None,
            max_step_tokens: None,
            batch_size: 1,
            batch_window: DurationValue::millis(1),
            ..config
        }
    }

    /// Of a model that generates.
    pub(crate) fn pool(&self) -> Bounds {
        Bounds { sequences: self.sequences, tenant_sequences: self.tenant_sequences }
    }

    /// Of one of its workers.
    pub(crate) fn worker(&self) -> WorkerBounds {
        WorkerBounds { sequences: self.sequences, step_tokens: self.step_tokens }
    }

    /// Of batches of texts, whose size is in tokens.
    pub(crate) fn of_texts(limits: BatchLimits, bounds: &Self) -> BatchLimits {
        BatchLimits { size: bounds.step_tokens.map_or(limits.size, |tokens| tokens.min(limits.size)), ..limits }
    }

    /// Of batches of tensors, whose size is in rows.
    pub(crate) fn of_rows(limits: BatchLimits, bounds: &Self) -> BatchLimits {
        let rows = bounds.batch_rows;
        BatchLimits {
            size: limits.size.min(rows),
            inputs: limits.inputs.min(rows as usize),
            window: limits.window.min(bounds.batch_window),
        }
    }
}
