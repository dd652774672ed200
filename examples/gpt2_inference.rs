//! GPT-2 as one call: tokens, mask and positions in, logits and hidden states out, with real sizes and the time of each stage.
//!
//! `cargo run --release --example gpt2_inference -- [FOLDER [TEXT]]`, with `FOLDER` as `tl pull openai-community/gpt2` prints it. Without
//! it the model has GPT-2's shape and random weights. `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device.

use std::path::Path;
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::models::inference::{Inference, Inputs, Outputs};
use tensorlogic::models::{self, Model, Weights};
use tensorlogic::text::Tokenizer;
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// Sizes of GPT-2 124M.
const VOCAB: usize = 50257;
const CONTEXT: usize = 1024;
const WIDTH: usize = 768;
const HEADS: usize = 12;
/// Tokens of the run without a text.
const TOKENS: usize = 512;

/// Weights of GPT-2's shape: random matrices in f16, norms that change nothing, biases of zero.
pub fn random_weights(layers: usize, device: &Device) -> TensorResult<Weights> {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "gpt2");
    let numbers = [("block_count", layers), ("embedding_length", WIDTH), ("feed_forward_length", 4 * WIDTH), ("context_length", CONTEXT)];
    for (key, value) in numbers.into_iter().chain([("attention.head_count", HEADS)]) {
        w.set(&format!("gpt2.{key}"), value as u32);
    }
    w.set("gpt2.attention.layer_norm_epsilon", 1e-5f32);
    // Every matrix begins as every other does; a period that no row length divides is random enough.
    let noise = tensorlogic::Rng::new(1).normal(&[1_000_003], DType::F32, &Device::cpu())?.mul(0.02)?.cast(DType::F16)?.to_bytes()?;
    let random: Vec<u8> = noise.iter().copied().cycle().take(2 * VOCAB * WIDTH).collect();
    let ones: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), WIDTH).flatten().collect();
    let zeros = vec![0u8; 4 * 4 * WIDTH];
    let mut norms = vec!["output_norm".to_string()];
    let mut matrices = vec![("token_embd".to_string(), VOCAB, WIDTH), ("position_embd".to_string(), CONTEXT, WIDTH)];
    for i in 0..layers {
        norms.extend(["attn_norm", "ffn_norm"].map(|part| format!("blk.{i}.{part}")));
        let parts =
            [("attn_qkv", 3 * WIDTH, WIDTH), ("attn_output", WIDTH, WIDTH), ("ffn_up", 4 * WIDTH, WIDTH), ("ffn_down", WIDTH, 4 * WIDTH)];
        matrices.extend(parts.map(|(part, rows, columns)| (format!("blk.{i}.{part}"), rows, columns)));
    }
    for name in &norms {
        w.tensor(&format!("{name}.weight"), DType::F32, &[WIDTH], &ones[..])?;
        w.tensor(&format!("{name}.bias"), DType::F32, &[WIDTH], &zeros[..4 * WIDTH])?;
    }
    for (name, rows, columns) in &matrices {
        w.tensor(&format!("{name}.weight"), DType::F16, &[*rows, *columns], &random[..2 * rows * columns])?;
        if name.starts_with("blk") {
            w.tensor(&format!("{name}.bias"), DType::F32, &[*rows], &zeros[..4 * rows])?;
        }
    }
    Ok(Weights::from_gguf(Gguf::from_bytes(w.to_bytes()?)?, device))
}

/// One inference over a row of tokens, with the mask and positions that the model would take by itself.
pub fn run(model: &dyn Model, tokens: &[i32]) -> TensorResult<Outputs> {
    let (cpu, sizes) = (Device::cpu(), [1, tokens.len()]);
    let input = Tensor::from_vec(tokens.to_vec(), &sizes, &cpu)?;
    let attention_mask = Tensor::ones(&sizes, DType::I32, &cpu)?;
    let position_ids = Tensor::arange(0.0, tokens.len() as f64, 1.0, DType::I32, &cpu)?.unsqueeze(0)?;
    Inference::new(model).run(&Inputs::tokens(&input).attention_mask(&attention_mask).position_ids(&position_ids))
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (weights, tokenizer) = match args.first() {
        Some(folder) => (Weights::open(folder, &device)?, Some(Tokenizer::from_file(Path::new(folder).join("tokenizer.json"))?)),
        None => (random_weights(12, &device)?, None),
    };
    let model = models::load(&weights, None)?;
    let tokens: Vec<i32> = match &tokenizer {
        Some(t) => {
            let text = args.get(1).map_or("The compute shader runs on the", String::as_str);
            t.encode(text, true)?.into_iter().map(|id| id as i32).collect()
        }
        None => (0..TOKENS).map(|i| (i * 7919 % VOCAB) as i32).collect(),
    };
    // The first run compiles; the second finds everything there.
    for name in ["first run", "second run"] {
        let outputs = run(&*model, &tokens)?;
        println!("{name} on {}: {}", outputs.device, outputs.times);
        println!("  in   tokens [1,{}], {} bytes (plain mask and positions need none)", tokens.len(), outputs.bytes_in);
        println!("  out  logits {}, hidden_states {}, {} bytes", outputs.logits.shape(), outputs.hidden_states.shape(), outputs.bytes_out);
        println!("  {:.0} tokens/s", tokens.len() as f64 / outputs.times.total().as_secs_f64());
        if let Some(t) = &tokenizer {
            let logits = outputs.logits.to_vec()?;
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let best = order[..5].iter().map(|&id| Ok(format!("{:?} {:.2}", t.decode(&[id as u32], false)?, logits[id])));
            println!("  most likely next: {}", best.collect::<TensorResult<Vec<_>>>()?.join(", "));
        }
    }
    Ok(())
}
