use super::*;

const TIMES: ConnectionTimes =
    ConnectionTimes { header: Duration::from_secs(30), idle: Duration::from_secs(90), stall: Duration::from_secs(60) };

/// How long the connection may go on from now, in seconds.
fn left(activity: &Activity) -> Option<u64> {
    activity.deadline().map(|deadline| (deadline - Instant::now()).as_secs())
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn everything_before_the_first_request_has_one_bound() {
    let activity = Activity::new(TIMES);
    pass(10).await;
    activity.heard();
    assert_eq!(left(&activity), Some(20), "bytes that make no request win no time");
    let request = activity.begin(false);
    pass(1000).await;
    assert_eq!(left(&activity), None, "the server works");
    drop(request);
    assert_eq!(left(&activity), Some(90));
}

#[tokio::test(start_paused = true)]
async fn a_later_head_has_a_bound_from_its_first_byte() {
    let activity = Activity::new(TIMES);
    drop(activity.begin(false));
    pass(80).await;
    activity.heard();
    pass(5).await;
    activity.heard();
    assert_eq!(left(&activity), Some(25));
}

#[tokio::test(start_paused = true)]
async fn frames_that_open_no_stream_do_not_keep_an_http2_connection() {
    let activity = Activity::new(TIMES);
    drop(activity.begin(true));
    pass(80).await;
    activity.heard();
    assert_eq!(left(&activity), Some(10));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_any_response_has_a_bound() {
    let activity = Activity::new(TIMES);
    let (mut first, mut second) = (activity.begin(true), activity.begin(true));
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
    let activity = Activity::new(TIMES);
    let born = Instant::now();
    assert_eq!(activity.quiet_since(), Some(born));
    let request = activity.begin(false);
    assert_eq!(activity.quiet_since(), None);
    pass(1).await;
    drop(request);
    assert_eq!(activity.quiet_since(), Some(born + Duration::from_secs(1)));
    activity.make_room();
    activity.room_wanted().await;
    assert_eq!(activity.quiet_since(), None);
    assert!(!activity.close(), "it was asked");
}

#[tokio::test(start_paused = true)]
async fn regression_a_connection_is_not_quiet_until_the_response_is_written_and_flushed() {
    let activity = Activity::new(TIMES);
    let mut request = activity.begin(false);
    activity.arrived();
    request.answer();
    let piece = activity.send();
    drop(request);
    for _ in 0..5 {
        pass(50).await;
        assert_eq!(left(&activity), Some(10), "it waits for the client");
        piece.moved();
        assert_eq!(left(&activity), Some(60), "the client took some");
        assert_eq!((activity.quiet_since(), activity.awaited()), (None, Awaited::End));
    }
    drop(piece);
    pass(20).await;
    assert_eq!((activity.quiet_since(), left(&activity)), (None, Some(40)), "TLS holds some");
    activity.flushed();
    let quiet = Instant::now();
    assert_eq!((activity.quiet_since(), left(&activity)), (Some(quiet), Some(90)));
    assert_eq!(activity.awaited(), Awaited::Nothing);
    pass(1).await;
    activity.flushed();
    assert_eq!(activity.quiet_since(), Some(quiet), "what is no response changes nothing");
}

#[tokio::test(start_paused = true)]
async fn regression_a_request_that_begins_while_the_connection_is_asked_to_close_has_its_time() {
    let activity = Activity::new(TIMES);
    drop(activity.begin(false));
    activity.make_room();
    assert_eq!(left(&activity), Some(1));
    let mut request = activity.begin(false);
    pass(100).await;
    assert_eq!(left(&activity), None, "the server works");
    request.answer();
    assert_eq!(left(&activity), Some(60), "the client reads");
    drop(request);
    assert_eq!(left(&activity), Some(1));
}

#[tokio::test(start_paused = true)]
async fn knows_what_a_client_awaits_that_sends_nothing_more() {
    let activity = Activity::new(TIMES);
    assert_eq!(activity.awaited(), Awaited::Nothing);
    let mut request = activity.begin(false);
    assert_eq!(activity.awaited(), Awaited::Rest);
    activity.arrived();
    assert_eq!(activity.awaited(), Awaited::Answer);
    request.answer();
    assert_eq!(activity.awaited(), Awaited::End);
    drop(request);
    assert_eq!(activity.awaited(), Awaited::Nothing);
}
