use proptest::prelude::*;

use super::*;

#[test]
fn percentages() {
    let parse = |text: &str| text.parse::<Percent>().map(Percent::parts_per_million);
    assert_eq!(parse("0"), Ok(0));
    assert_eq!(parse("0.5"), Ok(5_000));
    assert_eq!(parse("2%"), Ok(20_000));
    assert_eq!(parse("100"), Ok(1_000_000));
    assert_eq!(parse("0.0001"), Ok(1));
    for bad in ["", "-1", "100.1", "1e1", "nan", "inf", "5 percent", "1.2.3", "."] {
        assert!(parse(bad).unwrap_err().to_string().contains("0 to 100"), "{bad}");
    }
    assert_eq!("0.5".parse::<Percent>().unwrap().to_string(), "0.5%");
}

#[test]
fn delays_need_a_unit_and_have_a_bound() {
    assert_eq!(parse_delay("5ms"), Ok(Duration::from_millis(5)));
    assert_eq!(parse_delay("1.5s"), Ok(Duration::from_millis(1500)));
    assert_eq!(parse_delay("100 us"), Ok(Duration::from_micros(100)));
    assert_eq!(parse_delay("7µs"), Ok(Duration::from_micros(7)));
    assert_eq!(parse_delay("0s"), Ok(Duration::ZERO));
    assert_eq!(parse_delay("10s"), Ok(DELAY_MAX));
    for bad in ["", "5", "5m", "-1ms", "10.1s", "99999999999999999999s", "ms"] {
        assert!(parse_delay(bad).unwrap_err().to_string().contains("0s to 10s"), "{bad}");
    }
}

#[test]
fn rates_are_bits_with_si_prefixes() {
    let parse = |text: &str| text.parse::<BitRate>().map(BitRate::bits_per_second);
    assert_eq!(parse("100Mbit"), Ok(100_000_000));
    assert_eq!(parse("2.5gbit/s"), Ok(2_500_000_000));
    assert_eq!(parse("1kbit"), Ok(RATE_BPS_MIN));
    assert_eq!(parse("1Tbit"), Ok(RATE_BPS_MAX));
    for bad in ["", "100", "999bit", "1.1Tbit", "0Mbit", "-5Mbit", "5MB", "Mbit"] {
        assert!(parse(bad).unwrap_err().to_string().contains("1kbit to 1Tbit"), "{bad}");
    }
    assert!(parse("10Mbps").unwrap_err().to_string().contains("use kbit, Mbit"));
}

#[test]
fn prefixes_hold_only_host_addresses() {
    let ok = |text: &str| text.parse::<IpPrefix>().unwrap().to_string();
    assert_eq!(ok("10.77.0.2/24"), "10.77.0.2/24");
    assert_eq!(ok("10.0.0.0/31"), "10.0.0.0/31");
    assert_eq!(ok("10.0.0.1/32"), "10.0.0.1/32");
    assert_eq!(ok("fd77::1/64"), "fd77::1/64");
    // An IPv4-mapped prefix is one of IPv4.
    assert_eq!(ok("::ffff:10.77.0.2/120"), "10.77.0.2/24");
    for length in [1, 64, 95, 96, 129] {
        assert!(format!("::ffff:10.77.0.2/{length}").parse::<IpPrefix>().is_err(), "{length}");
    }
    for bad in [
        "10.77.0.2",
        "10.77.0.2/33",
        "10.77.0.2/0",
        "10.77.0.0/24",
        "10.77.0.255/24",
        "0.0.0.0/8",
        "127.0.0.1/8",
        "224.0.0.1/4",
        "255.255.255.255/32",
        "::/64",
        "::1/128",
        "ff02::1/64",
        "fd77::1/129",
        "fd77::1/",
        "/24",
        "host/24",
        "10.77.0.2/-1",
        "10.77.0.2/+24",
    ] {
        assert!(bad.parse::<IpPrefix>().is_err(), "{bad}");
    }
}

#[test]
fn prefix_contains_and_successor() {
    let p: IpPrefix = "10.77.0.1/24".parse().unwrap();
    assert!(p.contains("10.77.0.200".parse().unwrap()));
    assert!(!p.contains("10.77.1.1".parse().unwrap()));
    assert!(!p.contains("fd77::1".parse().unwrap()));
    assert_eq!(p.successor().unwrap().to_string(), "10.77.0.2/24");
    let last: IpPrefix = "10.77.0.254/24".parse().unwrap();
    assert_eq!(last.successor(), None, "the next is the broadcast address");
    let v6: IpPrefix = "fd77::ffff/64".parse().unwrap();
    assert_eq!(v6.successor().unwrap().to_string(), "fd77::1:0/64");
    let host: IpPrefix = "fd77::1/128".parse().unwrap();
    assert_eq!(host.successor(), None);
    assert!(host.contains("fd77::1".parse().unwrap()));
    assert!(!host.contains("fd77::2".parse().unwrap()));
}

#[test]
fn printed_quantities_have_three_digits() {
    assert_eq!(format_rate(9_412_345_678.0), "9.41 Gbit/s");
    assert_eq!(format_rate(999_600.0), "1.00 Mbit/s");
    assert_eq!(format_rate(0.0), "0.00 bit/s");
    assert_eq!(format_duration(Duration::from_nanos(812)), "812 ns");
    assert_eq!(format_duration(Duration::from_micros(812)), "812 µs");
    assert_eq!(format_duration(Duration::from_micros(3_214)), "3.21 ms");
    assert_eq!(format_duration(Duration::from_millis(120_400)), "120 s");
}

proptest! {
    /// Parsing any text returns a value or an error, without a panic.
    #[test]
    fn any_text_is_parsed_without_panic(text in "\\PC{0,24}") {
        let _ = text.parse::<Percent>();
        let _ = text.parse::<BitRate>();
        let _ = text.parse::<IpPrefix>();
        let _ = parse_delay(&text);
    }

    #[test]
    fn prefixes_round_trip(bits in any::<u128>(), v6 in any::<bool>(), len in 1_u8..=128) {
        let address: IpAddr =
            if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) };
        if let Ok(prefix) = IpPrefix::new(address, len) {
            prop_assert_eq!(prefix.to_string().parse::<IpPrefix>().unwrap(), prefix);
            prop_assert!(prefix.contains(address));
            if let Some(next) = prefix.successor() {
                prop_assert!(prefix.contains(next.address()));
            }
        }
    }
}

#[test]
fn queues_in_bytes_frames_and_time() {
    let parse = |text: &str| text.parse::<QueueSize>();
    assert_eq!(parse("250kB"), Ok(QueueSize::Bytes(250_000)));
    assert_eq!(parse("1.5MiB"), Ok(QueueSize::Bytes(1_572_864)));
    assert_eq!(parse("1B"), Ok(QueueSize::Bytes(1)));
    assert_eq!(parse("100p"), Ok(QueueSize::Frames(100)));
    assert_eq!(parse("20ms"), Ok(QueueSize::Nanos(20_000_000)));
    for text in ["", "0B", "0p", "1.5p", "1000001p", "2GiB", "2000MiB", "11s", "7", "-1kB"] {
        assert!(parse(text).unwrap_err().to_string().contains("such as 20ms"), "{text}");
    }
    assert!(parse("100kb").unwrap_err().to_string().contains("use kB or KiB"));
    assert_eq!(parse("100p").unwrap().to_string(), "100 frames");
}
