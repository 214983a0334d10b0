//! Many connections: sequential, and eight at a time. Each has one Write and three Sends, and closes normally.

use crate::bench::{Bench, Setup};
use crate::guest::Siw;
use crate::operations::peers;
use crate::{KERNEL, Row, TAP};

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    // Unmodified siw misses the first FPDU in a few of a hundred connections: more connections.
    let in_turn = if siw == Siw::Stock { 200 } else { 100 };
    for setup in [TAP, KERNEL] {
        for (count, at_once) in [(in_turn, 1), (80, 8)] {
            for is_client in [true, false] {
                let role = if is_client { "client" } else { "server" };
                let manner =
                    if at_once == 1 { "in turn".into() } else { format!("{at_once} at once") };
                rows.push(Row {
                    siw,
                    setup,
                    what: format!("{count} connections, {manner}, {role}"),
                    run: Box::new(move |bench| connects(bench, &setup, is_client, count, at_once)),
                });
            }
        }
    }
}

fn connects(bench: &mut Bench, setup: &Setup, is_client: bool, count: u32, at_once: u32) -> String {
    let client = format!("connects PEER {count} {at_once}");
    let said = peers(bench, setup, is_client, "", &client, count);
    assert!(said.client.contains(&format!("connected {count}")), "{}", said.client);
    assert!(said.server.contains(&format!("served {count}")), "{}", said.server);
    "all connected and closed without errors".to_owned()
}
