use std::time::Duration;

use camshaft_core::ids::TenantId;

use super::state::{ARRIVING, LAST_WORDS, SLOW_BYTES_A_SECOND, STALLED, STRANGE};
use super::*;

const TIMES: ConnectionTimes =
    ConnectionTimes { header: Duration::from_secs(30), idle: Duration::from_secs(90), stall: Duration::from_secs(60) };

/// How long the connection may go on from now, in seconds.
fn left(activity: &Activity) -> Option<u64> {
    activity.deadline().map(|deadline| (deadline - Instant::now()).as_secs())
}

/// Since when the connection is quiet, if it is and was not asked to close.
fn quiet_since(activity: &Activity) -> Option<Instant> {
    let state = activity.state();
    (state.is_quiet() && state.ending.is_none()).then_some(state.since)
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn everything_before_the_first_request_has_one_bound() {
    let activity = Activity::new(TIMES, Arc::default());
    pass(10).await;
    activity.heard();
    assert_eq!(left(&activity), Some(20), "bytes that make no request win no time");
    let request = activity.begin(false, (0, 0));
    pass(1000).await;
    assert_eq!(left(&activity), None, "the server works");
    drop(request);
    assert_eq!(left(&activity), Some(90));
}

#[tokio::test(start_paused = true)]
async fn a_later_head_has_a_bound_from_its_first_byte() {
    let activity = Activity::new(TIMES, Arc::default());
    drop(activity.begin(false, (0, 0)));
    pass(80).await;
    activity.heard();
    pass(5).await;
    activity.heard();
    assert_eq!(left(&activity), Some(25));
}

#[tokio::test(start_paused = true)]
async fn frames_that_open_no_stream_do_not_keep_an_http2_connection() {
    let activity = Activity::new(TIMES, Arc::default());
    drop(activity.begin(true, (0, 0)));
    pass(80).await;
    activity.heard();
    assert_eq!(left(&activity), Some(10));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_any_response_has_a_bound() {
    let activity = Activity::new(TIMES, Arc::default());
    let (mut first, mut second) = (activity.begin(true, (0, 0)), activity.begin(true, (0, 0)));
    first.answer();
    assert_eq!(left(&activity), None, "the server works on the second");
    second.answer();
    pass(50).await;
    assert_eq!(left(&activity), Some(10));
    first.moved();
    assert_eq!(left(&activity), Some(60), "one stream moved");
    second.works();
    assert_eq!(left(&activity), None);
}

#[tokio::test(start_paused = true)]
async fn only_a_quiet_connection_makes_room_and_only_once() {
    let activity = Activity::new(TIMES, Arc::default());
    let born = Instant::now();
    assert_eq!(quiet_since(&activity), Some(born));
    let request = activity.begin(false, (0, 0));
    assert_eq!(quiet_since(&activity), None);
    pass(1).await;
    drop(request);
    assert_eq!(quiet_since(&activity), Some(born + Duration::from_secs(1)));
    activity.make_room();
    activity.room_wanted().await;
    assert_eq!(quiet_since(&activity), None);
    assert!(!activity.close(), "it was asked");
}

#[tokio::test(start_paused = true)]
async fn regression_a_connection_is_not_quiet_until_the_response_is_written_and_flushed() {
    let activity = Activity::new(TIMES, Arc::default());
    let mut request = activity.begin(false, (0, 0));
    activity.arrived();
    request.answer();
    let mut piece = activity.send(1);
    drop(request);
    for _ in 0..5 {
        pass(50).await;
        assert_eq!(left(&activity), Some(10), "it waits for the client");
        piece.wrote(PROGRESS, 1);
        assert_eq!(left(&activity), Some(60), "the client took some");
        assert_eq!((quiet_since(&activity), activity.awaited()), (None, Awaited::End));
    }
    drop(piece);
    pass(20).await;
    assert_eq!((quiet_since(&activity), left(&activity)), (None, Some(40)), "TLS holds some");
    activity.flushed();
    let quiet = Instant::now();
    assert_eq!((quiet_since(&activity), left(&activity)), (Some(quiet), Some(90)));
    assert_eq!(activity.awaited(), Awaited::Nothing);
    pass(1).await;
    activity.flushed();
    assert_eq!(quiet_since(&activity), Some(quiet), "what is no response changes nothing");
}

#[tokio::test(start_paused = true)]
async fn regression_a_request_that_begins_while_the_connection_is_asked_to_close_has_its_time() {
    let activity = Activity::new(TIMES, Arc::default());
    drop(activity.begin(false, (0, 0)));
    activity.make_room();
    assert_eq!(left(&activity), Some(1));
    let mut request = activity.begin(false, (0, 0));
    pass(100).await;
    assert_eq!(left(&activity), None, "the server works");
    request.answer();
    assert_eq!(left(&activity), Some(60), "the client reads");
    drop(request);
    assert_eq!(left(&activity), Some(1));
}

#[tokio::test(start_paused = true)]
async fn knows_what_a_client_awaits_that_sends_nothing_more() {
    let activity = Activity::new(TIMES, Arc::default());
    assert_eq!(activity.awaited(), Awaited::Nothing);
    let mut request = activity.begin(false, (0, 0));
    assert_eq!(activity.awaited(), Awaited::Rest);
    activity.arrived();
    assert_eq!(activity.awaited(), Awaited::Answer);
    request.answer();
    assert_eq!(activity.awaited(), Awaited::End);
    request.works();
    assert_eq!(activity.awaited(), Awaited::More);
    request.moved();
    assert_eq!(activity.awaited(), Awaited::End);
    drop(request);
    assert_eq!(activity.awaited(), Awaited::Nothing);
    // A response that begins before its request has arrived: what the client sends is part of it.
    let mut echo = activity.begin(false, (0, 0));
    echo.answer();
    echo.works();
    assert_eq!(activity.awaited(), Awaited::End);
    activity.arrived();
    assert_eq!(activity.awaited(), Awaited::More);
}

#[tokio::test(start_paused = true)]
async fn regression_a_few_bytes_now_and_then_are_no_progress() {
    let activity = Activity::new(TIMES, Arc::default());
    let mut request = activity.begin(true, (0, 0));
    request.answer();
    let mut piece = activity.send(1);
    for _ in 0..30 {
        pass(1).await;
        piece.wrote(1, PROGRESS);
    }
    assert_eq!(left(&activity), Some(30), "30 bytes in 30 seconds");
    piece.wrote(PROGRESS - 31, 2);
    assert_eq!(left(&activity), Some(30));
    piece.wrote(1, 1);
    assert_eq!(left(&activity), Some(60));
    pass(10).await;
    piece.wrote(1, 0);
    drop(piece);
    assert_eq!(left(&activity), Some(60), "the end of a piece, however small");
}

#[tokio::test(start_paused = true)]
async fn regression_a_piece_that_was_given_up_is_no_progress() {
    let activity = Activity::new(TIMES, Arc::default());
    let mut request = activity.begin(true, (0, 0));
    request.answer();
    let (mut begun, untouched, _kept) = (activity.send(1), activity.send(1), activity.send(1));
    begun.wrote(1, 9);
    pass(50).await;
    drop((begun, untouched));
    assert_eq!(left(&activity), Some(10), "the client took nothing");
}

#[tokio::test(start_paused = true)]
async fn regression_whoever_takes_nothing_makes_room_strangers_first() {
    let (stranger, quiet, known) = (
        Activity::new(TIMES, Arc::default()),
        Activity::new(TIMES, Arc::default()),
        Activity::new(TIMES, Arc::default()),
    );
    let begun = Instant::now();
    let answered = |activity: &Arc<Activity>| {
        let mut request = activity.begin(true, (0, 0));
        request.answer();
        (request, activity.send(1))
    };
    [&known, &quiet].iter().for_each(|activity| activity.let_in().set(&TenantId::from("a")));
    let ((_request, mut piece), (mut served, _piece)) = (answered(&stranger), answered(&known));
    let mut claims = [stranger.claim(), quiet.claim(), known.claim()].map(Option::unwrap);
    assert_eq!(claims.map(|(claim, _)| claim), [Claim::Strange, Claim::Quiet, Claim::Stalled]);
    assert!(claims.is_sorted());
    pass(1).await;
    piece.wrote(PROGRESS, 1);
    claims[0] = stranger.claim().unwrap();
    assert_eq!(claims[0].1, begun + STRANGE, "however it takes them");
    assert_eq!(claims[2].1, begun + STALLED);
    served.works();
    assert_eq!(known.claim().unwrap(), (Claim::Arriving, begun + ARRIVING), "its body is not there yet");
    assert!(claims[2].0 < Claim::Arriving, "it is missed more than all others");
    known.arrived();
    assert_eq!(known.claim(), Some((Claim::Working, begun)), "the server works for somebody it knows");
    known.close();
    assert_eq!(known.claim(), None, "and was asked to end after that");
    stranger.cut();
    assert_eq!((stranger.claim(), left(&stranger)), (None, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn what_a_connection_holds_is_counted_until_it_is_written() {
    let first = held::of_request(10, 1000) + held::of_request(0, 0);
    let all = Arc::new(Held::new(first, 1));
    let activity = Activity::new(TIMES, all.clone());
    activity.let_in().set(&TenantId::from("a"));
    assert_eq!(activity.held(), None);
    let requests = [activity.begin(true, (10, 1000)), activity.begin(true, (0, 0))];
    assert_eq!((activity.held(), all.bytes()), (Some(first), first));
    let exceeded = || tokio::time::timeout(Duration::from_secs(1), all.exceeded());
    exceeded().await.expect_err("at the limit");
    // The connection has whole responses, and drops their requests: it has not written them.
    let sending = [activity.send(1000), activity.send(16 << 10)];
    exceeded().await.expect("past it");
    drop(requests);
    let pieces = held::of_piece(1000) + held::of_piece(16 << 10);
    assert_eq!((activity.held(), all.bytes()), (Some(pieces), pieces));
    drop(sending);
    assert_eq!((activity.held(), all.bytes()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn regression_the_first_request_of_an_older_connection_has_its_time() {
    let activity = Activity::new(TIMES, Arc::default());
    tokio::time::advance(10 * STRANGE).await;
    assert_eq!(due(&activity), Some((Claim::Strange, true)));
    let first = activity.begin(false, (0, 0));
    assert_eq!(due(&activity), Some((Claim::Strange, false)));
    tokio::time::advance(STRANGE).await;
    assert_eq!(due(&activity), Some((Claim::Strange, true)));
    drop(first);
    let _second = activity.begin(false, (0, 0));
    assert_eq!(due(&activity), Some((Claim::Strange, true)), "it was refused, and asks again");
}

#[tokio::test(start_paused = true)]
async fn regression_what_was_asked_to_close_and_does_not_end_is_cut() {
    let activity = Activity::new(TIMES, Arc::default());
    drop(activity.begin(true, (0, 0)));
    activity.make_room();
    assert_eq!(due(&activity), Some((Claim::Closing, false)));
    tokio::time::advance(LAST_WORDS).await;
    assert_eq!(due(&activity), Some((Claim::Closing, true)));
    activity.cut();
    assert_eq!(due(&activity), None);
}

#[tokio::test]
async fn regression_who_holds_too_much_begins_no_more_and_keeps_nobody_else_from_it() {
    // A share.
    let one = 8 * held::of_request(0, 0);
    let all = Arc::new(Held::new(1024 * one, 1));
    let connection = |tenant: Option<&'static str>, requests: usize| {
        let activity = Activity::new(TIMES, all.clone());
        tenant.iter().for_each(|tenant| activity.let_in().set(&TenantId::from(*tenant)));
        let requests: Vec<_> = (0..8 * requests).map(|_| activity.begin(true, (0, 0))).collect();
        (activity, requests)
    };
    let asks = |(activity, _): &(Arc<Activity>, _)| activity.admission();
    let (served, refused, cut) = (Admission::Served, Admission::Refused, Admission::Cut);
    let (polite, new) = (connection(Some("b"), 2), connection(None, 1));
    let many = connection(Some("a"), 512);
    assert_eq!((asks(&many), all.bytes()), (served, 515 * one), "at the bound of a tenant");
    let more = connection(Some("a"), 1);
    assert_eq!((asks(&many), asks(&more)), (cut, served), "one past it, but for its share");
    assert!(many.0.was_cut() && asks(&many) == cut);
    let strangers = connection(None, 512);
    assert_eq!(asks(&strangers), cut, "strangers have one account");
    let some = connection(None, 2);
    assert_eq!((asks(&some), some.0.was_cut()), (refused, false), "what is little more than its share is told");
    let _refused = some.0.begin_refused(true);
    assert_eq!((asks(&some), some.0.was_cut()), (cut, true));
    assert_eq!((asks(&polite), asks(&new)), (served, served), "although more than 1024 are held");
    let _others = ["c", "d"].map(|tenant| connection(Some(tenant), 500));
    all.add(2 * 1024 * one - all.bytes(), &all.of_strangers());
    assert_eq!(asks(&polite), served, "at the bound of all");
    let _last = connection(Some("e"), 1);
    assert_eq!((asks(&polite), asks(&new)), (refused, served), "one past it");
}

#[tokio::test(start_paused = true)]
async fn a_client_is_slow_that_takes_less_than_the_bound() {
    let activity = Activity::new(TIMES, Arc::default());
    let mut request = activity.begin(false, (0, 0));
    // What the server takes is not the client's time.
    pass(100).await;
    request.answer();
    let mut piece = activity.send(1);
    pass(10).await;
    let slow = |activity: &Activity| activity.slow_from() <= Instant::now();
    let bound = 10 * SLOW_BYTES_A_SECOND as usize;
    // After a second, all of it at the bound.
    piece.wrote(bound - SLOW_BYTES_A_SECOND as usize - 1, 1);
    assert!(slow(&activity), "a byte less");
    piece.wrote(1, 1);
    assert!(slow(&activity), "at the bound it may be this moment");
    piece.wrote(SLOW_BYTES_A_SECOND as usize, 1);
    assert!(!slow(&activity));
    pass(1).await;
    assert!(slow(&activity), "and takes nothing more");
}

/// Why the connection may have to make room, and whether it may have to now.
fn due(activity: &Activity) -> Option<(Claim, bool)> {
    activity.claim().map(|(claim, from)| (claim, from <= Instant::now()))
}

#[tokio::test]
async fn regression_uploads_of_who_was_let_in_are_not_cut_for_what_may_come_while_all_is_full() {
    const LIMIT: usize = 1 << 20;
    for (tenant, admission) in [(Some("a"), Admission::Served), (None, Admission::Cut)] {
        let all = Arc::new(Held::new(LIMIT, 1));
        let activity = Activity::new(TIMES, all.clone());
        tenant.iter().for_each(|tenant| activity.let_in().set(&TenantId::from(*tenant)));
        let _uploads: Vec<_> = (0..4).map(|_| activity.expect_trailers()).collect();
        assert_eq!(activity.admission(), Admission::Served, "there is room");
        all.add_room(2 * LIMIT);
        assert_eq!(activity.admission(), admission, "{tenant:?}");
    }
}
