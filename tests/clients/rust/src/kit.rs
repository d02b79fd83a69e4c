//! Arguments, waits and the report of the suite: those of `kit.py`.
use std::fmt::Debug;
use std::time::{Duration, Instant};

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::{ApiErrorResponse, OpenAIError};
use serde_json::Value;

pub type Checked = Result<(), Box<dyn std::error::Error>>;
pub type Model = Client<OpenAIConfig>;

/// Bounds a wait that goes wrong; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(180);

/// The server under test, from the command line.
#[derive(Debug, Clone)]
pub struct Served {
    pub url: String,
    pub key: String,
    pub other_key: String,
    pub limited_key: String,
    admin: String,
}

impl Served {
    pub fn from_arguments() -> Option<Self> {
        let [url, key, other_key, limited_key, admin] = std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()?;
        Some(Self { url, key, other_key, limited_key, admin })
    }

    /// OpenAI's API with this key.
    pub fn client(&self, key: &str) -> Model {
        Client::with_config(OpenAIConfig::new().with_api_base(format!("{}/v1", self.url)).with_api_key(key))
    }

    async fn get(&self, address: &str) -> Result<Value, reqwest::Error> {
        reqwest::Client::new().get(address).bearer_auth(&self.key).send().await?.error_for_status()?.json().await
    }

    /// Waits until no request runs or waits.
    pub async fn until_idle(&self) -> Checked {
        let begun = Instant::now();
        loop {
            let stats = self.get(&format!("{}/server/stats", self.admin)).await?;
            let models = stats["models"].as_object().ok_or("no models")?;
            let count = |name: &str| models.values().filter_map(|model| model["queue"][name].as_u64()).sum::<u64>();
            if count("running") + count("waiting") == 0 {
                return Ok(());
            }
            check(begun.elapsed() < PATIENCE, "the server never became idle", &stats)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The id of a served model that embeds.
    pub async fn embedding_model(&self) -> Result<Option<String>, Box<dyn std::error::Error>> {
        let list = self.get(&format!("{}/v1/models", self.url)).await?;
        for model in list["data"].as_array().ok_or("no models")? {
            let id = model["id"].as_str().ok_or("no id")?;
            if self.get(&format!("{}/v1/models/{id}", self.url)).await?["task"] == "embed" {
                return Ok(Some(id.to_owned()));
            }
        }
        Ok(None)
    }
}

/// An error that shows the value unless the condition holds.
pub fn check(holds: bool, what: &str, value: &impl Debug) -> Checked {
    if holds { Ok(()) } else { Err(format!("{what}: {value:?}").into()) }
}

/// The error that the server answered with.
pub fn refused<T: Debug>(answer: Result<T, OpenAIError>) -> Result<ApiErrorResponse, Box<dyn std::error::Error>> {
    match answer {
        Err(OpenAIError::ApiError(error)) => Ok(error),
        other => Err(format!("not an error of the API: {other:?}").into()),
    }
}

/// What the behaviours did.
#[derive(Debug, Default)]
pub struct Report {
    passed: usize,
    failed: usize,
}

impl Report {
    pub fn note(&mut self, name: &str, found: Checked) {
        match found {
            Ok(()) => {
                self.passed += 1;
                println!("passed: {name}");
            }
            Err(error) => {
                self.failed += 1;
                println!("failed: {name}\n{error}");
            }
        }
    }

    /// Prints the last line. Whether all passed.
    pub fn end(&self) -> bool {
        match self.failed {
            0 => println!("{} passed", self.passed),
            failed => println!("{} passed, {failed} failed", self.passed),
        }
        self.failed == 0
    }
}
