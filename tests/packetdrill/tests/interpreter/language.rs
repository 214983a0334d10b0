//! Parser of scripts.

/// A script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) events: Vec<Event>,
}

/// One line.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) line: usize,
    pub(super) when: EventTime,
    pub(super) action: Action,
}

/// Time of an event, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTime {
    /// True for `*`: any time.
    pub(super) any: bool,
    /// True if relative to the end of the previous line.
    pub(super) relative: bool,
    pub(super) from: i64,
    /// `from~to`.
    pub(super) to: i64,
    /// `from...until`: return time of a blocking call.
    pub(super) until: Option<i64>,
}

#[derive(Debug)]
pub(super) enum Action {
    Inject(Packet),
    Expect(Packet),
    Call(Call),
    Assert(Vec<Comparison>),
}

/// Packet in script values. `None`: not checked.
#[derive(Clone, Default, Debug)]
pub(super) struct Packet {
    pub(super) ecn: Option<u8>,
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) length: u32,
    pub(super) ack: Option<u32>,
    pub(super) window: Option<u16>,
    /// `None`: `<...>`.
    pub(super) options: Option<Vec<Field>>,
}

/// TCP option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Nop,
    Mss(u16),
    Scale(u8),
    SackPermitted,
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Vec<Argument>,
    pub(super) result: i64,
    pub(super) errno: Option<i32>,
}

#[derive(Debug)]
pub(super) enum Argument {
    Ellipsis,
    Number(i64),
    /// `[value]`.
    Value(i64),
    /// `{onoff=1, linger=0}`.
    Linger(i32, i32),
}

/// Comparison `name op number` on tcp_info.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) name: String,
    pub(super) operator: String,
    pub(super) number: i64,
}

/// Parses a script.
///
/// # Errors
/// The line number, and the error in the line.
pub(crate) fn parse(text: &str) -> Result<Script, String> {
    let mut events = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split("//").next().unwrap_or_default().trim();
        if !text.is_empty() {
            let event = event(line, text).map_err(|error| format!("{line}: {error}"))?;
            events.push(event);
        }
    }
    Ok(Script { events })
}

fn event(line: usize, text: &str) -> Result<Event, String> {
    let (time, rest) = text.split_once([' ', '\t']).ok_or("a time and an event")?;
    let when = when(time)?;
    let rest = rest.trim();
    let action = if let Some(rest) = rest.strip_prefix("< ") {
        Action::Inject(packet(rest)?)
    } else if let Some(rest) = rest.strip_prefix("> ") {
        Action::Expect(packet(rest)?)
    } else if let Some(rest) = rest.strip_prefix("%{").and_then(|it| it.strip_suffix("}%")) {
        Action::Assert(assertion(rest)?)
    } else {
        Action::Call(call(rest)?)
    };
    Ok(Event { line, when, action })
}

/// Converts seconds to microseconds.
fn micros(text: &str) -> Result<i64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text}: not a time"))?;
    Ok((seconds * 1e6).round() as i64)
}

fn when(text: &str) -> Result<EventTime, String> {
    if text == "*" {
        return Ok(EventTime { any: true, relative: true, from: 0, to: 0, until: None });
    }
    let relative = text.starts_with('+');
    let plain = text.replace('+', "");
    let (from, to, until) = if let Some((from, until)) = plain.split_once("...") {
        (micros(from)?, micros(from)?, Some(micros(until)?))
    } else if let Some((from, to)) = plain.split_once('~') {
        (micros(from)?, micros(to)?, None)
    } else {
        (micros(&plain)?, micros(&plain)?, None)
    };
    Ok(EventTime { any: false, relative, from, to, until })
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{text}: not a number"))
}

fn packet(text: &str) -> Result<Packet, String> {
    let (fields, options) = match text.split_once('<') {
        Some((fields, options)) => {
            let options = options.strip_suffix('>').ok_or("options end in >")?;
            let any = options.trim() == "...";
            (fields, if any { None } else { Some(option_list(options)?) })
        }
        None => (text, Some(Vec::new())),
    };
    let mut packet = Packet { options, ..Packet::default() };
    let mut words = fields.split_whitespace().peekable();
    if let Some(ecn) = words.next_if(|word| word.starts_with('[')) {
        packet.ecn = Some(match ecn {
            "[noecn]" => 0,
            "[ect1]" => 1,
            "[ect0]" => 2,
            "[ce]" => 3,
            _ => return Err(format!("{ecn}: unknown ECN field")),
        });
    }
    for letter in words.next().ok_or("flags")?.chars() {
        packet.flags |= match letter {
            'F' => 0x01,
            'S' => 0x02,
            'R' => 0x04,
            'P' => 0x08,
            '.' => 0x10,
            'E' => 0x40,
            'W' => 0x80,
            _ => return Err(format!("{letter}: unknown flag")),
        };
    }
    let range = words.next().ok_or("a sequence range")?;
    let (seq, rest) = range.split_once(':').ok_or("start:end(length)")?;
    let (end, length) = rest.split_once('(').ok_or("start:end(length)")?;
    packet.seq = number(seq)?;
    packet.length = number(length.strip_suffix(')').ok_or("start:end(length)")?)?;
    if packet.seq.wrapping_add(packet.length) != number::<u32>(end)? {
        return Err(format!("{range}: start, end and length disagree"));
    }
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} has no value"))?;
        match word {
            "ack" => packet.ack = Some(number(value)?),
            "win" => packet.window = Some(number(value)?),
            _ => return Err(format!("{word}: unknown word")),
        }
    }
    Ok(packet)
}

fn option_list(text: &str) -> Result<Vec<Field>, String> {
    let option = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["nop"] => Field::Nop,
            ["sackOK"] => Field::SackPermitted,
            ["mss", value] => Field::Mss(number(value)?),
            ["wscale", value] => Field::Scale(number(value)?),
            ["TS", "val", value, "ecr", echo] => Field::Timestamps(number(value)?, number(echo)?),
            ["sack", ref blocks @ ..] if !blocks.is_empty() => {
                let block = |block: &&str| {
                    let (start, end) = block.split_once(':').ok_or("a block is start:end")?;
                    Ok::<_, String>((number(start)?, number(end)?))
                };
                Field::Sack(blocks.iter().map(block).collect::<Result<_, _>>()?)
            }
            _ => return Err(format!("{text}: unknown option")),
        })
    };
    text.split(',').map(option).collect()
}

fn call(text: &str) -> Result<Call, String> {
    let (name, rest) = text.split_once('(').ok_or_else(|| format!("{text}: syntax error"))?;
    let (arguments, result) = rest.rsplit_once(") = ").ok_or("a call ends in `) = result`")?;
    // The errno's text in parentheses is a comment.
    let (arguments, result) = match arguments.rsplit_once(") = ") {
        Some((arguments, inner)) => (arguments, format!("{inner}) = {result}")),
        None => (arguments, result.to_owned()),
    };
    let mut words = result.split_whitespace();
    let result = number(words.next().ok_or("a result")?)?;
    let errno = words.next().map(|name| Ok::<_, String>(constant(name)? as i32)).transpose()?;
    Ok(Call { name: name.trim().into(), arguments: argument_list(arguments)?, result, errno })
}

fn argument_list(text: &str) -> Result<Vec<Argument>, String> {
    if let (Some(start), Some(end)) = (text.find('{'), text.find('}')) {
        let (before, inner, after) = (&text[..start], &text[start + 1..end], &text[end + 1..]);
        let field = |name: &str| {
            let fields = inner.split(',').filter_map(|field| field.trim().split_once('='));
            let mut fields = fields.filter(|(of, _)| *of == name);
            fields.next().ok_or_else(|| format!("{{{inner}}} has no {name}"))
        };
        let linger = Argument::Linger(number(field("onoff")?.1)?, number(field("linger")?.1)?);
        let mut list = argument_list(before.trim_end_matches([',', ' ']))?;
        list.push(linger);
        list.extend(argument_list(after.trim_start_matches([',', ' ']))?);
        return Ok(list);
    }
    let argument = |text: &str| {
        let text = text.trim();
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        Ok(match (text, inner) {
            ("...", _) => Argument::Ellipsis,
            (_, Some(inner)) => Argument::Value(sum(inner)?),
            (text, None) => Argument::Number(sum(text)?),
        })
    };
    text.split(',').map(argument).collect()
}

/// Sum of numbers and names joined by `|`.
fn sum(text: &str) -> Result<i64, String> {
    text.split('|').try_fold(0, |sum, word| {
        let word = word.trim();
        Ok(sum | number(word).or_else(|_| constant(word))?)
    })
}

fn constant(name: &str) -> Result<i64, String> {
    let value = match name {
        "SOCK_STREAM" => libc::SOCK_STREAM,
        "IPPROTO_TCP" | "SOL_TCP" => libc::IPPROTO_TCP,
        "SOL_SOCKET" => libc::SOL_SOCKET,
        "SO_REUSEADDR" => libc::SO_REUSEADDR,
        "SO_ERROR" => libc::SO_ERROR,
        "SO_KEEPALIVE" => libc::SO_KEEPALIVE,
        "SO_LINGER" => libc::SO_LINGER,
        "SO_RCVBUF" => libc::SO_RCVBUF,
        "SO_SNDBUF" => libc::SO_SNDBUF,
        "TCP_NODELAY" => libc::TCP_NODELAY,
        "TCP_MAXSEG" => libc::TCP_MAXSEG,
        "TCP_KEEPIDLE" => libc::TCP_KEEPIDLE,
        "TCP_KEEPINTVL" => libc::TCP_KEEPINTVL,
        "TCP_KEEPCNT" => libc::TCP_KEEPCNT,
        "TCP_USER_TIMEOUT" => libc::TCP_USER_TIMEOUT,
        "F_GETFL" => libc::F_GETFL,
        "F_SETFL" => libc::F_SETFL,
        "O_RDWR" => libc::O_RDWR,
        "O_NONBLOCK" => libc::O_NONBLOCK,
        "SHUT_RD" => libc::SHUT_RD,
        "SHUT_WR" => libc::SHUT_WR,
        "SHUT_RDWR" => libc::SHUT_RDWR,
        "SIOCINQ" => libc::FIONREAD as i32,
        "EAGAIN" => libc::EAGAIN,
        "ECONNREFUSED" => libc::ECONNREFUSED,
        "ECONNRESET" => libc::ECONNRESET,
        "EINPROGRESS" => libc::EINPROGRESS,
        "ENOPROTOOPT" => libc::ENOPROTOOPT,
        "EPIPE" => libc::EPIPE,
        "ETIMEDOUT" => libc::ETIMEDOUT,
        _ => return Err(format!("{name}: unknown name")),
    };
    Ok(value.into())
}

/// Parses `assert a == 1 and b < 2`; the text after a comma is a comment, as in Python.
fn assertion(text: &str) -> Result<Vec<Comparison>, String> {
    let text = text.trim().strip_prefix("assert ").ok_or("expected assert")?;
    let text = text.split(',').next().unwrap_or_default();
    let comparison = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name, operator, value] = words[..] else {
            return Err(format!("{text}: not a comparison"));
        };
        if !["==", "!=", "<", "<=", ">", ">="].contains(&operator) {
            return Err(format!("{operator}: unknown operator"));
        }
        Ok(Comparison { name: name.into(), operator: operator.into(), number: number(value)? })
    };
    text.split(" and ").map(comparison).collect()
}
