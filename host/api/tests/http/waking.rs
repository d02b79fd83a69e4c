//! Which requests have the model loaded that another one stands in for.
use std::sync::{Arc, Mutex};

use camshaft_api::backend::Naming;
use camshaft_api::{Absence, FixedModels, ModelControl, ModelRefusal, Operation, Residence, Woken};
use camshaft_core::policy::ValidateOutcome;
use serde_json::{Map, Value, json};

use crate::fixture::Server;
use crate::policies::{Rules, refusal};

/// Models that stay what they are, and the names of those that were to be woken.
#[derive(Debug, Default)]
struct Woke(Mutex<Vec<String>>);

impl ModelControl for Woke {
    fn residence(&self, id: &str) -> Option<Residence> {
        FixedModels.residence(id)
    }
    fn load(&self, settings: Map<String, Value>) -> Result<Operation, ModelRefusal> {
        FixedModels.load(settings)
    }
    fn swap(&self, id: &str, settings: Map<String, Value>) -> Result<Operation, ModelRefusal> {
        FixedModels.swap(id, settings)
    }
    fn unload(&self, id: &str) -> Result<Operation, ModelRefusal> {
        FixedModels.unload(id)
    }
    fn set_weight(&self, id: &str, weight: f64) -> Result<(), ModelRefusal> {
        FixedModels.set_weight(id, weight)
    }
    fn set_limits(&self, id: &str, limits: Map<String, Value>) -> Result<(), ModelRefusal> {
        FixedModels.set_limits(id, limits)
    }
    fn operation(&self, id: &str) -> Option<Operation> {
        FixedModels.operation(id)
    }
    fn operations(&self) -> Vec<Operation> {
        FixedModels.operations()
    }
    fn wake(&self, id: &str) -> Result<Woken, ModelRefusal> {
        self.0.lock().unwrap().push(id.to_owned());
        FixedModels.wake(id)
    }
}

#[tokio::test]
async fn regression_only_a_request_that_is_served_wakes_the_model_behind_its_fallback() {
    let woke = Arc::new(Woke::default());
    let rules = Rules::default().validator(|request| match request.max_tokens {
        7 => ValidateOutcome::Refuse(refusal(403, "policy_refused")),
        _ => ValidateOutcome::Accept,
    });
    let server = Server::living(woke.clone(), rules);
    let naming = Naming { fallback: Some("demo".to_owned()), ..Naming::of("big") };
    server.api.publish_absent(naming, None, Absence::Asleep);
    let ask = async |more: Value| {
        let mut body = json!({"model": "big"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.chat(body).await
    };
    assert_eq!(ask(json!({"temperature": 3})).await.status, 400);
    assert_eq!(ask(json!({"max_tokens": 7})).await.status, 403);
    assert!(woke.0.lock().unwrap().is_empty(), "whoever is refused has nothing loaded");
    assert_eq!(ask(json!({})).await.status, 200);
    assert_eq!(*woke.0.lock().unwrap(), ["big"]);
}
