//! `ollama:NAME:TAG` and `HOST/NAMESPACE/NAME:TAG`: a manifest, one layer of which is the model.
use serde::Deserialize;
use url::Url;

use crate::address::{self, shown_url};
use crate::client::{Ask, Client};
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::file_name::FileName;
use crate::limits::{FILE_BYTES, LAYERS, MANIFEST_BYTES};
use crate::progress::Progress;
use crate::remote::{Remote, RemoteFile};
use crate::retry;
use crate::settings::Settings;
use crate::text::shown;

/// What is asked for.
const MANIFEST: &str =
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json";
/// The layer that is the model.
const MODEL: &str = "application/vnd.ollama.image.model";
/// Follows a refusal.
const HINT: &str = ": only what anybody may read can be pulled from such a registry";

/// A name in a registry.
pub(crate) struct Tagged<'a> {
    pub(crate) host: Option<&'a str>,
    pub(crate) namespace: &'a str,
    pub(crate) model: &'a str,
    pub(crate) tag: &'a str,
}

/// What is read of a manifest. Everything else in it, titles and paths among it, is left alone.
#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
}

/// Asks for the manifest and finds the model in it.
///
/// # Errors
/// There is no such name, no answer, or no model in it.
pub(crate) fn resolve(
    client: &Client,
    settings: &Settings,
    of: &Tagged<'_>,
    progress: &dyn Progress,
) -> Result<Remote, RegistryError> {
    let base = base(settings, of.host)?;
    let url = address_of(&base, of, ["manifests", of.tag])?;
    let ask = Ask::get(&url).header("accept", MANIFEST);
    let (text, named) = retry::until_answered(&settings.times, progress, &shown_url(&url), || {
        let mut answer = client.ask(&ask)?;
        if answer.status != 200 {
            return Err(answer.failure(HINT));
        }
        answer.check_coding()?;
        let named = answer.header("docker-content-digest").map(str::to_owned);
        Ok((answer.read_small(MANIFEST_BYTES)?, named))
    })?;
    let bad = |why: String| RegistryError::answer(shown_url(&url), why);
    let revision = format!("sha256:{}", Digest::of(&text));
    if let Some(named) = named.filter(|named| named.starts_with("sha256:") && *named != revision) {
        return Err(bad(format!("the manifest's digest is {revision}, and its server says {:?}", shown(&named))));
    }
    let layer = model(&text).map_err(bad)?;
    let name = format!("{}-{}.gguf", of.model, of.tag);
    let file = RemoteFile {
        name: FileName::new(&name).map_err(|why| RegistryError::value("source", &name, why.to_string()))?,
        url: address_of(&base, of, ["blobs", &format!("sha256:{}", layer.sha256)])?,
        secret: None,
        sha256: Some(layer.sha256),
        bytes: Some(layer.bytes),
        etag: None,
    };
    Ok(Remote { revision: Some(revision), files: vec![file], hint: HINT })
}

/// Another registry's scheme is https, unless it is on this machine.
fn base(settings: &Settings, host: Option<&str>) -> Result<Url, RegistryError> {
    let Some(host) = host else { return address::parse("models.ollama-registry", &settings.ollama_registry) };
    let plain = address::parse("source", &format!("http://{host}"))?;
    if address::is_loopback(&plain) { Ok(plain) } else { address::parse("source", &format!("https://{host}")) }
}

fn address_of(base: &Url, of: &Tagged<'_>, last: [&str; 2]) -> Result<Url, RegistryError> {
    let mut url = base.clone();
    let cannot = |()| RegistryError::value("models.ollama-registry", base.as_str(), "cannot be a base address");
    url.path_segments_mut().map_err(cannot)?.pop_if_empty().extend(["v2", of.namespace, of.model]).extend(last);
    Ok(url)
}

/// The layer that is the model.
#[derive(Debug, PartialEq)]
struct ModelLayer {
    sha256: Digest,
    bytes: u64,
}

/// Finds it in the text of a manifest, which may be anybody's.
fn model(text: &[u8]) -> Result<ModelLayer, String> {
    let manifest: Manifest = serde_json::from_slice(text).map_err(|error| format!("no manifest: {error}"))?;
    if manifest.schema_version != 2 {
        return Err(format!("a manifest of version {}, known is 2", manifest.schema_version));
    }
    if manifest.layers.len() > LAYERS {
        return Err(format!("a manifest of {} layers, at most {LAYERS} are read", manifest.layers.len()));
    }
    let mut models = manifest.layers.iter().filter(|layer| layer.media_type == MODEL);
    let layer = match (models.next(), models.next()) {
        (Some(layer), None) => layer,
        (None, _) => return Err(format!("the manifest has no layer of type {MODEL}")),
        (Some(_), Some(_)) => return Err(format!("the manifest has several layers of type {MODEL}")),
    };
    let sha256 = layer.digest.strip_prefix("sha256:").and_then(|digits| digits.parse().ok());
    let sha256 = sha256.ok_or_else(|| format!("the layer's digest {:?} is no sha256", shown(&layer.digest)))?;
    if layer.size > FILE_BYTES {
        return Err(format!("the layer has {} bytes, at most {FILE_BYTES} are taken", layer.size));
    }
    Ok(ModelLayer { sha256, bytes: layer.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(digest: &str, size: &str) -> String {
        let layer = format!("{{\"mediaType\":\"{MODEL}\",\"digest\":\"{digest}\",\"size\":{size}}}");
        let licence = "{\"mediaType\":\"application/vnd.ollama.image.license\",\"digest\":\"sha256:../../x\",\"size\":1,\
            \"annotations\":{\"org.opencontainers.image.title\":\"../../etc/passwd\"}}";
        format!("{{\"schemaVersion\":2,\"layers\":[{licence},{layer}]}}")
    }

    #[test]
    fn the_model_is_the_layer_of_its_type() {
        let digest = Digest::of(b"x");
        let found = model(manifest(&format!("sha256:{digest}"), "7").as_bytes());
        assert_eq!(found, Ok(ModelLayer { sha256: digest, bytes: 7 }));
    }

    #[test]
    fn hostile_manifests_are_refused_and_cut_in_the_message() {
        let good = format!("sha256:{}", Digest::of(b"x"));
        let two = format!("{{\"mediaType\":\"{MODEL}\",\"digest\":\"{good}\",\"size\":1}}");
        let many = vec![two.as_str(); LAYERS + 1].join(",");
        for bad in [
            manifest("sha256:../../../etc/passwd", "1"),
            manifest("../../../etc/passwd", "1"),
            manifest(&good.replace("sha256", "md5"), "1"),
            manifest(&format!("sha256:{}", "a".repeat(1 << 19)), "1"),
            manifest(&good, "-1"),
            manifest(&good, "18446744073709551616"),
            manifest(&good, &(FILE_BYTES + 1).to_string()),
            manifest(&good, "1").replace("\"schemaVersion\":2", "\"schemaVersion\":1"),
            format!("{{\"schemaVersion\":2,\"layers\":[{two},{two}]}}"),
            format!("{{\"schemaVersion\":2,\"layers\":[{many}]}}"),
            "{\"schemaVersion\":2,\"layers\":[]}".to_owned(),
            "[".repeat(1 << 20),
            String::new(),
        ] {
            let error = model(bad.as_bytes()).expect_err(&bad[..bad.len().min(200)]);
            assert!(error.len() < 500, "{error:.600}");
        }
        assert!(model(manifest(&good, &FILE_BYTES.to_string()).as_bytes()).is_ok(), "at the bound");
    }
}
