//! Who may have a grammar tried and compiled: one at a time for a tenant, a few in all, and the others wait briefly.
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camshaft_core::ids::TenantId;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::task::ReadError;

/// How long a grammar waits for others.
const WAIT: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct GrammarTurns {
    /// Whose grammars are being compiled.
    running: Mutex<Vec<TenantId>>,
    most: usize,
    ended: Notify,
}

/// A turn. Dropping it passes it on.
#[derive(Debug)]
pub struct GrammarTurn {
    turns: Arc<GrammarTurns>,
    tenant: TenantId,
}

impl GrammarTurns {
    /// Half of the cores are left to the engine.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Arc::new(Self { running: Mutex::default(), most: (cores / 2).max(1), ended: Notify::new() })
    }

    /// # Errors
    /// Others are compiled for too long.
    pub async fn take(self: &Arc<Self>, tenant: &TenantId) -> Result<GrammarTurn, ReadError> {
        let turn = async {
            loop {
                let ended = self.ended.notified();
                if let Some(turn) = self.try_take(tenant) {
                    return turn;
                }
                ended.await;
            }
        };
        timeout(WAIT, turn).await.map_err(|_| ReadError::GrammarsBusy)
    }

    fn try_take(self: &Arc<Self>, tenant: &TenantId) -> Option<GrammarTurn> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = running.len() < self.most && !running.contains(tenant);
        is_free.then(|| running.push(tenant.clone()))?;
        Some(GrammarTurn { turns: self.clone(), tenant: tenant.clone() })
    }
}

impl Drop for GrammarTurn {
    fn drop(&mut self) {
        let mut running = self.turns.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = running.iter().position(|tenant| *tenant == self.tenant) {
            running.swap_remove(at);
        }
        drop(running);
        self.turns.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tenant_has_one_grammar_compiled_at_a_time_and_all_have_a_few() {
        let turns = Arc::new(GrammarTurns { running: Mutex::default(), most: 2, ended: Notify::new() });
        let take = async |name: &str| turns.take(&TenantId::from(name)).await;
        let first = take("a").await.unwrap();
        assert_eq!(take("a").await.unwrap_err(), ReadError::GrammarsBusy, "its own");
        let _second = take("b").await.unwrap();
        assert_eq!(take("c").await.unwrap_err(), ReadError::GrammarsBusy, "all");
        let (waits, ()) = tokio::join!(take("c"), async { drop(first) });
        assert!(waits.is_ok());
    }
}
