//! The Hugging Face Hub: which files a repository has, and fetching one of them.

use super::PullOptions;
use super::error::{Failed, PullError, Why};
use super::progress::Progress;
use super::store::{Expected, Sink, Staging};
use crate::interrupt;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use ureq::http::{Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// The longest wait for the next bytes of a connection that is open.
const STALL: Duration = Duration::from_secs(30);
/// How often an interrupted transfer is resumed, provided each attempt makes progress.
const RESUMES: u32 = 10;
const REDIRECTS: u32 = 10;
/// Maximum length of a repository's file list.
const LISTING: u64 = 16 << 20;

/// A file on the Hub.
#[derive(Debug, Clone)]
pub struct HubFile {
    /// `owner/name`.
    pub repo: String,
    /// A branch or a commit.
    pub revision: String,
    /// The path inside the repository.
    pub file: String,
}

/// The Hub's names in `hf:owner/repo[:file]`, checked: nothing in them can leave the cache folder.
pub fn is_repo(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    text.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

/// Whether a file of a repository may be stored under its own name.
pub fn is_file(text: &str) -> bool {
    let part = |part: &str| !part.trim_matches('.').is_empty() && !part.contains(|c: char| c.is_control() || "\\:*?\"<>|".contains(c));
    text.split('/').all(part)
}

/// A connection to the Hub.
pub struct Hub<'a> {
    agent: Agent,
    options: &'a PullOptions,
}

struct Answer {
    response: Response<Body>,
    /// The Hub's own metadata of a file that another host delivers.
    sha256: Option<String>,
}

impl<'a> Hub<'a> {
    /// Connects when first used.
    pub fn new(options: &'a PullOptions) -> Self {
        let config = Agent::config_builder()
            .timeout_resolve(Some(options.connect))
            .timeout_connect(Some(options.connect))
            .timeout_per_read(Some(STALL))
            .timeout_per_write(Some(STALL))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("tl/", env!("CARGO_PKG_VERSION")))
            // The system's certificates, so that a company's own proxy works too.
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .build();
        Self { agent: config.into(), options }
    }

    /// The names of all files of a repository.
    pub fn list(&self, repo: &str) -> Result<Vec<String>, Failed> {
        let mut answer = self.get(&format!("{}/api/models/{repo}", self.options.endpoint), repo, 0)?;
        let text = answer.response.body_mut().with_config().limit(LISTING).read_to_string().map_err(|e| self.why(&e))?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| Why("it did not send a list of files".into()))?;
        let files = value["siblings"].as_array().ok_or_else(|| Why("it did not send a list of files".into()))?;
        let names = files.iter().filter_map(|file| file["rfilename"].as_str()).filter(|name| is_file(name));
        Ok(names.map(String::from).collect())
    }

    /// Downloads one file, checked against known metadata, or else against the Hub's.
    pub fn download(&self, from: &HubFile, expected: &Expected, target: &Path) -> Result<(), Failed> {
        let HubFile { repo, revision, file } = from;
        let url = format!("{}/{repo}/resolve/{revision}/{}", self.options.endpoint, escape(file));
        let mut answer = self.get(&url, file, 0)?;
        let length = length(&answer.response);
        if let (Some(wanted), Some(offered)) = (expected.bytes, length)
            && wanted != offered
        {
            return Err(Why(format!("it offers {offered} bytes instead of {wanted}")).into());
        }
        let expected = Expected { bytes: expected.bytes.or(length), sha256: expected.sha256.clone().or(answer.sha256.take()) };

        let staging = Staging::new(&self.options.folder)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let progress = Progress::new(name, expected.bytes, self.options.quiet);
        let mut sink = Sink::new(&staging, Some(&progress))?;
        let mut furthest = 0;
        for attempt in 0.. {
            let broken = match self.copy(answer, &mut sink) {
                Ok(()) if expected.bytes.is_none_or(|bytes| sink.written() >= bytes) => break,
                Ok(()) => Failed::from(Why("it closed the connection early".into())),
                Err(broken @ Failed::Source(_)) => broken,
                Err(fatal) => return Err(fatal),
            };
            let so_far = |why: String| match expected.bytes {
                Some(bytes) => Why(format!("{why} after {} of {bytes} bytes", sink.written())),
                None => Why(why),
            };
            if attempt == RESUMES || sink.written() <= furthest {
                return Err(match broken {
                    Failed::Source(why) => so_far(why).into(),
                    fatal => fatal,
                });
            }
            furthest = sink.written();
            answer = self.get(&url, file, furthest)?;
            if answer.response.status() != 206 {
                sink.restart()?;
            }
        }
        sink.finish(&expected, target)
    }

    fn copy(&self, mut answer: Answer, sink: &mut Sink) -> Result<(), Failed> {
        let mut body = answer.response.body_mut().as_reader();
        let mut block = vec![0; 1 << 17];
        loop {
            if interrupt::requested() {
                return Err(PullError::Interrupted.into());
            }
            match body.read(&mut block) {
                Ok(0) => return Ok(()),
                Ok(n) => sink.write(&block[..n])?,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Why(format!("the transfer broke off ({e})")).into()),
            }
        }
    }

    /// A request that follows the Hub's redirects and sends the user's token only to the Hub.
    fn get(&self, url: &str, what: &str, from: u64) -> Result<Answer, Failed> {
        let mut uri: Uri = url.parse().map_err(|_| Why(format!("{url} is not an address")))?;
        let home = uri.clone();
        let mut sha256 = None;
        for _ in 0..=REDIRECTS {
            if interrupt::requested() {
                return Err(PullError::Interrupted.into());
            }
            let mut request = self.agent.get(&uri);
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            if let Some(token) = self.options.token.as_ref().filter(|_| same_origin(&uri, &home)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| self.why(&e))?;
            if same_origin(&uri, &home) {
                sha256 = sha256.or(linked_sha256(&response));
            }
            let status = response.status().as_u16();
            match status {
                200 => return Ok(Answer { response, sha256 }),
                206 if starts_at(&response, from) => return Ok(Answer { response, sha256 }),
                301 | 302 | 303 | 307 | 308 => {
                    let target = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
                    uri = target
                        .and_then(|target| follow(&uri, target))
                        .ok_or_else(|| Why("it sent a redirect without an address".into()))?;
                }
                401 | 403 => return Err(Why(format!("access to {what} is restricted (status {status}): set HF_TOKEN")).into()),
                404 => return Err(Why(format!("it has no {what}")).into()),
                429 => return Err(Why("too many requests, try again later (status 429)".into()).into()),
                _ => return Err(Why(format!("it answered with status {status}")).into()),
            }
        }
        Err(Why("it redirects in a circle".into()).into())
    }

    fn why(&self, error: &ureq::Error) -> Why {
        let seconds = self.options.connect.as_secs();
        Why(match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => format!("no connection within {seconds} s"),
            ureq::Error::HostNotFound => "unknown host".into(),
            ureq::Error::ConnectionFailed => "no connection".into(),
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        })
    }
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// The target of a redirect: another address or path; never from https to http.
fn follow(from: &Uri, target: &str) -> Option<Uri> {
    let absolute = if target.starts_with('/') { format!("{}://{}{target}", from.scheme_str()?, from.authority()?) } else { target.into() };
    let uri: Uri = absolute.parse().ok()?;
    let scheme = uri.scheme_str()?;
    (scheme == "https" || (scheme == "http" && from.scheme_str() == Some("http"))).then_some(uri)
}

fn length(response: &Response<Body>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The hash of a large file, from a header of the Hub's own response.
fn linked_sha256(response: &Response<Body>) -> Option<String> {
    let value = response.headers().get("x-linked-etag")?.to_str().ok()?.trim_matches('"').to_ascii_lowercase();
    (value.len() == 64 && value.bytes().all(|b| b.is_ascii_hexdigit())).then_some(value)
}

fn starts_at(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()) == Some(from)
}

/// A path encoded for a URL.
fn escape(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~/+".contains(&b);
    path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_stays_safe() {
        let https: Uri = "https://hub.example/a/b".parse().unwrap();
        let cases = [
            ("/c?x=1", Some("https://hub.example/c?x=1")),
            ("https://cdn.example/f", Some("https://cdn.example/f")),
            ("http://cdn.example/f", None),
            ("file:///etc/passwd", None),
            ("c", None),
        ];
        for (target, expected) in cases {
            assert_eq!(follow(&https, target).map(|uri| uri.to_string()).as_deref(), expected, "{target}");
        }
    }

    #[test]
    fn names_cannot_leave_the_cache_folder() {
        for (name, expected) in
            [("a/b", true), ("a", false), ("../b", false), ("a/..", false), ("a/b/c", false), ("a\\b/c", false), ("/b", false)]
        {
            assert_eq!(is_repo(name), expected, "{name}");
        }
        for (name, expected) in
            [("m.gguf", true), ("q/m 1.gguf", true), ("../m", false), ("/m", false), ("a//b", false), ("C:\\m", false), ("a/./b", false)]
        {
            assert_eq!(is_file(name), expected, "{name}");
        }
        assert_eq!(escape("a b/ü+1.gguf"), "a%20b/%C3%BC+1.gguf");
    }
}
