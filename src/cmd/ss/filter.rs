//! Filters of ss, as far as they apply.
//!
//! ```text
//! filter := { ("state" | "exclude") STATE | "offload" PLACE } [ expression ]
//! expression := term { "or" term }          term := factor { ["and"] factor }
//! factor := ("not" | "!") factor | "(" expression ")" | predicate
//! predicate := ("sport" | "dport") OP [":"] PORT | ("src" | "dst") [OP] HOST
//! OP := = == eq  != ne neq  > gt  < lt  >= ge geq  <= le leq
//! HOST := ADDRESS [/PREFIX] [:PORT] | * | *:PORT | :PORT, an IPv6 address with a port in brackets
//! ```
//!
//! Blanks around symbols are optional: `dport=:22` is `dport = :22`. Parentheses and negations nest at most
//! [`DEPTH_MAX`] deep.

use std::net::{IpAddr, SocketAddr};

use host_stack::stream::OffloadState;
use ipnet::IpNet;

use crate::{control::record::Record, failure::Failure};

/// Nesting limit of parentheses and negations.
pub const DEPTH_MAX: usize = 32;

const STATES: [(&str, &str); 11] = [
    ("established", "ESTAB"),
    ("syn-sent", "SYN-SENT"),
    ("syn-recv", "SYN-RECV"),
    ("fin-wait-1", "FIN-WAIT-1"),
    ("fin-wait-2", "FIN-WAIT-2"),
    ("time-wait", "TIME-WAIT"),
    ("closed", "UNCONN"),
    ("close-wait", "CLOSE-WAIT"),
    ("last-ack", "LAST-ACK"),
    ("closing", "CLOSING"),
    ("listening", "LISTEN"),
];

/// Set of states; a bit number is an index into the table of states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct States(u16);

impl States {
    const ALL: Self = Self((1 << STATES.len()) - 1);

    fn named(words: &[&str]) -> Self {
        let bits = STATES.iter().enumerate().filter(|(_, (word, _))| words.contains(word));
        Self(bits.fold(0, |set, (bit, _)| set | 1 << bit))
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the default states of ss: all except listening, closed, time-wait and syn-recv.
    pub fn connected() -> Self {
        Self::ALL.without(Self::named(&["listening", "closed", "time-wait", "syn-recv"]))
    }

    /// Returns the state of listeners.
    pub fn listening() -> Self {
        Self::named(&["listening"])
    }

    /// Returns all states.
    pub const fn all() -> Self {
        Self::ALL
    }

    fn parse(word: &str) -> Result<Self, Failure> {
        match word {
            "all" => Ok(Self::ALL),
            "connected" => Ok(Self::ALL.without(Self::named(&["listening", "closed"]))),
            "synchronized" => {
                Ok(Self::ALL.without(Self::named(&["listening", "closed", "syn-sent"])))
            }
            "bucket" => Ok(Self::named(&["syn-recv", "time-wait"])),
            "big" => Ok(Self::ALL.without(Self::named(&["syn-recv", "time-wait"]))),
            "estab" => Ok(Self::named(&["established"])),
            "listen" => Ok(Self::listening()),
            word if STATES.iter().any(|(name, _)| *name == word) => Ok(Self::named(&[word])),
            word => {
                let names: Vec<_> = STATES.iter().map(|(name, _)| *name).collect();
                Err(Failure::usage(format!(
                    "filter: state {word:?}: expected all, connected, synchronized, bucket, big, {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// Returns true if the set contains the state `shown`. An unknown state counts as established: such a connection is
    /// between host and target.
    fn contains(self, shown: Option<&str>) -> bool {
        let shown = shown.unwrap_or("ESTAB");
        let bit = STATES.iter().position(|(_, word)| *word == shown);
        bit.is_some_and(|bit| self.0 & 1 << bit != 0)
    }
}

/// Filter of connections.
#[derive(Clone, PartialEq, Debug)]
pub struct Filter {
    states: States,
    place: Option<OffloadState>,
    expression: Option<Expression>,
}

#[derive(Clone, PartialEq, Debug)]
enum Expression {
    Or(Vec<Self>),
    And(Vec<Self>),
    Not(Box<Self>),
    Port { ours: bool, order: Order, port: u16 },
    Host { ours: bool, equal: bool, prefix: Option<IpNet>, port: Option<u16> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
}

impl Order {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Equal,
            "!=" | "ne" | "neq" => Self::NotEqual,
            ">" | "gt" => Self::Greater,
            "<" | "lt" => Self::Less,
            ">=" | "ge" | "geq" => Self::GreaterOrEqual,
            "<=" | "le" | "leq" => Self::LessOrEqual,
            _ => return None,
        })
    }

    const fn holds(self, left: u16, right: u16) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Greater => left > right,
            Self::Less => left < right,
            Self::GreaterOrEqual => left >= right,
            Self::LessOrEqual => left <= right,
        }
    }
}

impl Filter {
    /// Parses the words of the command line; `states` applies if the words contain no state.
    ///
    /// # Errors
    /// [`Failure::usage`] with the invalid word.
    pub fn parse(words: &[String], states: States) -> Result<Self, Failure> {
        let text = words.join(" ");
        let mut tokens = Tokens { words: split(&text), at: 0, depth: 0 };
        let mut named: Option<States> = None;
        let mut place = None;
        while let Some(word @ ("state" | "exclude" | "offload")) = tokens.peek() {
            tokens.at += 1;
            let value = tokens.next(word)?.to_ascii_lowercase();
            match word {
                "state" => {
                    let set = States::parse(&value)?;
                    named = Some(named.map_or(set, |named| named.with(set)));
                }
                "exclude" => {
                    named = Some(named.unwrap_or(States::ALL).without(States::parse(&value)?));
                }
                _ => place = Some(parse_place(&value)?),
            }
        }
        let expression = match tokens.peek() {
            Some(_) => Some(tokens.expression()?),
            None => None,
        };
        match tokens.peek() {
            Some(word) => Err(Failure::usage(format!("filter: unexpected {word:?}"))),
            None => Ok(Self { states: named.unwrap_or(states), place, expression }),
        }
    }

    /// Returns true if `record` is shown.
    pub fn shows(&self, record: &Record) -> bool {
        self.states.contains(record.state.as_deref())
            && self.place.is_none_or(|place| place == record.offload_state)
            && self.expression.as_ref().is_none_or(|expression| expression.holds(record))
    }
}

fn parse_place(word: &str) -> Result<OffloadState, Failure> {
    let places = [
        OffloadState::InHost,
        OffloadState::Offloading,
        OffloadState::Offloaded,
        OffloadState::Uploading,
        OffloadState::Kernel,
    ];
    let place = places.into_iter().find(|place| place.to_string().to_ascii_lowercase() == word);
    place.ok_or_else(|| {
        Failure::usage(format!(
            "filter: offload {word:?}: expected inhost, offloading, offloaded, uploading or kernel"
        ))
    })
}

/// Splits text into words; symbols are separate words.
fn split(text: &str) -> Vec<&str> {
    let is_symbol = |byte: u8| b"()=!<>&|".contains(&byte);
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'(' | b')' => at += 1,
            byte if is_symbol(byte) => {
                while at < bytes.len() && is_symbol(bytes[at]) && !b"()".contains(&bytes[at]) {
                    at += 1;
                }
            }
            _ => {
                while at < bytes.len() && !bytes[at].is_ascii_whitespace() && !is_symbol(bytes[at])
                {
                    at += 1;
                }
            }
        }
        words.push(&text[start..at]);
    }
    words
}

struct Tokens<'a> {
    words: Vec<&'a str>,
    at: usize,
    depth: usize,
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self, after: &str) -> Result<&'a str, Failure> {
        let word = self
            .peek()
            .ok_or_else(|| Failure::usage(format!("filter: no word after {after:?}")))?;
        self.at += 1;
        Ok(word)
    }

    fn skip(&mut self, words: &[&str]) -> bool {
        let found = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(found);
        found
    }

    fn expression(&mut self) -> Result<Expression, Failure> {
        let mut terms = vec![self.term()?];
        while self.skip(&["or", "|", "||"]) {
            terms.push(self.term()?);
        }
        Ok(if terms.len() == 1 { terms.remove(0) } else { Expression::Or(terms) })
    }

    fn term(&mut self) -> Result<Expression, Failure> {
        let mut factors = vec![self.factor()?];
        loop {
            let joined = self.skip(&["and", "&", "&&"]);
            let ends = matches!(self.peek(), None | Some(")" | "or" | "|" | "||"));
            if ends && !joined {
                let one = factors.len() == 1;
                return Ok(if one { factors.remove(0) } else { Expression::And(factors) });
            }
            factors.push(self.factor()?);
        }
    }

    fn factor(&mut self) -> Result<Expression, Failure> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Failure::usage(format!(
                "filter: nested too deeply, expected at most {DEPTH_MAX} levels"
            )));
        }
        let factor = match self.next("the expression")? {
            "not" | "!" => Expression::Not(Box::new(self.factor()?)),
            "(" => {
                let inner = self.expression()?;
                if !self.skip(&[")"]) {
                    return Err(Failure::usage("filter: unclosed parenthesis"));
                }
                inner
            }
            word => self.predicate(word)?,
        };
        self.depth -= 1;
        Ok(factor)
    }

    fn predicate(&mut self, word: &str) -> Result<Expression, Failure> {
        match word {
            "sport" | "dport" => {
                let order = self.next(word)?;
                let order = Order::parse(order).ok_or_else(|| {
                    Failure::usage(format!("filter: {word} {order:?}: expected a comparison"))
                })?;
                let text = self.next(word)?;
                let port = parse_port(text.trim_start_matches(':'))?;
                Ok(Expression::Port { ours: word == "sport", order, port })
            }
            "src" | "dst" => {
                let equal = match self.peek().and_then(Order::parse) {
                    None => true,
                    Some(order @ (Order::Equal | Order::NotEqual)) => {
                        self.at += 1;
                        order == Order::Equal
                    }
                    Some(_) => {
                        return Err(Failure::usage(format!("filter: {word}: expected = or !=")));
                    }
                };
                let (prefix, port) = parse_host(self.next(word)?)?;
                Ok(Expression::Host { ours: word == "src", equal, prefix, port })
            }
            word => Err(Failure::usage(format!(
                "filter: {word:?}: expected src, dst, sport, dport, not or (; state, exclude and offload must be \
                 first"
            ))),
        }
    }
}

fn parse_port(text: &str) -> Result<u16, Failure> {
    text.parse().map_err(|_| {
        Failure::usage(format!("filter: port {text:?}: expected 0..=65535; names are not resolved"))
    })
}

/// Parses `ADDRESS[/PREFIX][:PORT]`, `*`, or `:PORT`.
fn parse_host(text: &str) -> Result<(Option<IpNet>, Option<u16>), Failure> {
    let wrong =
        || Failure::usage(format!("filter: host {text:?}: expected ADDRESS[/PREFIX][:PORT]"));
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') && !host.contains("]/") => {
            (text, None)
        }
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let port = match port {
        None | Some("*") => None,
        Some(port) => Some(parse_port(port)?),
    };
    if host.is_empty() || host == "*" {
        return Ok((None, port));
    }
    let host = host.replace(['[', ']'], "");
    let (address, bits) = match host.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse().map_err(|_| wrong())?)),
        None => (host.as_str(), None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let prefix = match bits {
        Some(bits) => IpNet::new(address, bits).map_err(|_| wrong())?,
        None => address.into(),
    };
    Ok((Some(prefix), port))
}

impl Expression {
    fn holds(&self, record: &Record) -> bool {
        let end = |ours: bool| if ours { Some(record.local) } else { record.remote };
        match self {
            Self::Or(parts) => parts.iter().any(|part| part.holds(record)),
            Self::And(parts) => parts.iter().all(|part| part.holds(record)),
            Self::Not(part) => !part.holds(record),
            Self::Port { ours, order, port } => {
                end(*ours).is_some_and(|end| order.holds(end.port(), *port))
            }
            Self::Host { ours, equal, prefix, port } => {
                let matches = |end: SocketAddr| {
                    prefix.is_none_or(|prefix| prefix.contains(&end.ip()))
                        && port.is_none_or(|port| port == end.port())
                };
                end(*ours).is_some_and(|end| matches(end) == *equal)
            }
        }
    }
}

#[cfg(test)]
mod tests;
