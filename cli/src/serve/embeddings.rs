//! `/v1/embeddings`: texts or tokens to vectors of unit length.

use super::Server;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::host::{Host, ModelKind};
use super::routes::blocking;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tensorlogic::models::Inference;
use tensorlogic::models::inference::{Inputs, Padding};

/// Inputs of a request at most, as OpenAI has it.
const MAX_INPUTS: usize = 2048;
/// Inputs that are computed at once at most, and their tokens with padding: answers that are being written wait for them on the same device.
const BATCH: usize = 16;
const BATCH_TOKENS: usize = 1024;

/// A request, read and tokenized.
pub struct EmbeddingWork {
    host: Arc<Host>,
    rows: Vec<Vec<u32>>,
    dimensions: Option<usize>,
    base64: bool,
}

/// Reads a request.
pub fn read(mut fields: Fields, host: Arc<Host>) -> Result<EmbeddingWork, ApiError> {
    let input = fields.take("input").ok_or_else(|| ApiError::field("input", "input is missing"))?;
    let base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(ApiError::field("encoding_format", format!("encoding_format is {other:?}; expected \"float\" or \"base64\"")));
        }
    };
    let dimensions = fields.count("dimensions", width(&host))?;
    fields.ignore(&["user", "metadata", "priority", "request_id"]);
    fields.finish()?;
    let rows = rows(&input, &host)?;
    Ok(EmbeddingWork { host, rows, dimensions, base64 })
}

/// Numbers of a vector.
fn width(host: &Host) -> usize {
    match &host.kind {
        ModelKind::Decoder { model, .. } => model.shape().width,
        ModelKind::Encoder(embedder) => embedder.width(),
    }
}

/// A text, tokens, or a list of either.
fn rows(input: &Value, host: &Host) -> Result<Vec<Vec<u32>>, ApiError> {
    let longest = host.longest();
    let checked = |name: &str, ids: Vec<u32>| match ids.len() {
        0 => Err(ApiError::field(name, format!("{name} is empty"))),
        n if n > longest => {
            Err(ApiError::field(name, format!("{name} has {n} tokens; the model reads {longest}")).code("context_length_exceeded"))
        }
        _ => Ok(ids),
    };
    let text = |name: &str, text: &str| match text {
        "" => Err(ApiError::field(name, format!("{name} is empty"))),
        text => checked(name, encode(text, host)?),
    };
    let ids = |name: &str, list: &[Value]| checked(name, host.texts.ids(name, list, host.vocab())?);
    match input {
        Value::String(s) => Ok(vec![text("input", s)?]),
        Value::Array(list) if list.is_empty() => Err(ApiError::field("input", "input is empty; give at least one text")),
        Value::Array(list) if list[0].is_number() => Ok(vec![ids("input", list)?]),
        Value::Array(list) if list.len() > MAX_INPUTS => {
            Err(ApiError::field("input", format!("input has {} texts; at most {MAX_INPUTS} are supported", list.len())))
        }
        Value::Array(list) => {
            let each = |(i, v): (usize, &Value)| match (format!("input[{i}]"), v) {
                (name, Value::String(s)) => text(&name, s),
                (name, Value::Array(list)) => ids(&name, list),
                (name, other) => Err(wrong(&name, other, "a string or an array of tokens")),
            };
            list.iter().enumerate().map(each).collect()
        }
        other => Err(wrong("input", other, "a string, an array of tokens, or an array of either")),
    }
}

/// A text as `tl embed` reads it.
fn encode(text: &str, host: &Host) -> Result<Vec<u32>, ApiError> {
    let tokenizer = &host.texts.tokenizer;
    let bad = |e: tensorlogic::TensorError| ApiError::bad(e.to_string());
    match &host.kind {
        ModelKind::Decoder { .. } => {
            let mut ids: Vec<u32> = tokenizer.bos().into_iter().filter(|_| tokenizer.adds_bos()).collect();
            ids.extend(tokenizer.encode(text, false).map_err(bad)?);
            Ok(ids)
        }
        ModelKind::Encoder(embedder) => {
            let text = format!("{}{text}", embedder.prompt(None)?);
            let text = if embedder.lower_case() { text.to_lowercase() } else { text };
            tokenizer.encode(&text, true).map_err(bad)
        }
    }
}

/// Set when nobody waits for the vectors any more.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl EmbeddingWork {
    /// Waits for its turn, and computes.
    pub async fn run(self, server: &Arc<Server>) -> Result<Value, ApiError> {
        let _place = self.host.place_to_wait()?;
        let turn = self.host.vectors.clone().acquire_owned().await.map_err(|_| ApiError::unavailable("the model is leaving"))?;
        let gone = Gone(Arc::new(AtomicBool::new(false)));
        let (ended, server) = (gone.0.clone(), server.clone());
        let object = blocking(move || {
            let _turn = turn;
            self.compute(|| ended.load(Relaxed) || server.leaving.load(Relaxed))
        });
        object.await
    }

    /// The object of all vectors.
    fn compute(&self, ended: impl Fn() -> bool) -> Result<Value, ApiError> {
        let mut data = Vec::with_capacity(self.rows.len());
        let mut left = &self.rows[..];
        while !left.is_empty() {
            if ended() {
                return Err(ApiError::unavailable("the server is leaving"));
            }
            let (now, later) = left.split_at(batch(left));
            for vector in vectors(&self.host, now)? {
                data.push(json!({ "object": "embedding", "index": data.len(), "embedding": self.shown(vector)? }));
            }
            left = later;
        }
        let tokens: usize = self.rows.iter().map(Vec::len).sum();
        Ok(
            json!({ "object": "list", "data": data, "model": self.host.name.id, "usage": { "prompt_tokens": tokens, "total_tokens": tokens } }),
        )
    }

    /// A vector as the client wants it: its first components, of unit length.
    fn shown(&self, mut vector: Vec<f32>) -> Result<Value, ApiError> {
        vector.truncate(self.dimensions.unwrap_or(vector.len()));
        let length = vector.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(ApiError::internal("the model gave NaN or infinite values"));
        }
        vector.iter_mut().filter(|_| length > 0.0).for_each(|v| *v = (f64::from(*v) / length) as f32);
        match self.base64 {
            true => Ok(base64(&vector.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).into()),
            false => Ok(vector.into()),
        }
    }
}

/// How many of the first rows are computed at once.
fn batch(rows: &[Vec<u32>]) -> usize {
    let (mut count, mut longest) = (0, 0);
    for row in rows.iter().take(BATCH) {
        longest = longest.max(row.len());
        if count > 0 && (count + 1) * longest > BATCH_TOKENS {
            break;
        }
        count += 1;
    }
    count
}

fn vectors(host: &Host, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, ApiError> {
    let inputs = Inputs::padded(rows, Padding::Right)?;
    let pooled = match &host.kind {
        ModelKind::Decoder { model, pooling, .. } => Inference::new(&**model).timestamps(false).run(&inputs)?.pooled(*pooling)?,
        ModelKind::Encoder(embedder) => embedder.embed(&inputs)?,
    };
    Ok(pooled.to_vec2::<f32>()?)
}

/// Bytes in base64 (RFC 4648), with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let bits = part.iter().enumerate().fold(0u32, |all, (i, &b)| all | u32::from(b) << (16 - 8 * i));
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= part.len() { letter as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|s| base64(s.as_bytes()));
        assert_eq!(cases, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
        assert_eq!(base64(&[0xff, 0xfe, 0xfb]), "//77");
    }

    #[test]
    fn batches_are_small() {
        let rows = |lens: &[usize]| lens.iter().map(|&n| vec![1; n]).collect::<Vec<_>>();
        assert_eq!(batch(&rows(&[5; 40])), 16);
        assert_eq!(batch(&rows(&[5000, 1])), 1);
        assert_eq!(batch(&rows(&[500, 500, 500])), 2);
        assert_eq!(batch(&rows(&[1, 1000])), 1);
    }
}
