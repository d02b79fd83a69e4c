//! What an operation does to the adapters of a model that is in memory.
use std::sync::Arc;

use camshaft_api::{Adapter, AdapterRefusal, Adapters, ModelRefusal, NotAdded, WantedAdapter};

use super::ModelLife;
use super::order::Order;
use crate::config::{AdapterConfig, ModelConfig};
use crate::start::now;

impl ModelLife {
    /// Loads an adapter and has requests find it.
    ///
    /// # Errors
    /// It is bad, or its name is taken.
    pub(super) fn add_adapter(&self, order: &Order, wanted: &WantedAdapter) -> Result<Arc<Adapter>, AdapterRefusal> {
        let adapters = self.adapters(order)?;
        adapters.check(&wanted.id, wanted.scale)?;
        let WantedAdapter { id, path, scale } = wanted.clone();
        let added = AdapterConfig { id, path, scale };
        let mut config: ModelConfig = self.state().resident(&order.model)?.config.clone();
        config.adapter.push(added);
        self.state().check_names(&config)?;
        order.tell(&format!("loading the adapter {}", wanted.id), 0.0);
        let adapter = adapters.load(wanted, now())?;
        self.state().resident(&order.model)?.adapt(config.adapter);
        Ok(adapter)
    }

    /// Takes an adapter from new requests. False if there is none of this name.
    ///
    /// # Errors
    /// The model is not in memory.
    pub(super) fn remove_adapter(&self, order: &Order, id: &str) -> Result<bool, AdapterRefusal> {
        let removed = self.adapters(order)?.remove(id);
        let mut state = self.state();
        let resident = state.resident(&order.model)?;
        let others = resident.config.adapter.iter().filter(|adapter| adapter.id != id).cloned().collect();
        resident.adapt(others);
        Ok(removed)
    }

    /// Has a model have these adapters: loads those that it has not, or has otherwise, and takes the others from new requests. All
    /// is as before where one cannot be loaded.
    ///
    /// # Errors
    /// Why one cannot be loaded.
    pub(super) fn set_adapters(&self, order: &Order, wanted: Vec<AdapterConfig>) -> Result<(), String> {
        let said = |error: ModelRefusal| error.to_string();
        let adapters = self.adapters(order).map_err(|error| error.to_string())?;
        let before = self.state().resident(&order.model).map_err(said)?.config.adapter.clone();
        let of = |adapter: &AdapterConfig| {
            let AdapterConfig { id, path, scale } = adapter.clone();
            WantedAdapter { id, path, scale }
        };
        let all: Vec<WantedAdapter> = wanted.iter().map(of).collect();
        let is_as_before = |id: &str| {
            let find = |list: &[AdapterConfig]| list.iter().find(|adapter| adapter.id == id).cloned();
            find(&before) == find(&wanted)
        };
        order.tell("loading adapters", 0.0);
        adapters.set(&all, is_as_before, now()).map_err(|error| error.to_string())?;
        self.state().resident(&order.model).map_err(said)?.adapt(wanted);
        Ok(())
    }

    /// Notes what the file says of a model's adapters, once it is so.
    pub(super) fn note_listed(&self, order: &Order, listed: Vec<AdapterConfig>) {
        if let Ok(resident) = self.state().resident(&order.model) {
            resident.listed = listed;
        }
    }

    fn adapters(&self, order: &Order) -> Result<Arc<Adapters>, AdapterRefusal> {
        let api = self.api().ok_or(ModelRefusal::Ending)?;
        Ok(api.adapters(&order.model).ok_or(NotAdded::NoSource)?)
    }
}
