//! What belongs to a plugin's name and outlives its instances and generations: log, state store and metrics.
use std::sync::Arc;

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;

use crate::imports::log::PluginLog;
use crate::imports::metrics::{MetricFamilies, PluginMetrics};
use crate::imports::state::PluginState;

/// A plugin by hook and name.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) log: PluginLog,
    pub(crate) state: PluginState,
    pub(crate) metrics: PluginMetrics,
}

impl Identity {
    pub(crate) fn new(hook: Hook, plugin: &PolicyName, families: Arc<MetricFamilies>) -> Self {
        Self {
            log: PluginLog::new(hook, plugin.clone()),
            state: PluginState::default(),
            metrics: PluginMetrics::new(hook, plugin.clone(), families),
        }
    }
}
