//! `tl embed`: texts in, vectors out.

use crate::Global;
use crate::model::ModelArgs;
use crate::output::{self, Failure};
use crate::texts::{TextArgs, not_finite, token_text};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::time::Instant;
use tensorlogic::models::Inference;
use tensorlogic::models::inference::Pooling;

/// Turn texts into vectors: the model's last hidden states, pooled per text or one per token
#[derive(Args)]
#[command(
    after_help = "Each text is a line of numbers, separated by spaces; with --tokens each token is one, behind its text in quotes and a tab.

Examples:
  tl embed \"The cat sat on the mat.\"
  tl embed --normalize --json \"a cat\" \"a dog\" \"a tax form\"
  tl embed -m model.gguf --pooling last -f sentences.txt > vectors.txt
  tl embed --tokens \"a cat\""
)]
pub struct EmbedArgs {
    #[command(flatten)]
    texts: TextArgs,
    /// How the states of a text's tokens become one vector
    #[arg(long, value_enum, default_value_t = By::Mean, conflicts_with = "tokens")]
    pooling: By,
    /// One vector per token instead of one per text
    #[arg(long)]
    tokens: bool,
    /// Scale every vector to length 1, so that dot products are cosines
    #[arg(long)]
    normalize: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// The mean over all tokens
    Mean,
    /// The state of the last token
    Last,
}

impl EmbedArgs {
    /// The vector as it is printed.
    fn finished(&self, mut vector: Vec<f32>) -> Vec<f32> {
        if self.normalize {
            let length = vector.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            vector.iter_mut().filter(|_| length > 0.0).for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
        vector
    }
}

fn numbers(vector: &[f32]) -> String {
    vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")
}

/// Runs the subcommand.
pub fn run(args: &EmbedArgs, global: Global) -> Result<(), Failure> {
    let (loaded, texts) = args.texts.encode(&args.model, None, global)?;
    let inference = Inference::new(&*loaded.model).timestamps(false);
    let pooling = match args.pooling {
        By::Mean => Pooling::Mean,
        By::Last => Pooling::Last,
    };
    let (start, mut found, mut count): (_, Vec<Value>, _) = (Instant::now(), Vec::new(), 0);
    args.texts.run(&inference, &texts, |batch, outputs| {
        let pooled = outputs.pooled(pooling)?.to_vec2::<f32>()?;
        for (row, (text, pooled)) in batch.iter().zip(pooled).enumerate() {
            count += text.ids.len();
            let vectors: Vec<Vec<f32>> = match args.tokens {
                true => outputs.token_states(row)?.into_iter().map(|v| args.finished(v)).collect(),
                false => vec![args.finished(pooled)],
            };
            if vectors.iter().flatten().any(|v| !v.is_finite()) {
                return Err(not_finite(&loaded));
            }
            let mut tokens = Vec::new();
            for (&id, vector) in text.ids.iter().zip(&vectors).filter(|_| args.tokens) {
                let word = token_text(&loaded, id)?;
                match global.json {
                    true => tokens.push(json!({ "id": id, "text": word, "embedding": vector })),
                    false => output::result(&format!("{word:?}\t{}", numbers(vector)))?,
                }
            }
            match (global.json, args.tokens) {
                (true, true) => found.push(json!({ "text": text.text, "tokens": tokens })),
                (true, false) => found.push(json!({ "text": text.text, "token_count": text.ids.len(), "embedding": vectors[0] })),
                (false, true) => {}
                (false, false) => output::result(&numbers(&vectors[0]))?,
            }
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let pooling = if args.tokens { Value::Null } else { args.pooling.to_possible_value().map_or(Value::Null, |v| v.get_name().into()) };
        let value = json!({ "texts": found, "width": loaded.model.shape().width, "pooling": pooling, "normalized": args.normalize,
            "tokens_per_s": count as f64 / seconds, "device": loaded.device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{} texts, {count} tokens, {:.1} tok/s", texts.len(), count as f64 / seconds));
    }
    Ok(())
}
