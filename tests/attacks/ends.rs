//! Signals at bad moments.
use camshaft_tests::Setup;
use rustix::process::Signal;
use serde_json::json;

use crate::{COMPLETIONS, Row};

/// Ends servers while they decode, with a drain too short for their streams or with a second signal. Each must exit by
/// itself.
fn end_while_decoding(rounds: usize) {
    let story =
        json!({"model": "demo", "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "n": 4, "stream": true});
    for round in 0..rounds {
        let mut server =
            Setup::new().config("[shutdown]\ndrain = \"200ms\"\n[[model]]\nid = \"demo\"\nthreads = 2\n").start();
        let mut streams = [0; 2].map(|_| server.client.stream(COMPLETIONS, &story));
        for stream in &mut streams {
            assert!(!stream.read_text(1).text_from(None).is_empty(), "round {round}: it decodes");
        }
        server.signal(Signal::TERM);
        if round % 2 == 0 {
            server.signal(Signal::TERM);
        }
        assert_eq!(server.wait(), Some(0), "round {round}: {}", server.log());
        drop(streams);
    }
}

#[test]
fn a_few_servers_end_by_themselves_while_they_decode() {
    let row = Row::begin("4 servers that end while they decode");
    end_while_decoding(4);
    row.end("exit 0 each time");
}

#[test]
// Takes a minute.
fn long_attack_no_server_crashes_when_it_ends_while_it_decodes() {
    let row = Row::begin("60 servers that end while they decode");
    end_while_decoding(60);
    row.end("exit 0 each time");
}
