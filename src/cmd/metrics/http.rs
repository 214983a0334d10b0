//! Server side of one HTTP exchange: a GET request and its reply, then the connection is closed.
//!
//! | limit | |
//! |---|---|
//! | request | [`REQUEST_BYTES_MAX`] bytes with [`HEADERS_MAX`] header fields, within [`REQUEST_LIMIT`] |
//! | reply | read by the client within [`REPLY_LIMIT`] |

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: usize = 8192;
/// Maximum number of header fields.
const HEADERS_MAX: usize = 64;
/// Time limit to receive a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Time limit to send the reply.
const REPLY_LIMIT: Duration = Duration::from_secs(5);
/// Content type of the text format of Prometheus, which is plain text to others.
const CONTENT_TYPE: &str = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;

/// Reply to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    status: &'static str,
    body: String,
}

impl Reply {
    /// The path is unknown.
    pub(super) const NOT_FOUND: Self = Self::error("404 Not Found");
    const BAD_REQUEST: Self = Self::error("400 Bad Request");
    const METHOD_NOT_ALLOWED: Self = Self::error("405 Method Not Allowed");
    const TOO_LARGE: Self = Self::error("431 Request Header Fields Too Large");

    /// Creates a reply with a text.
    pub(super) const fn text(body: String) -> Self {
        Self { status: "200 OK", body }
    }

    const fn error(status: &'static str) -> Self {
        Self { status, body: String::new() }
    }
}

/// Parsed part of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parsed<'a> {
    /// More bytes are required.
    Partial,
    /// Path without its query.
    Get(&'a str),
    /// Neither GET nor HEAD.
    OtherMethod,
    /// Not a request of HTTP/1.
    Invalid,
}

fn parse(bytes: &[u8]) -> Parsed<'_> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => Parsed::Partial,
        Ok(httparse::Status::Complete(_)) => match (request.method, request.path) {
            (Some("GET"), Some(path)) => Parsed::Get(path.split('?').next().unwrap_or(path)),
            _ => Parsed::OtherMethod,
        },
        Err(_) => Parsed::Invalid,
    }
}

/// Reads a request, and writes the reply that `answer` returns for its path.
///
/// # Errors
/// The client disconnected, or a time limit elapsed.
pub(super) fn serve(mut client: &TcpStream, answer: impl Fn(&str) -> Reply) -> io::Result<()> {
    let deadline = Instant::now() + REQUEST_LIMIT;
    // The listener does not block.
    client.set_nonblocking(false)?;
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let mut length = 0;
    let reply = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut request[length..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        match parse(&request[..length]) {
            Parsed::Partial if length == request.len() => break Reply::TOO_LARGE,
            Parsed::Partial => {}
            Parsed::Get(path) => break answer(path),
            Parsed::OtherMethod => break Reply::METHOD_NOT_ALLOWED,
            Parsed::Invalid => break Reply::BAD_REQUEST,
        }
    };
    let Reply { status, body } = reply;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        body.len()
    );
    write_within(client, &[head.into_bytes(), body.into_bytes()].concat(), REPLY_LIMIT)?;
    client.shutdown(Shutdown::Write)
}

fn write_within(mut client: &TcpStream, mut bytes: &[u8], limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_write_timeout(Some(left))?;
        match client.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Returns what a client reads after it has sent `request`, and the outcome of the server.
    fn exchange(request: &[u8]) -> (String, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            serve(&client, |path| Reply::text(format!("path {path}\n")))
        });
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(request).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        // A reset follows bytes that the server does not read.
        let _ = client.read_to_string(&mut text);
        (text, server.join().unwrap())
    }

    #[test]
    fn requests_have_their_replies() {
        let (text, ended) = exchange(b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(ended.is_ok());
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
        assert!(head.contains("Content-Length: 14\r\nConnection: close"), "{head}");
        assert_eq!(body, "path /metrics\n");
        for (request, status) in [
            (b"POST / HTTP/1.1\r\n\r\n".to_vec(), "405 "),
            (b"\x16\x03\x01 not HTTP\r\n\r\n".to_vec(), "400 "),
            (
                [b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; REQUEST_BYTES_MAX - 19]].concat(),
                "431 ",
            ),
        ] {
            let (text, ended) = exchange(&request);
            assert!(ended.is_ok() && text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
        }
    }

    #[test]
    fn incomplete_request_has_no_reply() {
        let (text, ended) = exchange(b"GET / HTTP/1.1\r\nHost:");
        assert_eq!((text.as_str(), ended.unwrap_err().kind()), ("", io::ErrorKind::UnexpectedEof));
    }
}
