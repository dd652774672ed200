//! Whether the client of a connection is there. One that closed its sending side may still wait for its answer, and looks like one that has gone away, until
//! something is sent to it: its system rejects that where nobody is left.

use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// How often it is looked.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Times that something is sent to a client that sends no more, one behind the other; its system's answer takes a moment.
const MAX_PROBES: u32 = 3;
/// How long there is silence after that.
const SILENCE: Duration = Duration::from_secs(5);
/// How long an answer may go on where nothing can be sent before it.
const UNSEEN: Duration = Duration::from_secs(10);

/// The client's end of a connection, as long as that is open.
#[derive(Clone, Copy)]
pub struct Peer {
    #[cfg(unix)]
    socket: std::os::fd::RawFd,
}

/// What is known of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(unix), allow(dead_code))]
enum State {
    Here,
    /// It closed its sending side, or all of the connection.
    SendsNoMore,
    Gone,
}

/// When a client that sends no more is to be sent something.
#[derive(Default)]
pub struct Asking {
    times: u32,
    last: Option<Instant>,
}

impl Asking {
    /// Whether it is time.
    fn is_due(&mut self) -> bool {
        let wait = if self.times < MAX_PROBES { Duration::ZERO } else { SILENCE };
        let due = self.last.is_none_or(|last| last.elapsed() >= wait);
        if due {
            (self.times, self.last) = (self.times + 1, Some(Instant::now()));
        }
        due
    }
}

impl Peer {
    /// Of this connection, which must live as long as whoever asks.
    #[cfg(unix)]
    pub fn of(stream: &TcpStream) -> Peer {
        Peer { socket: std::os::fd::AsRawFd::as_raw_fd(stream) }
    }

    /// On other systems whoever closes the sending side has gone away, and the connection ends by that.
    #[cfg(not(unix))]
    pub fn of(_: &TcpStream) -> Peer {
        Peer {}
    }

    #[cfg(unix)]
    fn state(self) -> State {
        let mut byte = 0u8;
        // SAFETY: the connection is open, and the byte is there to be written.
        let got = unsafe { libc::recv(self.socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        match got {
            0 => State::SendsNoMore,
            1.. => State::Here,
            _ => match std::io::Error::last_os_error().kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => State::Here,
                _ => State::Gone,
            },
        }
    }

    #[cfg(not(unix))]
    fn state(self) -> State {
        State::Here
    }

    /// Sends an interim response, which clients pass over; false where the connection takes nothing more.
    #[cfg(unix)]
    fn send_interim(self) -> bool {
        let bytes = b"HTTP/1.1 102 Processing\r\n\r\n";
        // SAFETY: the connection is open. A signal for a broken connection is ignored by Rust's programs.
        let sent = unsafe { libc::send(self.socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        sent == bytes.len() as isize || std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
    }

    #[cfg(not(unix))]
    fn send_interim(self) -> bool {
        true
    }

    /// Whether a client that sends no more is to be sent something now, of an answer that has begun.
    pub fn should_be_asked(self, asking: &mut Asking) -> bool {
        self.state() != State::Here && asking.is_due()
    }

    /// Waits until the client has gone away, before its answer begins. `interim`: whether it knows interim responses.
    pub async fn gone(self, interim: bool) {
        let (mut asking, mut since) = (Asking::default(), None);
        loop {
            sleep(POLL_INTERVAL).await;
            match self.state() {
                State::Here => {}
                State::Gone => return,
                State::SendsNoMore if interim => {
                    if asking.is_due() && !self.send_interim() {
                        return;
                    }
                }
                State::SendsNoMore => {
                    if since.get_or_insert_with(Instant::now).elapsed() > UNSEEN {
                        return;
                    }
                }
            }
        }
    }
}
