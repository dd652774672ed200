//! Models of known shapes with random weights: what speed depends on is there, without a download.

use crate::output::Failure;
use tensorlogic::DType;
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::quant::{WeightTypes, quantize, random_blocks};

/// Sizes of a model.
pub struct Shape {
    pub name: &'static str,
    architecture: &'static str,
    layers: usize,
    dim: usize,
    heads: usize,
    kv_heads: usize,
    /// Size of a head; that of a state over the number of heads when absent.
    head: Option<usize>,
    feed_forward: usize,
    experts: Option<Experts>,
    /// The layers that have attention, where the others have short convolutions; all when empty.
    attention: &'static [usize],
    vocab: usize,
    context: usize,
    /// Whether the embedding is the output matrix as well.
    tied: bool,
}

/// Experts of all layers.
#[derive(Clone, Copy)]
struct Experts {
    count: usize,
    used: usize,
    size: usize,
}

/// What shapes have where they do not say otherwise.
const LLAMA: Shape = Shape {
    name: "",
    architecture: "llama",
    layers: 1,
    dim: 32,
    heads: 1,
    kv_heads: 1,
    head: None,
    feed_forward: 32,
    experts: None,
    attention: &[],
    vocab: 32,
    context: 1024,
    tied: true,
};

/// The shapes that have a name.
pub static SHAPES: [Shape; 10] = [
    Shape {
        name: "gpt2-124m",
        architecture: "gpt2",
        layers: 12,
        dim: 768,
        heads: 12,
        kv_heads: 12,
        feed_forward: 3072,
        vocab: 50257,
        ..LLAMA
    },
    Shape { name: "smollm2-135m", layers: 30, dim: 576, heads: 9, kv_heads: 3, feed_forward: 1536, vocab: 49152, context: 8192, ..LLAMA },
    // Llama 3.2 1B.
    Shape { name: "llama-1b", layers: 16, dim: 2048, heads: 32, kv_heads: 8, feed_forward: 8192, vocab: 128256, context: 131072, ..LLAMA },
    // Llama 3.1 8B.
    Shape { name: "llama-8b", layers: 32, dim: 4096, heads: 32, kv_heads: 8, feed_forward: 14336, vocab: 128256, context: 131072, ..LLAMA },
    Shape {
        name: "qwen3-0.6b",
        architecture: "qwen3",
        layers: 28,
        dim: 1024,
        heads: 16,
        kv_heads: 8,
        head: Some(128),
        feed_forward: 3072,
        vocab: 151936,
        context: 40960,
        ..LLAMA
    },
    Shape {
        name: "qwen3-8b",
        architecture: "qwen3",
        layers: 36,
        dim: 4096,
        heads: 32,
        kv_heads: 8,
        head: Some(128),
        feed_forward: 12288,
        vocab: 151936,
        context: 40960,
        tied: false,
        ..LLAMA
    },
    Shape {
        name: "gemma3-1b",
        architecture: "gemma3",
        layers: 26,
        dim: 1152,
        heads: 4,
        kv_heads: 1,
        head: Some(256),
        feed_forward: 6912,
        vocab: 262144,
        context: 32768,
        ..LLAMA
    },
    Shape {
        name: "qwen3-30b-a3b",
        architecture: "qwen3moe",
        layers: 48,
        dim: 2048,
        heads: 32,
        kv_heads: 4,
        head: Some(128),
        feed_forward: 6144,
        experts: Some(Experts { count: 128, used: 8, size: 768 }),
        vocab: 151936,
        context: 40960,
        tied: false,
        ..LLAMA
    },
    Shape {
        name: "gpt-oss-20b",
        architecture: "gpt-oss",
        layers: 24,
        dim: 2880,
        heads: 64,
        kv_heads: 8,
        head: Some(64),
        feed_forward: 2880,
        experts: Some(Experts { count: 32, used: 4, size: 2880 }),
        vocab: 201088,
        context: 131072,
        tied: false,
        ..LLAMA
    },
    Shape {
        name: "lfm2-350m",
        architecture: "lfm2",
        layers: 16,
        dim: 1024,
        heads: 16,
        kv_heads: 8,
        feed_forward: 4608,
        attention: &[2, 5, 8, 10, 12, 14],
        vocab: 65536,
        context: 128000,
        ..LLAMA
    },
];

/// Taps of the short convolutions.
const TAPS: usize = 3;

/// A tensor of a file: name, sizes, and whether its type is the one that is asked for.
struct Part {
    name: String,
    shape: Vec<usize>,
    kind: TensorKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TensorKind {
    Matrix,
    Expert,
    /// Norms, in f32.
    Ones,
    /// Biases and the like, in f32.
    Zeros,
    /// Other f32.
    Random,
}

impl Shape {
    fn head(&self) -> usize {
        self.head.unwrap_or(self.dim / self.heads)
    }

    fn has_attention(&self, layer: usize) -> bool {
        self.attention.is_empty() || self.attention.contains(&layer)
    }

    /// The tensors of the file, by their names there.
    fn parts(&self) -> Vec<Part> {
        let (d, a) = (self.dim, self.architecture);
        let mut all = Vec::new();
        let mut add = |name: String, shape: &[usize], kind: TensorKind| all.push(Part { name, shape: shape.to_vec(), kind });
        add("token_embd.weight".into(), &[self.vocab, d], TensorKind::Matrix);
        if !self.tied {
            add("output.weight".into(), &[self.vocab, d], TensorKind::Matrix);
        }
        if a == "gpt2" {
            add("position_embd.weight".into(), &[self.positions(), d], TensorKind::Random);
            add("output_norm.bias".into(), &[d], TensorKind::Zeros);
        }
        // llama.cpp has the name of another norm for LFM2's last one.
        add(format!("{}.weight", if a == "lfm2" { "token_embd_norm" } else { "output_norm" }), &[d], TensorKind::Ones);
        for i in 0..self.layers {
            for (part, shape, kind) in self.norms(i).into_iter().chain(self.mixer(i)).chain(self.feed()) {
                let biased = match a {
                    "gpt2" => true,
                    "gpt-oss" => matches!(kind, TensorKind::Matrix | TensorKind::Expert | TensorKind::Random),
                    _ => false,
                };
                add(format!("blk.{i}.{part}.weight"), &shape, kind);
                if biased {
                    let outputs = if shape.len() > 1 { &shape[..shape.len() - 1] } else { &shape[..] };
                    add(format!("blk.{i}.{part}.bias"), outputs, TensorKind::Zeros);
                }
            }
        }
        all
    }

    fn norms(&self, i: usize) -> Vec<(&'static str, Vec<usize>, TensorKind)> {
        let of_states: &[&str] = match self.architecture {
            "gemma3" => &["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
            "gpt-oss" => &["attn_norm", "post_attention_norm"],
            _ => &["attn_norm", "ffn_norm"],
        };
        let normed = matches!(self.architecture, "qwen3" | "qwen3moe" | "gemma3" | "lfm2") && self.has_attention(i);
        let of_heads: &[&str] = if normed { &["attn_q_norm", "attn_k_norm"] } else { &[] };
        let norm = |part: &&'static str, size: usize| (*part, vec![size], TensorKind::Ones);
        of_states.iter().map(|p| norm(p, self.dim)).chain(of_heads.iter().map(|p| norm(p, self.head()))).collect()
    }

    /// What mixes the tokens of layer `i`.
    fn mixer(&self, i: usize) -> Vec<(&'static str, Vec<usize>, TensorKind)> {
        let (d, q, kv) = (self.dim, self.heads * self.head(), self.kv_heads * self.head());
        if !self.has_attention(i) {
            return vec![
                ("shortconv.in_proj", vec![3 * d, d], TensorKind::Matrix),
                ("shortconv.conv", vec![d, TAPS], TensorKind::Random),
                ("shortconv.out_proj", vec![d, d], TensorKind::Matrix),
            ];
        }
        let mut all = match self.architecture {
            "gpt2" => vec![("attn_qkv", vec![3 * d, d], TensorKind::Matrix)],
            _ => vec![
                ("attn_q", vec![q, d], TensorKind::Matrix),
                ("attn_k", vec![kv, d], TensorKind::Matrix),
                ("attn_v", vec![kv, d], TensorKind::Matrix),
            ],
        };
        all.push(("attn_output", vec![d, q], TensorKind::Matrix));
        if self.architecture == "gpt-oss" {
            all.push(("attn_sinks", vec![self.heads], TensorKind::Zeros));
        }
        all
    }

    fn feed(&self) -> Vec<(&'static str, Vec<usize>, TensorKind)> {
        let (d, f) = (self.dim, self.feed_forward);
        match self.experts {
            Some(Experts { count: e, size: f, .. }) => vec![
                ("ffn_gate_inp", vec![e, d], TensorKind::Random),
                ("ffn_gate_exps", vec![e, f, d], TensorKind::Expert),
                ("ffn_up_exps", vec![e, f, d], TensorKind::Expert),
                ("ffn_down_exps", vec![e, d, f], TensorKind::Expert),
            ],
            None if self.architecture == "gpt2" => {
                vec![("ffn_up", vec![f, d], TensorKind::Matrix), ("ffn_down", vec![d, f], TensorKind::Matrix)]
            }
            None => {
                vec![
                    ("ffn_gate", vec![f, d], TensorKind::Matrix),
                    ("ffn_up", vec![f, d], TensorKind::Matrix),
                    ("ffn_down", vec![d, f], TensorKind::Matrix),
                ]
            }
        }
    }

    /// Positions of the file: those that GPT-2 stores; for others they bound tables that a benchmark does not need in full.
    fn positions(&self) -> usize {
        self.context.min(8192)
    }

    /// The metadata.
    fn keys(&self, w: &mut GgufWriter) {
        let a = self.architecture;
        w.set("general.architecture", a);
        // llama.cpp's name of none, for which it wants the number of tokens.
        w.set("tokenizer.ggml.model", "none");
        let mut numbers = vec![
            ("vocab_size", self.vocab),
            ("block_count", self.layers),
            ("embedding_length", self.dim),
            ("feed_forward_length", self.feed_forward),
            ("context_length", self.positions()),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ];
        if let Some(head) = self.head {
            numbers.extend([("attention.key_length", head), ("attention.value_length", head)]);
        }
        if let Some(experts) = self.experts {
            let sizes =
                [("expert_count", experts.count), ("expert_used_count", experts.used), ("expert_feed_forward_length", experts.size)];
            numbers.extend(sizes);
        }
        match a {
            "gemma3" => numbers.push(("attention.sliding_window", 512)),
            "gpt-oss" => numbers.push(("attention.sliding_window", 128)),
            "lfm2" => numbers.push(("shortconv.l_cache", TAPS)),
            _ => {}
        }
        for (key, v) in numbers {
            w.set(&format!("{a}.{key}"), v as u32);
        }
        if !self.attention.is_empty() {
            let kv_heads: Vec<i32> = (0..self.layers).map(|i| if self.has_attention(i) { self.kv_heads as i32 } else { 0 }).collect();
            w.set(&format!("{a}.attention.head_count_kv"), kv_heads);
        }
        w.set(&format!("{a}.attention.layer_norm{}_epsilon", if a == "gpt2" { "" } else { "_rms" }), 1e-5f32);
    }
}

/// The types of a model's parts where `types` are asked for. Files with MXFP4 have it in experts, and Q8_0 elsewhere; of mixes the output matrix, and
/// the embedding that serves as one, have 6 bits.
fn types_of(shape: &Shape, types: WeightTypes, parts: &[Part]) -> Vec<DType> {
    let names: Vec<&str> = parts.iter().map(|p| &*p.name).collect();
    let head = if shape.tied { "token_embd.weight" } else { "output.weight" };
    let of = |(p, dtype): (&Part, DType)| match p.kind {
        TensorKind::Matrix if types == WeightTypes::One(DType::MXFP4) && shape.experts.is_some() => DType::Q8_0,
        TensorKind::Matrix if matches!(types, WeightTypes::Mix(_)) && p.name == head => DType::Q6_K,
        TensorKind::Matrix | TensorKind::Expert => dtype,
        TensorKind::Ones | TensorKind::Zeros | TensorKind::Random => DType::F32,
    };
    parts.iter().zip(types.of(&names, shape.experts.map_or(0, |e| e.count))).map(of).collect()
}

/// A model of [`random_file`].
pub fn random_model(shape: &Shape, types: WeightTypes) -> Result<Gguf, Failure> {
    Ok(Gguf::from_bytes(random_file(shape, types)?)?)
}

/// A GGUF file, whose tokenizer has no words. Matrices are of `types` (where that is MXFP4 and there are experts, only theirs are, the others
/// Q8_0), norms and biases f32.
pub fn random_file(shape: &Shape, types: WeightTypes) -> Result<Vec<u8>, Failure> {
    let parts = shape.parts();
    let dtypes = types_of(shape, types, &parts);
    let columns = |p: &Part| p.shape[p.shape.len() - 1];
    if let Some((p, d)) = parts.iter().zip(&dtypes).find(|(p, d)| d.is_block() && columns(p) % d.block() != 0) {
        return Err(Failure::Usage(format!(
            "{} cannot be {types}: rows of {} are not a multiple of the block size {}",
            shape.name,
            columns(p),
            d.block()
        )));
    }
    // Tensors share these bytes, which they borrow: every one begins as every other of its kind and type does, and the file is the only copy of them.
    let count = |p: &Part| p.shape.iter().product::<usize>();
    let mut pools: Vec<((TensorKind, DType), Vec<u8>)> = Vec::new();
    for (p, &dtype) in parts.iter().zip(&dtypes) {
        let key = (p.kind, dtype);
        if pools.iter().all(|(k, _)| *k != key) {
            let most = parts.iter().zip(&dtypes).filter(|(p, d)| (p.kind, **d) == key).map(|(p, _)| count(p)).max().unwrap_or(0);
            let bytes = match p.kind {
                TensorKind::Ones => std::iter::repeat_n(1f32.to_le_bytes(), most).flatten().collect(),
                TensorKind::Zeros => vec![0; 4 * most],
                TensorKind::Matrix | TensorKind::Expert | TensorKind::Random => random_bytes(dtype, most, shape.dim),
            };
            pools.push((key, bytes));
        }
    }
    let mut w = GgufWriter::new();
    shape.keys(&mut w);
    for (p, &dtype) in parts.iter().zip(&dtypes) {
        let pool = pools.iter().find(|(k, _)| *k == (p.kind, dtype)).map_or(&[][..], |(_, bytes)| bytes);
        w.tensor(&p.name, dtype, &p.shape, &pool[..dtype.bytes(count(p)).unwrap_or(0)])?;
    }
    Ok(w.to_bytes()?)
}

/// `count` random weights of about the size that keeps activations of `inputs` values in range; none if they are not whole blocks.
fn random_bytes(dtype: DType, count: usize, inputs: usize) -> Vec<u8> {
    let Some(total) = dtype.bytes(count) else { return Vec::new() };
    let scale = 1.0 / (inputs as f32).sqrt();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 * 2.0 * scale - scale
    };
    // A period that no row length divides is long enough to be random for a processor.
    let period = if dtype.is_block() { 1021 * dtype.block() } else { 1_000_003 };
    let values: Vec<f32> = (0..count.min(period)).map(|_| next()).collect();
    let mut out = match dtype.format() {
        Some(format) if !format.is_encoded() => random_blocks(dtype, values.len(), scale, 1),
        _ => quantize(dtype, &values),
    }
    .unwrap_or_default();
    let period = out.len();
    while out.len() < total && period > 0 {
        out.extend_from_within(..period.min(total - out.len()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlogic::models::{self, Session, Weights};
    use tensorlogic::{Device, Tensor};

    #[test]
    fn every_type_gives_sane_weights() {
        let device = Device::cpu();
        for dtype in DType::WEIGHTS {
            let bytes = random_bytes(dtype, 64 * 256, 256);
            let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes));
            let t = Tensor::from_bytes(bytes, dtype, &[64, 256], &device).unwrap().cast(DType::F32).unwrap();
            let rms = t.square().unwrap().mean_all().unwrap().sqrt().unwrap().item().unwrap() * 16.0;
            let mean = t.mean_all().unwrap().item().unwrap() * 16.0;
            assert!((0.2..1.0).contains(&rms) && mean.abs() < 0.1, "{dtype}: weights are {rms} of the wanted size, {mean} on average");
        }
    }

    /// The same architecture, small: as many layers as show every kind.
    fn small(shape: &Shape) -> Shape {
        let experts = shape.experts.map(|_| Experts { count: 4, used: 1, size: 64 });
        let layers = if shape.attention.is_empty() { 1 } else { 3 };
        let sizes =
            Shape { dim: 64, heads: 4, kv_heads: 2, head: shape.head.map(|_| 32), feed_forward: 64, vocab: 50, context: 32, ..LLAMA };
        let kv_heads = if shape.kv_heads == shape.heads { 4 } else { 2 };
        Shape { architecture: shape.architecture, layers, experts, attention: shape.attention, tied: shape.tied, kv_heads, ..sizes }
    }

    #[test]
    fn a_random_model_of_every_shape_runs() {
        for shape in &SHAPES {
            let small = small(shape);
            for dtype in [DType::Q8_0, DType::MXFP4] {
                let gguf = random_model(&small, dtype.into()).unwrap();
                let of_experts: u64 = gguf.tensors().iter().filter(|t| t.name.contains("_exps.")).map(|t| t.range.len() as u64).sum();
                let model = models::load(&Weights::from_gguf(gguf, &Device::cpu()), None).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
                let logits = Session::new(&*model, 16, &Device::cpu()).unwrap().score(&[1, 2, 3]).unwrap().to_vec().unwrap();
                assert!(logits.len() == 150 && logits.iter().all(|v| v.is_finite()), "{}", shape.name);
                // A token takes one of four experts, whose biases count too.
                assert_eq!(model.unread_bytes(), of_experts / 4 * 3, "{} in {dtype}", shape.name);
                assert_eq!(of_experts > 0, shape.experts.is_some());
            }
            assert!(random_model(&small, DType::Q4_K.into()).is_err(), "{}: rows of 64 do not fill blocks of 256", shape.name);
        }
    }

    /// The mix as llama.cpp's own rules give it for a small model: layers 0 and 7 of 8, and every third between them, have more bits.
    #[test]
    fn mixes_have_llama_cpps_types() {
        let types_of_layers = |shape: &Shape, part: &str| -> Vec<DType> {
            let gguf = random_model(shape, "q4_K_M".parse().unwrap()).unwrap();
            let of_part = |t: &&tensorlogic::io::TensorInfo| t.name.ends_with(&format!(".{part}.weight"));
            gguf.tensors().iter().filter(of_part).map(|t| t.dtype().unwrap()).collect()
        };
        let more = |which: [usize; 4]| (0..8).map(|i| if which.contains(&i) { DType::Q6_K } else { DType::Q4_K }).collect::<Vec<_>>();
        let shape = Shape { layers: 8, dim: 256, heads: 2, kv_heads: 2, feed_forward: 512, vocab: 300, ..LLAMA };
        for part in ["attn_v", "ffn_down"] {
            assert_eq!(types_of_layers(&shape, part), more([0, 3, 6, 7]), "{part}");
        }
        assert_eq!(types_of_layers(&shape, "attn_k"), [DType::Q4_K; 8]);
        let gguf = random_model(&shape, "q4_K_M".parse().unwrap()).unwrap();
        assert_eq!(gguf.tensors().iter().find(|t| &*t.name == "token_embd.weight").unwrap().dtype().unwrap(), DType::Q6_K);
        let gpt2 = Shape { architecture: "gpt2", ..shape };
        assert_eq!(types_of_layers(&gpt2, "attn_qkv"), [DType::Q5_K; 8]);
        let experts = Some(Experts { count: 8, used: 2, size: 256 });
        let mixtral = Shape { architecture: "llama", experts, layers: 8, dim: 256, heads: 2, kv_heads: 2, vocab: 300, ..LLAMA };
        assert_eq!(types_of_layers(&mixtral, "ffn_down_exps"), more([0, 3, 6, 7]));
        assert_eq!(
            (types_of_layers(&mixtral, "attn_v"), types_of_layers(&mixtral, "attn_output")),
            (vec![DType::Q8_0; 8], vec![DType::Q5_K; 8])
        );
    }

    /// Parameters as their makers count them.
    #[test]
    fn shapes_are_as_large_as_their_models() {
        for (name, millions) in [
            ("gpt2-124m", 124.4),
            ("smollm2-135m", 134.5),
            ("llama-1b", 1235.8),
            ("qwen3-0.6b", 596.0),
            ("qwen3-8b", 8190.7),
            ("gemma3-1b", 999.9),
            ("qwen3-30b-a3b", 30532.1),
            ("gpt-oss-20b", 20914.8),
            ("lfm2-350m", 354.5),
        ] {
            let shape = SHAPES.iter().find(|s| s.name == name).unwrap();
            let count: usize = shape.parts().iter().map(|p| p.shape.iter().product::<usize>()).sum();
            assert!((count as f64 / 1e6 - millions).abs() < 0.1, "{name}: {}", count as f64 / 1e6);
        }
    }
}
