//! What can be checked of a configuration before anything is loaded: `serve` and `check` ask the same.
use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::{Config, Listen, Origins};
use crate::error::ServerError;
use crate::tls::Certificate;
use crate::token;

/// What was found out on the way.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) listen: SocketAddr,
    /// `None`: no admin listener.
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Of the admin listener.
    pub(crate) token: Option<String>,
    /// `None`: plain HTTP.
    pub(crate) tls: Option<Arc<Certificate>>,
}

/// Resolves the addresses and reads the certificate.
///
/// # Errors
/// A host name without an address, or files that hold no certificate or key.
pub(crate) fn check(config: &Config) -> Result<Checked, ServerError> {
    let fixed = &config.fixed;
    let admin = Some(&fixed.admin.listen).filter(|listen| !listen.is_empty());
    let admin = admin.map(|listen| resolve("admin.listen", listen, &config.origins)).transpose()?;
    let token = fixed.admin.token_file().map(|path| token::read(path, &config.origins)).transpose()?;
    let guarded = fixed.admin.allow_remote && token.is_some();
    if let Some(address) = admin.filter(|address| !address.ip().is_loopback() && !guarded) {
        let why =
            "not a loopback address: the admin listener needs admin.allow-remote = true and admin.token-file for it";
        return Err(ServerError::value(&config.origins, "admin.listen", &address, why));
    }
    Ok(Checked {
        listen: resolve("listen", &fixed.listen, &config.origins)?,
        admin_listen: admin,
        token,
        tls: fixed.tls.files().map(|files| Certificate::read(files, &config.origins).map(Arc::new)).transpose()?,
    })
}

fn resolve(key: &str, listen: &Listen, origins: &Origins) -> Result<SocketAddr, ServerError> {
    listen.resolve().map_err(|error| ServerError::value(origins, key, listen, error))
}
