//! GGUF files of decoders, converted as llama.cpp's converter does it, give what the folders' references in f64 say.

use super::gguf_layouts::{Part, check, convert, folder, keys, open, read};
use crate::common::assert_close;
use serde_json::Value as Json;
use std::path::Path;
use tensorlogic::io::{Gguf, GgufWriter, SafeTensors};
use tensorlogic::models::{self, Session};
use tensorlogic::{DType, Device};

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
