//! Which proxy a request goes through, as the environment says.
use ureq::Proxy;
use url::Url;

use crate::address;
use crate::error::RegistryError;

/// The proxies of the environment. This machine is never asked through one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// HTTPS_PROXY, or ALL_PROXY.
    pub https: Option<String>,
    /// HTTP_PROXY, or ALL_PROXY.
    pub http: Option<String>,
    /// NO_PROXY: hosts, separated by commas. `example.org` and `.example.org` mean that host and those below it; `*`: all.
    pub none: Option<String>,
}

impl Proxies {
    /// The proxy to ask `url` through, if there is one.
    ///
    /// # Errors
    /// The environment names no proxy, but something else.
    pub(crate) fn for_url(&self, url: &Url) -> Result<Option<Proxy>, RegistryError> {
        let (variable, proxy) = match url.scheme() {
            "https" => ("HTTPS_PROXY or ALL_PROXY", &self.https),
            _ => ("HTTP_PROXY or ALL_PROXY", &self.http),
        };
        let Some(proxy) = proxy else { return Ok(None) };
        if address::is_loopback(url) || self.excepts(url) {
            return Ok(None);
        }
        // The value may hold a password, and is not repeated.
        let bad = |error: ureq::Error| RegistryError::value(variable, "…", format!("is no proxy's address: {error}"));
        Proxy::new(proxy).map(Some).map_err(bad)
    }

    fn excepts(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        let port = url.port_or_known_default();
        self.none.iter().flat_map(|list| list.split(',')).map(str::trim).any(|entry| {
            let entry = entry.to_ascii_lowercase();
            let (name, its_port) = match entry.rsplit_once(':') {
                Some((name, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) && !name.contains(':') => {
                    (name, digits.parse().ok())
                }
                _ => (entry.as_str(), None),
            };
            let name = name.trim_start_matches('*').trim_start_matches('.');
            let everything = entry == "*";
            let below = || host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            everything || (!name.is_empty() && below() && its_port.is_none_or(|its| Some(its) == port))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(none: &str, url: &str, proxied: bool) {
        let both = |proxy: &str| Some(proxy.to_owned());
        let proxies = Proxies { https: both("http://p:1"), http: both("http://p:2"), none: both(none) };
        let proxy = proxies.for_url(&Url::parse(url).unwrap()).unwrap();
        assert_eq!(proxy.is_some(), proxied, "{none:?} {url}");
    }

    #[test]
    fn each_scheme_has_its_proxy_and_some_hosts_have_none() {
        check("", "https://a.org/", true);
        check("", "http://a.org/", true);
        check("", "http://127.0.0.1:1/", false);
        check("", "http://localhost/", false);
        check("*", "https://a.org/", false);
        check("b.org, a.org", "https://a.org/", false);
        check(".a.org", "https://x.a.org/", false);
        check("*.a.org", "https://x.A.org/", false);
        check("a.org", "https://bada.org/", true);
        check("a.org:8443", "https://a.org/", true);
        check("a.org:8443", "https://a.org:8443/", false);
        check("10.0.0.1", "http://10.0.0.1/", false);
        let of = |proxies: Proxies, url: &str| proxies.for_url(&Url::parse(url).unwrap());
        let only = Proxies { https: Some("http://p:1".to_owned()), ..Proxies::default() };
        assert_eq!(of(only.clone(), "https://a.org").unwrap().unwrap().port(), 1);
        assert!(of(only, "http://a.org").unwrap().is_none());
        let bad = Proxies { https: Some("gopher://me:secret@p".to_owned()), ..Proxies::default() };
        let error = of(bad, "https://a.org").unwrap_err().to_string();
        assert!(error.contains("HTTPS_PROXY") && !error.contains("secret"), "{error}");
    }
}
