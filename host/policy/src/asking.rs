//! Where the policies of an HTTP request are called: fast ones on the thread that serves the connection, slow ones aside.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::policy::{Fault, FaultKind};

use crate::lanes::{LaneFull, WAITING};
use crate::loaded::Loaded;
use crate::store::cpu_time;

/// Makes a call that counts itself. A version is called on this thread while its calls are fast and nobody else's call runs on
/// such a thread; otherwise in its lane.
///
/// # Errors
/// Those of the call, or as many calls of the version wait as may.
pub(crate) async fn ask<T: Send + 'static>(
    policy: &Arc<Loaded>,
    call: impl FnOnce(&Loaded) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let lanes = &policy.runtime.lanes;
    if policy.health.refuses() {
        return call(policy);
    }
    if policy.pace.is_fast()
        && let Some(_inline) = lanes.inline()
    {
        return measured(policy, call);
    }
    let (asked, called) = (Instant::now(), policy.clone());
    match lanes.put(policy.lane, move || measured(&called, call)) {
        Ok(answer) => answer.await.unwrap_or_else(|_| Err(policy.fault(FaultKind::Unavailable, "its call panicked"))),
        Err(LaneFull) => {
            let fault = policy.fault(FaultKind::Exhausted, format!("{WAITING} calls wait for it"));
            policy.note_fault(&fault, asked);
            Err(fault)
        }
    }
}

fn measured<T>(policy: &Loaded, call: impl FnOnce(&Loaded) -> T) -> T {
    let before = cpu_time();
    let answer = call(policy);
    policy.pace.note(cpu_time().saturating_sub(before));
    answer
}
