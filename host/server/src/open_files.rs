//! How many files the process may have open, and how many of them are left for connections.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// What a server has open besides connections: 15 when it starts, the code of policies, components that compile (at most
/// four at once, with five files each), files that are looked at, spans that are exported.
const RESERVE: u64 = 64;
/// Of a model: its weights, draft model and adapter, and the process that tries them.
const PER_MODEL: u64 = 8;
/// Of a worker with a cache on disk: the lock, the file that is written, one that is read.
const PER_WORKER: u64 = 4;
/// Connections get at least a quarter of the files: better few than none.
const LEAST: u64 = 4;
/// Where there is not enough for both listeners, the admin listener gets an eighth of the places.
const ADMIN: u64 = 8;
/// What a listener has at least.
const PLACES_MIN: u64 = 2;

/// Lets the process open as many files as the system allows it. Where that fails, the bound is what it was.
pub(crate) fn raise() {
    let most = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }) {
        tracing::debug!(%error, "the bound on open files cannot be raised");
    }
}

/// How many files the process may have open.
pub(crate) fn bound() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many connections each listener may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) public: usize,
    pub(crate) admin: usize,
    files: u64,
}

/// The connections of each listener in a process that may have `files` files open.
pub(crate) fn places(config: &Config, files: u64) -> Places {
    let wanted = u64::from(config.fixed.limits.connections);
    let has_admin = !config.fixed.admin.listen.is_empty();
    let (public, admin) = share(wanted, has_admin, left(config, files));
    Places { public: whole(public), admin: whole(admin), files }
}

/// The files that are left for connections.
fn left(config: &Config, files: u64) -> u64 {
    let on_disk = config.fixed.cache.tier().is_some();
    let of_model = |workers: u32| PER_MODEL + if on_disk { u64::from(workers) * PER_WORKER } else { 0 };
    let models: u64 = config.live.model.iter().map(|model| of_model(model.workers)).sum();
    files.saturating_sub(RESERVE + models).max(files / LEAST)
}

/// What the public and the admin listener get of `left` places, where each may have `wanted`.
fn share(wanted: u64, has_admin: bool, left: u64) -> (u64, u64) {
    let admin = match has_admin {
        false => 0,
        true if left >= wanted.saturating_mul(2) => wanted,
        true => (left / ADMIN).max(PLACES_MIN).max(left.saturating_sub(wanted)).min(wanted),
    };
    (left.saturating_sub(admin).max(PLACES_MIN).min(wanted), admin)
}

fn whole(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

impl Places {
    /// What to say where a listener gets fewer connections than configured.
    pub(crate) fn fewer(self, config: &Config) -> Option<String> {
        let Self { public, admin, files } = self;
        let (wanted, has_admin) = (config.fixed.limits.connections as usize, !config.fixed.admin.listen.is_empty());
        let short = public < wanted || has_admin && admin < wanted;
        short.then(|| {
            format!(
                "limits.connections = {wanted}, but this process may have {files} files open (ulimit -n): the public \
                 listener takes {public} connections, the admin listener {admin}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, Sources};

    fn config(set: &[&str]) -> Config {
        let set = set.iter().map(|&pair| pair.to_owned()).collect();
        Sources::new(None, std::iter::empty(), Overrides { set, ..Overrides::default() }).unwrap().load().unwrap()
    }

    #[test]
    fn listeners_share_what_is_left_and_none_gets_nothing() {
        for (wanted, has_admin, left, expected) in [
            (1024, true, u64::MAX, (1024, 1024)),
            (1024, true, 2048, (1024, 1024)),
            (1024, true, 2047, (1024, 1023)),
            (1024, true, 1152, (1008, 144)),
            (1024, true, 952, (833, 119)),
            (1024, true, 16, (14, 2)),
            (1024, true, 0, (2, 2)),
            (1, true, 1, (1, 1)),
            (1024, false, 1024, (1024, 0)),
            (1024, false, 1023, (1023, 0)),
            (1024, false, 0, (2, 0)),
        ] {
            assert_eq!(share(wanted, has_admin, left), expected, "{wanted} {has_admin} {left}");
        }
    }

    #[test]
    fn what_a_server_needs_besides_connections_is_kept_for_it() {
        let one = config(&["model=[{}]"]);
        assert_eq!((left(&one, 1024), left(&one, 72), left(&one, 0)), (952, 18, 0));
        let more = config(&["model=[{workers=3},{id=\"b\"}]", "cache.disk-dir=/d", "cache.disk=\"1GiB\""]);
        assert_eq!(left(&more, 1024), 1024 - 64 - 2 * 8 - 4 * 4);
    }

    #[test]
    fn a_bound_that_is_too_low_is_said_with_both_numbers() {
        let config = config(&["model=[{}]", "limits.connections=100"]);
        assert_eq!(places(&config, 272).fewer(&config), None);
        let said = places(&config, 271).fewer(&config).unwrap();
        assert!(said.contains("limits.connections = 100") && said.contains("271 files"), "{said}");
        assert!(said.contains("takes 100 connections, the admin listener 99"), "{said}");
    }
}
