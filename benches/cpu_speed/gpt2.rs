//! GPT-2 124M with random weights as GGUF files, which other programs can read as well: speed depends on sizes and types alone.

use std::path::{Path, PathBuf};
use tensorlogic::io::GgufWriter;
use tensorlogic::{DType, TensorResult, quant};

const WIDTH: usize = 768;
const LAYERS: usize = 12;
const VOCAB: usize = 50257;
const CONTEXT: usize = 1024;
/// Random numbers that weights are cut from: no row's length divides their number.
const PERIOD: usize = 1_000_003;

/// The types that files are written in.
pub const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];

/// Where the file of this type lies.
pub fn path(folder: &Path, dtype: DType) -> PathBuf {
    folder.join(format!("gpt2-124m-random-{}.gguf", dtype.name().to_lowercase()))
}

/// Writes the file of this type where it is missing.
pub fn make(folder: &Path, dtype: DType) -> TensorResult<()> {
    let file = path(folder, dtype);
    if file.exists() {
        return Ok(());
    }
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let random: Vec<f32> = (0..PERIOD)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.07
        })
        .collect();
    let mut start = 0;
    let mut numbers = |count: usize| -> Vec<f32> {
        start = (start + 7919) % PERIOD;
        (0..count).map(|i| random[(start + i) % PERIOD]).collect()
    };
    let plain = |x: Vec<f32>| -> Vec<u8> { x.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let packed = |x: Vec<f32>| -> TensorResult<Vec<u8>> {
        Ok(match dtype {
            DType::F32 => plain(x),
            DType::F16 => x.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
            DType::BF16 => x.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            _ => quant::quantize(dtype, &x)?,
        })
    };
    let mut w = GgufWriter::new();
    w.set("general.architecture", "gpt2").set("general.name", "gpt2-124m-random");
    let sizes = [
        ("context_length", CONTEXT),
        ("embedding_length", WIDTH),
        ("block_count", LAYERS),
        ("feed_forward_length", 4 * WIDTH),
        ("attention.head_count", 12),
    ];
    for (key, size) in sizes {
        w.set(&format!("gpt2.{key}"), size as u32);
    }
    w.set("gpt2.attention.layer_norm_epsilon", 1e-5f32);
    vocabulary(&mut w);
    w.tensor("token_embd.weight", dtype, &[VOCAB, WIDTH], packed(numbers(VOCAB * WIDTH))?)?;
    w.tensor("position_embd.weight", DType::F32, &[CONTEXT, WIDTH], plain(numbers(CONTEXT * WIDTH)))?;
    let norm = |w: &mut GgufWriter, name: &str| -> TensorResult<()> {
        w.tensor(&format!("{name}.weight"), DType::F32, &[WIDTH], plain(vec![1.0; WIDTH]))?;
        w.tensor(&format!("{name}.bias"), DType::F32, &[WIDTH], plain(vec![0.0; WIDTH]))?;
        Ok(())
    };
    norm(&mut w, "output_norm")?;
    for i in 0..LAYERS {
        norm(&mut w, &format!("blk.{i}.attn_norm"))?;
        norm(&mut w, &format!("blk.{i}.ffn_norm"))?;
        let parts =
            [("attn_qkv", 3 * WIDTH, WIDTH), ("attn_output", WIDTH, WIDTH), ("ffn_up", 4 * WIDTH, WIDTH), ("ffn_down", WIDTH, 4 * WIDTH)];
        for (part, rows, columns) in parts {
            w.tensor(&format!("blk.{i}.{part}.weight"), dtype, &[rows, columns], packed(numbers(rows * columns))?)?;
            w.tensor(&format!("blk.{i}.{part}.bias"), DType::F32, &[rows], plain(vec![0.0; rows]))?;
        }
    }
    w.write(&file)
}

/// A byte-level vocabulary of made-up tokens.
fn vocabulary(w: &mut GgufWriter) {
    let printable = |b: &u32| (33..127).contains(b) || (161..173).contains(b) || (174..256).contains(b);
    let others = (0..256u32).filter(|b| !printable(b)).enumerate().map(|(n, _)| 256 + n as u32);
    let mut tokens: Vec<String> =
        (0..256u32).filter(printable).chain(others).map(|c| char::from_u32(c).map(String::from).unwrap_or_default()).collect();
    tokens.extend((0..VOCAB - 257).map(|i| format!("t{i}")));
    tokens.push("<|endoftext|>".into());
    let kinds: Vec<i32> = (0..VOCAB).map(|i| if i == VOCAB - 1 { 3 } else { 1 }).collect();
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2");
    w.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", kinds);
    w.set("tokenizer.ggml.merges", vec!["t 1".to_string(), "t 2".to_string()]);
    w.set("tokenizer.ggml.bos_token_id", VOCAB as u32 - 1).set("tokenizer.ggml.eos_token_id", VOCAB as u32 - 1);
}
