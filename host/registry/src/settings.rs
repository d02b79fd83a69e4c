//! What the registry is made with, and what the environment says of it.
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::address;
use crate::error::RegistryError;
use crate::limits::TOKEN_BYTES;
use crate::proxies::Proxies;

/// Where Hugging Face is.
const HF_ENDPOINT: &str = "https://huggingface.co";
/// Where models without a host are.
const OLLAMA_REGISTRY: &str = "https://registry.ollama.ai";

/// What a [`Registry`](crate::Registry) is made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The cache. Made if it is not there.
    pub dir: PathBuf,
    /// Bytes that it holds at most, once a pull is done. 0: no bound but the disk.
    pub bytes_max: u64,
    /// The base of `hf:` sources.
    pub hf_endpoint: String,
    /// Sent to `hf_endpoint` alone.
    pub hf_token: Option<Token>,
    /// The base of `ollama:` sources.
    pub ollama_registry: String,
    /// Ask other machines without TLS, too.
    pub allow_http: bool,
    pub proxies: Proxies,
    pub times: Times,
}

/// How long the registry waits, and how often it tries.
#[derive(Debug, Clone)]
pub struct Times {
    /// Without progress: 4 KiB, or what is left of a file.
    pub stall: Duration,
    /// To connect.
    pub connect: Duration,
    /// Attempts in a row without progress (1 MiB).
    pub attempts: u32,
    /// Before the second attempt; doubles.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Between looks at a lock that somebody holds.
    pub look: Duration,
    /// For the lock over the cache's tables, which is held for moments.
    pub lock: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(30),
            connect: Duration::from_secs(15),
            attempts: 5,
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
            look: Duration::from_millis(200),
            lock: Duration::from_secs(60),
        }
    }
}

/// A secret that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// # Errors
    /// It is empty, longer than 4 KiB, or not of visible ASCII characters.
    pub fn new(what: &'static str, token: &str) -> Result<Self, RegistryError> {
        let token = token.trim();
        let good = (1..=TOKEN_BYTES).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
        let why = || format!("must have 1 to {TOKEN_BYTES} visible ASCII characters");
        if good { Ok(Self(token.to_owned())) } else { Err(RegistryError::value(what, "…", why())) }
    }

    /// The value of an `Authorization` header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What the environment says. Made from variables that somebody else has read.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub dir: Option<PathBuf>,
    pub hf_endpoint: Option<String>,
    pub hf_token: Option<Token>,
    pub proxies: Proxies,
}

impl Environment {
    /// `variable`: a variable's value. Empty ones count as unset. Lower-case names of proxies are read, too, and win.
    ///
    /// # Errors
    /// HF_TOKEN is no token.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, RegistryError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let either = |name: &str| set(&name.to_ascii_lowercase()).or_else(|| set(name));
        let all = either("ALL_PROXY");
        let absolute = |name: &str| set(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let above = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        Ok(Self {
            dir: above.map(|above| above.join("camshaft/models")),
            hf_endpoint: set("HF_ENDPOINT"),
            hf_token: set("HF_TOKEN").map(|token| Token::new("HF_TOKEN", &token)).transpose()?,
            proxies: Proxies {
                https: either("HTTPS_PROXY").or_else(|| all.clone()),
                http: either("HTTP_PROXY").or(all),
                none: either("NO_PROXY"),
            },
        })
    }
}

impl Settings {
    /// With what the environment says, and defaults for the rest.
    ///
    /// # Errors
    /// Neither XDG_CACHE_HOME nor HOME is set, and no `dir` is given.
    pub fn new(dir: Option<PathBuf>, environment: Environment) -> Result<Self, RegistryError> {
        Ok(Self {
            dir: dir.or(environment.dir).ok_or(RegistryError::NoDirectory)?,
            bytes_max: 0,
            hf_endpoint: environment.hf_endpoint.unwrap_or_else(|| HF_ENDPOINT.to_owned()),
            hf_token: environment.hf_token,
            ollama_registry: OLLAMA_REGISTRY.to_owned(),
            allow_http: false,
            proxies: environment.proxies,
            times: Times::default(),
        })
    }

    /// # Errors
    /// An address is none.
    pub(crate) fn check(&self) -> Result<(), RegistryError> {
        for (what, text) in
            [("models.hf-endpoint", &self.hf_endpoint), ("models.ollama-registry", &self.ollama_registry)]
        {
            let url = address::parse(what, text)?;
            address::check_open(what, &url, self.allow_http)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let of = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Environment::of(of).unwrap()
    }

    #[test]
    fn the_cache_lies_where_the_environment_says() {
        let dir = |variables: &[(&str, &str)]| environment(variables).dir;
        assert_eq!(dir(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Some("/c/camshaft/models".into()));
        assert_eq!(dir(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]), Some("/h/.cache/camshaft/models".into()));
        assert_eq!(dir(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]), Some("/h/.cache/camshaft/models".into()));
        assert_eq!(dir(&[]), None);
        assert!(matches!(Settings::new(None, Environment::default()), Err(RegistryError::NoDirectory)));
    }

    #[test]
    fn proxies_come_from_the_environment_the_special_one_first() {
        let of = |variables: &[(&str, &str)]| environment(variables).proxies;
        let all = of(&[("ALL_PROXY", "socks5://a")]);
        assert_eq!((all.https.as_deref(), all.http.as_deref()), (Some("socks5://a"), Some("socks5://a")));
        let one = of(&[
            ("ALL_PROXY", "a"),
            ("HTTPS_PROXY", "b"),
            ("http_proxy", "c"),
            ("HTTP_PROXY", "d"),
            ("NO_PROXY", "e"),
        ]);
        assert_eq!((one.https.as_deref(), one.http.as_deref(), one.none.as_deref()), (Some("b"), Some("c"), Some("e")));
    }

    #[test]
    fn a_token_is_visible_ascii_and_never_shown() {
        let token = Token::new("HF_TOKEN", " hf_x\n").unwrap();
        assert_eq!((token.bearer().as_str(), format!("{token:?}").as_str()), ("Bearer hf_x", "Token(…)"));
        assert!(Token::new("HF_TOKEN", &"x".repeat(4096)).is_ok());
        for bad in ["", "a b", "a\nb", "é", &"x".repeat(4097)] {
            let error = Token::new("HF_TOKEN", bad).unwrap_err().to_string();
            assert!(error.contains("HF_TOKEN") && error.len() < 200, "{error}");
        }
    }
}
