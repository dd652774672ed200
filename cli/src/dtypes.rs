//! `tl bench dtypes`: one model in several types of weights, with size, speed and perplexity of each.

use crate::generate::context_of;
use crate::model::{self, ModelArgs};
use crate::output::{self, Failure};
use crate::perplexity::{self, Score};
use crate::{Global, interrupt, table};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensorlogic::io::human_bytes;
use tensorlogic::measure::{Change, Stats, Verdict};
use tensorlogic::models::{Model, Sampler, Session, Weights, convert};
use tensorlogic::{DType, Device, text};

/// Measure one model in several types of weights: bytes, tokens per second, ratio to the first type and its verdict, perplexity
#[derive(Args)]
#[command(
    after_help = "Each type's file is made as by `tl quantize`, in a temporary folder, from the given model: start from the most precise file available. All of them
are open at once, so memory for their sum is needed on a GPU (the CPU maps the files). The types take turns, and the median of the rounds
is printed; least and greatest go to --json. A type is called faster or slower than the first one where a Mann-Whitney U test has p < 0.01 and
the medians differ beyond the noise, which takes 5 rounds at least; else there is no difference. Perplexity, which needs a text (--file), is of windows as in `tl perplexity`; ± is its standard
error over tokens, which says how sure the perplexity itself is: all types read the same tokens, so differences between types are surer than that.

Examples:
  tl bench dtypes folder --file book.txt
  tl bench dtypes model-f32.gguf --types f32,f16,q8_0,q4_0 --device vulkan"
)]
pub struct DtypesArgs {
    /// Model, as for -m
    name: Option<String>,
    /// Types of weights, the first of which the others are compared with
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16,f16,q8_0,q4_0")]
    types: Vec<String>,
    /// A text for perplexity
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Tokens of the text to score at most
    #[arg(long, default_value_t = 2048)]
    text_tokens: usize,
    /// Tokens per window of the text [default: 512, or the model's maximum if lower]
    #[arg(short, long)]
    ctx: Option<usize>,
    /// Prompt length in tokens
    #[arg(short, long, default_value_t = 16)]
    prompt: usize,
    /// Tokens to generate in each round
    #[arg(short = 'n', long, default_value_t = 64)]
    tokens: usize,
    /// Number of rounds
    #[arg(short, long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    model: ModelArgs,
}

/// One type's file, open.
struct Candidate {
    dtype: DType,
    /// Bytes of the file.
    bytes: u64,
    /// Bytes of weights that a token reads.
    read: u64,
    model: Box<dyn Model>,
    times: Vec<Duration>,
    score: Option<Score>,
}

impl Candidate {
    /// Whether its times differ from the first type's by more than noise; `None` for the first one itself.
    fn verdict(&self, first: &Candidate) -> Option<&'static str> {
        let stats = |c: &Candidate| Stats::of(c.times.iter().map(Duration::as_secs_f64).collect());
        let (before, after) = (stats(first)?, stats(self)?);
        (self.dtype != first.dtype).then(|| match Change::between(self.dtype.name(), &[before], &[after]).verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "no difference",
        })
    }
}

/// A temporary folder, which goes away with its files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failure> {
        let path = std::env::temp_dir().join(format!("tl-dtypes-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Failure::Error(format!("{}: {e}", path.display())))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `bench dtypes`.
pub fn run(args: &DtypesArgs, global: Global) -> Result<(), Failure> {
    if args.tokens < 2 || args.prompt == 0 || args.rounds == 0 {
        return Err(Failure::Usage("need a prompt of at least 1 token, 2 tokens to generate and 1 round".into()));
    }
    let find = |name: &String| {
        let found = DType::WEIGHTS.into_iter().find(|d| d.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| Failure::Usage(format!("--types {name}: expected some of {}", DType::WEIGHTS.map(DType::name).join(", "))))
    };
    let types = args.types.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let options = args.model.named(args.name.as_ref(), "bench dtypes")?;
    let (device, activations) = (options.device()?, options.dtype()?);
    let path = options.path(global)?;
    interrupt::install();
    let source = model::open(&path, &Device::cpu())?;
    let texts = args.file.as_ref().map(|file| scored(args, file, &source, &path, global)).transpose()?;
    let folder = Folder::new()?;
    let vocabulary = if path.is_dir() { path.clone() } else { path.parent().map(PathBuf::from).unwrap_or_default() };
    let mut all = Vec::new();
    for dtype in types {
        let file = folder.0.join(format!("{dtype}.gguf"));
        convert::write_gguf(&source, dtype, |w, vocab| text::gguf::write(&vocabulary, vocab, w), &file)?;
        let bytes = std::fs::metadata(&file).map_or(0, |m| m.len());
        let model = options.build(&options.open(&file, &device)?, &path, activations)?;
        let whole: u64 = model.weights().iter().map(|t| t.dtype().bytes(t.numel()).unwrap_or(0) as u64).sum();
        let read = whole - model.unread_bytes();
        let score = match &texts {
            Some((tokens, bos, ctx)) => Score::of(&*model, &device, tokens, *bos, *ctx)?,
            None => None,
        };
        all.push(Candidate { dtype, bytes, read, model, times: Vec::new(), score });
    }
    // A first round warms up.
    for round in 0..=args.rounds {
        for c in &mut all {
            let took = decode(&*c.model, &device, args)?;
            if round > 0 {
                c.times.push(took);
            }
        }
    }
    all.iter_mut().for_each(|c| c.times.sort());
    print(args, &device, &all, global)
}

/// The text's tokens, the begin token and the window.
type ScoredTexts = (Vec<Vec<u32>>, Option<u32>, usize);

fn scored(args: &DtypesArgs, file: &Path, source: &Weights, path: &Path, global: Global) -> Result<ScoredTexts, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
    let (tokenizer, _) = model::texts(source, path)?;
    let shape = args.model.build(source, path, None)?.shape();
    let ctx = context_of(args.ctx, 512, &shape, global)?;
    if ctx < 2 {
        return Err(Failure::Usage("--ctx: a window needs at least 2 tokens".into()));
    }
    let tokens = perplexity::tokens(&tokenizer, &[text], args.text_tokens)?;
    Ok((tokens, tokenizer.bos().filter(|_| tokenizer.adds_bos()), ctx))
}

/// How long a model takes for the tokens after the first.
fn decode(model: &dyn Model, device: &Device, args: &DtypesArgs) -> Result<Duration, Failure> {
    let vocab = model.shape().vocab as u32;
    let ids: Vec<u32> = (0..args.prompt as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    let mut session = Session::new(model, args.prompt + args.tokens, device)?;
    let Some(logits) = session.prompt(&ids, interrupt::requested)? else { return Err(Failure::Interrupted) };
    let mut sampler = Sampler::default();
    let mut generation = session.generate(logits, &mut sampler)?.at_most(args.tokens);
    generation.token()?;
    let start = Instant::now();
    for _ in 1..args.tokens {
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        generation.token()?;
    }
    Ok(start.elapsed())
}

fn print(args: &DtypesArgs, device: &Device, all: &[Candidate], global: Global) -> Result<(), Failure> {
    let rate = |t: &Duration| (args.tokens - 1) as f64 / t.as_secs_f64().max(1e-9);
    let median = |c: &Candidate| rate(&c.times[c.times.len() / 2]);
    let Some(first) = all.first() else { return Ok(()) };
    if global.json {
        let rows = all.iter().map(|c| {
            json!({ "type": c.dtype.name(), "file_bytes": c.bytes, "weight_bytes_per_token": c.read, "tokens_per_s": { "median": median(c),
                "least": c.times.last().map(&rate), "most": c.times.first().map(&rate) }, "ratio": median(c) / median(first), "verdict": c.verdict(first),
                "perplexity": c.score.as_ref().map(|s| s.perplexity), "standard_error": c.score.as_ref().map(|s| s.error) })
        });
        let value = json!({ "device": device.name(), "activations": first.model.shape().dtype.name(), "rounds": args.rounds, "tokens": args.tokens,
            "scored_tokens": first.score.as_ref().map(|s| s.count), "types": rows.collect::<Vec<_>>() });
        return output::result(&value.to_string());
    }
    let ratio = format!("of {}", first.dtype);
    let mut rows = vec![["type", "file", "tok/s", ratio.as_str(), "verdict"].map(String::from).to_vec()];
    if let Some(s) = &first.score {
        rows[0].extend([format!("perplexity of {} tokens", s.count), "change".into()]);
    }
    for c in all {
        let (rate, ratio) = (format!("{:.1}", median(c)), format!("{:.2}", median(c) / median(first)));
        let mut row = vec![c.dtype.to_string(), human_bytes(c.bytes), rate, ratio, c.verdict(first).unwrap_or_default().into()];
        if let (Some(s), Some(f)) = (&c.score, &first.score) {
            row.extend([format!("{:.3} ± {:.3}", s.perplexity, s.error), format!("{:+.2} %", 100.0 * (s.perplexity / f.perplexity - 1.0))]);
        }
        rows.push(row);
    }
    output::result(&format!("activations {}, on {}; median of {} rounds", first.model.shape().dtype, device.name(), args.rounds))?;
    table::lines(&rows, &[1, 2, 3, 5, 6]).iter().try_for_each(|line| output::result(line))
}
