//! `tl transcribe`: speech to text with Whisper.

use crate::model::{ModelArgs, texts, unreadable};
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tensorlogic::models::seq2seq::speech::{SAMPLE_RATE, read_wav};
use tensorlogic::models::{KvCache, Seq2Seq};
use tensorlogic::text::Tokenizer;
use tensorlogic::{Tensor, TensorError};

/// Write down what is said in a WAV file, with a Whisper model
#[derive(Args)]
#[command(
    after_help = "The file has 16,000 samples a second. Each 30 seconds are heard by themselves and printed as a line; words at their borders may suffer.

Examples:
  tl transcribe -m openai/whisper-tiny talk.wav
  tl transcribe -m openai/whisper-small --language de --task translate talk.wav"
)]
pub struct TranscribeArgs {
    /// WAV file of 16,000 samples a second
    file: PathBuf,
    /// Language that is spoken, as `en` [default: what the model hears first]
    #[arg(short, long)]
    language: Option<String>,
    /// What to write: the words, or their translation into English
    #[arg(long, value_enum, default_value_t = Task::Transcribe)]
    task: Task,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Task {
    /// The words that are said
    Transcribe,
    /// Their translation into English
    Translate,
}

/// What `generation_config.json` says of a Whisper model's tokens.
struct Rules {
    /// Never written.
    suppressed: Vec<u32>,
    /// Not written first.
    suppressed_first: Vec<u32>,
    /// Says that no moments in time follow; tokens after it are such moments.
    no_timestamps: u32,
    /// Tokens of languages, by their code; none of a model of English alone.
    languages: Vec<(String, u32)>,
    /// Tokens of tasks, by name.
    tasks: Vec<(String, u32)>,
}

impl Rules {
    fn read(folder: &Path, tokenizer: &Tokenizer) -> Result<Rules, Failure> {
        let file = folder.join("generation_config.json");
        let failed = |e: &dyn std::fmt::Display| Failure::Error(format!("{}: {e}", file.display()));
        let config: Value = serde_json::from_slice(&std::fs::read(&file).map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        let list = |key: &str| config[key].as_array().into_iter().flatten().filter_map(id).collect();
        let named = |key: &str| -> Vec<(String, u32)> {
            let entries = config[key].as_object().into_iter().flatten();
            entries.filter_map(|(name, v)| Some((name.trim_matches(['<', '|', '>']).to_string(), id(v)?))).collect()
        };
        let no_timestamps = id(&config["no_timestamps_token_id"]).or_else(|| tokenizer.id("<|notimestamps|>"));
        Ok(Rules {
            suppressed: list("suppress_tokens"),
            suppressed_first: list("begin_suppress_tokens"),
            no_timestamps: no_timestamps.ok_or_else(|| failed(&"`no_timestamps_token_id` is missing"))?,
            languages: if config["is_multilingual"] == false { Vec::new() } else { named("lang_to_id") },
            tasks: named("task_to_id"),
        })
    }

    /// The tokens that an answer begins with.
    fn prompt(&self, start: u32, language: Option<u32>, task: Task) -> Result<Vec<u32>, Failure> {
        let name = if matches!(task, Task::Translate) { "translate" } else { "transcribe" };
        let mut prompt = vec![start];
        if let Some(language) = language {
            let task = self.tasks.iter().find(|(n, _)| n == name).map(|(_, id)| *id);
            prompt.extend([
                language,
                task.ok_or_else(|| Failure::Error(format!("generation_config.json has no token for the task {name}")))?,
            ]);
        } else if matches!(task, Task::Translate) {
            return Err(Failure::Usage("--task translate: this model knows English only".into()));
        }
        prompt.push(self.no_timestamps);
        Ok(prompt)
    }

    fn allows(&self, place: usize, id: u32) -> bool {
        id <= self.no_timestamps && !self.suppressed.contains(&id) && (place > 0 || !self.suppressed_first.contains(&id))
    }
}

/// Runs the subcommand.
pub fn run(args: &TranscribeArgs, global: Global) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Error(format!("{}: {e}", args.file.display()));
    let samples = read_wav(&std::fs::read(&args.file).map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
    if args.model.model.is_none() {
        return Err(Failure::Usage("-m: name a Whisper model, such as openai/whisper-tiny".into()));
    }
    let path = args.model.path(global)?;
    let device = args.model.device()?;
    let weights = args.model.open(&path, &device)?;
    let model = Seq2Seq::load(&weights, args.model.dtype()?).map_err(|e| unreadable(&path, e))?;
    let (tokenizer, _) = texts(&weights, &path)?;
    let folder = if path.is_dir() { &*path } else { path.parent().unwrap_or(Path::new(".")) };
    let rules = Rules::read(folder, &tokenizer)?;
    let heard = model.samples();
    if heard == 0 {
        return Err(Failure::Error(format!("{}: it reads text, not sound", path.display())));
    }
    interrupt::install();
    let mut language = args.language.as_deref().map(|code| of_language(&rules, code)).transpose()?;
    let (start, mut parts, mut count) = (Instant::now(), Vec::new(), 0);
    for (n, part) in samples.chunks(heard).enumerate() {
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        let source = model.listen(&model.features(part)?)?;
        if language.is_none() && !rules.languages.is_empty() {
            let first = Tensor::from_vec(vec![model.start() as i32], &[1, 1], &device)?;
            let logits = model.logits(&first, &source, &mut KvCache::none())?.to_vec()?;
            let likeliness = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            language = rules.languages.iter().map(|(_, id)| *id).max_by(|a, b| likeliness(*a).total_cmp(&likeliness(*b)));
        }
        let prompt = rules.prompt(model.start(), language, args.task)?;
        // Half of the context is for what was said before, as the model was trained.
        let room = model.shape().context / 2;
        let mut ids = model.greedy(&source, &prompt, room, |place, id| rules.allows(place, id))?;
        ids.retain(|id| !model.ends().contains(id));
        count += ids.len();
        let text = tokenizer.decode(&ids, true)?;
        let begin = (n * heard) as f64 / f64::from(SAMPLE_RATE);
        let end = begin + part.len() as f64 / f64::from(SAMPLE_RATE);
        match global.json {
            true => parts.push(json!({ "start_s": begin, "end_s": end, "text": text.trim(), "tokens": ids })),
            false => output::result(text.trim())?,
        }
    }
    let (seconds, length) = (start.elapsed().as_secs_f64(), samples.len() as f64 / f64::from(SAMPLE_RATE));
    let code = language.and_then(|id| rules.languages.iter().find(|(_, l)| *l == id)).map(|(code, _)| code.clone());
    if global.json {
        let value = json!({ "parts": parts, "language": code, "seconds": length, "times_real": length / seconds, "device": device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{length:.1} s of sound, {count} tokens, {:.1} times as fast as it was spoken", length / seconds));
    }
    Ok(())
}

/// The token of a language.
fn of_language(rules: &Rules, code: &str) -> Result<u32, Failure> {
    let found = rules.languages.iter().find(|(name, _)| name == code).map(|(_, id)| *id);
    found.ok_or_else(|| {
        let known: Vec<&str> = rules.languages.iter().map(|(name, _)| &**name).collect();
        let known = if known.is_empty() { "this model knows English only".into() } else { format!("supported: {}", known.join(", ")) };
        Failure::from(TensorError::Value(format!("--language {code}: {known}")))
    })
}
