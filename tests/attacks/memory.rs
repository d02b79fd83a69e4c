//! Memory that requests take.
use camshaft_tests::{Request, Setup};
use serde_json::json;

use crate::{COMPLETIONS, Row};

#[test]
// Measures memory, which other tests disturb.
fn long_attack_bodies_of_token_ids_take_a_bounded_multiple_of_their_size() {
    let row = Row::begin("24 bodies of 2 MB of token ids at once");
    let mut server = Setup::new().start();
    let before = server.resident_bytes();
    // The demo model's context is smaller, so each is read to its end and refused.
    let ids = json!({"model": "demo", "prompt": vec![1; 1_000_000]});
    let request = Request::post(COMPLETIONS, &ids);
    let most = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..24).map(|_| scope.spawn(|| server.client.send(&request).status)).collect();
        let mut most = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            most = most.max(server.resident_bytes());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for client in clients {
            let status = client.join().unwrap();
            assert!([400, 503].contains(&status), "{status}");
        }
        most
    });
    server.assert_runs();
    let grown = most.saturating_sub(before) >> 20;
    row.end(&format!("{grown} MiB at most"));
    assert!(grown < 400, "{grown} MiB");
}
