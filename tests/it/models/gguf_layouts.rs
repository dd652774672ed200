//! GGUF files of encoders and of layers with states: folders of transformers, converted as llama.cpp's converter does it, give what the folders'
//! references in f64 say.

use crate::common::assert_close;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::io::{Gguf, GgufWriter, SafeTensors};
use tensorlogic::models::inference::{Inputs, Pooling};
use tensorlogic::models::{self, Embedder, Encoder, Session, Weights};
use tensorlogic::{DType, Device, Tensor, TensorError};

pub(super) fn folder(name: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name)
}

/// A tensor of a file.
#[derive(Clone)]
pub(super) struct Part {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

fn read(file: &SafeTensors, name: &str) -> Part {
    let info = file.tensor(name).unwrap();
    let bytes = file.bytes_of(info);
    let values = match info.dtype().unwrap() {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        DType::I64 => bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32).collect(),
        other => panic!("{name} is {other}"),
    };
    Part { shape: info.shape.to_vec(), values }
}

impl Part {
    /// Rows `from..to`.
    pub(super) fn rows(&self, from: usize, to: usize) -> Part {
        let each = self.values.len() / self.shape[0];
        let shape = [&[to - from], &self.shape[1..]].concat();
        Part { shape, values: self.values[from * each..to * each].to_vec() }
    }
    pub(super) fn behind(&self, other: &Part) -> Part {
        let shape = [&[self.shape[0] + other.shape[0]], &self.shape[1..]].concat();
        Part { shape, values: [&other.values[..], &self.values].concat() }
    }
    /// One behind the other.
    pub(super) fn joined(parts: &[Part]) -> Part {
        parts[1..].iter().fold(parts[0].clone(), |all, part| part.behind(&all))
    }
    /// In columns, as state space layers have what there is one of for each head or group.
    pub(super) fn column(self) -> Part {
        let len = self.values.len();
        self.of(&[len, 1])
    }
    pub(super) fn of(self, shape: &[usize]) -> Part {
        Part { shape: shape.to_vec(), ..self }
    }
    pub(super) fn map(self, f: impl Fn(f32) -> f32) -> Part {
        Part { values: self.values.into_iter().map(f).collect(), ..self }
    }
    pub(super) fn transposed(&self) -> Part {
        let (rows, columns) = (self.shape[0], self.shape[1]);
        let values = (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| self.values[r * columns + c]).collect();
        Part { shape: vec![columns, rows], values }
    }
    /// Heads of `size` rows, of which `each` share a key, in the order of the first of all keys, then the second, and so on.
    fn spread(&self, keys: usize, each: usize, size: usize) -> Part {
        let heads = (0..each).flat_map(|v| (0..keys).map(move |k| k * each + v));
        let parts: Vec<Part> = heads.map(|h| self.rows(h * size, (h + 1) * size)).collect();
        Part::joined(&parts)
    }
}

/// `a.N.b` where the pattern is `a.*.b`.
fn numbered<'n>(name: &'n str, pattern: &str) -> Option<&'n str> {
    match pattern.split_once('*') {
        Some((start, end)) => name.strip_prefix(start)?.strip_suffix(end).filter(|n| n.parse::<usize>().is_ok()),
        None => (name == pattern).then_some(""),
    }
}

/// The names of a folder and of a GGUF file, of weights and biases alike.
pub(super) type Names = [(&'static str, &'static str)];

/// Names with the layers' numbers; `change` makes the file's tensors of a folder's.
pub(super) fn convert(
    folder: &Path,
    names: &Names,
    settings: impl Fn(&mut GgufWriter),
    change: impl Fn(&str, Part) -> Vec<(String, Part)>,
) -> Vec<u8> {
    let file = SafeTensors::open(folder.join("model.safetensors")).unwrap();
    let mut w = GgufWriter::new();
    settings(&mut w);
    for info in file.tensors() {
        let found = names.iter().find_map(|(hub, gguf)| {
            ["", ".weight", ".bias"].into_iter().find_map(|end| {
                let n = numbered(&info.name, &format!("{hub}{end}"))?;
                Some(format!("{}{end}", gguf.replace('*', n)))
            })
        });
        let Some(name) = found else { continue };
        for (name, part) in change(&name, read(&file, &info.name)) {
            let bytes: Vec<u8> = part.values.iter().flat_map(|v| v.to_le_bytes()).collect();
            w.tensor(&name, DType::F32, &part.shape, bytes).unwrap();
        }
    }
    w.to_bytes().unwrap()
}

pub(super) fn open(bytes: &[u8]) -> Weights {
    Weights::from_gguf(Gguf::from_bytes(bytes.to_vec()).unwrap(), &Device::cpu())
}

/// Logits of the folder's tokens equal its reference.
pub(super) fn check(folder: &Path, bytes: &[u8]) {
    let expected = SafeTensors::open(folder.join("expected.safetensors")).unwrap();
    let (ids, want) = (read(&expected, "input_ids"), read(&expected, "logits"));
    let model = models::load(&open(bytes), Some(DType::F32)).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for (row, want) in ids.values.chunks(ids.shape[1]).zip(want.values.chunks(want.values.len() / ids.shape[0])) {
        let tokens: Vec<u32> = row.iter().map(|&t| t as u32).collect();
        let got = Session::new(&*model, 64, &Device::cpu()).unwrap().score(&tokens).unwrap().to_vec().unwrap();
        let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
        assert_close(&folder.display().to_string(), &got, &want, 1e-4, 5e-4);
    }
}

/// Sets keys below the architecture's name.
pub(super) fn keys(w: &mut GgufWriter, architecture: &str, numbers: &[(&str, u32)], floats: &[(&str, f32)]) {
    w.set("general.architecture", architecture);
    for (key, v) in numbers {
        w.set(&format!("{architecture}.{key}"), *v);
    }
    for (key, v) in floats {
        w.set(&format!("{architecture}.{key}"), *v);
    }
}

const MAMBA: [(&str, &str); 12] = [
    ("backbone.embeddings", "token_embd"),
    ("backbone.norm_f", "output_norm"),
    ("lm_head", "output"),
    ("backbone.layers.*.norm", "blk.*.attn_norm"),
    ("backbone.layers.*.mixer.in_proj", "blk.*.ssm_in"),
    ("backbone.layers.*.mixer.conv1d", "blk.*.ssm_conv1d"),
    ("backbone.layers.*.mixer.x_proj", "blk.*.ssm_x"),
    ("backbone.layers.*.mixer.dt_proj", "blk.*.ssm_dt"),
    ("backbone.layers.*.mixer.A_log", "blk.*.ssm_a"),
    ("backbone.layers.*.mixer.D", "blk.*.ssm_d"),
    ("backbone.layers.*.mixer.norm", "blk.*.ssm_norm"),
    ("backbone.layers.*.mixer.out_proj", "blk.*.ssm_out"),
];

/// What all converters of layers with states do: taps without the middle dimension, rates of decay worked out.
pub(super) fn usual(name: &str, part: Part) -> (String, Part) {
    match part.shape[..] {
        [channels, 1, taps] => (name.into(), part.of(&[channels, taps])),
        _ if name.ends_with("ssm_a") => (name.into(), part.map(|a| -a.exp())),
        _ => (name.into(), part),
    }
}

#[test]
fn mamba() {
    let from = folder("models2/mamba-base");
    let settings = |w: &mut GgufWriter| {
        let sizes = [("context_length", 1 << 20), ("embedding_length", 48), ("feed_forward_length", 0), ("attention.head_count", 0)];
        let ssm = [("block_count", 3), ("ssm.conv_kernel", 4), ("ssm.inner_size", 96), ("ssm.state_size", 8), ("ssm.time_step_rank", 5)];
        keys(w, "mamba", &[&sizes[..], &ssm].concat(), &[("attention.layer_norm_rms_epsilon", 1e-5)]);
        w.set("mamba.ssm.dt_b_c_rms", false);
    };
    let bytes = convert(&from, &MAMBA, settings, |name, part| vec![usual(name, part)]);
    check(&from, &bytes);
    // Falcon Mamba's norms are refused by name.
    let normed = |w: &mut GgufWriter| {
        settings(w);
        w.set("mamba.ssm.dt_b_c_rms", true);
    };
    let bytes = convert(&from, &MAMBA, normed, |name, part| vec![usual(name, part)]);
    let e = models::load(&open(&bytes), None).err().unwrap().to_string();
    assert!(e.contains("`mamba.ssm.dt_b_c_rms` is true"), "{e}");
}

#[test]
fn mamba2() {
    let from = folder("models2/mamba2-base");
    let settings = |w: &mut GgufWriter| {
        let sizes = [("context_length", 1 << 20), ("embedding_length", 48), ("feed_forward_length", 0), ("attention.head_count", 0)];
        let ssm = [("block_count", 3), ("ssm.conv_kernel", 4), ("ssm.inner_size", 96), ("ssm.state_size", 8)];
        let more = [("ssm.time_step_rank", 6), ("ssm.group_count", 1)];
        keys(w, "mamba2", &[&sizes[..], &ssm, &more].concat(), &[("attention.layer_norm_rms_epsilon", 1e-5)]);
    };
    let names: Vec<_> = MAMBA.iter().copied().chain([("backbone.layers.*.mixer.dt_bias", "blk.*.ssm_dt.bias")]).collect();
    let change = |name: &str, part: Part| {
        let (name, part) = usual(name, part);
        let len = part.values.len();
        vec![match &name {
            n if n.ends_with("ssm_a") || n.ends_with("ssm_d") => (name, part.column()),
            n if n.ends_with("ssm_norm.weight") => (name, part.of(&[1, len])),
            _ => (name, part),
        }]
    };
    check(&from, &convert(&from, &names, settings, change));
}

#[test]
fn lfm2() {
    let from = folder("models2/lfm2-base");
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.embedding_norm", "token_embd_norm"),
        ("model.layers.*.operator_norm", "blk.*.attn_norm"),
        ("model.layers.*.ffn_norm", "blk.*.ffn_norm"),
        ("model.layers.*.feed_forward.w1", "blk.*.ffn_gate"),
        ("model.layers.*.feed_forward.w2", "blk.*.ffn_down"),
        ("model.layers.*.feed_forward.w3", "blk.*.ffn_up"),
        ("model.layers.*.conv.conv", "blk.*.shortconv.conv"),
        ("model.layers.*.conv.in_proj", "blk.*.shortconv.in_proj"),
        ("model.layers.*.conv.out_proj", "blk.*.shortconv.out_proj"),
        ("model.layers.*.self_attn.q_proj", "blk.*.attn_q"),
        ("model.layers.*.self_attn.k_proj", "blk.*.attn_k"),
        ("model.layers.*.self_attn.v_proj", "blk.*.attn_v"),
        ("model.layers.*.self_attn.out_proj", "blk.*.attn_output"),
        ("model.layers.*.self_attn.q_layernorm", "blk.*.attn_q_norm"),
        ("model.layers.*.self_attn.k_layernorm", "blk.*.attn_k_norm"),
    ];
    let settings = |kv_heads: [i32; 4]| {
        move |w: &mut GgufWriter| {
            let sizes = [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 80), ("block_count", 4)];
            let more = [("attention.head_count", 4), ("vocab_size", 320), ("shortconv.l_cache", 3)];
            let floats = [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e6)];
            keys(w, "lfm2", &[&sizes[..], &more].concat(), &floats);
            w.set("lfm2.attention.head_count_kv", &kv_heads[..]);
        }
    };
    let change = |name: &str, part| vec![usual(name, part)];
    check(&from, &convert(&from, &names, settings([0, 0, 2, 0]), change));
    let e = models::load(&open(&convert(&from, &names, settings([0, 1, 2, 0]), change)), None).err().unwrap().to_string();
    assert!(e.contains("lfm2.attention.head_count_kv"), "{e}");
}

const DELTA: [(&str, &str); 24] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.*.input_layernorm", "blk.*.attn_norm"),
    ("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    ("model.layers.*.mlp.gate_proj", "blk.*.ffn_gate"),
    ("model.layers.*.mlp.up_proj", "blk.*.ffn_up"),
    ("model.layers.*.mlp.down_proj", "blk.*.ffn_down"),
    ("model.layers.*.self_attn.q_proj", "blk.*.attn_q"),
    ("model.layers.*.self_attn.k_proj", "blk.*.attn_k"),
    ("model.layers.*.self_attn.v_proj", "blk.*.attn_v"),
    ("model.layers.*.self_attn.o_proj", "blk.*.attn_output"),
    ("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
    ("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
    ("model.layers.*.linear_attn.in_proj_qkv", "blk.*.attn_qkv"),
    ("model.layers.*.linear_attn.in_proj_z", "blk.*.attn_gate"),
    ("model.layers.*.linear_attn.in_proj_b", "blk.*.ssm_beta"),
    ("model.layers.*.linear_attn.in_proj_a", "blk.*.ssm_alpha"),
    ("model.layers.*.linear_attn.conv1d", "blk.*.ssm_conv1d"),
    ("model.layers.*.linear_attn.A_log", "blk.*.ssm_a"),
    ("model.layers.*.linear_attn.dt_bias", "blk.*.ssm_dt.bias"),
    ("model.layers.*.linear_attn.norm", "blk.*.ssm_norm"),
    ("model.layers.*.linear_attn.out_proj", "blk.*.ssm_out"),
    ("model.layers.*.linear_attn.in_proj_ba", "blk.*.ssm_ba"),
];

/// [`usual`], and the 1 of the norms but that of the heads.
fn with_one(name: &str, part: Part) -> (String, Part) {
    let (name, part) = usual(name, part);
    let plus = name.ends_with("norm.weight") && !name.ends_with("ssm_norm.weight");
    (name, if plus { part.map(|v| v + 1.0) } else { part })
}

#[test]
fn qwen35() {
    // Two heads of keys of 8, six of values of 12.
    let (keys_of, each, size, qk) = (2, 3, 12, 2 * 2 * 8);
    let from = folder("models2/qwen3_5_text-two");
    let settings = |w: &mut GgufWriter| {
        let sizes = [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 80), ("block_count", 3)];
        let heads =
            [("attention.head_count", 4), ("attention.head_count_kv", 2), ("attention.key_length", 16), ("attention.value_length", 16)];
        let ssm =
            [("ssm.conv_kernel", 4), ("ssm.state_size", 8), ("ssm.group_count", 2), ("ssm.time_step_rank", 6), ("ssm.inner_size", 72)];
        let more = [("full_attention_interval", 2), ("rope.dimension_count", 8)];
        let floats = [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e6)];
        keys(w, "qwen35", &[&sizes[..], &heads, &ssm, &more].concat(), &floats);
        w.set("qwen35.rope.dimension_sections", &[2i32, 1, 1, 0][..]);
    };
    let change = |name: &str, part: Part| {
        let (name, part) = with_one(name, part);
        let rows = part.shape[0];
        let part = match name.split('.').nth(2).unwrap_or_default() {
            "attn_qkv" | "ssm_conv1d" => part.rows(qk, rows).spread(keys_of, each, size).behind(&part.rows(0, qk)),
            "attn_gate" => part.spread(keys_of, each, size),
            "ssm_beta" | "ssm_alpha" | "ssm_a" | "ssm_dt" => part.spread(keys_of, each, 1),
            "ssm_out" => part.transposed().spread(keys_of, each, size).transposed(),
            _ => part,
        };
        vec![(name, part)]
    };
    check(&from, &convert(&from, &DELTA, settings, change));
}

#[test]
fn qwen3next() {
    let from = folder("models2/qwen3_next-base");
    let mut names = DELTA.to_vec();
    names.extend([
        ("model.layers.*.linear_attn.in_proj_qkvz", "blk.*.qkvz"),
        ("model.layers.*.mlp.gate", "blk.*.ffn_gate_inp"),
        ("model.layers.*.mlp.shared_expert_gate", "blk.*.ffn_gate_inp_shexp"),
        ("model.layers.*.mlp.shared_expert.gate_proj", "blk.*.ffn_gate_shexp"),
        ("model.layers.*.mlp.shared_expert.up_proj", "blk.*.ffn_up_shexp"),
        ("model.layers.*.mlp.shared_expert.down_proj", "blk.*.ffn_down_shexp"),
    ]);
    let settings = |w: &mut GgufWriter| {
        let sizes = [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 80), ("block_count", 4)];
        let heads =
            [("attention.head_count", 4), ("attention.head_count_kv", 2), ("attention.key_length", 16), ("attention.value_length", 16)];
        let ssm =
            [("ssm.conv_kernel", 4), ("ssm.state_size", 8), ("ssm.group_count", 2), ("ssm.time_step_rank", 4), ("ssm.inner_size", 48)];
        let experts = [("expert_count", 8), ("expert_used_count", 2), ("expert_feed_forward_length", 24)];
        let more = [("full_attention_interval", 4), ("rope.dimension_count", 4), ("expert_shared_feed_forward_length", 24)];
        let floats = [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e6)];
        keys(w, "qwen3next", &[&sizes[..], &heads, &ssm, &experts, &more].concat(), &floats);
        // One tensor for the matrices of all experts.
        let file = SafeTensors::open(from.join("model.safetensors")).unwrap();
        for i in 0..4 {
            for part in ["gate", "up", "down"] {
                let one = |e: usize| read(&file, &format!("model.layers.{i}.mlp.experts.{e}.{part}_proj.weight"));
                let all: Vec<u8> = (0..8).flat_map(|e| one(e).values).flat_map(|v| v.to_le_bytes()).collect();
                let shape = [&[8], &one(0).shape[..]].concat();
                w.tensor(&format!("blk.{i}.ffn_{part}_exps.weight"), DType::F32, &shape, all).unwrap();
            }
        }
    };
    let change = |name: &str, part: Part| {
        let (name, part) = with_one(name, part);
        let layer = name.split('.').nth(1).unwrap_or_default();
        match name.split('.').nth(2).unwrap_or_default() {
            // For each of two keys 8 rows of q, 8 of k, 2·12 of v and as many of z.
            "qkvz" => {
                let of = |from: usize, len: usize| part.rows(64 + from, 64 + from + len).behind(&part.rows(from, from + len));
                let qkv = of(16, 24).behind(&of(8, 8).behind(&of(0, 8)));
                vec![(format!("blk.{layer}.attn_qkv.weight"), qkv), (format!("blk.{layer}.attn_gate.weight"), of(40, 24))]
            }
            "ffn_gate_inp_shexp" => vec![(name, part.of(&[48]))],
            _ => vec![(name, part)],
        }
    };
    check(&from, &convert(&from, &names, settings, change));
}

/// States of the folder's texts, those of padding 0.
fn states(weights: &Weights, expected: &SafeTensors) -> Vec<f32> {
    let input = |name: &str| {
        let part = read(expected, &format!("in.{name}"));
        Tensor::from_vec::<i32>(part.values.iter().map(|&v| v as i32).collect(), &part.shape, &Device::cpu()).unwrap()
    };
    let encoder = Encoder::load(weights, Some(DType::F32)).unwrap();
    let mask = input("attention_mask");
    // What llama.cpp takes all tokens to be: of the first text.
    let outputs = encoder.run(&Inputs::tokens(&input("input_ids")).attention_mask(&mask)).unwrap();
    outputs.hidden_states.mul(&mask.cast(DType::F32).unwrap().unsqueeze(-1).unwrap()).unwrap().to_vec().unwrap()
}

fn encoder_keys(w: &mut GgufWriter, architecture: &str, heads: u32, eps: f32) {
    let sizes = [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 96), ("block_count", 3)];
    keys(w, architecture, &[&sizes[..], &[("attention.head_count", heads), ("pooling_type", 1)]].concat(), &[]);
    w.set(&format!("{architecture}.attention.layer_norm_epsilon"), eps);
    w.set(&format!("{architecture}.attention.causal"), false);
}

const DISTIL_BERT: [(&str, &str); 11] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("transformer.layer.*.attention.q_lin", "blk.*.attn_q"),
    ("transformer.layer.*.attention.k_lin", "blk.*.attn_k"),
    ("transformer.layer.*.attention.v_lin", "blk.*.attn_v"),
    ("transformer.layer.*.attention.out_lin", "blk.*.attn_output"),
    ("transformer.layer.*.sa_layer_norm", "blk.*.attn_output_norm"),
    ("transformer.layer.*.ffn.lin1", "blk.*.ffn_up"),
    ("transformer.layer.*.ffn.lin2", "blk.*.ffn_down"),
    ("transformer.layer.*.output_layer_norm", "blk.*.layer_output_norm"),
];

#[test]
fn distilbert_is_bert() {
    let from = folder("encoders/models2/distilbert-base");
    let bytes = convert(&from, &DISTIL_BERT, |w| encoder_keys(w, "bert", 4, 1e-12), |name, part| vec![(name.into(), part)]);
    let expected = SafeTensors::open(from.join("expected.safetensors")).unwrap();
    let want: Vec<f64> = read(&expected, "last_hidden_state").values.iter().map(|v| f64::from(*v)).collect();
    assert!(Encoder::is_for(&open(&bytes)).unwrap());
    assert_close("DistilBERT", &states(&open(&bytes), &expected), &want, 1e-4, 1e-4);
}

#[test]
fn bert_and_nomic_bert() {
    let bert = [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("encoder.layer.*.attention.self.query", "blk.*.attn_q"),
        ("encoder.layer.*.attention.self.key", "blk.*.attn_k"),
        ("encoder.layer.*.attention.self.value", "blk.*.attn_v"),
        ("encoder.layer.*.attention.output.dense", "blk.*.attn_output"),
        ("encoder.layer.*.attention.output.LayerNorm", "blk.*.attn_output_norm"),
        ("encoder.layer.*.intermediate.dense", "blk.*.ffn_up"),
        ("encoder.layer.*.output.dense", "blk.*.ffn_down"),
        ("encoder.layer.*.output.LayerNorm", "blk.*.layer_output_norm"),
    ];
    let nomic = [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("emb_ln", "token_embd_norm"),
        ("encoder.layers.*.attn.Wqkv", "blk.*.attn_qkv"),
        ("encoder.layers.*.attn.out_proj", "blk.*.attn_output"),
        ("encoder.layers.*.norm1", "blk.*.attn_output_norm"),
        ("encoder.layers.*.mlp.fc11", "blk.*.ffn_up"),
        ("encoder.layers.*.mlp.fc12", "blk.*.ffn_gate"),
        ("encoder.layers.*.mlp.fc2", "blk.*.ffn_down"),
        ("encoder.layers.*.norm2", "blk.*.layer_output_norm"),
    ];
    let same = |name: &str, part: Part| vec![(name.to_string(), part)];
    let cases: [(&str, &str, &Names, u32, f32); 2] =
        [("bert-odd", "bert", &bert, 3, 1e-5), ("nomic_bert-base", "nomic-bert", &nomic, 4, 1e-12)];
    for (name, architecture, names, heads, eps) in cases {
        let from = folder("encoders/models2").join(name);
        let settings = |w: &mut GgufWriter| {
            encoder_keys(w, architecture, heads, eps);
            if architecture == "nomic-bert" {
                w.set("nomic-bert.rope.freq_base", 1000f32);
            }
        };
        let bytes = convert(&from, names, settings, same);
        let expected = SafeTensors::open(from.join("expected.safetensors")).unwrap();
        // GGUF has no key of the activation: that of the architecture. The folder is the reference, with this one.
        let mut config: Json = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
        config["hidden_act"] = if name == "bert-odd" { "gelu" } else { "silu" }.into();
        let hub = std::env::temp_dir().join(format!("tl-gguf-layouts-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&hub).unwrap();
        std::fs::write(hub.join("config.json"), config.to_string()).unwrap();
        std::fs::copy(from.join("model.safetensors"), hub.join("model.safetensors")).unwrap();
        let want: Vec<f64> = states(&Weights::open(&hub, &Device::cpu()).unwrap(), &expected).iter().map(|v| f64::from(*v)).collect();
        std::fs::remove_dir_all(hub).unwrap();
        assert_close(name, &states(&open(&bytes), &expected), &want, 1e-5, 1e-5);
    }
}

#[test]
fn states_are_pooled_as_the_file_says() {
    let from = folder("encoders/models2/distilbert-base");
    let pooling = |number: Option<u32>| {
        let settings = |w: &mut GgufWriter| {
            encoder_keys(w, "bert", 4, 1e-12);
            if let Some(n) = number {
                w.set("bert.pooling_type", n);
            }
        };
        let bytes = convert(&from, &DISTIL_BERT, settings, |name, part| vec![(name.into(), part)]);
        Embedder::open(&open(&bytes), None).map(|e| e.pooling().to_vec())
    };
    for (number, want) in [(None, Pooling::Mean), (Some(1), Pooling::Mean), (Some(2), Pooling::Cls), (Some(3), Pooling::Last)] {
        assert_eq!(pooling(number).unwrap(), [want], "{number:?}");
    }
    let e = pooling(Some(4)).unwrap_err().to_string();
    assert!(e.contains("`bert.pooling_type` is 4; supported are 1 (mean), 2 (cls) and 3 (last)"), "{e}");
}

#[test]
fn other_encoders_and_keys_are_refused_by_name() {
    let from = folder("encoders/models2/distilbert-base");
    let load = |architecture: &str, key: Option<&str>| {
        let settings = |w: &mut GgufWriter| {
            encoder_keys(w, architecture, 4, 1e-12);
            if let Some(key) = key {
                w.set(key, 2u32);
            }
        };
        let bytes = convert(&from, &DISTIL_BERT, settings, |name, part| vec![(name.into(), part)]);
        match Encoder::load(&open(&bytes), None) {
            Err(TensorError::Unsupported(message)) => message,
            Err(e) => panic!("{architecture}: {e}"),
            Ok(_) => panic!("{architecture} loads"),
        }
    };
    let e = load("jina-bert-v2", None);
    assert!(e.contains("\"jina-bert-v2\"") && e.contains("bert, nomic-bert"), "{e}");
    let e = load("bert", Some("bert.moe_every_n_layers"));
    assert!(e.contains("`bert.moe_every_n_layers` is 2"), "{e}");
}

/// Llama's names, and those of experts.
const LLAMA: [(&str, &str); 18] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.*.input_layernorm", "blk.*.attn_norm"),
    ("model.layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
    ("model.layers.*.self_attn.q_proj", "blk.*.attn_q"),
    ("model.layers.*.self_attn.k_proj", "blk.*.attn_k"),
    ("model.layers.*.self_attn.v_proj", "blk.*.attn_v"),
    ("model.layers.*.self_attn.o_proj", "blk.*.attn_output"),
    ("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
    ("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
    ("model.layers.*.mlp.gate_proj", "blk.*.ffn_gate"),
    ("model.layers.*.mlp.up_proj", "blk.*.ffn_up"),
    ("model.layers.*.mlp.down_proj", "blk.*.ffn_down"),
    ("model.layers.*.mlp.gate", "blk.*.ffn_gate_inp"),
    ("model.layers.*.mlp.shared_experts.gate_proj", "blk.*.ffn_gate_shexp"),
    ("model.layers.*.mlp.shared_experts.up_proj", "blk.*.ffn_up_shexp"),
    ("model.layers.*.mlp.shared_experts.down_proj", "blk.*.ffn_down_shexp"),
];

/// The sizes of the small Llama-shaped models here, with heads of this size.
fn llama_sizes(head: u32) -> Vec<(&'static str, u32)> {
    let sizes = [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 80), ("block_count", 3)];
    let heads =
        [("attention.head_count", 4), ("attention.head_count_kv", 2), ("attention.key_length", head), ("attention.value_length", head)];
    [&sizes[..], &heads, &[("vocab_size", 320)]].concat()
}

/// The file of a folder whose layers' experts, called `pattern` with `*` for the layer, `#` for the expert and `@` for the part, are stacked.
fn with_stacked(folder: &Path, bytes: &[u8], pattern: &str, parts: [(&str, &str); 3], counts: [usize; 2]) -> Vec<u8> {
    let (file, gguf) = (SafeTensors::open(folder.join("model.safetensors")).unwrap(), Gguf::from_bytes(bytes.to_vec()).unwrap());
    let mut w = GgufWriter::new();
    for (k, v) in gguf.metadata() {
        w.set(k, v);
    }
    for t in gguf.tensors() {
        w.tensor(&t.name, t.dtype().unwrap(), &t.shape, gguf.bytes_of(t).to_vec()).unwrap();
    }
    for (l, (hub, part)) in (0..counts[0]).flat_map(|l| parts.map(|p| (l, p))) {
        let name = |e: usize| pattern.replace('*', &l.to_string()).replace('#', &e.to_string()).replace('@', hub);
        if file.tensor(&name(0)).is_err() {
            continue;
        }
        let all: Vec<Part> = (0..counts[1]).map(|e| read(&file, &name(e))).collect();
        let shape = [&[counts[1]], &all[0].shape[..]].concat();
        let bytes: Vec<u8> = all.iter().flat_map(|p| &p.values).flat_map(|v| v.to_le_bytes()).collect();
        w.tensor(&format!("blk.{l}.{part}.weight"), DType::F32, &shape, bytes).unwrap();
    }
    w.to_bytes().unwrap()
}

const EXPERTS: [(&str, &str); 3] = [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

fn as_it_is(name: &str, part: Part) -> Vec<(String, Part)> {
    vec![(name.to_string(), part)]
}

#[test]
fn hunyuan_dense() {
    let from = folder("models2/hunyuan_v1_dense-dyn");
    let names = [
        &LLAMA[..],
        &[
            ("model.layers.*.self_attn.query_layernorm", "blk.*.attn_q_norm"),
            ("model.layers.*.self_attn.key_layernorm", "blk.*.attn_k_norm"),
        ],
    ]
    .concat();
    let settings = |w: &mut GgufWriter| {
        // θ is scaled by the converter: 10000·100^(12/10).
        let base = 1e4 * 100f64.powf(12.0 / 10.0);
        let floats = [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", base as f32), ("rope.scaling.factor", 1.0)];
        keys(w, "hunyuan-dense", &[&llama_sizes(12)[..], &[("rope.scaling.original_context_length", 262_144)]].concat(), &floats);
        w.set("hunyuan-dense.rope.scaling.type", "none");
    };
    check(&from, &convert(&from, &names, settings, as_it_is));
}

#[test]
fn seed_oss() {
    let from = folder("models2/seed_oss-base");
    let settings = |w: &mut GgufWriter| {
        keys(w, "seed_oss", &llama_sizes(16), &[("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e4)]);
    };
    let change = |name: &str, part| as_it_is(&name.replace(".ffn_norm", ".post_attention_norm"), part);
    check(&from, &convert(&from, &LLAMA, settings, change));
}

#[test]
fn minimax_m2() {
    let from = folder("models2/minimax_m2-base");
    let names = [
        &LLAMA[..],
        &[
            ("model.layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp"),
            ("model.layers.*.block_sparse_moe.e_score_correction_bias", "blk.*.exp_probs_b.bias"),
        ],
    ]
    .concat();
    let settings = |gating: u32| {
        move |w: &mut GgufWriter| {
            let more = [("expert_count", 6), ("expert_used_count", 2), ("expert_feed_forward_length", 24), ("rope.dimension_count", 8)];
            let sizes: Vec<_> = llama_sizes(16).into_iter().filter(|(k, _)| *k != "feed_forward_length").collect();
            let own = [("feed_forward_length", 24), ("expert_gating_func", gating)];
            let floats = [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 5e6)];
            keys(w, "minimax-m2", &[&sizes[..], &own, &more].concat(), &floats);
        }
    };
    let parts = [("w1", "ffn_gate_exps"), ("w3", "ffn_up_exps"), ("w2", "ffn_down_exps")];
    let stacked = |gating| {
        let bytes = convert(&from, &names, settings(gating), as_it_is);
        with_stacked(&from, &bytes, "model.layers.*.block_sparse_moe.experts.#.@.weight", parts, [3, 6])
    };
    check(&from, &stacked(2));
    let e = models::load(&open(&stacked(1)), None).err().unwrap().to_string();
    assert!(e.contains("`minimax-m2.expert_gating_func` is 1"), "{e}");
}

#[test]
fn glm4moe() {
    let from = folder("models2/glm4_moe-group");
    let names = [&LLAMA[..], &[("model.layers.*.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias")]].concat();
    let settings = |blocks: u32| {
        move |w: &mut GgufWriter| {
            let experts = [("expert_count", 8), ("expert_used_count", 3), ("expert_feed_forward_length", 20), ("expert_shared_count", 1)];
            let groups =
                [("expert_group_count", 4), ("expert_group_used_count", 2), ("expert_gating_func", 2), ("leading_dense_block_count", 1)];
            let sizes: Vec<_> = llama_sizes(16).into_iter().filter(|(k, _)| *k != "block_count").collect();
            let more = [("rope.dimension_count", 4), ("block_count", blocks), ("nextn_predict_layers", blocks - 3)];
            let floats = [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e5), ("expert_weights_scale", 1.0)];
            keys(w, "glm4moe", &[&sizes[..], &experts, &groups, &more].concat(), &floats);
            w.set("glm4moe.expert_weights_norm", false);
        }
    };
    let change = |name: &str, part: Part| as_it_is(&name.replace(".ffn_norm", ".post_attention_norm"), part);
    let file = |blocks| {
        let bytes = convert(&from, &names, settings(blocks), change);
        with_stacked(&from, &bytes, "model.layers.*.mlp.experts.#.@.weight", EXPERTS, [3, 8])
    };
    check(&from, &file(3));
    // A layer that predicts further tokens is counted with the others, and left out.
    let mut w = GgufWriter::new();
    let (bytes, gguf) = (vec![0u8; 48 * 4], Gguf::from_bytes(file(4)).unwrap());
    for (k, v) in gguf.metadata() {
        w.set(k, v);
    }
    for t in gguf.tensors() {
        w.tensor(&t.name, t.dtype().unwrap(), &t.shape, gguf.bytes_of(t).to_vec()).unwrap();
    }
    w.tensor("blk.3.nextn.enorm.weight", DType::F32, &[48], bytes.clone()).unwrap();
    check(&from, &w.to_bytes().unwrap());
    w.tensor("blk.4.nextn.enorm.weight", DType::F32, &[48], bytes).unwrap();
    let e = models::load(&open(&w.to_bytes().unwrap()), None).err().unwrap().to_string();
    assert!(e.contains("`blk.4.nextn.enorm.weight` has no place"), "{e}");
}

#[test]
fn ernie4_5_moe() {
    let from = folder("models2/ernie4_5_moe-base");
    let names = [&LLAMA[..], &[("model.layers.*.mlp.moe_statics.e_score_correction_bias", "blk.*.exp_probs_b.bias")]].concat();
    let settings = |w: &mut GgufWriter| {
        let experts = [("expert_count", 6), ("expert_used_count", 2), ("expert_feed_forward_length", 20), ("expert_shared_count", 1)];
        let more = [("interleave_moe_layer_step", 1), ("leading_dense_block_count", 1), ("expert_shared_feed_forward_length", 20)];
        let floats = [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 5e5)];
        keys(w, "ernie4_5-moe", &[&llama_sizes(12)[..], &experts, &more].concat(), &floats);
    };
    let flat = |name: &str, part: Part| {
        let len = part.values.len();
        as_it_is(name, if name.contains("exp_probs_b") { part.of(&[len]) } else { part })
    };
    let bytes = convert(&from, &names, settings, flat);
    check(&from, &with_stacked(&from, &bytes, "model.layers.*.mlp.experts.#.@.weight", EXPERTS, [3, 6]));
}

#[test]
fn starcoder() {
    let from = folder("models2/gpt_bigcode-mqa");
    let names = [
        ("transformer.wte", "token_embd"),
        ("transformer.wpe", "position_embd"),
        ("transformer.ln_f", "output_norm"),
        ("transformer.h.*.ln_1", "blk.*.attn_norm"),
        ("transformer.h.*.attn.c_attn", "blk.*.attn_qkv"),
        ("transformer.h.*.attn.c_proj", "blk.*.attn_output"),
        ("transformer.h.*.ln_2", "blk.*.ffn_norm"),
        ("transformer.h.*.mlp.c_fc", "blk.*.ffn_up"),
        ("transformer.h.*.mlp.c_proj", "blk.*.ffn_down"),
    ];
    let settings = |kv_heads: u32| {
        move |w: &mut GgufWriter| {
            let sizes = [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 192), ("block_count", 3)];
            let heads = [("attention.head_count", 4), ("attention.head_count_kv", kv_heads)];
            keys(w, "starcoder", &[&sizes[..], &heads].concat(), &[("attention.layer_norm_epsilon", 1e-5)]);
        }
    };
    check(&from, &convert(&from, &names, settings(1), as_it_is));
    let e = models::load(&open(&convert(&from, &names, settings(2), as_it_is)), None).err().unwrap().to_string();
    assert!(e.contains("`starcoder.attention.head_count_kv` is 2"), "{e}");
}

#[test]
fn apertus() {
    let from = folder("models2/apertus-xielu");
    let names = [
        &LLAMA[..],
        &[("model.layers.*.attention_layernorm", "blk.*.attn_norm"), ("model.layers.*.feedforward_layernorm", "blk.*.ffn_norm")],
    ]
    .concat();
    let file = SafeTensors::open(from.join("model.safetensors")).unwrap();
    let settings = |layers: usize| {
        let file = &file;
        move |w: &mut GgufWriter| {
            keys(w, "apertus", &llama_sizes(12), &[("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 5e5)]);
            for part in ["alpha_p", "alpha_n", "beta", "eps"] {
                let of = |l: usize| read(file, &format!("model.layers.{l}.mlp.act_fn.{part}")).values[0];
                w.set(&format!("xielu.{part}"), (0..layers).map(of).collect::<Vec<f32>>());
            }
            // Llama 3's scaling, worked out by the converter.
            let divisor = |i: usize| -> f32 {
                let (original, factor, low, high) = (16.0, 8.0, 1.0, 4.0);
                let wavelength = 2.0 * std::f64::consts::PI * 5e5f64.powf(2.0 * i as f64 / 12.0);
                let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            };
            let bytes: Vec<u8> = (0..6).flat_map(|i| divisor(i).to_le_bytes()).collect();
            w.tensor("rope_freqs.weight", DType::F32, &[6], bytes).unwrap();
        }
    };
    check(&from, &convert(&from, &names, settings(3), as_it_is));
    let e = models::load(&open(&convert(&from, &names, settings(2), as_it_is)), None).err().unwrap().to_string();
    assert!(e.contains("`xielu.alpha_p`") && e.contains("3 layers"), "{e}");
}

#[test]
fn deepseek2_with_yarn() {
    let from = folder("models2/deepseek_v3-yarn");
    let names = [
        &LLAMA[..],
        &[
            ("model.layers.*.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias"),
            ("model.layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
            ("model.layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
            ("model.layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b"),
        ],
    ]
    .concat();
    let settings = |w: &mut GgufWriter| {
        let sizes =
            [("context_length", 64), ("embedding_length", 48), ("feed_forward_length", 80), ("block_count", 3), ("vocab_size", 320)];
        let heads =
            [("attention.head_count", 4), ("attention.head_count_kv", 4), ("attention.key_length", 20), ("attention.value_length", 12)];
        let latent = [("attention.kv_lora_rank", 16), ("rope.dimension_count", 8), ("leading_dense_block_count", 1)];
        let experts = [("expert_count", 6), ("expert_used_count", 2), ("expert_feed_forward_length", 20), ("expert_shared_count", 2)];
        let groups = [("expert_group_count", 2), ("expert_group_used_count", 1), ("expert_gating_func", 2)];
        let yarn = [("rope.scaling.original_context_length", 16)];
        let floats = [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e4), ("expert_weights_scale", 1.5)];
        // The multiplier is a tenth of `mscale_all_dim`.
        let scaling = [("rope.scaling.factor", 4.0), ("rope.scaling.yarn_log_multiplier", 0.1)];
        let numbers = [&sizes[..], &heads, &latent, &experts, &groups, &yarn].concat();
        keys(w, "deepseek2", &numbers, &[&floats[..], &scaling].concat());
        w.set("deepseek2.expert_weights_norm", false).set("deepseek2.rope.scaling.type", "yarn");
    };
    let bytes = convert(&from, &names, settings, as_it_is);
    check(&from, &with_stacked(&from, &bytes, "model.layers.*.mlp.experts.#.@.weight", EXPERTS, [3, 6]));
}

#[test]
fn phi3_with_longrope() {
    let from = folder("models2/phi3-longrope");
    let names =
        [&LLAMA[..], &[("model.layers.*.self_attn.qkv_proj", "blk.*.attn_qkv"), ("model.layers.*.mlp.gate_up_proj", "blk.*.ffn_up")]]
            .concat();
    let config: Json = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    let settings = |original: Option<u32>, named: bool| {
        let config = &config;
        move |w: &mut GgufWriter| {
            let sizes: Vec<_> =
                llama_sizes(12).into_iter().filter(|(k, _)| !k.ends_with("_length") || !k.starts_with("attention")).collect();
            // √(1 + ln 2/ln 32), of twice the original length.
            let factor = (1.0 + 2f64.ln() / 32f64.ln()).sqrt() as f32;
            let floats = [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e4), ("rope.scaling.attn_factor", factor)];
            keys(w, "phi3", &[&sizes[..], &[("rope.dimension_count", 12), ("attention.sliding_window", 0)]].concat(), &floats);
            if let Some(original) = original {
                w.set("phi3.rope.scaling.original_context_length", original);
            }
            if named {
                w.set("phi3.rope.scaling.type", "longrope");
            }
            for (key, name) in [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")] {
                let all = config["rope_scaling"][key].as_array().unwrap();
                let bytes: Vec<u8> = all.iter().flat_map(|v| (v.as_f64().unwrap() as f32).to_le_bytes()).collect();
                w.tensor(name, DType::F32, &[all.len()], bytes).unwrap();
            }
        }
    };
    for named in [true, false] {
        let bytes = convert(&from, &names, settings(Some(32), named), as_it_is);
        check(&from, &bytes);
        // Texts of more than 32 tokens take the other divisors, as in transformers.
        let expected = SafeTensors::open(from.join("expected.safetensors")).unwrap();
        let (ids, want) = (read(&expected, "long_ids"), read(&expected, "long_last_logits"));
        let model = models::load(&open(&bytes), Some(DType::F32)).unwrap();
        let tokens: Vec<u32> = ids.values.iter().map(|&t| t as u32).collect();
        let got = Session::new(&*model, 64, &Device::cpu()).unwrap().prompt(&tokens, || false).unwrap().unwrap().to_vec().unwrap();
        assert_close("long", &got, &want.values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), 1e-4, 5e-4);
    }
    let e = models::load(&open(&convert(&from, &names, settings(None, true), as_it_is)), None).err().unwrap().to_string();
    assert!(e.contains("phi3.rope.scaling.original_context_length"), "{e}");
}
