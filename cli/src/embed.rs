//! `tl embed`: texts or images in, vectors out.

use crate::model::{self, ModelArgs};
use crate::output::{self, Failure};
use crate::texts::{TextArgs, not_finite, token_text};
use crate::{Global, encoders, image_vectors};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;
use tensorlogic::Device;
use tensorlogic::models::inference::{Outputs, Pooling};

/// Turn texts or images into vectors: the model's last hidden states, pooled per text or image, or one per token
#[derive(Args)]
#[command(
    after_help = "Each text or image is a line of numbers, separated by spaces; with --tokens each token is one, after its text in quotes and a tab.

Examples:
  tl embed \"The cat sat on the mat.\"
  tl embed --normalize --json \"a cat\" \"a dog\" \"a tax form\"
  tl embed -m model.gguf --pooling last -f sentences.txt > vectors.txt
  tl embed --tokens \"a cat\"
  tl embed -m Qwen/Qwen3-Embedding-0.6B --prompt-name query \"where do cats sleep?\"
  tl embed -m openai/clip-vit-base-patch32 --normalize --image cat.jpg dog.png"
)]
pub struct EmbedArgs {
    #[command(flatten)]
    pub texts: TextArgs,
    /// Image files, PNG or JPEG, instead of texts, for an image encoder: ViT, DINOv2, SigLIP or CLIP
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["texts", "file", "tokens", "prompt", "prompt_name"])]
    pub image: Vec<PathBuf>,
    /// How the states of a text's tokens, or of an image's patches, become one vector [default: what the model's files say, else mean]
    #[arg(long, value_enum, conflicts_with = "tokens")]
    pub pooling: Option<By>,
    /// One vector per token instead of one per text
    #[arg(long)]
    pub tokens: bool,
    /// Scale every vector to length 1, so that dot products are cosines; models whose files say so do it anyway
    #[arg(long)]
    pub normalize: bool,
    /// Prompt in front of every text, by its name in the files of the model, such as `query`
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    pub prompt_name: Option<String>,
    /// Text in front of every text
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum By {
    /// The mean over all tokens
    Mean,
    /// The state of the last token
    Last,
    /// The state of the first token
    Cls,
    /// The largest value of each component
    Max,
}

impl From<By> for Pooling {
    fn from(by: By) -> Pooling {
        match by {
            By::Mean => Pooling::Mean,
            By::Last => Pooling::Last,
            By::Cls => Pooling::Cls,
            By::Max => Pooling::Max,
        }
    }
}

impl EmbedArgs {
    /// The vector as it is printed.
    pub fn finished(&self, mut vector: Vec<f32>) -> Vec<f32> {
        if self.normalize {
            let length = vector.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            vector.iter_mut().filter(|_| length > 0.0).for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
        vector
    }
}

/// The numbers of a line.
pub fn numbers(vector: &[f32]) -> String {
    vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")
}

/// Runs the subcommand.
pub fn run(args: &EmbedArgs, global: Global) -> Result<(), Failure> {
    let path = args.model.path(global)?;
    if !args.image.is_empty() {
        return image_vectors::embed(args, &path, global);
    }
    if image_vectors::is_for(&model::open(&path, &Device::cpu())?).map_err(|e| model::unreadable(&path, e))? {
        return Err(Failure::Usage(format!("{}: a tower for images; give image files with --image", path.display())));
    }
    if encoders::is_for(&path)? {
        return encoders::embed(args, &path, global);
    }
    if let Some(name) = &args.prompt_name {
        return Err(Failure::Usage(format!("--prompt-name {name}: this model's files have no prompts; use --prompt TEXT")));
    }
    let (mut loaded, texts) = args.texts.encode(&args.model, args.prompt.as_deref(), global)?;
    let pooling = args.pooling.map_or(Pooling::Mean, Pooling::from);
    let (start, mut found, mut count): (_, Vec<Value>, _) = (Instant::now(), Vec::new(), 0);
    // Of each text its vectors: one, or those of its tokens.
    let read = |outputs: &Outputs| -> Result<Vec<Vec<Vec<f32>>>, Failure> {
        let pooled = outputs.pooled(pooling)?.to_vec2::<f32>()?;
        let of = |(row, pooled): (usize, Vec<f32>)| if args.tokens { Ok(outputs.token_states(row)?) } else { Ok(vec![pooled]) };
        pooled.into_iter().enumerate().map(of).collect()
    };
    args.texts.run(
        &mut loaded,
        |inference| inference.timestamps(false),
        &texts,
        read,
        |loaded, batch, vectors| {
            for (text, vectors) in batch.iter().zip(vectors) {
                count += text.ids.len();
                let vectors: Vec<Vec<f32>> = vectors.into_iter().map(|v| args.finished(v)).collect();
                if vectors.iter().flatten().any(|v| !v.is_finite()) {
                    return Err(not_finite(loaded));
                }
                let mut tokens = Vec::new();
                for (&id, vector) in text.ids.iter().zip(&vectors).filter(|_| args.tokens) {
                    let word = token_text(loaded, id)?;
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
        },
    )?;
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let pooling = if args.tokens { Value::Null } else { pooling.to_string().into() };
        let value = json!({ "texts": found, "width": loaded.model.shape().width, "pooling": pooling, "normalized": args.normalize,
            "tokens_per_s": count as f64 / seconds, "device": loaded.device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{} texts, {count} tokens, {:.1} tok/s", texts.len(), count as f64 / seconds));
    }
    Ok(())
}
