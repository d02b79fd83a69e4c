//! Follows the configuration file: what it says of models otherwise than before is carried out in the background.
use std::sync::MutexGuard;

use camshaft_api::{Absence, Change};

use super::ModelLife;
use super::state::{self, Origin, Resident, State, Wish};
use crate::config::{LoadKey, ModelConfig};

impl ModelLife {
    /// Carries out what the file says otherwise than before, and what of it could not be done before: loads, swaps and unloads in
    /// the background.
    pub(crate) fn follow(&self, old: &[ModelConfig], new: &[ModelConfig]) {
        // First, because it has memory to give back.
        let gone = old.iter().filter(|before| new.iter().all(|config| config.id != before.id));
        for before in gone {
            self.want_gone(&before.id);
        }
        for config in new {
            let before = old.iter().find(|before| before.id == config.id);
            let is_behind = self.state().residents.get(&config.id).is_some_and(Resident::is_behind);
            if is_behind || before.is_none_or(|before| !state::same(before, config)) {
                self.want(config);
            }
        }
    }

    pub(super) fn want(&self, config: &ModelConfig) {
        let id = &config.id;
        let mut state = self.state();
        let Some(resident) = state.residents.get_mut(id) else {
            state.residents.insert(id.clone(), Resident::new(config.clone(), Origin::File));
            return self.begin_wanted(state, config);
        };
        if resident.operation.is_some() {
            resident.next = Some(wish(config));
            return;
        }
        // Whatever waited is said otherwise now.
        resident.next = None;
        resident.origin = Origin::File;
        let (wanted, listed) = (resident.followed(config), config.adapter.clone());
        if !resident.is_loaded() {
            (resident.config, resident.listed) = (wanted, listed);
            return self.begin_wanted(state, config);
        }
        if !state::same_weights(&resident.config, config) {
            return self.begin_unattended(state, Change::Swap, wish(config), move |life, order| {
                life.swap_to(order, wanted)?;
                life.note_listed(order, listed);
                Ok(())
            });
        }
        let adapters = resident.config.adapter.clone();
        let same_adapters = adapters == wanted.adapter;
        let reconfigured = ModelConfig { adapter: adapters, ..wanted.clone() };
        if let Err(error) = resident.reconfigure(reconfigured, &self.setup.starter.promised) {
            tracing::error!(model = id, error, "the model is not changed");
            resident.fail(&error, true);
            return;
        }
        resident.last_error = None;
        // Under the lock: of two that are set at once, the one that is kept is in force.
        if let Some(api) = self.api() {
            api.set_naming(&config.naming());
            api.set_sampling(id, (&config.sampling).into());
        }
        if !same_adapters {
            self.begin_unattended(state, Change::Adapters, wish(config), move |life, order| {
                life.set_adapters(order, wanted.adapter)?;
                life.note_listed(order, listed);
                Ok(())
            });
        }
    }

    /// Loads a model that is to be in memory, and says of the others that they sleep.
    fn begin_wanted(&self, state: MutexGuard<'_, State>, config: &ModelConfig) {
        let Some(api) = self.api() else { return };
        if config.load == LoadKey::OnDemand {
            // Before somebody can wake it.
            return self.say_asleep(&api, config);
        }
        // Before it may be there.
        api.publish_absent(config.naming(), config.expected_kind(), Absence::Loading);
        self.begin_unattended(state, Change::Load, wish(config), Self::load_now);
    }

    pub(super) fn want_gone(&self, id: &str) {
        let mut state = self.state();
        if state.stop_load(id).is_some() {
            return;
        }
        let Some(resident) = state.residents.get_mut(id) else { return };
        if resident.operation.is_some() {
            resident.next = Some(Wish::Gone(id.to_owned()));
            return;
        }
        resident.next = None;
        self.begin_unattended(state, Change::Unload, Wish::Gone(id.to_owned()), Self::unload_now);
    }
}

fn wish(config: &ModelConfig) -> Wish {
    Wish::Present(Box::new(config.clone()))
}
