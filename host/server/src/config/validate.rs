//! What must hold between the values of a configuration that is well-formed.
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;

use camshaft_api::is_adapter_name;
use camshaft_core::limits;
use camshaft_policy::WrongGrant;
use camshaft_registry::Source;
use serde_json::json;

use super::Config;
use super::choices::{FlashKey, KindKey, KvLayoutKey, KvTypeKey};
use super::error::Wrong;
use super::fixed::{ClientAuth, Fixed};
use super::live::Live;
use super::model::ModelConfig;
use super::tree::{Node, Source as Origin};
use super::values::Auto;

/// Names of models in an error, at most.
const SHOWN_NAMES: usize = 10;
/// The words for how much is logged.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Everything that is wrong. `tree` tells what was set from what is a default.
pub(super) fn validate(config: &Config, tree: &Node) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    live(&config.live, tree, &mut wrong);
    fixed(&config.fixed, tree, &mut wrong);
    for (i, model) in config.live.model.iter().enumerate() {
        let earlier = &config.live.model[..i];
        one_model(model, earlier, &mut |key, why| wrong.push(Wrong::new(format!("model.{i}.{key}"), why)));
    }
    wrong
}

/// Fallbacks that are none of the models.
pub(super) fn fallbacks(models: &[ModelConfig]) -> Vec<Wrong> {
    let names = |model: &ModelConfig| [model.id.clone(), model.naming().name].into_iter().chain(model.aliases.clone());
    let known: BTreeSet<String> = models.iter().flat_map(names).collect();
    let mut wrong = Vec::new();
    for (i, model) in models.iter().enumerate() {
        let Some(fallback) = model.fallback.as_ref().filter(|fallback| !known.contains(*fallback)) else { continue };
        let own: BTreeSet<String> = names(model).collect();
        let others: Vec<&str> = known.difference(&own).map(String::as_str).take(SHOWN_NAMES).collect();
        let others = if others.is_empty() { "there is no other".to_owned() } else { others.join(", ") };
        let why = format!("must be the name of another model ({others}), got {fallback:?}");
        wrong.push(Wrong::new(format!("model.{i}.fallback"), why));
    }
    wrong
}

fn live(live: &Live, tree: &Node, wrong: &mut Vec<Wrong>) {
    let queue = &live.queue;
    let (high, low) = (queue.high_watermark, queue.low_watermark());
    if low >= high {
        let most = high.saturating_sub(1);
        wrong.push(Wrong::new("queue.low-watermark", format!("must be between 0 and {most}, got {low}")));
    }
    if queue.max_timeout < queue.timeout {
        let (timeout, max) = (queue.timeout, queue.max_timeout);
        // The one that somebody set is at fault.
        wrong.push(match is_set(tree, "queue.max-timeout") {
            true => Wrong::new("queue.max-timeout", format!("must be at least queue.timeout ({timeout}), got {max}")),
            false => Wrong::new("queue.timeout", format!("must be at most queue.max-timeout ({max}), got {timeout}")),
        });
    }
    if let Err(WrongGrant { index, key, why }) = live.policy.grants() {
        wrong.push(Wrong::new(format!("policy.grant.{index}.{key}"), why));
    }
    wrong.extend(log_level(&live.log.level).map(|why| Wrong::new("log.level", why)));
}

/// A bare word that is no level would silence everything else: `tracing` takes it for a module. So would exceptions without a level:
/// nothing says what holds for the rest.
fn log_level(level: &str) -> Option<String> {
    let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
    let is_module = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-.:".contains(&c))
    };
    let is_exception =
        |word: &str| word.split_once('=').is_some_and(|(module, level)| is_module(module) && is_level(level));
    let words: Vec<&str> = level.split(',').map(str::trim).collect();
    let levels = words.iter().filter(|word| is_level(word)).count();
    let is_good = levels == 1 && words.iter().all(|word| is_level(word) || is_exception(word));
    let known = LEVELS.join(", ");
    (!is_good).then(|| {
        format!("must be one of {known}, or one of them and exceptions as in info,llama.cpp=debug; got {level:?}")
    })
}

/// Why spans cannot be sent there.
fn endpoint(endpoint: &str) -> Option<String> {
    let why = match endpoint.parse::<http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty()) => return None,
        Ok(uri) if uri.scheme_str() == Some("https") => " (spans are sent without TLS)".to_owned(),
        Ok(_) => String::new(),
        Err(error) => format!(" ({error})"),
    };
    Some(format!("must be a URL such as http://127.0.0.1:4317, got {endpoint:?}{why}"))
}

fn fixed(fixed: &Fixed, tree: &Node, wrong: &mut Vec<Wrong>) {
    if fixed.listen.is_empty() {
        wrong.push(Wrong::new("listen", "must be an address and port, got \"\""));
    }
    // Port 0 is another one each time.
    if !fixed.listen.is_empty() && fixed.listen == fixed.admin.listen && !fixed.listen.to_string().ends_with(":0") {
        let why = format!("must be another address than listen, got {:?}", fixed.admin.listen.to_string());
        wrong.push(Wrong::new("admin.listen", why));
    }
    let disk = &fixed.cache;
    let says_how_much = is_set(tree, "cache.disk");
    if disk.disk.0 > 0 && disk.dir().is_none() {
        wrong.push(Wrong::new("cache.disk", format!("is {}, but cache.disk-dir does not say where", disk.disk)));
    }
    if disk.dir().is_some() && !says_how_much {
        wrong.push(Wrong::new("cache.disk-dir", "is set, but cache.disk does not say how much to keep there"));
    }
    match (&fixed.tls.cert, &fixed.tls.key) {
        (Some(_), None) => wrong.push(Wrong::new("tls.cert", "is set, but tls.key is not")),
        (None, Some(_)) => wrong.push(Wrong::new("tls.key", "is set, but tls.cert is not")),
        _ => {}
    }
    match (&fixed.tls.client_ca, fixed.tls.client_auth) {
        (None, ClientAuth::None) => {}
        (None, _) => {
            wrong.push(Wrong::new("tls.client-auth", "asks for certificates, but tls.client-ca does not say whose"))
        }
        (Some(_), ClientAuth::None) => {
            wrong.push(Wrong::new("tls.client-ca", "is set, but tls.client-auth does not ask for certificates"));
        }
        (Some(_), _) if fixed.tls.cert.is_none() => {
            wrong.push(Wrong::new("tls.client-auth", "asks for certificates, but without tls.cert there is no TLS"));
        }
        (Some(_), _) => {}
    }
    for origin in &fixed.cors.origins {
        let good = origin == "*" || origin.starts_with("http://") || origin.starts_with("https://");
        if !good || origin.bytes().any(|b| !b.is_ascii_graphic()) {
            let why = format!("must be origins such as https://example.org, or *, got {origin:?}");
            wrong.push(Wrong::new("cors.origins", why));
        }
    }
    let why = fixed.telemetry.endpoint().and_then(endpoint);
    wrong.extend(why.map(|why| Wrong::new("telemetry.otlp-endpoint", why)));
}

/// Whether a key has a value from somewhere, rather than its default.
fn is_set(tree: &Node, key: &str) -> bool {
    !matches!(tree.source(key), None | Some(Origin::Default))
}

fn one_model(model: &ModelConfig, earlier: &[ModelConfig], wrong: &mut impl FnMut(&str, String)) {
    let id = &model.id;
    if id.is_empty() || id.chars().count() > 256 || id.chars().any(char::is_control) {
        wrong("id", format!("must have 1 to 256 characters, none of them a control character, got {id:?}"));
    }
    if earlier.iter().any(|other| other.id == *id) {
        wrong("id", format!("must be another for each model, got {id:?} twice"));
    }
    if let Some(digest) = &model.sha256
        && !(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        wrong("sha256", format!("must be 64 hexadecimal digits, got {digest:?}"));
    }
    naming(model, earlier, wrong);
    source(model, wrong);
    let files = [
        ("path", &model.path),
        ("lora", &model.lora),
        ("draft-model", &model.draft_model),
        ("chat-template", &model.chat_template),
    ];
    for (key, path) in files {
        if let Some(path) = path.as_ref().filter(|path| path.as_os_str().as_bytes().contains(&0)) {
            wrong(key, format!("must be a path without NUL, got {path:?}"));
        }
    }
    adapters(model, earlier, wrong);
    let sequences = model.least_sequences();
    // Each sequence's part is at least as much as a worker needs.
    let parts = model.kv_layout == Auto::Set(KvLayoutKey::PerSequence);
    if let Some(context) = model.context_tokens.set().filter(|&context| parts && context < 16 * sequences) {
        let least = 16 * sequences;
        wrong("context-tokens", format!("must be at least {least} for {sequences} separate sequences, got {context}"));
    }
    if let Some(batch) = model.batch_tokens.set().filter(|&batch| batch < sequences) {
        wrong("batch-tokens", format!("must be at least model.sequences ({sequences}), got {batch}"));
    }
    gpus(model, earlier, wrong);
    if model.draft_model.is_some() && model.draft_tokens() == 0 {
        wrong("draft-tokens", "must be at least 1 with a draft model, got 0".to_owned());
    }
    if model.embeddings && model.kind == KindKey::Generate {
        wrong("kind", "is \"generate\", but embeddings = true says \"embed\"".to_owned());
    }
    match model.kind {
        KindKey::Generate if !model.dimensions.is_empty() => {
            wrong("dimensions", "is only for models that embed".to_owned());
        }
        KindKey::Embed | KindKey::Predict if !model.adapter.is_empty() => {
            wrong("adapter", "is only for models that generate".to_owned());
        }
        KindKey::Embed if model.lora.is_some() => wrong("lora", "is only for models that generate".to_owned()),
        KindKey::Embed if model.draft_tokens() > 0 => {
            let key = if model.draft_model.is_some() { "draft-model" } else { "draft-tokens" };
            wrong(key, "is only for models that generate".to_owned());
        }
        _ => {}
    }
}

fn adapters(model: &ModelConfig, earlier: &[ModelConfig], wrong: &mut impl FnMut(&str, String)) {
    let (all, most) = (&model.adapter, limits::ADAPTERS_OF_MODEL);
    if all.len() > most {
        wrong("adapter", format!("must be at most {most}, got {}", all.len()));
    }
    for (i, adapter) in all.iter().enumerate().take(most) {
        let mut wrong = |key: &str, why: String| wrong(&format!("adapter.{i}.{key}"), why);
        let (id, path) = (&adapter.id, &adapter.path);
        if path.as_os_str().is_empty() {
            wrong("path", "must be set".to_owned());
            continue;
        }
        if path.as_os_str().as_bytes().contains(&0) {
            wrong("path", format!("must be a path without NUL, got {path:?}"));
        }
        if !is_adapter_name(id) {
            let most = limits::NAME_CHARS;
            let why = format!("must have 1 to {most} characters, no colon and no control character, got {id:?}");
            wrong("id", why);
        }
        if all[..i].iter().any(|other| other.id == *id) {
            wrong("id", format!("must be another for each adapter of a model, got {id:?} twice"));
        }
        if !adapter.scale.is_finite() {
            wrong("scale", format!("must be finite, got {}", adapter.scale));
        }
    }
    // Requests could not tell them apart.
    let names = |of: &ModelConfig| [of.id.clone(), of.naming().name].into_iter().chain(of.aliases.clone());
    let adapter = |base: &ModelConfig, name: &str| {
        let (of, adapter) = name.rsplit_once(':')?;
        let has = base.adapter.iter().any(|of| of.id == adapter);
        (has && names(base).any(|name| name == of)).then(|| name.to_owned())
    };
    let clash = |a: &ModelConfig, b: &ModelConfig| names(a).find_map(|name| adapter(b, &name));
    let one =
        std::iter::once(model).chain(earlier).find_map(|other| clash(model, other).or_else(|| clash(other, model)));
    if let Some(name) = one {
        let key = if names(model).take(2).any(|own| own == name) { "id" } else { "aliases" };
        wrong(key, format!("must not be the name of a model with an adapter, got {name:?}"));
    }
}

/// Checks a model beside others that are served.
///
/// # Errors
/// Which of its values clashes with one of theirs.
pub(crate) fn beside<'a>(model: &ModelConfig, others: impl Iterator<Item = &'a ModelConfig>) -> Result<(), String> {
    let (others, mut wrong) = (others.cloned().collect::<Vec<_>>(), None);
    one_model(model, &others, &mut |key, why| _ = wrong.get_or_insert(format!("{key} {why}")));
    wrong.map_or(Ok(()), Err)
}

/// Names that lead to one model only, or to the versions of one.
fn naming(model: &ModelConfig, earlier: &[ModelConfig], wrong: &mut impl FnMut(&str, String)) {
    let naming = model.naming();
    if naming.name.is_empty()
        || naming.version.as_ref().is_some_and(|version| version.is_empty() || version.contains('@'))
    {
        wrong("id", format!("must be a name, or a name and a version (name@version), got {:?}", model.id));
    }
    let is_bad = |name: &String| {
        name.is_empty() || name.chars().count() > limits::NAME_CHARS || name.chars().any(char::is_control)
    };
    if let Some(alias) = model.aliases.iter().find(|alias| is_bad(alias)) {
        wrong(
            "aliases",
            format!(
                "must have 1 to {} characters each, none of them a control character, got {alias:?}",
                limits::NAME_CHARS
            ),
        );
    }
    for other in earlier {
        let its = other.naming();
        if let Some(alias) = model.aliases.iter().find(|alias| **alias == other.id || **alias == its.name) {
            wrong("aliases", format!("must be other names than those of models, got {alias:?}"));
        }
        let both = model.aliases.iter().find(|alias| its.name != naming.name && its.aliases.contains(alias));
        if let Some(alias) = both {
            wrong("aliases", format!("must lead to one model, got {alias:?}, which {:?} has, too", other.id));
        }
        if let Some(alias) = its.aliases.iter().find(|alias| **alias == model.id || **alias == naming.name) {
            wrong("id", format!("must be another than the alias {alias:?} of {:?}", other.id));
        }
    }
    if let Some(fallback) = model.fallback.as_ref().filter(|to| is_bad(to) || **to == model.id || **to == naming.name) {
        wrong("fallback", format!("must be the name of another model, got {fallback:?}"));
    }
}

fn source(model: &ModelConfig, wrong: &mut impl FnMut(&str, String)) {
    let Some(text) = &model.source else { return };
    if model.path.is_some() {
        wrong("source", "is set, and path as well: a model has one of them".to_owned());
    }
    match Source::parse(text) {
        Err(error) => wrong("source", format!("{error}")),
        Ok(Source::Path(_)) => {
            wrong("source", format!("must be pulled from somewhere, path is for files, got {text:?}"))
        }
        Ok(Source::Url { sha256: None, .. }) if model.sha256.is_none() => {
            wrong("source", "needs the file's digest: sha256, or #sha256=HEX behind the address".to_owned());
        }
        Ok(_) => {}
    }
}

fn gpus(model: &ModelConfig, earlier: &[ModelConfig], wrong: &mut impl FnMut(&str, String)) {
    if let Some(main) = &model.main_device {
        if !model.devices.is_empty() && !model.devices.contains(main) {
            wrong("main-device", format!("must be one of devices ({:?}), got {main:?}", model.devices));
        }
        if !model.tensor_split.is_empty() {
            wrong("tensor-split", format!("is set, but main-device ({main:?}) gets all layers"));
        }
    }
    let twice = |(at, name): (usize, &String)| model.devices[..at].contains(name);
    if model.devices.iter().enumerate().any(twice) {
        wrong("devices", format!("must name each device once, got {:?}", model.devices));
    }
    let split = &model.tensor_split;
    if !split.is_empty() && (split.iter().any(|part| !part.is_finite()) || split.iter().all(|&part| part <= 0.0)) {
        wrong("tensor-split", format!("must have a number above 0, and none that is not finite, got {split:?}"));
    }
    if !split.is_empty() && !model.devices.is_empty() && split.len() != model.devices.len() {
        let (devices, parts) = (model.devices.len(), split.len());
        wrong("tensor-split", format!("must have a number for each of the {devices} devices, got {parts}"));
    }
    if let Some(other) = earlier.iter().find(|other| other.numa != model.numa) {
        let (id, here, there) = (&other.id, json!(model.numa), json!(other.numa));
        wrong("numa", format!("must be the same for all models: {here} here, {there} for {id:?}"));
    }
    if model.flash_attention == FlashKey::Off && model.kv_type.set().is_some_and(|kv| kv != KvTypeKey::F16) {
        let why = "is \"off\", but kv-type stores values in fewer bits, which only flash attention reads";
        wrong("flash-attention", why.to_owned());
    }
}
