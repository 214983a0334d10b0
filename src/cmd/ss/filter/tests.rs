use proptest::prelude::*;

use super::*;
use crate::{cmd::ss::tests::connection, failure::Kind};

fn parse(text: &str) -> Result<Filter, Failure> {
    let words: Vec<String> = text.split_whitespace().map(Into::into).collect();
    Filter::parse(&words, States::connected())
}

fn shows(text: &str, record: &Record) -> bool {
    parse(text).unwrap_or_else(|failure| panic!("{text}: {failure}")).shows(record)
}

/// Connection 10.0.0.2:5000 to 10.0.0.1:7174, ESTAB, Offloaded.
fn record() -> Record {
    connection("10.0.0.2:5000", Some("10.0.0.1:7174"))
}

// The filter language is that of ss(8): states first, then an expression.
#[test]
fn expressions_of_ss_select_connections() {
    let record = record();
    for text in [
        "",
        "state established",
        "state estab dport = :7174",
        "dport = 7174",
        "dport=:7174",
        "( dport = :22 or dport = :7174 )",
        "(dport=:22||dport=:7174) and sport=:5000",
        "sport = :5000 dport = :7174",
        "not dport = :22",
        "! ( dport = :22 )",
        "dport != :22",
        "dport gt :7173 and dport lt :7175",
        "dport >= :7174 and dport <= :7174",
        "dst 10.0.0.1",
        "dst 10.0.0.0/24",
        "dst 0.0.0.0/0",
        "dst = 10.0.0.1:7174",
        "dst != 10.0.0.9",
        "src 10.0.0.2:5000 and dst :7174",
        "src *:5000",
        "offload offloaded",
        "exclude listening dst 10.0.0.1",
        "state all",
    ] {
        assert!(shows(text, &record), "{text:?} does not show it");
    }
    for text in [
        "state time-wait",
        "exclude established",
        "dport = :22",
        "dport = :22 or sport = :22",
        "not dport = :7174",
        "dport > :7174",
        "dport < :7174",
        "dst 10.0.1.0/24",
        "dst 10.0.0.1:22",
        "src 10.0.0.1",
        "dst fd00::1",
        "dst ::/0",
        "offload inhost",
        "sport = :5000 and dport = :22",
    ] {
        assert!(!shows(text, &record), "{text:?} shows it");
    }
}

// "and" has precedence over "or".
#[test]
fn and_precedes_or() {
    assert!(shows("dport = :7174 or sport = :1 and sport = :2", &record()));
    assert!(!shows("( dport = :7174 or sport = :1 ) and sport = :2", &record()));
}

#[test]
fn ipv6_hosts_are_matched() {
    let record = connection("[fd00::2]:5000", Some("[fd00::1]:80"));
    for text in
        ["dst fd00::1", "dst fd00::/64", "dst ::/0", "dst [fd00::1]:80", "dst [fd00::]/64:80"]
    {
        assert!(shows(text, &record), "{text}");
    }
    assert!(!shows("dst [fd00::1]:81", &record));
    assert!(!shows("dst 10.0.0.0/8", &record));
}

// Without a filter: the default of `ss`. A connection between host and target is shown although its state is unknown.
#[test]
fn default_states_are_shown() {
    let with = |state: Option<&str>| Record { state: state.map(Into::into), ..record() };
    let connected = parse("").unwrap();
    for (state, shown) in [
        (Some("ESTAB"), true),
        (Some("FIN-WAIT-2"), true),
        (Some("SYN-SENT"), true),
        (None, true),
        (Some("TIME-WAIT"), false),
        (Some("LISTEN"), false),
        (Some("SYN-RECV"), false),
    ] {
        assert_eq!(connected.shows(&with(state)), shown, "{state:?}");
    }
    let listening = Filter::parse(&[], States::listening()).unwrap();
    assert!(listening.shows(&with(Some("LISTEN"))) && !listening.shows(&with(Some("ESTAB"))));
    assert!(shows("state listening state time-wait", &with(Some("TIME-WAIT"))));
    assert!(!shows("dport = :80", &Record { remote: None, ..with(Some("ESTAB")) }));
}

#[test]
fn invalid_filter_is_reported() {
    for (text, word) in [
        ("state", "state"),
        ("state nowhere", "nowhere"),
        ("dport", "dport"),
        ("dport 22", "expected a comparison"),
        ("dport = http", "http"),
        ("dport = :70000", "70000"),
        ("dst = nowhere", "nowhere"),
        ("dst 10.0.0.1/33", "10.0.0.1/33"),
        ("dst > 10.0.0.1", "expected = or !="),
        ("( dport = :22", "parenthesis"),
        ("dport = :22 )", ")"),
        ("dport = :22 and", "expression"),
        ("offload there", "there"),
        ("port = :22", "port"),
        ("dport = :22 state established", "must be first"),
    ] {
        let failure = parse(text).expect_err(text);
        assert_eq!(failure.kind, Kind::Usage, "{text}");
        assert!(failure.message.contains(word), "{text}: {word:?} is not in {failure}");
    }
    let deep = "( ".repeat(DEPTH_MAX + 1);
    assert!(parse(&deep).unwrap_err().message.contains("at most 32 levels"));
}

proptest! {
    /// Arbitrary words never panic.
    #[test]
    fn arbitrary_words_never_panic(words in proptest::collection::vec(
        prop_oneof![
            Just("(".to_owned()), Just(")".to_owned()), Just("or".to_owned()), Just("not".to_owned()),
            Just("dport".to_owned()), Just("=".to_owned()), Just(":22".to_owned()),
            Just("dst".to_owned()), Just("10.0.0.1".to_owned()), any::<String>(),
        ], 0..12))
    {
        if let Ok(filter) = Filter::parse(&words, States::all()) {
            filter.shows(&record());
        }
    }
}
