//! Spans at an independent receiver, and what is exported for scrapers.
use std::net::TcpListener;

use camshaft_tests::Setup;

use crate::openai::run_client;

#[test]
fn a_traced_request_shows_its_seven_spans_at_an_independent_receiver() {
    // Free a moment ago: the receiver takes it before the first span is exported.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let server = Setup::new().set("telemetry.otlp-endpoint", &format!("{endpoint:?}")).start();
    run_client("otlp_receiver.py", &[&port.to_string(), &format!("http://{}", server.client.address)]);
    assert!(!server.log().contains("camshaft::trace"), "spans are not in the log: {}", server.log());
}

#[test]
fn a_collector_that_is_not_there_costs_nothing_but_the_spans() {
    let mut server = Setup::new().set("telemetry.otlp-endpoint", "\"http://127.0.0.1:1\"").start();
    assert!(server.answer("What is 3 plus 4?").contains('7'));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}
