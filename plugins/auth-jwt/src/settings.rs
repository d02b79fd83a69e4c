//! The settings file of the policy.
use std::collections::BTreeMap;

use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Name of the document that holds the JWK set.
    pub jwks: Option<String>,
    /// Name of the secret of HS256.
    pub secret: Option<String>,
    /// Default: all that the keys are for.
    pub algorithms: Option<Vec<Algorithm>>,
    /// Default: any.
    pub issuers: Option<Vec<String>>,
    pub audiences: Option<Vec<String>>,
    /// Seconds by which clocks may differ.
    #[serde(default = "usual_leeway")]
    pub leeway: u32,
    #[serde(default)]
    pub claims: ClaimNames,
    /// Tenant of callers whose token names none. Default: such a token is refused.
    pub tenant: Option<String>,
    pub admin: Option<Admin>,
    #[serde(default)]
    pub priority: PriorityClass,
    /// Classes by the values of the priority claim.
    #[serde(default)]
    pub priorities: BTreeMap<String, PriorityClass>,
    #[serde(default)]
    pub limits: LimitSettings,
}

/// How a token may be signed (RFC 7518, RFC 8037).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Algorithm {
    HS256,
    RS256,
    ES256,
    EdDSA,
}

impl Algorithm {
    /// `None` for any other, `none` among them.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "HS256" => Some(Self::HS256),
            "RS256" => Some(Self::RS256),
            "ES256" => Some(Self::ES256),
            "EdDSA" => Some(Self::EdDSA),
            _ => None,
        }
    }
}

/// `[settings.claims]`: a claim's name, or a JSON pointer (RFC 6901), which begins with `/`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ClaimNames {
    pub tenant: String,
    pub name: String,
    pub priority: Option<String>,
    pub models: Option<String>,
    pub requests_per_minute: Option<String>,
    pub tokens_per_minute: Option<String>,
    pub concurrent_requests: Option<String>,
}

impl Default for ClaimNames {
    fn default() -> Self {
        Self {
            tenant: "tenant".to_owned(),
            name: "sub".to_owned(),
            priority: None,
            models: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            concurrent_requests: None,
        }
    }
}

/// `[settings.admin]`: whose claim has this value, or a list with it, belongs to this tenant, and nobody else does.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    pub claim: String,
    pub value: String,
    pub tenant: String,
}

/// `[settings.limits]`, where a token's claims say nothing else.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct LimitSettings {
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u32>,
    pub concurrent_requests: Option<u32>,
}

/// A priority class by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    High,
    #[default]
    Normal,
    Low,
}

fn usual_leeway() -> u32 {
    60
}

/// Seconds of leeway.
const LEEWAY_MAX: u32 = 600;
/// Of a tenant; the host takes no longer ones.
pub(crate) const TENANT_CHARACTERS: usize = 128;
/// The tenant of callers without a credential. On loopback addresses they count as operators.
const ANONYMOUS: &str = "anonymous";

impl Settings {
    /// # Errors
    /// Names the first setting that is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.jwks.is_none() && self.secret.is_none() {
            return Err("settings.jwks or settings.secret must name where the keys are".to_owned());
        }
        if self.leeway > LEEWAY_MAX {
            return Err(format!("settings.leeway is {} seconds, at most {LEEWAY_MAX} are allowed", self.leeway));
        }
        for algorithm in self.algorithms.iter().flatten() {
            let key = if *algorithm == Algorithm::HS256 { &self.secret } else { &self.jwks };
            if key.is_none() {
                let name = if *algorithm == Algorithm::HS256 { "secret" } else { "jwks" };
                return Err(format!("settings.algorithms has {algorithm:?}, which needs settings.{name}"));
            }
        }
        for (name, list) in [("issuers", &self.issuers), ("audiences", &self.audiences)] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("settings.{name} is empty: leave it out if any is allowed"));
            }
        }
        let admin = self.admin.as_ref().map(|admin| &admin.tenant);
        for (name, tenant) in [("tenant", self.tenant.as_ref()), ("admin.tenant", admin)] {
            let characters = tenant.map_or(1, |tenant| tenant.chars().count());
            if !(1..=TENANT_CHARACTERS).contains(&characters) {
                return Err(format!(
                    "settings.{name} has {characters} characters, 1 to {TENANT_CHARACTERS} are allowed"
                ));
            }
        }
        let tenants = self.tenant.iter().chain(admin);
        if tenants.clone().any(|tenant| tenant == ANONYMOUS) {
            return Err(format!("tenant {ANONYMOUS:?} is that of callers without a credential"));
        }
        if let (Some(admin), Some(tenant)) = (&self.admin, &self.tenant)
            && admin.tenant == *tenant
        {
            return Err(format!("settings.tenant {tenant:?} is that of settings.admin"));
        }
        Ok(())
    }

    /// Whether tokens may be signed this way.
    pub(crate) fn allows(&self, algorithm: Algorithm) -> bool {
        match &self.algorithms {
            Some(algorithms) => algorithms.contains(&algorithm),
            // With a key set alone, HS256 finds no secret.
            None => true,
        }
    }

    /// Whether a token's own claim may name this tenant.
    pub(crate) fn may_be_claimed(&self, tenant: &str) -> bool {
        tenant != ANONYMOUS && self.admin.as_ref().is_none_or(|admin| admin.tenant != tenant)
    }
}
