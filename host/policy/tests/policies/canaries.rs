//! New versions on trial: what their calls are counted by.
use camshaft_core::filter::{FilterHook, FilteringRequest, Piece, TextWindow};
use camshaft_core::ids::RequestId;
use camshaft_core::policy::{CanaryStatus, Endpoint, Policies, RequestContext, SamplerHook};

use crate::rig::{Rig, component, rig, row, sampling_request};

/// All but one of a million requests meet the new version.
const CANARY: &str = "[policy]\ncanary = 0.999999\n";

fn canary(rig: &Rig, file: &str) -> CanaryStatus {
    rig.status(file).canary.unwrap()
}

#[test]
fn regression_a_sampler_on_trial_is_judged_by_choices_and_not_by_tokens() {
    let settings = format!("{CANARY}[settings]\nbehave = \"trap-later\"\n");
    let rig = rig(&[
        ("sampler/10-s.wasm", &component("guests/misbehave-sampler")),
        ("sampler/10-s.toml", settings.as_bytes()),
    ]);
    for choices in 1..=3 {
        let request = sampling_request();
        let chain = rig.host.current().assigned(&request.tenant).unwrap().sampler_chain();
        let mut sampler = SamplerHook::open(&*rig.host, chain, &request).unwrap();
        // It traps at the ninth.
        (0..12).for_each(|_| _ = sampler.sample(&mut row()).unwrap());
        let canary = canary(&rig, "sampler/10-s.wasm");
        assert_eq!((canary.calls, canary.faults), (choices, choices));
    }
}

#[test]
fn regression_a_filter_on_trial_is_judged_by_choices_and_not_by_pieces() {
    let rig = rig(&[("filter/10-f.wasm", &component("guests/misbehave-filter"))]);
    // Of a guard nothing is tried alone.
    rig.put("filter/10-f.toml", format!("{CANARY}deadline = \"7ms\"\n"));
    for choices in 1..=3 {
        let (model, tenant, context) = ("demo".to_owned(), "t".into(), RequestContext::default());
        let chain = rig.host.current().assigned(&tenant).unwrap().filter_chain();
        let request =
            FilteringRequest { request: RequestId(1), model, tenant, endpoint: Endpoint::Chat, choice: 0, context };
        let mut filters = FilterHook::open(&*rig.host, chain, &request).unwrap();
        let piece = Piece { start: 0, fresh: 0, last: false, rewinds: 0, goes_on: false };
        (0..5).for_each(|_| _ = filters[0].check(piece, &mut TextWindow::default()).unwrap());
        let canary = canary(&rig, "filter/10-f.wasm");
        assert_eq!((canary.calls, canary.faults), (choices, 0));
    }
}

#[test]
fn regression_a_request_is_kept_for_the_version_that_a_new_one_may_give_way_to() {
    let rig = rig(&[
        ("sampler/10-s.wasm", &component("guests/misbehave-sampler")),
        ("sampler/10-s.toml", b"[settings]\nbehave = \"tell\"\n"),
    ]);
    assert!(rig.host.current().keeps_bodies());
    rig.put("sampler/10-s.toml", CANARY);
    rig.put("sampler/10-s.wasm", component("plugins/sampler-standard"));
    let (before, request) = (rig.host.current(), sampling_request());
    let new = before.assigned(&request.tenant).unwrap();
    assert_ne!(new.sampler_chain(), before.sampler_chain());
    assert!(new.keeps_bodies());
}
