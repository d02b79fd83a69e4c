//! What belongs to a plugin's name and outlives its instances and generations: log, state store and metrics.
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;

use crate::grants::Grant;
use crate::imports::log::PluginLog;
use crate::imports::metrics::PluginMetrics;
use crate::imports::state::PluginState;

/// A plugin by hook and name.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) hook: Hook,
    pub(crate) plugin: PolicyName,
    pub(crate) log: PluginLog,
    /// A policy that replaces one of another name may share it.
    pub(crate) state: Arc<PluginState>,
    pub(crate) metrics: PluginMetrics,
    /// What it may have, for all its instances.
    pub(crate) grant: ArcSwap<Grant>,
    /// The name that the plugin gives itself, once it is known.
    pub(crate) described: OnceLock<String>,
}

impl Identity {
    /// Goes on with `state`, if there is any.
    pub(crate) fn new(
        hook: Hook,
        plugin: &PolicyName,
        metrics: PluginMetrics,
        state: Option<Arc<PluginState>>,
    ) -> Self {
        Self {
            hook,
            plugin: plugin.clone(),
            log: PluginLog::new(hook, plugin.clone()),
            state: state.unwrap_or_default(),
            metrics,
            grant: ArcSwap::from_pointee(Grant::all()),
            described: OnceLock::new(),
        }
    }
}
