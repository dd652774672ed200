//! GGUF files of encoders, converted as llama.cpp's converter does it, give what the folders' references in f64 say.

use super::gguf_layouts::{Names, Part, convert, folder, keys, open, read};
use crate::common::assert_close;
use serde_json::Value as Json;
use tensorlogic::io::{GgufWriter, SafeTensors};
use tensorlogic::models::inference::{Inputs, Pooling};
use tensorlogic::models::{Embedder, Encoder, Weights};
use tensorlogic::{DType, Device, Tensor, TensorError};

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
