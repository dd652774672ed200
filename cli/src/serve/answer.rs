//! Answers that are being written: the engine's events become text in whole characters, up to a text that ends the answer.

use super::Server;
use super::access::Access;
use super::ask::Ask;
use super::calls::{Call, Tools};
use super::error::ApiError;
use super::host::Host;
use super::stops::{Found, Stops};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tensorlogic::serving::{Event, FinishReason, LogProbs, RequestHandle};
use tensorlogic::text::{AnswerPart, AnswerReader, Tokenizer};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// The model ended it.
    End,
    /// This text of the request did.
    Text(String),
    /// There are as many tokens as there may be.
    Length,
    /// Functions are to be called.
    Calls,
}

impl Finish {
    /// OpenAI's name of it.
    pub fn reason(&self) -> &'static str {
        match self {
            Finish::End | Finish::Text(_) => "stop",
            Finish::Length => "length",
            Finish::Calls => "tool_calls",
        }
    }
}

/// A token with the logarithm of its probability.
#[derive(Clone, Debug)]
pub struct Scored {
    pub bytes: Vec<u8>,
    pub log_prob: f32,
    /// The most likely tokens in its place.
    pub top: Vec<Scored>,
}

impl Scored {
    /// Its text; parts of characters become U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Whole {
    pub text: String,
    /// What the model thought.
    pub thought: String,
    pub calls: Vec<Call>,
    pub finish: Finish,
    pub scores: Vec<Scored>,
}

/// What is new of an answer.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The answer's number.
    pub index: usize,
    pub text: String,
    pub thought: String,
    /// Calls of functions, each whole.
    pub calls: Vec<Call>,
    /// Its tokens, where they were asked for.
    pub scores: Vec<Scored>,
    /// Set at its end.
    pub finish: Option<Finish>,
}

/// What all answers of a request took, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt: usize,
    /// Tokens of prompts that needed no reading.
    pub cached: usize,
    pub written: usize,
}

/// One answer.
struct AnswerRow {
    /// Dropped when nothing more is wanted.
    handle: Option<RequestHandle>,
    reader: AnswerReader<Arc<Tokenizer>>,
    stops: Stops,
    /// Calls so far.
    calls: usize,
    /// When the last token came.
    last: Option<Instant>,
    /// What was said of the token that comes next.
    next: Option<LogProbs>,
    /// Tokens whose text was not given out yet.
    scores: Vec<Scored>,
}

impl AnswerRow {
    /// What these parts give, up to a text that ends the answer.
    fn piece(&mut self, index: usize, parts: Vec<AnswerPart>, tools: &Tools) -> Piece {
        let mut piece = Piece { index, text: String::new(), thought: String::new(), calls: vec![], scores: vec![], finish: None };
        for part in parts {
            let text = match part {
                AnswerPart::Text(text) => text,
                AnswerPart::Thought(thought) => {
                    piece.thought += &thought;
                    continue;
                }
                AnswerPart::Calls { calls, .. } if !calls.is_empty() && calls.iter().all(|c| tools.has(&c.name)) => {
                    // What was held back in case it began a text that ends the answer comes before the calls.
                    piece.text += &self.stops.finish();
                    let most = if tools.parallel { usize::MAX } else { 1 };
                    let calls = calls.into_iter().take(most.saturating_sub(self.calls)).map(Call::new);
                    let before = piece.calls.len();
                    piece.calls.extend(calls);
                    self.calls += piece.calls.len() - before;
                    continue;
                }
                // A call of what there is not, or in an unknown notation.
                AnswerPart::Calls { written, .. } => written,
            };
            match self.stops.push(&text) {
                Found::Text(text) => piece.text += &text,
                Found::Stop(text, n) => {
                    piece.text += &text;
                    piece.finish = Some(Finish::Text(self.stops.text(n).to_string()));
                    return piece;
                }
            }
        }
        piece
    }
}

/// All answers of a request. Dropping it cancels what is left of them.
pub struct Running {
    server: Arc<Server>,
    host: Arc<Host>,
    events: UnboundedReceiver<(usize, Event, Instant)>,
    rows: Vec<AnswerRow>,
    tools: Tools,
    /// Answers to each prompt.
    each: usize,
    /// Answers that were asked for, and those that have not ended.
    asked: usize,
    open: usize,
    begun: Instant,
    /// When the first token of any came.
    first: Option<Instant>,
    /// Why the last answer ended.
    ended: &'static str,
    access: Option<Arc<Access>>,
    pub usage: Usage,
}

impl Running {
    /// Submits `ask.n` answers to each prompt, on behalf of a client.
    pub fn start(
        server: &Arc<Server>,
        host: &Arc<Host>,
        ask: &Ask,
        prompts: &[Vec<u32>],
        client: &str,
        begun: Instant,
    ) -> Result<Running, ApiError> {
        let (sender, events) = unbounded_channel();
        let mut rows = Vec::new();
        for prompt in prompts {
            for k in 0..ask.n {
                let (sender, index) = (sender.clone(), rows.len());
                let listener = move |event| drop(sender.send((index, event, Instant::now())));
                let handle = Some(host.engine()?.submit_to(ask.request(prompt, k, client), listener)?);
                let reader = ask.reader(host, prompt)?;
                rows.push(AnswerRow {
                    handle,
                    reader,
                    stops: Stops::new(ask.stops.clone()),
                    calls: 0,
                    last: None,
                    next: None,
                    scores: vec![],
                });
            }
        }
        let usage = Usage { prompt: prompts.iter().map(Vec::len).sum(), ..Usage::default() };
        server.metrics.prompt_tokens.add(usage.prompt as u64);
        let (server, host, tools) = (server.clone(), host.clone(), ask.tools.clone());
        Ok(Running {
            server,
            host,
            events,
            each: ask.n.max(1),
            asked: rows.len(),
            open: rows.len(),
            rows,
            tools,
            begun,
            first: None,
            ended: "abort",
            access: None,
            usage,
        })
    }

    /// The same, with the request that the access log is told of.
    pub fn logged(mut self, access: &Arc<Access>) -> Running {
        self.access = Some(access.clone());
        self
    }

    /// The next piece of any answer; `None` when all have ended. After an error nothing more comes.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, ApiError>>> {
        while self.open > 0 {
            let next = ready!(self.events.poll_recv(cx))
                .map_or_else(|| Err(ApiError::unavailable("the engine has stopped")), |(index, event, at)| self.take(index, event, at));
            match next {
                Ok(None) => {}
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(piece))),
                Err(e) => {
                    (self.open, self.ended) = (0, "error");
                    self.rows.clear();
                    self.server.metrics.finished("error", self.begun);
                    return Poll::Ready(Some(Err(e)));
                }
            }
        }
        Poll::Ready(None)
    }

    fn take(&mut self, index: usize, event: Event, at: Instant) -> Result<Option<Piece>, ApiError> {
        let row = &mut self.rows[index];
        // Behind its end: tokens that were under way when it was cancelled.
        if row.handle.is_none() {
            return Ok(None);
        }
        // A vocabulary may be padded by rows that are no tokens.
        let scored = |id: u32, log_prob: f32, top: Vec<Scored>| {
            Some(Scored { bytes: self.host.texts.tokenizer.token_bytes(id).ok()?, log_prob, top })
        };
        let (parts, reason) = match event {
            Event::Token(token) => {
                self.usage.written += 1;
                self.first.get_or_insert(at);
                self.server.metrics.token(row.last.replace(at), self.begun, at);
                if let Some(LogProbs { chosen, top }) = row.next.take() {
                    let top = top.into_iter().filter_map(|(id, l)| scored(id, l, vec![])).collect();
                    row.scores.extend(scored(token, chosen, top));
                }
                (row.reader.push(token)?, None)
            }
            Event::Finished(reason, _) => (row.reader.finish()?, Some(reason)),
            Event::LogProbs(l) => {
                row.next = Some(l);
                return Ok(None);
            }
            Event::Failed(e) => return Err(e.into()),
        };
        let mut piece = row.piece(index, parts, &self.tools);
        if let Some(reason) = reason.filter(|_| piece.finish.is_none()) {
            piece.text += &row.stops.finish();
            piece.finish = Some(match reason {
                FinishReason::Length => Finish::Length,
                FinishReason::Stop if row.calls > 0 => Finish::Calls,
                FinishReason::Stop => Finish::End,
            });
        }
        if piece.text.is_empty() && piece.thought.is_empty() && piece.calls.is_empty() && piece.finish.is_none() {
            return Ok(None);
        }
        piece.scores = std::mem::take(&mut row.scores);
        let Some(finish) = &piece.finish else { return Ok(Some(piece)) };
        let cached = row.handle.take().map_or(0, |t| t.cached());
        // A prompt counts once, however many answers it has.
        if index.is_multiple_of(self.each) {
            self.usage.cached += cached;
        }
        self.open -= 1;
        self.ended = finish.reason();
        self.server.metrics.finished(self.ended, self.begun);
        Ok(Some(piece))
    }

    /// Waits for all answers.
    pub async fn collect(mut self) -> Result<(Vec<Whole>, Usage), ApiError> {
        let none = Whole { text: String::new(), thought: String::new(), calls: vec![], finish: Finish::End, scores: vec![] };
        let mut all = vec![none; self.rows.len()];
        while let Some(piece) = std::future::poll_fn(|cx| self.poll_piece(cx)).await {
            let piece = piece?;
            let own = &mut all[piece.index];
            own.text += &piece.text;
            own.thought += &piece.thought;
            own.calls.extend(piece.calls);
            own.scores.extend(piece.scores);
            if let Some(finish) = piece.finish {
                own.finish = finish;
            }
        }
        Ok((all, self.usage))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for _ in 0..self.open {
            self.server.metrics.finished("abort", self.begun);
        }
        if let Some(access) = &self.access {
            let first = self.first.map(|at| at.saturating_duration_since(self.begun));
            let ended = if self.open > 0 { "abort" } else { self.ended };
            access.answered(&self.host.name.id, self.asked, &self.usage, first, ended);
        }
    }
}
