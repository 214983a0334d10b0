//! Echo over an asynchronous stream of the crate rdma-io: `rdma-io-echo server|client ADDRESS:PORT`.
//!
//! The client writes [`LENGTH`] bytes, reads them back at the same time, compares them, and closes the stream. The
//! server ends with the stream. Each runs for at most [`LIMIT`]. The crate's ring transports do not run on an iWARP
//! device.

use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_io::{AsyncRead as _, AsyncWrite as _};
use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::send_recv_transport::{SendRecvConfig, SendRecvTransport};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

type Stream = AsyncRdmaStream<SendRecvTransport>;

const USAGE: &str = "usage: rdma-io-echo server|client ADDRESS:PORT";
/// Bytes of the stream in each direction.
const LENGTH: usize = 8 << 20;
/// Time limit of the whole program.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes that differ at every offset within a period of 2^32.
fn pattern() -> Vec<u8> {
    let mut state = 1_u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(LENGTH)
    .collect()
}

/// Writes `to_write` and reads the same number of bytes, as the stream becomes ready for either.
async fn exchange(stream: &mut Stream, to_write: &[u8]) -> Result<Vec<u8>> {
    let (mut written, mut length) = (0, 0);
    let mut read = vec![0; to_write.len()];
    poll_fn(|context| {
        loop {
            let mut is_ready = false;
            if written < to_write.len()
                && let Poll::Ready(count) =
                    Pin::new(&mut *stream).poll_write(context, &to_write[written..])?
            {
                written += count;
                is_ready = true;
            }
            if let Poll::Ready(count) =
                Pin::new(&mut *stream).poll_read(context, &mut read[length..])?
            {
                if count == 0 {
                    return Poll::Ready(Err(format!("stream ended after {length} bytes").into()));
                }
                length += count;
                is_ready = true;
            }
            if length == to_write.len() {
                return Poll::Ready(Ok::<_, Box<dyn Error>>(()));
            }
            if !is_ready {
                return Poll::Pending;
            }
        }
    })
    .await?;
    Ok(read)
}

async fn serve(address: SocketAddr) -> Result<()> {
    let listener = AsyncCmListener::bind(&address)?;
    let transport = SendRecvTransport::accept(&listener, SendRecvConfig::stream()).await?;
    let mut stream = AsyncRdmaStream::new(transport);
    let (mut buffer, mut total) = (vec![0; 64 << 10], 0);
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            break;
        }
        stream.write_all(&buffer[..length]).await?;
        total += length;
    }
    if total != LENGTH {
        return Err(format!("{total} bytes echoed, expected {LENGTH}").into());
    }
    println!("{total} bytes echoed");
    Ok(())
}

async fn connect(address: SocketAddr) -> Result<()> {
    let transport = SendRecvTransport::connect(&address, SendRecvConfig::stream()).await?;
    let mut stream = AsyncRdmaStream::new(transport);
    let sent = pattern();
    let echoed = exchange(&mut stream, &sent).await?;
    if let Some(at) = sent.iter().zip(&echoed).position(|(sent, echoed)| sent != echoed) {
        return Err(format!("byte {at} differs").into());
    }
    stream.shutdown().await?;
    println!("{LENGTH} bytes compared");
    Ok(())
}

async fn run() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [end, address] = arguments.as_slice() else { return Err(USAGE.into()) };
    let address = address.parse()?;
    match end.as_str() {
        "server" => serve(address).await,
        "client" => connect(address).await,
        _ => Err(USAGE.into()),
    }
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(LIMIT, run()).await })?
}
