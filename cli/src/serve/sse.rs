//! What routes make of answers: an object of the whole, or a stream of server-sent events.

use super::answer::{Piece, Running, Usage, Whole};
use super::error::ApiError;
use super::peer::{Asking, POLL_INTERVAL, Peer};
use hyper::body::{Body, Bytes, Frame};
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// A comment is sent where nothing was written for so long, so that nobody on the way thinks that the connection is dead.
const PING: Duration = Duration::from_secs(15);

/// A route's form of answers.
pub trait Form: Send {
    /// All answers as one object.
    fn whole(&mut self, answers: Vec<Whole>, usage: &Usage) -> Value;
    /// Events before the first piece.
    fn begin(&mut self, _usage: &Usage, _out: &mut String) {}
    fn piece(&mut self, piece: Piece, out: &mut String);
    /// Behind the last.
    fn end(&mut self, usage: &Usage, out: &mut String);
    /// Instead of what is left.
    fn fail(&mut self, error: &ApiError, out: &mut String);
}

/// Appends an event without a name.
pub fn data(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// Appends an event with a name, which its `type` repeats.
pub fn named(out: &mut String, value: &Value) {
    out.push_str("event: ");
    out.push_str(value["type"].as_str().unwrap_or("error"));
    out.push('\n');
    data(out, value);
}

/// The body of a streamed answer. Dropping it, as happens when the client goes away, cancels the answer.
pub struct Stream {
    running: Running,
    form: Box<dyn Form>,
    begun: bool,
    done: bool,
    ping: Pin<Box<Sleep>>,
    peer: Peer,
    asking: Asking,
    /// When it is looked whether the client is there.
    look: Pin<Box<Sleep>>,
}

impl Stream {
    pub fn new(running: Running, form: Box<dyn Form>, peer: Peer) -> Stream {
        let (ping, look) = (Box::pin(sleep(PING)), Box::pin(sleep(POLL_INTERVAL)));
        Stream { running, form, begun: false, done: false, ping, peer, asking: Asking::default(), look }
    }

    /// Whether it is time for a comment, to a client that has gone away perhaps.
    fn pings(&mut self, cx: &mut Context<'_>) -> bool {
        let mut asks = false;
        while self.look.as_mut().poll(cx).is_ready() {
            self.look.as_mut().reset(Instant::now() + POLL_INTERVAL);
            asks |= self.peer.should_be_asked(&mut self.asking);
        }
        asks || self.ping.as_mut().poll(cx).is_ready()
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let mut out = String::new();
        // What is ready together goes out together.
        while !this.done {
            let Poll::Ready(next) = this.running.poll_piece(cx) else { break };
            if !this.begun && !matches!(next, Some(Err(_))) {
                this.begun = true;
                this.form.begin(&this.running.usage, &mut out);
            }
            match next {
                Some(Ok(piece)) => this.form.piece(piece, &mut out),
                Some(Err(e)) => {
                    this.form.fail(&e, &mut out);
                    this.done = true;
                }
                None => {
                    this.form.end(&this.running.usage, &mut out);
                    this.done = true;
                }
            }
        }
        if out.is_empty() && !this.done && this.pings(cx) {
            out.push_str(": ping\n\n");
        }
        match (out.is_empty(), this.done) {
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
            (false, _) => {
                this.ping.as_mut().reset(Instant::now() + PING);
                // Nothing wakes a timer that was set anew, unless it is looked at.
                let _ = this.ping.as_mut().poll(cx);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
            }
        }
    }
}
