//! `tl score`: how likely a model finds texts, or continuations of a prompt.

use crate::model::ModelArgs;
use crate::output::{self, Failure};
use crate::texts::{Encoded, TextArgs, not_finite, token_text};
use crate::{Global, encoders};
use clap::Args;
use serde_json::{Value, json};
use std::time::Instant;
use tensorlogic::models::inference::Outputs;

/// Compute the log-likelihood of texts, or of continuations of a prompt; with a reranker, how well texts answer the prompt
#[derive(Args)]
#[command(
    after_help = "Each text is a line: the sum over its tokens of the logarithm of their probability (natural), the mean, and the text in quotes.
Without a prompt, the first token of a text has no probability if the model has no begin token; it is left out.
For texts longer than the model's context there is `tl perplexity`.

With a reranker or another classifier of texts, each text, or pair of prompt and text, is a line with a score for each label.

Examples:
  tl score \"The cat sat on the mat.\"
  tl score -p \"The capital of France is\" \" Paris\" \" Rome\" \" a banana\"
  tl score --tokens \"The cat sat on the hat.\"
  tl score -f sentences.txt --json | jq '.texts[].mean'
  tl score -m BAAI/bge-reranker-base -p \"where do cats sleep?\" -f passages.txt | sort -rn | head"
)]
pub struct ScoreArgs {
    #[command(flatten)]
    pub texts: TextArgs,
    /// Prompt that every text continues; its own tokens are not scored. Of a reranker: the question that texts answer
    #[arg(short, long)]
    pub prompt: Option<String>,
    /// Also list every token with its log-probability, before the line of its text
    #[arg(long)]
    pub tokens: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// The tokens of a text that have a probability, with its logarithm.
fn scored(text: &Encoded, log_probs: &[f32]) -> Vec<(u32, f64)> {
    let all = text.ids.iter().zip(log_probs).map(|(&id, &p)| (id, f64::from(p)));
    all.skip(text.before.max(1)).collect()
}

/// Runs the subcommand.
pub fn run(args: &ScoreArgs, global: Global) -> Result<(), Failure> {
    if args.prompt.as_ref().is_some_and(String::is_empty) {
        return Err(Failure::Usage("--prompt is empty".into()));
    }
    let path = args.model.path(global)?;
    if encoders::is_for(&path)? {
        return encoders::score(args, &path, global);
    }
    let (mut loaded, texts) = args.texts.encode(&args.model, args.prompt.as_deref(), global)?;
    let (start, mut found, mut count): (_, Vec<Value>, _) = (Instant::now(), Vec::new(), 0);
    let read = |outputs: &Outputs| Ok(outputs.log_probs.as_ref().map(|all| all.to_vec2::<f32>()).transpose()?.unwrap_or_default());
    args.texts.run(
        &mut loaded,
        |inference| inference.log_probs(true).timestamps(false),
        &texts,
        read,
        |loaded, batch, rows| {
            for (text, row) in batch.iter().zip(rows) {
                count += text.ids.len();
                let scores = scored(text, &row);
                let sum: f64 = scores.iter().map(|(_, p)| p).sum();
                if !sum.is_finite() {
                    return Err(not_finite(loaded));
                }
                let mean = (!scores.is_empty()).then(|| sum / scores.len() as f64);
                let mut tokens = Vec::new();
                for (id, p) in &scores {
                    let word = token_text(loaded, *id)?;
                    match (global.json, args.tokens) {
                        (true, _) => tokens.push(json!({ "id": id, "text": word, "log_prob": p })),
                        (false, true) => output::result(&format!("{p:>10.4}  {word:?}"))?,
                        (false, false) => {}
                    }
                }
                match global.json {
                    true => found.push(json!({ "text": text.text, "log_likelihood": sum, "mean": mean,
                    "perplexity": mean.map(|m| (-m).exp()), "tokens": tokens })),
                    false => output::result(&format!("{sum:.4}  {}  {:?}", mean.map_or("-".into(), |m| format!("{m:.4}")), text.text))?,
                }
            }
            Ok(())
        },
    )?;
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let value =
            json!({ "texts": found, "prompt": args.prompt, "tokens_per_s": count as f64 / seconds, "device": loaded.device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{} texts, {count} tokens, {:.1} tok/s", texts.len(), count as f64 / seconds));
    }
    Ok(())
}
