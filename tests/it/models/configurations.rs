//! Random small models of many kinds: reading a text in steps gives what reading it at once gives, and the GPU what the CPU gives.
//!
//! Each seed draws a configuration: kind of decoder, heads, sizes, windows, rotations, norms, experts, states. `TL_CONFIGURATIONS=N` takes N seeds.

use crate::common::{assert_close, gpu};
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use tensorlogic::io::write_safetensors;
use tensorlogic::models::{self, Model, Session, Weights};
use tensorlogic::{DType, Device, Tensor};

/// Numbers that look random, the same on every machine (SplitMix64, Steele et al., 2014).
struct Draw(u64);

impl Draw {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// From `least` to `most`.
    fn size(&mut self, least: usize, most: usize) -> usize {
        least + (self.word() % (most - least + 1) as u64) as usize
    }
    fn flag(&mut self) -> bool {
        self.word() & 1 == 1
    }
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.size(0, of.len() - 1)]
    }
    /// From −1 to 1.
    fn float(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

const KINDS: [&str; 15] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "olmo3",
    "olmo_hybrid",
    "stablelm",
    "cohere2",
    "mixtral",
    "qwen3_moe",
    "qwen3_next",
    "kimi_linear",
    "lfm2",
];
const CONTEXT: usize = 64;
const VOCABULARY: usize = 61;

/// A model under construction: settings, and the sizes of its tensors.
struct Plan {
    kind: &'static str,
    config: Json,
    tensors: Vec<(String, Vec<usize>)>,
}

impl Plan {
    fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.config[key] = value.into();
    }
    fn tensor(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.tensors.push((name.into(), shape.to_vec()));
    }
    fn linear(&mut self, name: String, inputs: usize, outputs: usize, bias: bool) {
        if bias {
            self.tensor(format!("{name}.bias"), &[outputs]);
        }
        self.tensor(format!("{name}.weight"), &[outputs, inputs]);
    }
}

/// The sizes that all parts of a model share.
#[derive(Clone, Copy)]
struct Shape {
    width: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    feed: usize,
    layers: usize,
    experts: usize,
    expert_size: usize,
}

/// A rotation of heads of this size.
fn rope(r: &mut Draw, head_dim: usize) -> Json {
    let theta = r.one(&[100.0, 10_000.0, 1e6]);
    match r.size(0, 4) {
        0 => json!({"rope_type": "linear", "rope_theta": theta, "factor": 4.0}),
        1 => json!({"rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16}),
        2 => json!({"rope_type": "yarn", "rope_theta": theta, "factor": 4.0, "original_max_position_embeddings": 16}),
        3 if head_dim > 2 => json!({"rope_type": "dynamic", "rope_theta": theta, "factor": 2.0}),
        _ => json!({"rope_type": "default", "rope_theta": theta}),
    }
}

fn sizes(r: &mut Draw, kind: &str) -> Shape {
    let kv_heads = r.size(1, 3);
    let heads = kv_heads * r.size(1, 3);
    let head_dim = 2 * r.size(2, 8);
    // Kinds without a key of the size of heads.
    let tied_to_width = ["qwen2", "olmo3", "olmo_hybrid", "stablelm", "cohere2", "mixtral", "lfm2"].contains(&kind);
    let width = if tied_to_width { heads * head_dim } else { 4 * r.size(4, 12) };
    let experts = r.size(2, 7);
    Shape { width, heads, kv_heads, head_dim, feed: 4 * r.size(4, 16), layers: r.size(2, 5), experts, expert_size: 4 * r.size(2, 8) }
}

/// Layers of this kind, with names of both kinds, at least one of each.
fn layer_types(r: &mut Draw, layers: usize, names: [&str; 2]) -> Vec<String> {
    let mut kinds: Vec<String> = (0..layers).map(|_| r.one(&names).to_string()).collect();
    (kinds[0], kinds[layers - 1]) = (names[0].into(), names[1].into());
    kinds
}

/// Attention's tensors in layer `i`; `rows` of the matrix of queries.
fn attention(p: &mut Plan, i: usize, z: Shape, rows: usize, bias: [bool; 2], out: &str) {
    let name = |part: &str| format!("model.layers.{i}.self_attn.{part}");
    let (q, kv) = (z.heads * z.head_dim, z.kv_heads * z.head_dim);
    p.linear(name("q_proj"), z.width, rows, bias[0]);
    p.linear(name("k_proj"), z.width, kv, bias[0]);
    p.linear(name("v_proj"), z.width, kv, bias[0]);
    p.linear(name(out), q, z.width, bias[1]);
}

fn dense(p: &mut Plan, i: usize, z: Shape, names: [&str; 3], bias: bool) {
    let name = |part: &str| format!("model.layers.{i}.{part}");
    p.linear(name(names[0]), z.width, z.feed, bias);
    p.linear(name(names[1]), z.width, z.feed, bias);
    p.linear(name(names[2]), z.feed, z.width, bias);
}

const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

fn experts(p: &mut Plan, i: usize, z: Shape, part: &str, names: [&str; 3]) {
    let name = |part: &str| format!("model.layers.{i}.{part}");
    p.tensor(name(&format!("{part}.gate.weight")), &[z.experts, z.width]);
    for e in 0..z.experts {
        let one = |n: usize| name(&format!("{part}.experts.{e}.{}", names[n]));
        p.linear(one(0), z.width, z.expert_size, false);
        p.linear(one(1), z.width, z.expert_size, false);
        p.linear(one(2), z.expert_size, z.width, false);
    }
}

fn norms(p: &mut Plan, i: usize, width: usize, names: &[&str]) {
    names.iter().for_each(|n| p.tensor(format!("model.layers.{i}.{n}.weight"), &[width]));
}

const BEFORE: [&str; 2] = ["input_layernorm", "post_attention_layernorm"];
const AFTER: [&str; 2] = ["post_attention_layernorm", "post_feedforward_layernorm"];
const AROUND: [&str; 4] = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"];

/// The norms of queries and keys.
fn qk_norms(p: &mut Plan, i: usize, [q, k]: [&str; 2], [queries, keys]: [usize; 2]) {
    p.tensor(format!("model.layers.{i}.self_attn.{q}.weight"), &[queries]);
    p.tensor(format!("model.layers.{i}.self_attn.{k}.weight"), &[keys]);
}

/// A configuration of the kind and its tensors.
fn plan(r: &mut Draw, kind: &'static str) -> Plan {
    let z = sizes(r, kind);
    let config = json!({
        "model_type": kind, "vocab_size": VOCABULARY, "hidden_size": z.width, "intermediate_size": z.feed, "num_hidden_layers": z.layers,
        "num_attention_heads": z.heads, "num_key_value_heads": z.kv_heads, "max_position_embeddings": CONTEXT,
    });
    let mut p = Plan { kind, config, tensors: Vec::new() };
    p.tensor("model.embed_tokens.weight", &[VOCABULARY, z.width]);
    p.tensor(if kind == "lfm2" { "model.embedding_norm.weight" } else { "model.norm.weight" }, &[z.width]);
    let tied = matches!(kind, "gemma2" | "gemma3_text" | "cohere2" | "lfm2") || r.flag() && kind != "kimi_linear";
    p.set("tie_word_embeddings", tied);
    if !tied {
        p.tensor("lm_head.weight", &[VOCABULARY, z.width]);
    }
    let rotated = rope(r, z.head_dim);
    if !matches!(kind, "gemma3_text" | "olmo3" | "stablelm" | "qwen3_next" | "kimi_linear") {
        p.set("rope_parameters", rotated.clone());
    }
    match kind {
        "olmo_hybrid" | "qwen3_next" | "kimi_linear" | "lfm2" => with_states(r, &mut p, z),
        "mixtral" | "qwen3_moe" => with_experts(r, &mut p, z),
        _ => with_attention(r, &mut p, z, rotated),
    }
    p
}

/// Windows over a part of the layers, by types.
fn windows(r: &mut Draw, p: &mut Plan, z: Shape) {
    p.set("sliding_window", r.size(1, 9));
    p.set("layer_types", layer_types(r, z.layers, ["sliding_attention", "full_attention"]));
}

fn with_attention(r: &mut Draw, p: &mut Plan, z: Shape, rotated: Json) {
    let (q, kv, kind) = (z.heads * z.head_dim, z.kv_heads * z.head_dim, p.kind);
    let mut bias = [false, false];
    match kind {
        "llama" => {
            p.set("head_dim", z.head_dim);
            bias = [r.flag(); 2];
            p.set("attention_bias", bias[0]);
            p.set("hidden_act", r.one(&["silu", "gelu", "relu"]));
        }
        "mistral" => {
            p.set("head_dim", z.head_dim);
            p.set("sliding_window", r.size(1, 9));
        }
        "qwen2" => bias = [true, false],
        "qwen3" => {
            p.set("head_dim", z.head_dim);
            p.set("use_sliding_window", true);
            windows(r, p, z);
        }
        "gemma2" | "gemma3_text" => {
            p.set("head_dim", z.head_dim);
            p.set("query_pre_attn_scalar", r.size(4, 40));
            windows(r, p, z);
            if kind == "gemma2" {
                p.set("attn_logit_softcapping", r.one(&[5.0, 50.0]));
                p.set("final_logit_softcapping", 30.0);
            } else {
                let local = json!({"rope_type": "default", "rope_theta": 1000.0});
                p.set("rope_parameters", json!({"full_attention": rotated, "sliding_attention": local}));
            }
        }
        "olmo3" => {
            let local = json!({"rope_type": "default", "rope_theta": 1000.0});
            p.set("rope_parameters", json!({"full_attention": rotated, "sliding_attention": local}));
            windows(r, p, z);
        }
        "stablelm" => {
            let part = r.one(&[0.5, 1.0]);
            let (parallel, qkv) = (r.flag(), r.flag());
            let even = ((z.head_dim as f64 * part) as usize).is_multiple_of(2);
            let part = if even { part } else { 1.0 };
            p.set("rope_parameters", json!({"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": part}));
            p.set("use_parallel_residual", parallel);
            p.set("use_qkv_bias", qkv);
            bias = [qkv, false];
            p.tensor("model.norm.bias", &[z.width]);
        }
        _ => {
            p.set("logit_scale", 0.25);
            windows(r, p, z);
        }
    }
    for i in 0..z.layers {
        match kind {
            "gemma2" | "gemma3_text" => norms(p, i, z.width, &AROUND),
            "olmo3" => norms(p, i, z.width, &AFTER),
            "cohere2" => norms(p, i, z.width, &BEFORE[..1]),
            "stablelm" => {
                let parallel = p.config["use_parallel_residual"] == true;
                let names = if parallel { &BEFORE[..1] } else { &BEFORE[..] };
                norms(p, i, z.width, names);
                names.iter().for_each(|n| p.tensor(format!("model.layers.{i}.{n}.bias"), &[z.width]));
            }
            _ => norms(p, i, z.width, &BEFORE),
        }
        match kind {
            "qwen3" | "gemma3_text" => qk_norms(p, i, ["q_norm", "k_norm"], [z.head_dim; 2]),
            "olmo3" => qk_norms(p, i, ["q_norm", "k_norm"], [q, kv]),
            _ => {}
        }
        attention(p, i, z, q, bias, "o_proj");
        dense(p, i, z, MLP, false);
    }
}

fn with_experts(r: &mut Draw, p: &mut Plan, z: Shape) {
    p.set("num_experts_per_tok", r.size(1, z.experts));
    let dense_layer = r.size(0, z.layers - 1);
    if p.kind == "mixtral" {
        p.set("num_local_experts", z.experts);
        p.set("intermediate_size", z.expert_size);
        p.set("sliding_window", r.size(1, 9));
    } else {
        p.set("head_dim", z.head_dim);
        p.set("num_experts", z.experts);
        p.set("moe_intermediate_size", z.expert_size);
        p.set("norm_topk_prob", r.flag());
        p.set("mlp_only_layers", vec![dense_layer]);
    }
    for i in 0..z.layers {
        norms(p, i, z.width, &BEFORE);
        attention(p, i, z, z.heads * z.head_dim, [false; 2], "o_proj");
        match p.kind {
            "mixtral" => experts(p, i, z, "block_sparse_moe", ["w1", "w3", "w2"]),
            _ if i == dense_layer => dense(p, i, z, MLP, false),
            _ => experts(p, i, z, "mlp", ["gate_proj", "up_proj", "down_proj"]),
        }
        if p.kind == "qwen3_moe" {
            qk_norms(p, i, ["q_norm", "k_norm"], [z.head_dim; 2]);
        }
    }
}

fn with_states(r: &mut Draw, p: &mut Plan, z: Shape) {
    let (kind, taps) = (p.kind, r.size(2, 5));
    let first = if kind == "lfm2" { "conv" } else { "linear_attention" };
    let kinds = layer_types(r, z.layers, [first, "full_attention"]);
    p.set("layer_types", kinds.clone());
    p.set(if kind == "lfm2" { "conv_L_cache" } else { "linear_conv_kernel_dim" }, taps);
    // Sizes of the delta rule.
    let (keys, each, key, value) = (r.size(1, 3), r.size(1, 3), r.size(3, 9), r.size(3, 9));
    let heads = keys * each;
    match kind {
        "olmo_hybrid" | "qwen3_next" => {
            p.set("linear_num_key_heads", keys);
            p.set("linear_num_value_heads", heads);
            p.set("linear_key_head_dim", key);
            p.set("linear_value_head_dim", value);
        }
        "kimi_linear" => {
            p.set("linear_num_heads", heads);
            p.set("linear_head_dim", key);
        }
        _ => {
            p.set("block_auto_adjust_ff_dim", false);
        }
    }
    match kind {
        "olmo_hybrid" => {
            p.set("linear_allow_neg_eigval", r.flag());
            if r.flag() {
                p.set("rope_parameters", json!({"rope_theta": null, "rope_type": "default"}));
            }
        }
        "qwen3_next" => {
            let whole = json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0});
            p.set("rope_parameters", whole);
            p.set("head_dim", z.head_dim);
            p.set("num_experts", z.experts);
            p.set("num_experts_per_tok", r.size(1, z.experts));
            p.set("moe_intermediate_size", z.expert_size);
            p.set("shared_expert_intermediate_size", z.expert_size);
            p.set("norm_topk_prob", r.flag());
        }
        _ => {}
    }
    let latent = (r.size(3, 9), r.size(2, 6), 2 * r.size(1, 3), r.size(2, 7));
    if kind == "kimi_linear" {
        kimi(r, p, z, latent);
    }
    for (i, of) in kinds.iter().enumerate() {
        let name = |part: &str| format!("model.layers.{i}.{part}");
        let (full, all) = (of == "full_attention", heads * value);
        match kind {
            "olmo_hybrid" => {
                norms(p, i, z.width, if full { &AFTER } else { &BEFORE });
                dense(p, i, z, MLP, false);
                if full {
                    qk_norms(p, i, ["q_norm", "k_norm"], [z.heads * z.head_dim, z.kv_heads * z.head_dim]);
                    attention(p, i, z, z.heads * z.head_dim, [false; 2], "o_proj");
                    continue;
                }
                let parts = [("q", keys * key), ("k", keys * key), ("v", all)];
                for (part, rows) in parts {
                    p.linear(name(&format!("linear_attn.{part}_proj")), z.width, rows, false);
                    p.tensor(name(&format!("linear_attn.{part}_conv1d.weight")), &[rows, 1, taps]);
                }
                p.linear(name("linear_attn.a_proj"), z.width, heads, false);
                p.linear(name("linear_attn.b_proj"), z.width, heads, false);
                p.linear(name("linear_attn.g_proj"), z.width, all, false);
                p.linear(name("linear_attn.o_proj"), all, z.width, false);
                p.tensor(name("linear_attn.o_norm.weight"), &[value]);
                p.tensor(name("linear_attn.A_log"), &[heads]);
                p.tensor(name("linear_attn.dt_bias"), &[heads]);
            }
            "qwen3_next" => {
                norms(p, i, z.width, &BEFORE);
                experts(p, i, z, "mlp", ["gate_proj", "up_proj", "down_proj"]);
                p.linear(name("mlp.shared_expert.gate_proj"), z.width, z.expert_size, false);
                p.linear(name("mlp.shared_expert.up_proj"), z.width, z.expert_size, false);
                p.linear(name("mlp.shared_expert.down_proj"), z.expert_size, z.width, false);
                p.linear(name("mlp.shared_expert_gate"), z.width, 1, false);
                if full {
                    qk_norms(p, i, ["q_norm", "k_norm"], [z.head_dim; 2]);
                    attention(p, i, z, 2 * z.heads * z.head_dim, [false; 2], "o_proj");
                    continue;
                }
                p.linear(name("linear_attn.in_proj_qkvz"), z.width, 2 * (keys * key + all), false);
                p.linear(name("linear_attn.in_proj_ba"), z.width, 2 * heads, false);
                p.linear(name("linear_attn.out_proj"), all, z.width, false);
                p.tensor(name("linear_attn.conv1d.weight"), &[2 * keys * key + all, 1, taps]);
                p.tensor(name("linear_attn.norm.weight"), &[value]);
                p.tensor(name("linear_attn.A_log"), &[heads]);
                p.tensor(name("linear_attn.dt_bias"), &[heads]);
            }
            "kimi_linear" => kimi_layer(p, i, z, full.then_some(latent), [heads, key, taps]),
            _ => {
                norms(p, i, z.width, &["operator_norm", "ffn_norm"]);
                dense(p, i, z, ["feed_forward.w1", "feed_forward.w3", "feed_forward.w2"], false);
                if full {
                    qk_norms(p, i, ["q_layernorm", "k_layernorm"], [z.head_dim; 2]);
                    attention(p, i, z, z.heads * z.head_dim, [false; 2], "out_proj");
                    continue;
                }
                p.linear(name("conv.in_proj"), z.width, 3 * z.width, false);
                p.linear(name("conv.out_proj"), z.width, z.width, false);
                p.tensor(name("conv.conv.weight"), &[z.width, 1, taps]);
            }
        }
    }
}

/// Sizes of latents: rank, the two parts of a key, value.
type LatentSizes = (usize, usize, usize, usize);

fn kimi(r: &mut Draw, p: &mut Plan, z: Shape, (rank, plain, shared, value): LatentSizes) {
    p.set("num_key_value_heads", z.heads);
    p.set("kv_lora_rank", rank);
    p.set("qk_nope_head_dim", plain);
    p.set("qk_rope_head_dim", shared);
    p.set("v_head_dim", value);
    p.set("num_experts", z.experts);
    p.set("num_experts_per_token", r.size(1, z.experts));
    p.set("moe_intermediate_size", z.expert_size);
    p.set("moe_renormalize", r.flag());
    p.set("first_k_dense_replace", 1);
}

fn kimi_layer(p: &mut Plan, i: usize, z: Shape, latent: Option<LatentSizes>, [heads, size, taps]: [usize; 3]) {
    let name = |part: &str| format!("model.layers.{i}.{part}");
    norms(p, i, z.width, &BEFORE);
    if i == 0 {
        dense(p, i, z, MLP, false);
    } else {
        experts(p, i, z, "block_sparse_moe", ["w1", "w3", "w2"]);
        p.tensor(name("block_sparse_moe.gate.e_score_correction_bias"), &[z.experts]);
        p.linear(name("block_sparse_moe.shared_experts.gate_proj"), z.width, z.expert_size, false);
        p.linear(name("block_sparse_moe.shared_experts.up_proj"), z.width, z.expert_size, false);
        p.linear(name("block_sparse_moe.shared_experts.down_proj"), z.expert_size, z.width, false);
    }
    if let Some((rank, plain, shared, value)) = latent {
        p.linear(name("self_attn.q_proj"), z.width, z.heads * (plain + shared), false);
        p.linear(name("self_attn.kv_a_proj_with_mqa"), z.width, rank + shared, false);
        p.linear(name("self_attn.kv_b_proj"), rank, z.heads * (plain + value), false);
        p.linear(name("self_attn.o_proj"), z.heads * value, z.width, false);
        p.tensor(name("self_attn.kv_a_layernorm.weight"), &[rank]);
        return;
    }
    let all = heads * size;
    for part in ["q", "k", "v"] {
        p.linear(name(&format!("self_attn.{part}_proj")), z.width, all, false);
        p.tensor(name(&format!("self_attn.{part}_conv1d.weight")), &[all, 1, taps]);
    }
    for part in ["f", "g"] {
        p.linear(name(&format!("self_attn.{part}_a_proj")), z.width, size, false);
        p.linear(name(&format!("self_attn.{part}_b_proj")), size, all, false);
    }
    p.linear(name("self_attn.b_proj"), z.width, heads, false);
    p.linear(name("self_attn.o_proj"), all, z.width, false);
    p.tensor(name("self_attn.o_norm.weight"), &[size]);
    p.tensor(name("self_attn.A_log"), &[1, 1, heads, 1]);
    p.tensor(name("self_attn.dt_bias"), &[all]);
}

/// The model of a seed: its folder, and what its configuration says.
struct Random {
    folder: PathBuf,
    about: String,
    tokens: Vec<u32>,
    draw: Draw,
}

impl Random {
    fn new(seed: u64) -> Random {
        let mut r = Draw(seed);
        let p = plan(&mut r, KINDS[seed as usize % KINDS.len()]);
        let folder = std::env::temp_dir().join(format!("tl-configurations-{}-{seed}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), p.config.to_string()).unwrap();
        let tensors = p.tensors.iter().map(|(name, shape)| (name.clone(), values(&mut r, name, shape))).collect();
        let mut bytes = Vec::new();
        write_safetensors(&tensors, &[], |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
        let tokens = (0..r.size(12, 40)).map(|_| r.size(0, VOCABULARY - 1) as u32).collect();
        Random { folder, about: format!("seed {seed}, {}", p.config), tokens, draw: r }
    }

    fn load(&self, device: &Device) -> Box<dyn Model> {
        models::load(&Weights::open(&self.folder, device).unwrap(), Some(DType::F32)).unwrap_or_else(|e| panic!("{}: {e}", self.about))
    }

    /// Logits of all tokens, read in parts of these sizes.
    fn logits(&self, model: &dyn Model, device: &Device, parts: impl Iterator<Item = usize>) -> Vec<f32> {
        let mut session = Session::new(model, CONTEXT, device).unwrap();
        let (mut rest, mut all) = (&self.tokens[..], Vec::new());
        for len in parts {
            let (now, later) = rest.split_at(len.min(rest.len()));
            all.extend(session.score(now).unwrap_or_else(|e| panic!("{}: {e}", self.about)).to_vec().unwrap());
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        all
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Weights: norms about 1, the others such that results are about as large as inputs.
fn values(r: &mut Draw, name: &str, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let (middle, spread) = match shape {
        _ if name.ends_with("norm.weight") => (1.0, 0.3),
        _ if name.contains("embed_tokens") => (0.0, 1.0),
        [_, inputs] => (0.0, 1.7 / (*inputs as f32).sqrt()),
        _ => (0.0, 0.5),
    };
    let numbers = (0..count).map(|_| middle + spread * r.float()).collect();
    Tensor::from_vec::<f32>(numbers, shape, &Device::cpu()).unwrap()
}

fn wide(all: &[f32]) -> (Vec<f64>, f64) {
    let all: Vec<f64> = all.iter().map(|v| f64::from(*v)).collect();
    let largest = all.iter().fold(0f64, |m, v| m.max(v.abs()));
    (all, largest)
}

#[test]
fn steps_equal_one_pass() {
    let count = std::env::var("TL_CONFIGURATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(4 * KINDS.len() as u64);
    let cpu = Device::cpu();
    for seed in 0..count {
        let mut random = Random::new(seed);
        let model = random.load(&cpu);
        let (want, largest) = wide(&random.logits(&*model, &cpu, std::iter::once(CONTEXT)));
        assert!(largest > 1e-3 && largest.is_finite(), "{}: logits up to {largest}", random.about);
        let sizes: Vec<usize> = (0..CONTEXT).map(|_| random.draw.size(1, 7)).collect();
        for parts in [vec![1; CONTEXT], sizes] {
            let what = format!("{} in parts of {:?}", random.about, &parts[..6]);
            assert_close(&what, &random.logits(&*model, &cpu, parts.into_iter()), &want, 0.0, 1e-4 * largest);
        }
    }
}

#[test]
fn the_gpu_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu();
    for seed in [4, 10, 12, 13].map(|kind| kind + 200 * KINDS.len() as u64) {
        let random = Random::new(seed);
        let (want, largest) = wide(&random.logits(&*random.load(&cpu), &cpu, std::iter::once(CONTEXT)));
        let model = random.load(&gpu);
        for parts in [[CONTEXT, 1], [5, CONTEXT]] {
            let got = random.logits(&*model, &gpu, parts.into_iter());
            assert_close(&format!("{} on {}", random.about, gpu.name()), &got, &want, 0.0, 1e-3 * largest);
        }
    }
}
