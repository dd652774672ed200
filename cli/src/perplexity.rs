//! `tl perplexity`: how well a model predicts a text.

use crate::generate::context_of;
use crate::layers::{self, RankGroup};
use crate::model::{ModelArgs, warn_unknown};
use crate::output::{self, Failure};
use crate::ranks::RankArgs;
use crate::{Global, interrupt};
use clap::Args;
use serde_json::json;
use std::time::Instant;
use tensorlogic::models::{Model, Session};
use tensorlogic::text::Tokenizer;
use tensorlogic::{DType, Device, Tensor};

/// Measure how well a model predicts a text: the exponential of the mean negative log-likelihood per token
#[derive(Args)]
#[command(
    after_help = "The text is split into non-overlapping windows of --ctx tokens. Each token of a window except the first is predicted from
the ones before it.

Examples:
  tl perplexity -f book.txt
  tl perplexity -m model.gguf -f wiki.test.raw --ctx 512 --json
  tl perplexity -f sample-*.txt"
)]
pub struct PerplexityArgs {
    /// Text files; they are scored separately and averaged together
    #[arg(short, long, required = true, num_args = 1..)]
    file: Vec<std::path::PathBuf>,
    /// Tokens per window [default: 512, or the model's maximum if lower]
    #[arg(short, long)]
    ctx: Option<usize>,
    /// Maximum number of tokens to score
    #[arg(short = 'n', long, default_value_t = usize::MAX, hide_default_value = true)]
    tokens: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    ranks: RankArgs,
}

/// Runs the subcommand.
pub fn run(args: &PerplexityArgs, global: Global) -> Result<(), Failure> {
    let open = |device: &Device| args.model.open(&args.model.path(Global { quiet: true, ..global })?, device);
    layers::run(&args.ranks, &args.model, global, open, |group, global| measure(args, global, group))
}

fn measure(args: &PerplexityArgs, global: Global, group: &RankGroup) -> Result<(), Failure> {
    let read = |f: &std::path::PathBuf| std::fs::read_to_string(f).map_err(|e| Failure::Error(format!("{}: {e}", f.display())));
    let texts = args.file.iter().map(read).collect::<Result<Vec<String>, Failure>>()?;
    if args.ctx.is_some_and(|n| n < 2) {
        return Err(Failure::Usage("--ctx: a window needs at least 2 tokens".into()));
    }
    let mut loaded = args.model.load_over(&args.model.path(global)?, global, group)?;
    interrupt::install();
    warn_unknown(&loaded.tokenizer, texts.iter().map(String::as_str), global)?;
    let ctx = context_of(args.ctx, 512, &loaded.model.shape(), global)?;
    let start = Instant::now();
    let texts = tokens(&loaded.tokenizer, &texts, args.tokens)?;
    let all: usize = texts.iter().map(Vec::len).sum();
    let bos = loaded.tokenizer.bos().filter(|_| loaded.tokenizer.adds_bos());
    let (windows, mut tally) = (windows(&texts, bos, ctx), Tally::default());
    loaded.recovering(|model, device| tally.add(model, device, &windows, ctx))?;
    let score = tally.score();
    let Some(Score { perplexity, error, mean, count }) = score else {
        return Err(Failure::Error(format!("{}: perplexity needs at least 2 tokens, got {all}", args.file[0].display())));
    };
    if !mean.is_finite() {
        return Err(loaded.failed(Failure::Error("the model gave NaN or infinite logits; try --dtype f32".into())));
    }
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let value = json!({ "perplexity": perplexity, "standard_error": error, "mean_nll": mean, "predicted_tokens": count, "tokens": all,
            "ctx": ctx, "tokens_per_s": all as f64 / seconds, "device": loaded.device.name() });
        return output::result(&value.to_string());
    }
    output::result(&format!("perplexity {perplexity:.4} ± {error:.4}"))?;
    if !global.quiet {
        output::note(&format!("{count} of {all} tokens predicted, windows of {ctx}, {:.1} tok/s", all as f64 / seconds));
    }
    Ok(())
}

/// Texts as tokens, `most` of them at most.
pub fn tokens(tokenizer: &Tokenizer, texts: &[String], most: usize) -> Result<Vec<Vec<u32>>, Failure> {
    let mut left = most;
    let mut texts = texts.iter().map(|t| tokenizer.encode(t, false)).collect::<Result<Vec<Vec<u32>>, _>>()?;
    for ids in &mut texts {
        ids.truncate(left);
        left -= ids.len();
    }
    Ok(texts)
}

/// How well a model predicts texts.
pub struct Score {
    /// The exponential of `mean`.
    pub perplexity: f64,
    /// The standard error of the perplexity.
    pub error: f64,
    /// The mean negative log-likelihood of a token, in nats.
    pub mean: f64,
    /// Tokens that were predicted.
    pub count: usize,
}

impl Score {
    /// Of texts in windows of `ctx` tokens, each of which begins with `bos`; `None` where there is no token to predict.
    pub fn of(model: &dyn Model, device: &Device, texts: &[Vec<u32>], bos: Option<u32>, ctx: usize) -> Result<Option<Score>, Failure> {
        let mut tally = Tally::default();
        tally.add(model, device, &windows(texts, bos, ctx), ctx)?;
        Ok(tally.score())
    }
}

/// Texts in windows of `ctx` tokens. A begin token takes a place of every window and is not predicted.
fn windows(texts: &[Vec<u32>], bos: Option<u32>, ctx: usize) -> Vec<Vec<u32>> {
    let parts = texts.iter().flat_map(|ids| ids.chunks(ctx - bos.is_some() as usize));
    parts.map(|part| bos.into_iter().chain(part.iter().copied()).collect()).collect()
}

/// What was counted so far.
#[derive(Default)]
struct Tally {
    /// Windows that are done.
    windows: usize,
    /// The sum of the negative log-likelihoods of their tokens, in nats, and that of their squares.
    sum: f64,
    squares: f64,
    count: usize,
}

impl Tally {
    /// Adds the windows that are not counted yet; an error leaves those before it counted.
    fn add(&mut self, model: &dyn Model, device: &Device, windows: &[Vec<u32>], ctx: usize) -> Result<(), Failure> {
        let vocab = model.shape().vocab;
        // As many logits at a time as fit a buffer that every adapter offers.
        let chunk = ((64 << 20) / (4 * vocab)).clamp(1, 128);
        let mut session = Session::new(model, ctx, device)?;
        for tokens in &windows[self.windows..] {
            session.truncate(0);
            let (mut at, mut found) = (0, Vec::with_capacity(tokens.len()));
            while at + 1 < tokens.len() {
                if interrupt::requested() {
                    return Err(Failure::Interrupted);
                }
                let end = (at + chunk).min(tokens.len() - 1);
                let logits = session.score(&tokens[at..end])?;
                let targets = tokens[at + 1..=end].iter().enumerate().map(|(row, &t)| (row * vocab) as i32 + t as i32);
                let targets = Tensor::from_vec(targets.collect::<Vec<i32>>(), &[end - at], device)?;
                found.extend(logits.cast(DType::F32)?.log_softmax(-1)?.flatten(0, -1)?.index_select(0, &targets)?.to_vec()?);
                at = end;
            }
            for p in found.into_iter().map(f64::from) {
                (self.sum, self.squares, self.count) = (self.sum - p, self.squares + p.powi(2), self.count + 1);
            }
            self.windows += 1;
        }
        Ok(())
    }

    /// The result; `None` where no token was predicted.
    fn score(&self) -> Option<Score> {
        let Tally { sum, squares, count, .. } = *self;
        if count == 0 {
            return None;
        }
        let mean = sum / count as f64;
        let perplexity = mean.exp();
        let deviation = ((squares / count as f64 - mean * mean).max(0.0) / count.saturating_sub(1).max(1) as f64).sqrt();
        Some(Score { perplexity, error: if count > 1 { perplexity * deviation } else { 0.0 }, mean, count })
    }
}
