//! Requests to answers: what is where, who may, and how much.

use super::Server;
use super::access::Access;
use super::answer::Running;
use super::ask::Ask;
use super::error::ApiError;
use super::fields::Fields;
use super::host::{Host, STEP_TIME};
use super::openai::{self, chat, completions, responses};
use super::openapi;
use super::peer::Peer;
use super::sse::{Form, Stream};
use super::{anthropic, embeddings, tools};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Bytes of a request's headers at most, and of its path.
pub const MAX_HEAD: usize = 64 << 10;
const MAX_PATH: usize = 16 << 10;
/// Bytes of a request's body at most.
const MAX_BODY: usize = 8 << 20;
/// How long a part of a body may take, and all of it.
const PART_TIME: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(60);

pub type Reply = Response<Either<Full<Bytes>, Stream>>;

/// What there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    Page,
    Health,
    Description,
    Models,
    Model,
    Props,
    Metrics,
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    Tokenize,
    Detokenize,
    Template,
}

/// The route whose errors are Anthropic's.
const MESSAGES: &str = "/v1/messages";

/// The path of each route, which is its name in metrics, and its method. `/openapi.json` describes them.
pub const ROUTES: [(Route, &str, Method); 16] = [
    (Route::Page, "/", Method::GET),
    (Route::Health, "/health", Method::GET),
    // The name that gateways probe by default.
    (Route::Health, "/ready", Method::GET),
    (Route::Description, "/openapi.json", Method::GET),
    (Route::Models, "/v1/models", Method::GET),
    (Route::Model, "/v1/models/{id}", Method::GET),
    (Route::Chat, "/v1/chat/completions", Method::POST),
    (Route::Completions, "/v1/completions", Method::POST),
    (Route::Responses, "/v1/responses", Method::POST),
    (Route::Messages, MESSAGES, Method::POST),
    (Route::Embeddings, "/v1/embeddings", Method::POST),
    (Route::Tokenize, "/tokenize", Method::POST),
    (Route::Detokenize, "/detokenize", Method::POST),
    (Route::Template, "/apply-template", Method::POST),
    (Route::Props, "/props", Method::GET),
    (Route::Metrics, "/metrics", Method::GET),
];

/// The route of a path, with its name in metrics and its method.
fn find(path: &str) -> Option<(Route, &'static str, Method)> {
    let is = |route: Route, own: &str| if route == Route::Model { path.starts_with("/v1/models/") } else { path == own };
    ROUTES.into_iter().find(|(route, own, _)| is(*route, own))
}

/// Answers a request; whatever goes wrong is part of the answer.
pub async fn answer(server: Arc<Server>, request: Request<Incoming>, peer: Peer) -> Result<Reply, Infallible> {
    let begun = Instant::now();
    let found = find(request.uri().path());
    let name = found.as_ref().map_or("none", |f| f.1);
    let given = request.headers().get("x-request-id").filter(|id| id.len() <= 128 && id.to_str().is_ok()).cloned();
    let made = || HeaderValue::from_str(&format!("req-{:016x}", super::ask::random())).unwrap_or(HeaderValue::from_static("req"));
    let id = given.unwrap_or_else(made);
    let access = Arc::new(Access::new(id.to_str().unwrap_or_default(), request.method(), name));
    let origin = request.headers().get(header::ORIGIN).filter(|o| server.origins.iter().any(|own| own.as_bytes() == o.as_bytes())).cloned();
    let mut gone = pin!(peer.gone(request.version() == Version::HTTP_11));
    let mut handled = pin!(handle(&server, request, found, begun, &access, peer));
    let result = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| handled.as_mut().poll(cx))) {
        Ok(Poll::Pending) => gone.as_mut().poll(cx).map(|()| Err(went_away())),
        Ok(done) => done,
        Err(_) => Poll::Ready(Err(panicked())),
    });
    let result = result.await;
    let error = result.as_ref().err().map(|e| e.code.unwrap_or(e.kind()));
    error.into_iter().for_each(|reason| server.metrics.rejected(reason));
    let mut reply = result.unwrap_or_else(|e| failed(&e, name));
    server.metrics.request(name, reply.status());
    access.status(reply.status(), error);
    let headers = reply.headers_mut();
    headers.insert(HeaderName::from_static("x-request-id"), id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    if server.leaving.load(Relaxed) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(reply)
}

/// Nobody reads it; the log has it.
fn went_away() -> ApiError {
    let status = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
    ApiError::new(status, "the client went away").code("client_closed_request")
}

fn panicked() -> ApiError {
    ApiError::internal("the server panicked on this request")
}

async fn handle(
    server: &Arc<Server>,
    request: Request<Incoming>,
    found: Option<(Route, &'static str, Method)>,
    begun: Instant,
    access: &Arc<Access>,
    peer: Peer,
) -> Result<Reply, ApiError> {
    check_head(&request)?;
    check_origin(server, request.headers())?;
    if request.method() == Method::OPTIONS {
        return Ok(preflight(request.headers()));
    }
    let path = request.uri().path().to_string();
    let Some((route, _, method)) = found else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("there is nothing at {path}")).code("not_found"));
    };
    let used = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if *used != method {
        let allow = if method == Method::GET { "GET, HEAD, OPTIONS" } else { "POST, OPTIONS" };
        let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} takes {method}, not {}", request.method()));
        return Err(ApiError { allow: Some(allow), ..error });
    }
    let client = if matches!(route, Route::Health | Route::Page) { String::new() } else { client(server, request.headers())? };
    access.client(&client);
    match route {
        Route::Page => return Ok(page()),
        Route::Health => return health(server),
        Route::Description => return Ok(text_reply(openapi::text(), "application/json")),
        Route::Metrics => return Ok(text_reply(server.metrics.text(server), "text/plain; version=0.0.4; charset=utf-8")),
        Route::Models => return Ok(json_reply(&openai::models(&server.models))),
        Route::Model => {
            // Clients encode the slashes of names.
            let name = percent_decode_str(path.strip_prefix("/v1/models/").unwrap_or_default()).decode_utf8_lossy();
            let models = server.models.names();
            let own = models.iter().find(|(own, _)| own.is_named(&name)).ok_or_else(|| server.models.no_model(&name))?;
            return Ok(json_reply(&openai::model(&own.0, own.1)));
        }
        _ => {}
    }
    let body = if method == Method::GET { Vec::new() } else { body(request).await? };
    if server.leaving.load(Relaxed) {
        return Err(ApiError::unavailable("the server is leaving"));
    }
    let reader = server.clone();
    // Reading and tokenizing takes milliseconds, and loading a model seconds, which other clients would wait for.
    match blocking(move || read(&reader, route, &body)).await? {
        Read::Work(host, work) => {
            let Work { ask, prompts, form } = *work;
            let running = Running::start(server, &host, &ask, &prompts, &client, begun)?.logged(access);
            write(running, form, ask.stream.then_some(peer)).await
        }
        Read::Vectors(work) => {
            let object = work.run(server).await;
            server.metrics.finished(if object.is_ok() { "stop" } else { "error" }, begun);
            Ok(json_reply(&object?))
        }
        Read::Done(value) => Ok(json_reply(&value)),
    }
}

/// Runs what takes long on a thread where nobody waits for it.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| panicked())?
}

/// A request for answers, read and tokenized.
pub struct Work {
    pub ask: Ask,
    pub prompts: Vec<Vec<u32>>,
    pub form: Box<dyn Form>,
}

/// What a body asks for.
enum Read {
    Work(Arc<Host>, Box<Work>),
    Vectors(embeddings::EmbeddingWork),
    /// Answered already.
    Done(Value),
}

fn read(server: &Server, route: Route, body: &[u8]) -> Result<Read, ApiError> {
    if route == Route::Props {
        return Ok(Read::Done(tools::props(&*server.models.get(None)?)));
    }
    let mut fields = Fields::of_body(body)?;
    // A model's name is compared, and never opened.
    let host = server.models.get(fields.string("model")?.as_deref())?;
    let work = match route {
        Route::Chat => chat::read(fields, &host)?,
        Route::Responses => responses::read(fields, &host)?,
        Route::Messages => anthropic::read(fields, &host)?,
        Route::Embeddings => return embeddings::read(fields, host).map(Read::Vectors),
        Route::Tokenize => return tools::tokenize(fields, &host).map(Read::Done),
        Route::Detokenize => return tools::detokenize(fields, &host).map(Read::Done),
        Route::Template => return tools::apply_template(fields, &host).map(Read::Done),
        _ => completions::read(fields, &host)?,
    };
    Ok(Read::Work(host, Box::new(work)))
}

/// The answers as a stream to this client, or as one object.
async fn write(running: Running, mut form: Box<dyn Form>, stream_to: Option<Peer>) -> Result<Reply, ApiError> {
    if let Some(peer) = stream_to {
        return Ok(stream(Stream::new(running, form, peer)));
    }
    let (answers, used) = running.collect().await?;
    Ok(json_reply(&form.whole(answers, &used)))
}

/// What is parsed may be longer than what is accepted, by what came in the same read.
fn check_head(request: &Request<Incoming>) -> Result<(), ApiError> {
    if request.uri().path().len() > MAX_PATH {
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, format!("the path is longer than {} KiB", MAX_PATH >> 10)));
    }
    let bytes: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > MAX_HEAD {
        let message = format!("the headers are larger than {} KiB", MAX_HEAD >> 10);
        return Err(ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    Ok(())
}

/// Pages of other hosts may not use the server through a visitor's browser. A host's name may be pointed at this machine, so that only addresses and
/// `localhost` count as the server's own.
fn check_origin(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let text = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let own = ["http://", "https://"].iter().any(|scheme| text.strip_prefix(scheme) == Some(host));
    let name = host.rsplit_once(':').map_or(host, |(name, port)| if port.bytes().all(|b| b.is_ascii_digit()) { name } else { host });
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok();
    if (own && (address || name.eq_ignore_ascii_case("localhost"))) || server.origins.iter().any(|o| o == text) {
        return Ok(());
    }
    let message = format!("requests from pages of {text:?} are not allowed; --cors-origin allows an origin");
    Err(ApiError::new(StatusCode::FORBIDDEN, message).code("origin_not_allowed"))
}

/// Who asks: empty where the server has no keys, else a name of the key.
fn client(server: &Server, headers: &HeaderMap) -> Result<String, ApiError> {
    if server.keys.is_empty() {
        return Ok(String::new());
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(|v| v.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    let given = bearer.or_else(|| headers.get("x-api-key").and_then(|v| v.to_str().ok()));
    let name = given.and_then(|key| server.keys.name(key));
    name.ok_or_else(|| {
        let message = if given.is_some() { "the API key is wrong" } else { "an API key is needed: Authorization: Bearer KEY" };
        ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key")
    })
}

/// The whole body, where it is JSON, small and quick enough.
async fn body(request: Request<Incoming>) -> Result<Vec<u8>, ApiError> {
    if let Some(kind) = request.headers().get(header::CONTENT_TYPE) {
        let kind = kind.to_str().unwrap_or_default();
        if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
            let message = format!("the body is {kind:?}; expected the header Content-Type: application/json");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    }
    let large = || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {} MiB", MAX_BODY >> 20));
    let mut body = request.into_body();
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(large());
    }
    let slow = || ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let mut bytes = Vec::new();
    let all = async {
        while let Some(frame) = timeout(PART_TIME, body.frame()).await.map_err(|_| slow())? {
            let frame = frame.map_err(|e| ApiError::bad(format!("the body could not be read: {e}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > MAX_BODY {
                return Err(large());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    timeout(BODY_TIME, all).await.map_err(|_| slow())??;
    Ok(bytes)
}

fn health(server: &Arc<Server>) -> Result<Reply, ApiError> {
    if server.leaving.load(Relaxed) {
        return Err(ApiError::unavailable("the server is leaving"));
    }
    let round = match server.models.in_round() {
        Ok(round) => round,
        Err(e) => {
            // Where a device was lost, nobody may ask as long as this says so.
            let server = server.clone();
            drop(tokio::task::spawn_blocking(move || server.models.revive()));
            return Err(e);
        }
    };
    match round {
        time if time > STEP_TIME => Err(ApiError::unavailable(format!("a step has taken {} s so far", time.as_secs()))),
        _ => Ok(json_reply(&json!({ "status": "ok" }))),
    }
}

/// The page, which loads nothing and runs no other script than its own.
fn page() -> Reply {
    let nonce = format!("{:016x}", super::ask::random());
    let mut reply = text_reply(include_str!("page.html").replace("NONCE", &nonce), "text/html; charset=utf-8");
    let policy = format!(
        "default-src 'none'; connect-src 'self'; img-src data:; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        reply.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    reply.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    reply
}

/// A page of an allowed origin may send what its client asks to send, where those are names that clients use: OpenAI's sends several that begin alike.
fn preflight(asked: &HeaderMap) -> Reply {
    let mut reply = Response::new(Either::Left(Full::default()));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    let headers = reply.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    let mut allowed = "authorization, content-type, x-api-key, x-request-id, anthropic-version".to_string();
    let asked = asked.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
    for name in asked.map(|name| name.trim().to_ascii_lowercase()).filter(|name| name.starts_with("x-stainless-")) {
        allowed.push_str(", ");
        allowed.push_str(&name);
    }
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    reply
}

fn text_reply(text: String, kind: &'static str) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(Bytes::from(text))));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

fn json_reply(value: &Value) -> Reply {
    text_reply(value.to_string(), "application/json")
}

fn stream(body: Stream) -> Reply {
    let mut reply = Response::new(Either::Right(body));
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy of nginx's kind then sends each part as it comes.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    reply
}

fn failed(e: &ApiError, route: &str) -> Reply {
    let mut reply = json_reply(&if route == MESSAGES { e.anthropic() } else { e.openai() });
    *reply.status_mut() = e.status;
    let headers = reply.headers_mut();
    if let Some(seconds) = e.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(allow) = e.allow {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if e.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}
