//! Encoders behind `tl embed` and `tl score`: texts to vectors by what the model's files say, and texts or pairs of texts to scores of labels.

use crate::embed::EmbedArgs;
use crate::model::{self, ModelArgs, go_on, unreadable, warn_unknown};
use crate::output::{self, Failure};
use crate::score::ScoreArgs;
use crate::{Global, interrupt};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tensorlogic::models::inference::{Inputs, Padding};
use tensorlogic::models::{Embedder, Encoder};
use tensorlogic::text::Tokenizer;
use tensorlogic::{DType, Device, Tensor};

/// Whether the model of this file is an encoder, or serves as one.
pub fn is_for(path: &Path) -> Result<bool, Failure> {
    let weights = model::open(path, &Device::cpu())?;
    Encoder::is_for(&weights).map_err(|e| unreadable(path, e))
}

/// An opened encoder.
pub struct Opened {
    pub device: Device,
    pub embedder: Embedder,
    pub tokenizer: Tokenizer,
    path: PathBuf,
    dtype: Option<DType>,
    args: ModelArgs,
}

/// A text, or a pair of texts, as the model reads it.
struct Tokens {
    ids: Vec<u32>,
    types: Vec<u8>,
}

impl Opened {
    pub fn new(args: &ModelArgs, path: &Path, global: Global) -> Result<Opened, Failure> {
        if args.adapter.is_some() {
            return Err(Failure::Usage("--adapter: adapters are for models that generate text".into()));
        }
        let dtype = args.dtype()?;
        let mut device = args.device()?;
        if !global.quiet {
            output::note(&format!("{} on {}", path.file_name().unwrap_or(path.as_os_str()).to_string_lossy(), device.name()));
        }
        let mut weights = args.open(path, &device)?;
        let (tokenizer, _) = model::texts(&weights, path)?;
        let embedder = loop {
            match Embedder::open(&weights, dtype).map_err(|e| unreadable(path, e)) {
                Err(Failure::Device(e)) => device = go_on(&device, e)?,
                opened => break opened?,
            }
            weights = weights.on(&device);
        };
        interrupt::install();
        Ok(Opened { device, embedder, tokenizer, path: path.to_path_buf(), dtype, args: args.clone() })
    }

    /// What `work` gives for the model, as `set` makes it. Where the device is lost or full, the model moves to the next one of the list, and
    /// `work` is done again there.
    fn recovering<T>(&mut self, set: impl Fn(Embedder) -> Embedder, work: impl Fn(&Embedder) -> Result<T, Failure>) -> Result<T, Failure> {
        loop {
            let mut error = match work(&self.embedder) {
                Err(Failure::Device(e)) => e,
                done => return done,
            };
            loop {
                self.device = go_on(&self.device, error)?;
                match self.args.open(&self.path, &self.device).and_then(|w| Ok(Embedder::open(&w, self.dtype)?)) {
                    Err(Failure::Device(e)) => error = e,
                    opened => break self.embedder = set(opened?),
                }
            }
        }
    }

    /// The tokens of texts, and of pairs after `first`, cut where they are longer than the model reads.
    fn encode(&self, texts: &[String], prompt: &str, first: Option<&str>, global: Global) -> Result<Vec<Tokens>, Failure> {
        warn_unknown(&self.tokenizer, first.into_iter().chain([prompt]).chain(texts.iter().map(String::as_str)), global)?;
        let (max, lower) = (self.embedder.max_tokens(), self.embedder.lower_case());
        let cased = |text: String| if lower { text.to_lowercase() } else { text };
        let (mut all, mut cut) = (Vec::with_capacity(texts.len()), 0);
        for text in texts {
            let (ids, types, whole) = match first {
                Some(first) => self.tokenizer.encode_pair(&cased(first.into()), &cased(text.clone()), Some(max))?,
                None => {
                    let (ids, whole) = self.tokenizer.encode_up_to(&cased(format!("{prompt}{text}")), max)?;
                    let types = vec![0; ids.len()];
                    (ids, types, whole)
                }
            };
            cut += usize::from(!whole);
            all.push(Tokens { ids, types });
        }
        if cut > 0 && !global.quiet {
            output::note(&format!(
                "{cut} of {} texts are longer than the {max} tokens that the model reads; the rest of them is left out",
                texts.len()
            ));
        }
        Ok(all)
    }

    /// Batches of at most this many, padded on the right, with the number of the first text of each.
    fn batches<'t>(&self, all: &'t [Tokens], batch: u16) -> impl Iterator<Item = Result<(usize, Inputs), Failure>> + use<'t> {
        let kinds = self.embedder.encoder().token_types() > 1;
        all.chunks(batch.into()).enumerate().map(move |(n, part)| {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            let rows: Vec<&[u32]> = part.iter().map(|t| &t.ids[..]).collect();
            let mut inputs = Inputs::padded(&rows, Padding::Right)?;
            if kinds {
                let len = rows.iter().map(|r| r.len()).max().unwrap_or(0);
                let types =
                    part.iter().flat_map(|t| t.types.iter().map(|&k| i32::from(k)).chain(std::iter::repeat_n(0, len - t.types.len())));
                inputs = inputs.token_type_ids(&Tensor::from_vec(types.collect(), &[rows.len(), len], &Device::cpu())?);
            }
            Ok((n * usize::from(batch), inputs))
        })
    }
}

fn not_finite() -> Failure {
    Failure::Error("the model gave NaN or infinite values; try --dtype f32".into())
}

/// An encoder with the pooling and the scaling that were asked for.
fn configured(args: &EmbedArgs, embedder: Embedder) -> Embedder {
    let embedder = match args.pooling {
        Some(pooling) => embedder.with_pooling(pooling.into()),
        None => embedder,
    };
    if args.normalize { embedder.normalized(true) } else { embedder }
}

/// `tl embed` with the encoder of this file.
pub fn embed(args: &EmbedArgs, path: &Path, global: Global) -> Result<(), Failure> {
    let texts = args.texts.read()?;
    let mut opened = Opened::new(&args.model, path, global)?;
    opened.embedder = configured(args, opened.embedder);
    let named = || opened.embedder.prompt(args.prompt_name.as_deref()).map_err(|e| Failure::Usage(format!("--prompt-name: {e}")));
    let prompt = args.prompt.as_deref().map_or_else(named, Ok)?.to_string();
    let tokens = opened.encode(&texts, &prompt, None, global)?;
    let count: usize = tokens.iter().map(|t| t.ids.len()).sum();
    let (start, mut found) = (Instant::now(), Vec::new());
    for batch in opened.batches(&tokens, args.texts.batch) {
        let (first, inputs) = batch?;
        let rows = tokens.len().min(first + usize::from(args.texts.batch)) - first;
        // Of each text its vectors: one, or those of its tokens.
        let read = |embedder: &Embedder| -> Result<Vec<Vec<Vec<f32>>>, Failure> {
            if !args.tokens {
                return Ok(embedder.embed(&inputs)?.to_vec2::<f32>()?.into_iter().map(|v| vec![v]).collect());
            }
            let outputs = embedder.encoder().run(&inputs)?;
            let finished = |row| Ok(outputs.token_states(row)?.into_iter().map(|v| args.finished(v)).collect());
            (0..rows).map(finished).collect()
        };
        for (row, (t, vectors)) in tokens[first..].iter().zip(opened.recovering(|embedder| configured(args, embedder), read)?).enumerate() {
            if vectors.iter().flatten().any(|v| !v.is_finite()) {
                return Err(not_finite());
            }
            let text = &texts[first + row];
            if args.tokens {
                let mut listed = Vec::new();
                for (&id, vector) in t.ids.iter().zip(&vectors) {
                    let word = opened.tokenizer.decode(&[id], false)?;
                    match global.json {
                        true => listed.push(json!({ "id": id, "text": word, "embedding": vector })),
                        false => output::result(&format!("{word:?}\t{}", crate::embed::numbers(vector)))?,
                    }
                }
                found.push(json!({ "text": text, "tokens": listed }));
            } else if global.json {
                found.push(json!({ "text": text, "token_count": t.ids.len(), "embedding": vectors[0] }));
            } else {
                output::result(&crate::embed::numbers(&vectors[0]))?;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let pooling: Vec<String> = opened.embedder.pooling().iter().map(|p| p.to_string()).collect();
        let (pooling, normalized) = match args.tokens {
            true => (Value::Null, args.normalize),
            false => (pooling.join("+").into(), opened.embedder.normalizes()),
        };
        let value = json!({ "texts": found, "width": opened.embedder.width(), "pooling": pooling, "normalized": normalized, "prompt": prompt,
            "tokens_per_s": count as f64 / seconds, "device": opened.device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{} texts, {count} tokens, {:.1} tok/s", texts.len(), count as f64 / seconds));
    }
    Ok(())
}

/// `tl score` with the classifier or reranker of this file.
pub fn score(args: &ScoreArgs, path: &Path, global: Global) -> Result<(), Failure> {
    let texts = args.texts.read()?;
    let mut opened = Opened::new(&args.model, path, global)?;
    let Some(labels) = opened.embedder.encoder().labels().map(<[_]>::to_vec) else {
        let message = "it gives vectors (`tl embed`); scores are given by models that generate text and by those with a head for labels";
        return Err(Failure::Error(format!("{}: {message}", path.display())));
    };
    if args.tokens {
        return Err(Failure::Usage("--tokens: this model scores texts, not their tokens".into()));
    }
    let tokens = opened.encode(&texts, "", args.prompt.as_deref(), global)?;
    let count: usize = tokens.iter().map(|t| t.ids.len()).sum();
    let (start, mut found) = (Instant::now(), Vec::new());
    for batch in opened.batches(&tokens, args.texts.batch) {
        let (first, inputs) = batch?;
        let read = |embedder: &Embedder| {
            let outputs = embedder.encoder().run(&inputs)?;
            let rows =
                |values: &Option<Tensor>| Ok::<_, Failure>(values.as_ref().map(|v| v.to_vec2::<f32>()).transpose()?.unwrap_or_default());
            Ok((rows(&outputs.logits)?, rows(&outputs.scores)?))
        };
        let (logits, scores) = opened.recovering(|embedder| embedder, read)?;
        for (row, (logits, scores)) in logits.into_iter().zip(scores).enumerate() {
            if scores.iter().any(|v| !v.is_finite()) {
                return Err(not_finite());
            }
            let text = &texts[first + row];
            if global.json {
                found.push(json!({ "text": text, "scores": scores, "logits": logits }));
            } else {
                let named: Vec<String> = match &labels[..] {
                    [_] => vec![format!("{:.6}", scores[0])],
                    _ => labels.iter().zip(&scores).map(|(label, score)| format!("{label} {score:.6}")).collect(),
                };
                output::result(&format!("{}  {text:?}", named.join("  ")))?;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let value = json!({ "texts": found, "prompt": args.prompt, "labels": labels, "tokens_per_s": count as f64 / seconds,
            "device": opened.device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{} texts, {count} tokens, {:.1} tok/s", texts.len(), count as f64 / seconds));
    }
    Ok(())
}
