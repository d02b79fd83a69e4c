//! `camshaft:auth/context`: the call that an auth policy decides on, and what it says beside its verdict.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::policy::{Attributes, AuthRequest, Quotas, Reply};
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::auth_context::{self, Host, HostCall};
use crate::fault::invalid;
use crate::grants::Grant;
use crate::reuse::Reuse;
use crate::text::truncated;

/// Bytes of a name that an error repeats.
const NAME_BYTES: usize = 128;

/// What a policy reads of a header that it is not granted.
const REDACTED: &[u8] = b"<redacted>";

/// The call in progress.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Arc<AuthRequest>,
    pub(crate) grant: Arc<Grant>,
    /// Whether the policy's settings file asks for the body's digest.
    pub(crate) body_digest: bool,
    pub(crate) said: Said,
}

/// What the policy has said so far beside its verdict.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) limits: Quotas,
    pub(crate) attributes: Attributes,
    pub(crate) reply: Reply,
    pub(crate) reuse: Option<Reuse>,
    /// It has asked for the body's digest.
    pub(crate) read_digest: bool,
}

/// The part of a guest's state that its calls need.
pub(crate) trait CallView: 'static {
    /// `None` outside of a call.
    fn call(&mut self) -> Option<&mut Call>;
}

pub(crate) struct CurrentCall<'a>(Option<&'a mut Call>);

struct Calls;

impl HasData for Calls {
    type Data<'a> = CurrentCall<'a>;
}

pub(crate) fn add_to_linker<T: CallView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    auth_context::add_to_linker::<_, Calls>(linker, |state| CurrentCall(state.call()))
}

impl CurrentCall<'_> {
    fn get(&mut self) -> wasmtime::Result<&mut Call> {
        self.0.as_deref_mut().ok_or_else(|| invalid("there is no call now"))
    }
}

/// Sets a limit by its name.
fn set(limits: &mut Quotas, name: &str, value: f64) -> Result<(), String> {
    let whole = || {
        let fits = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
        fits.then_some(value as u32)
            .ok_or_else(|| format!("the limit {name} is {value}, not a whole number of at most {}", u32::MAX))
    };
    match name {
        "requests-per-minute" => limits.requests_per_minute = Some(whole()?),
        "tokens-per-minute" => limits.tokens_per_minute = Some(whole()?),
        "concurrent-requests" => limits.concurrent_requests = Some(whole()?),
        "queue-share" if value > 0.0 && value <= 1.0 => limits.queue_share = Some(value),
        "queue-share" => return Err(format!("a queue-share of {value}, which is not above 0 and at most 1")),
        _ => {
            return Err(format!("a limit of the name {:?}, which the host does not know", truncated(name, NAME_BYTES)));
        }
    }
    Ok(())
}

impl Host for CurrentCall<'_> {}

impl HostCall for CurrentCall<'_> {
    fn id(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.request.id.clone())
    }

    fn query(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.request.query.clone())
    }

    fn header(&mut self, _: Resource<Borrowed>, name: String) -> wasmtime::Result<Vec<Vec<u8>>> {
        let Call { request, grant, .. } = self.get()?;
        let named = request.headers.iter().filter(|(header, _)| *header == name);
        let is_shown = grant.shows_header(&name);
        Ok(named.map(|(_, value)| if is_shown { value.clone() } else { REDACTED.to_vec() }).collect())
    }

    fn header_names(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Vec<String>> {
        let mut names: Vec<String> = self.get()?.request.headers.iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn set_limit(&mut self, _: Resource<Borrowed>, name: String, value: f64) -> wasmtime::Result<Result<(), String>> {
        Ok(set(&mut self.get()?.said.limits, &name, value))
    }

    fn set_attribute(
        &mut self,
        _: Resource<Borrowed>,
        name: String,
        value: String,
    ) -> wasmtime::Result<Result<(), String>> {
        Ok(self.get()?.said.attributes.set(&name, value).map_err(|error| error.to_string()))
    }

    fn peer_certificates(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Vec<Vec<u8>>> {
        Ok(self.get()?.request.peer_certificates.to_vec())
    }

    fn body_sha256(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<Option<Vec<u8>>> {
        let call = self.get()?;
        if !call.body_digest {
            return Ok(None);
        }
        call.said.read_digest = true;
        Ok(call.request.body_sha256.map(|digest| digest.to_vec()))
    }

    fn set_response_header(
        &mut self,
        _: Resource<Borrowed>,
        name: String,
        value: String,
    ) -> wasmtime::Result<Result<(), String>> {
        Ok(self.get()?.said.reply.set(&name, value).map_err(|error| error.to_string()))
    }

    fn set_retry_after_ms(&mut self, _: Resource<Borrowed>, ms: u64) -> wasmtime::Result<()> {
        self.get()?.said.reply.retry_after = Some(Duration::from_millis(ms));
        Ok(())
    }

    fn reuse_for_ms(
        &mut self,
        _: Resource<Borrowed>,
        ms: u64,
        headers: Vec<String>,
    ) -> wasmtime::Result<Result<(), String>> {
        let said = &mut self.get()?.said;
        Ok(Reuse::new(ms, headers).map(|reuse| said.reuse = Some(reuse)))
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_limits_at_their_bounds_and_none_past_them() {
        let mut limits = Quotas::default();
        for (name, value) in
            [("requests-per-minute", 0.0), ("tokens-per-minute", 4_294_967_295.0), ("concurrent-requests", 1.0)]
        {
            set(&mut limits, name, value).unwrap();
            for wrong in [-1.0, 0.5, 4_294_967_296.0, f64::NAN, f64::INFINITY] {
                assert!(set(&mut limits, name, wrong).unwrap_err().contains(name), "{name} {wrong}");
            }
        }
        for share in [1.0, f64::MIN_POSITIVE] {
            set(&mut limits, "queue-share", share).unwrap();
        }
        for share in [0.0, -0.1, 1.001, f64::NAN, f64::INFINITY] {
            assert!(set(&mut limits, "queue-share", share).is_err(), "{share}");
        }
        assert!(set(&mut limits, "request-per-minute", 1.0).unwrap_err().contains("does not know"));
        let wanted = Quotas {
            requests_per_minute: Some(0),
            tokens_per_minute: Some(u32::MAX),
            concurrent_requests: Some(1),
            queue_share: Some(f64::MIN_POSITIVE),
        };
        assert_eq!(limits, wanted);
    }
}
