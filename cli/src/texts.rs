//! The texts that `tl embed` and `tl score` work on: read, encoded, and run in padded batches.

use crate::model::{Loaded, ModelArgs, warn_unknown};
use crate::output::Failure;
use crate::{Global, interrupt};
use clap::Args;
use std::io::{IsTerminal, Read};
use tensorlogic::models::inference::{Inference, Inputs, Outputs, Padding};

/// Options that name texts and how many of them run at once.
#[derive(Args)]
pub struct TextArgs {
    /// Texts; without them and without -f, one per line on stdin
    texts: Vec<String>,
    /// Read texts from a file, one per line; empty lines are skipped
    #[arg(short, long)]
    file: Option<std::path::PathBuf>,
    /// Texts that run at once, padded to the longest of them
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch: u16,
}

/// A text with its tokens.
pub struct Encoded {
    pub text: String,
    /// What the model reads.
    pub ids: Vec<u32>,
    /// How many of them come before the text: begin token and prompt.
    pub before: usize,
}

impl TextArgs {
    /// The texts, from wherever they are given.
    pub fn read(&self) -> Result<Vec<String>, Failure> {
        let mut texts = self.texts.clone();
        let mut add = |lines: String| texts.extend(lines.lines().filter(|l| !l.trim().is_empty()).map(String::from));
        if let Some(file) = &self.file {
            add(std::fs::read_to_string(file).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?);
        } else if self.texts.is_empty() && !std::io::stdin().is_terminal() {
            let mut lines = String::new();
            std::io::stdin().lock().read_to_string(&mut lines).map_err(|e| Failure::Error(format!("the texts on stdin: {e}")))?;
            add(lines);
        }
        match texts.iter().position(String::is_empty) {
            _ if texts.is_empty() => Err(Failure::Usage("no text: give it as an argument, with -f, or on stdin".into())),
            Some(n) => Err(Failure::Usage(format!("text {} is empty", n + 1))),
            None => Ok(texts),
        }
    }

    /// Opens the model and encodes the texts, each after `prompt`.
    pub fn encode(&self, model: &ModelArgs, prompt: Option<&str>, global: Global) -> Result<(Loaded, Vec<Encoded>), Failure> {
        let texts = self.read()?;
        let loaded = model.load(global)?;
        interrupt::install();
        warn_unknown(&loaded.tokenizer, prompt.into_iter().chain(texts.iter().map(String::as_str)), global)?;
        let context = loaded.model.shape().context;
        let encode = |text: String| {
            let bos = loaded.tokenizer.bos().filter(|_| loaded.tokenizer.adds_bos());
            let mut ids: Vec<u32> = bos.into_iter().collect();
            if let Some(prompt) = prompt {
                ids.extend(loaded.tokenizer.encode(prompt, false)?);
            }
            let before = ids.len();
            ids.extend(loaded.tokenizer.encode(&text, false)?);
            match ids.len() {
                n if n > context => Err(Failure::Error(format!("{}: {n} tokens, and the model supports {context}", shown(&text)))),
                n if n == before => Err(Failure::Error(format!("{}: no token of the model's vocabulary is in it", shown(&text)))),
                _ => Ok(Encoded { text, ids, before }),
            }
        };
        let encoded = texts.into_iter().map(encode).collect::<Result<Vec<_>, Failure>>()?;
        Ok((loaded, encoded))
    }

    /// Runs the texts batch by batch, padded on the right, where no mask is needed. `read` gets what is wanted of a batch from the device, and
    /// `show` prints it: a batch whose device is lost or full is run and read again on the next device.
    pub fn run<T>(
        &self,
        loaded: &mut Loaded,
        set: impl Fn(Inference<'_>) -> Inference<'_>,
        texts: &[Encoded],
        read: impl Fn(&Outputs) -> Result<T, Failure>,
        mut show: impl FnMut(&Loaded, &[Encoded], T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for batch in texts.chunks(self.batch.into()) {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            let rows: Vec<&[u32]> = batch.iter().map(|t| &t.ids[..]).collect();
            let inputs = Inputs::padded(&rows, Padding::Right)?;
            let wanted = loaded.recovering(|model, _| read(&set(Inference::new(model)).run(&inputs)?))?;
            show(loaded, batch, wanted)?;
        }
        Ok(())
    }
}

/// The beginning of a text, in quotes, for messages.
fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 40;
    let start: String = text.chars().take(SHOWN_CHARS).collect();
    format!("{start:?}{}", if start.len() < text.len() { "…" } else { "" })
}

/// The text of one token.
pub fn token_text(loaded: &Loaded, id: u32) -> Result<String, Failure> {
    Ok(loaded.tokenizer.decode(&[id], false)?)
}

/// The error for numbers that are not valid results.
pub fn not_finite(loaded: &Loaded) -> Failure {
    loaded.failed(Failure::Error("the model gave NaN or infinite values; try --dtype f32".into()))
}
