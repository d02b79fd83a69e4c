//! The host's metrics of documents.
use camshaft_core::policy::Hook;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// What came of reading a document again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refresh {
    Changed,
    Unchanged,
    Failed,
}

impl Refresh {
    const ALL: [Refresh; 3] = [Refresh::Changed, Refresh::Unchanged, Refresh::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Refresh::Changed => "changed",
            Refresh::Unchanged => "unchanged",
            Refresh::Failed => "failed",
        }
    }
}

/// Families with one series for each hook.
#[derive(Debug, Clone)]
pub(crate) struct DocumentMetrics {
    refreshes: IntCounterVec,
    stale: IntGaugeVec,
}

impl DocumentMetrics {
    /// # Errors
    /// They are registered already.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let refreshes = Opts::new("camshaft_policy_document_reads_total", "Reads of policies' documents by result");
        let refreshes = IntCounterVec::new(refreshes, &["hook", "result"])?;
        registry.register(Box::new(refreshes.clone()))?;
        let stale = Opts::new("camshaft_policy_documents_stale", "Documents whose last read failed");
        let stale = IntGaugeVec::new(stale, &["hook"])?;
        registry.register(Box::new(stale.clone()))?;
        for hook in Hook::ALL {
            stale.with_label_values(&[hook.as_str()]);
            for result in Refresh::ALL {
                refreshes.with_label_values(&[hook.as_str(), result.as_str()]);
            }
        }
        Ok(Self { refreshes, stale })
    }

    pub(crate) fn count(&self, hook: Hook, result: Refresh) {
        self.refreshes.with_label_values(&[hook.as_str(), result.as_str()]).inc();
    }

    /// One more (or fewer) whose last read failed.
    pub(crate) fn stale(&self, hook: Hook, more: i64) {
        self.stale.with_label_values(&[hook.as_str()]).add(more);
    }
}
