//! Connections: accepting them, their limits, and leaving.

use super::Server;
use super::idle::{Connection, Place, answered};
use super::peer::Peer;
use super::routes::{self, MAX_HEAD};
use crate::interrupt;
use crate::output;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};

const MAX_HEADERS: usize = 100;
/// How long a request's head may take, and how long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(20);
/// How long a client may take nothing of an answer that is there.
const STALL_TIME: Duration = Duration::from_secs(30);
/// How long the system may have no room for another connection before it is asked again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is said that there is none, at most.
const TOLD_TIME: Duration = Duration::from_secs(1);
/// How long a client beyond the limit has to read that there are too many, and how many bytes of its request are read.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
const REFUSED_BYTES: usize = 1 << 20;
/// Clients that are told so at a time; others find the connection closed.
const REFUSALS: usize = 256;
/// How often it is looked whether the process is to end.
const SIGNAL_TIME: Duration = Duration::from_millis(50);
const BACKLOG: u32 = 4096;

/// Raises the number of connections that the system lets a process have, as far as it may be raised.
#[cfg(unix)]
pub fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write the structure that they are given, and change nothing but this process's own limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub fn raise_limit() {}

/// Takes an address.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On Windows this would share the port with another program.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Begins to listen.
pub fn listen(socket: TcpSocket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)
}

/// Serves until a signal comes, then for as long as `drain` what has begun.
pub async fn serve(listener: TcpListener, server: Arc<Server>, most: usize, drain: Duration, quiet: bool) {
    let (leave, leaving) = watch::channel(false);
    // One more than clients are being told.
    let refusals = Arc::new(());
    let mut told: Option<Instant> = None;
    while !interrupt::requested() {
        match timeout(SIGNAL_TIME, listener.accept()).await {
            Err(_) => {}
            Ok(Ok((stream, _))) if server.metrics.connections.load(Relaxed) >= most && !server.idle.end_one() => {
                server.metrics.connections_refused.add(1);
                if Arc::strong_count(&refusals) <= REFUSALS {
                    let counted = refusals.clone();
                    drop(tokio::spawn(async move {
                        refuse(stream).await;
                        drop(counted);
                    }));
                }
            }
            Ok(Ok((stream, _))) => {
                drop(tokio::spawn(connection(stream, OpenConnection::new(&server), Place::new(&server.idle), leaving.clone())))
            }
            // The system has no room for another one.
            Ok(Err(e)) => {
                server.idle.end_one();
                if !quiet && told.is_none_or(|at| at.elapsed() >= TOLD_TIME) {
                    output::note(&format!("no connection can be accepted: {e}"));
                    told = Some(Instant::now());
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    server.leaving.store(true, Relaxed);
    let _ = leave.send(true);
    let open = || server.metrics.connections.load(Relaxed);
    if open() > 0 && !quiet {
        output::note(&format!("leaving: {} connections have {} s to end; a second Ctrl-C ends them", open(), drain.as_secs()));
    }
    let wait = async |time: Duration| {
        let end = Instant::now() + time;
        while open() > 0 && Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
    };
    wait(drain).await;
    // Remaining connections get a notice and a moment to read it.
    server.models.stop();
    wait(Duration::from_secs(2)).await;
}

/// A connection that is counted.
struct OpenConnection(Arc<Server>);

impl OpenConnection {
    fn new(server: &Arc<Server>) -> OpenConnection {
        server.metrics.connections.fetch_add(1, Relaxed);
        OpenConnection(server.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Relaxed);
    }
}

/// Says that there are too many connections. What the client sent is read, since a connection that is closed with unread bytes is reset, and what was
/// written to it lost.
async fn refuse(mut stream: TcpStream) {
    // What was asked for is not known yet: this is an error in OpenAI's form and in Anthropic's.
    let body = r#"{"type":"error","error":{"message":"too many connections","type":"overloaded_error","param":null,"code":null}}"#;
    let head =
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ";
    let say = async {
        stream.writable().await?;
        stream.try_write(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes())?;
        poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await?;
        let (mut room, mut left) = ([0; 4096], REFUSED_BYTES);
        while left > 0 {
            stream.readable().await?;
            match stream.try_read(&mut room) {
                Ok(0) => break,
                Ok(n) => left = left.saturating_sub(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIME, say).await;
}

async fn connection(stream: TcpStream, open: OpenConnection, place: Place, mut leaving: watch::Receiver<bool>) {
    // Without this every streamed token waits for the client's acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let server = open.0.clone();
    let peer = Peer::of(&stream);
    let known = place.connection().clone();
    let service = service_fn(move |request| {
        let (server, busy) = (server.clone(), place.work());
        async move { routes::answer(server, request, peer).await.map(|reply| answered(reply, busy)) }
    });
    let io = TokioIo::new(Guarded { stream, stalled: None, known: known.clone() });
    let conn = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        // Whether a client has gone that sends no more is the peer's to find out.
        .half_close(cfg!(unix))
        .serve_connection(io, service);
    let mut conn = pin!(conn);
    let mut leave = pin!(leaving.wait_for(|leaving| *leaving));
    let mut told = false;
    let mut makes_room = pin!(known.end.notified());
    let end = poll_fn(|cx| {
        // Before a request can be read: all connections are on one thread.
        if makes_room.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !told && leave.as_mut().poll(cx).is_ready() {
            told = true;
            conn.as_mut().graceful_shutdown();
        }
        conn.as_mut().poll(cx)
    });
    // What went wrong on a connection is the client's to see.
    let _ = end.await;
    drop(open);
}

/// A connection that ends where the client takes nothing for too long.
struct Guarded {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
    known: Arc<Connection>,
}

impl Guarded {
    fn guard<T>(&mut self, result: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.known.writes.store(result.is_pending(), Relaxed);
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL_TIME)));
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.guard(result, cx)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.guard(result, cx)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
