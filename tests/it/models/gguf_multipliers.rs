//! GGUF files whose tensors have what settings of folders say, and tensors that are several of a folder: converted as llama.cpp's converter does it,
//! they give what the folders' references in f64 say.

use super::gguf_layouts::{Part, check, convert, folder, keys, open, usual};
use std::cell::RefCell;
use std::collections::BTreeMap;
use tensorlogic::io::GgufWriter;
use tensorlogic::models;

/// Two names of tensors' parts.
type Named = (&'static str, &'static str);

/// Names of most layers.
const ATTENTION: [Named; 5] = [
    ("model.layers.*.input_layernorm", "blk.*.attn_norm"),
    ("model.layers.*.self_attn.q_proj", "blk.*.attn_q"),
    ("model.layers.*.self_attn.k_proj", "blk.*.attn_k"),
    ("model.layers.*.self_attn.v_proj", "blk.*.attn_v"),
    ("model.layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
const ENDS: [Named; 3] = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
const FEED: [Named; 3] = [
    ("model.layers.*.mlp.gate_proj", "blk.*.ffn_gate"),
    ("model.layers.*.mlp.up_proj", "blk.*.ffn_up"),
    ("model.layers.*.mlp.down_proj", "blk.*.ffn_down"),
];

/// What a tensor is called within its layer.
fn part(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, part)| part)
}

/// The sizes of a decoder of 48 elements.
fn sizes(w: &mut GgufWriter, architecture: &str, layers: u32, feed: u32, eps: f32, more: &[(&str, u32)]) {
    let usual = [("context_length", 64), ("embedding_length", 48), ("block_count", layers), ("feed_forward_length", feed)];
    let heads = [("attention.head_count", 4), ("attention.head_count_kv", 2), ("vocab_size", 320)];
    keys(w, architecture, &[&usual[..], &heads, more].concat(), &[("attention.layer_norm_rms_epsilon", eps)]);
}

/// Tensors that are one in GGUF, by its name.
#[derive(Default)]
struct Stacks(RefCell<BTreeMap<String, Vec<(String, Part)>>>);

impl Stacks {
    /// Of `count` tensors that become `all`, in the order of their names, the last one to come gives it.
    fn add(&self, count: usize, all: String, name: &str, part: Part) -> Vec<(String, Part)> {
        let mut stacks = self.0.borrow_mut();
        let found = stacks.entry(all.clone()).or_default();
        let shape = [&[count], &part.shape[..]].concat();
        found.push((name.to_string(), part));
        if found.len() < count {
            return Vec::new();
        }
        let mut found = stacks.remove(&all).unwrap();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let parts: Vec<Part> = found.into_iter().map(|(_, part)| part).collect();
        vec![(all, Part::joined(&parts).of(&shape))]
    }
}

#[test]
fn falcon_h1() {
    let from = folder("models2/falcon_h1-base");
    let own = [
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.final_layernorm", "output_norm"),
        ("model.layers.*.pre_ff_layernorm", "blk.*.ffn_norm"),
        ("model.layers.*.feed_forward.gate_proj", "blk.*.ffn_gate"),
        ("model.layers.*.feed_forward.up_proj", "blk.*.ffn_up"),
        ("model.layers.*.feed_forward.down_proj", "blk.*.ffn_down"),
        ("model.layers.*.mamba.in_proj", "blk.*.ssm_in"),
        ("model.layers.*.mamba.conv1d", "blk.*.ssm_conv1d"),
        ("model.layers.*.mamba.A_log", "blk.*.ssm_a"),
        ("model.layers.*.mamba.D", "blk.*.ssm_d"),
        ("model.layers.*.mamba.dt_bias", "blk.*.ssm_dt.bias"),
        ("model.layers.*.mamba.out_proj", "blk.*.ssm_out"),
    ];
    let settings = |w: &mut GgufWriter| {
        let ssm =
            [("ssm.conv_kernel", 4), ("ssm.inner_size", 64), ("ssm.state_size", 8), ("ssm.time_step_rank", 4), ("ssm.group_count", 1)];
        let heads = [("attention.key_length", 12), ("attention.value_length", 12)];
        sizes(w, "falcon-h1", 3, 80, 1e-5, &[&ssm[..], &heads].concat());
        w.set("falcon-h1.rope.freq_base", 10000f32);
    };
    let change = |name: &str, part: Part| {
        let (name, part) = usual(name, part);
        let (own, by) = (self::part(&name).to_string(), |by: f32| move |v: f32| v * by);
        vec![match &*own {
            "ssm_a" | "ssm_d" => (name, part.column()),
            // This one has no ending there.
            "ffn_norm.weight" => (name.replace(".weight", ""), part),
            "token_embd.weight" => (name, part.map(by(2.0))),
            "output.weight" => (name, part.map(by(0.5))),
            "attn_k.weight" => (name, part.map(by(0.7))),
            "attn_output.weight" => (name, part.map(by(0.8))),
            "ffn_gate.weight" => (name, part.map(by(0.9))),
            "ffn_down.weight" => (name, part.map(by(0.7))),
            "ssm_out.weight" => (name, part.map(by(0.6))),
            "ssm_in.weight" => {
                let rows = [(0, 64, 0.9), (64, 128, 0.8), (128, 136, 0.7), (136, 144, 1.1), (144, 148, 1.2)];
                let parts: Vec<Part> = rows.map(|(from, to, factor)| part.rows(from, to).map(by(1.3 * factor))).into();
                (name, Part::joined(&parts))
            }
            _ => (name, part),
        }]
    };
    check(&from, &convert(&from, &[&ATTENTION[..], &own].concat(), settings, change));
}

#[test]
fn nemotron_h() {
    let from = folder("models2/nemotron_h-base");
    let names = [
        ("backbone.embeddings", "token_embd"),
        ("backbone.norm_f", "output_norm"),
        ("lm_head", "output"),
        ("backbone.layers.*.norm", "blk.*.attn_norm"),
        ("backbone.layers.*.mixer.in_proj", "blk.*.ssm_in"),
        ("backbone.layers.*.mixer.conv1d", "blk.*.ssm_conv1d"),
        ("backbone.layers.*.mixer.A_log", "blk.*.ssm_a"),
        ("backbone.layers.*.mixer.D", "blk.*.ssm_d"),
        ("backbone.layers.*.mixer.dt_bias", "blk.*.ssm_dt.bias"),
        ("backbone.layers.*.mixer.norm", "blk.*.ssm_norm"),
        ("backbone.layers.*.mixer.out_proj", "blk.*.ssm_out"),
        ("backbone.layers.*.mixer.up_proj", "blk.*.ffn_up"),
        ("backbone.layers.*.mixer.down_proj", "blk.*.ffn_down"),
        ("backbone.layers.*.mixer.q_proj", "blk.*.attn_q"),
        ("backbone.layers.*.mixer.k_proj", "blk.*.attn_k"),
        ("backbone.layers.*.mixer.v_proj", "blk.*.attn_v"),
        ("backbone.layers.*.mixer.o_proj", "blk.*.attn_output"),
    ];
    let settings = |kv_heads: [i32; 4]| {
        move |w: &mut GgufWriter| {
            let ssm =
                [("ssm.conv_kernel", 4), ("ssm.inner_size", 64), ("ssm.state_size", 8), ("ssm.time_step_rank", 4), ("ssm.group_count", 2)];
            let heads = [("attention.key_length", 12), ("attention.value_length", 12)];
            sizes(w, "nemotron_h", 4, 0, 1e-5, &[&ssm[..], &heads].concat());
            w.set("nemotron_h.attention.head_count_kv", &kv_heads[..]);
            w.set("nemotron_h.feed_forward_length", &[0, 64, 0, 64][..]);
            w.set("nemotron_h.rope.scaling.finetuned", false);
            w.set("nemotron_h.attention.layer_norm_epsilon", 1e-5f32);
        }
    };
    let change = |name: &str, part: Part| {
        let (name, part) = usual(name, part);
        vec![match self::part(&name) {
            "ssm_a" | "ssm_d" => (name, part.column()),
            "ssm_norm.weight" => (name, part.of(&[2, 32])),
            _ => (name, part),
        }]
    };
    check(&from, &convert(&from, &names, settings([0, 0, 2, 0]), change));
    let e = models::load(&open(&convert(&from, &names, settings([0, 2, 2, 0]), change)), None).err().unwrap().to_string();
    assert!(e.contains("`nemotron_h.attention.head_count_kv`"), "{e}");
}

#[test]
fn minicpm3() {
    let from = folder("models2/minicpm3-mla");
    let own = [
        ("model.layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
        ("model.layers.*.self_attn.q_a_proj", "blk.*.attn_q_a"),
        ("model.layers.*.self_attn.q_a_layernorm", "blk.*.attn_q_a_norm"),
        ("model.layers.*.self_attn.q_b_proj", "blk.*.attn_q_b"),
        ("model.layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
        ("model.layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
        ("model.layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b"),
    ];
    let settings = |w: &mut GgufWriter| {
        let latents = [("attention.q_lora_rank", 12), ("attention.kv_lora_rank", 16), ("rope.dimension_count", 8)];
        let heads = [("attention.head_count_kv", 4), ("attention.key_length", 20), ("attention.value_length", 10)];
        sizes(w, "minicpm3", 3, 80, 1e-5, &[&latents[..], &heads].concat());
    };
    // The multipliers of all files are those of the published models, 12 and 256/48; this one has 3 and 16/48.
    let change = |name: &str, part: Part| match name {
        "token_embd.weight" => vec![(name.into(), part.map(|v| v * 3.0 / 12.0))],
        "output.weight" => vec![(name.into(), part.map(|v| v * 16.0 / 256.0))],
        _ => vec![(name.into(), part)],
    };
    check(&from, &convert(&from, &[&ENDS[..], &ATTENTION, &FEED, &own].concat(), settings, change));
}

/// The names of norms, and of embeddings for each layer, of Gemma 3n and 4.
const GEMMA: [Named; 11] = [
    ("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
    ("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
    ("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    ("model.layers.*.pre_feedforward_layernorm", "blk.*.ffn_norm"),
    ("model.layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm"),
    ("model.layers.*.per_layer_input_gate", "blk.*.inp_gate"),
    ("model.layers.*.per_layer_projection", "blk.*.proj"),
    ("model.layers.*.post_per_layer_input_norm", "blk.*.post_norm"),
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
];

/// The keys of windows in every other layer.
fn windows(w: &mut GgufWriter, architecture: &str, cap: f32, more: &[(&str, u32)]) {
    sizes(w, architecture, 4, 80, 1e-6, &[&[("attention.sliding_window", 6)], more].concat());
    for (key, v) in [("rope.freq_base", 1e6f32), ("rope.freq_base_swa", 1e4), ("final_logit_softcapping", cap)] {
        w.set(&format!("{architecture}.{key}"), v);
    }
    w.set(&format!("{architecture}.attention.sliding_window_pattern"), &[true, false, true, false][..]);
}

#[test]
fn gemma3n() {
    let from = folder("models2/gemma3n_text-small");
    let own = [
        ("model.altup_projections.*", "altup_proj.*"),
        ("model.altup_unembed_projections.*", "altup_unembd_proj.*"),
        ("model.layers.*.altup.correct_output_scale", "blk.*.altup_correct_scale.weight"),
        ("model.layers.*.altup.correction_coefs", "blk.*.altup_correct_coef"),
        ("model.layers.*.altup.prediction_coefs", "blk.*.altup_predict_coef"),
        ("model.layers.*.altup.modality_router", "blk.*.altup_router"),
        ("model.layers.*.altup.router_norm", "blk.*.altup_router_norm"),
        ("model.layers.*.laurel.linear_left", "blk.*.laurel_l"),
        ("model.layers.*.laurel.linear_right", "blk.*.laurel_r"),
        ("model.layers.*.laurel.post_laurel_norm", "blk.*.laurel_post_norm"),
    ];
    let settings = |bounds: [f32; 4]| {
        move |w: &mut GgufWriter| {
            let heads = [("attention.key_length", 16), ("attention.value_length", 16), ("attention.shared_kv_layers", 2)];
            let more = [("altup.active_idx", 0), ("altup.num_inputs", 3), ("embedding_length_per_layer_input", 8)];
            windows(w, "gemma3n", 20.0, &[&heads[..], &more].concat());
            w.set("gemma3n.feed_forward_length", &[80; 4][..]);
            w.set("gemma3n.activation_sparsity_scale", &bounds[..]);
        }
    };
    let copies = Stacks::default();
    let change = |name: &str, part: Part| {
        let all = ["altup_proj", "altup_unembd_proj"].into_iter().find(|all| name.starts_with(&format!("{all}.")));
        let Some(all) = all else { return vec![(name.to_string(), part)] };
        copies.add(2, format!("{all}.weight"), name, part)
    };
    let names = [&ENDS[..], &ATTENTION, &FEED, &GEMMA, &own].concat();
    // Φ(1.2815515…) = 0.9.
    let none = f32::NEG_INFINITY;
    check(&from, &convert(&from, &names, settings([1.281_551_6, none, none, none]), change));
    let file = convert(&from, &names, settings([f32::NAN, none, none, none]), change);
    let e = models::load(&open(&file), None).err().unwrap().to_string();
    assert!(e.contains("`gemma3n.activation_sparsity_scale`"), "{e}");
}

#[test]
fn gemma4_with_experts() {
    let from = folder("models2/gemma4_text-moe");
    let own = [
        ("model.layers.*.layer_scalar", "blk.*.layer_output_scale.weight"),
        ("model.layers.*.experts.down_proj", "blk.*.ffn_down_exps.weight"),
        ("model.layers.*.experts.gate_up_proj", "blk.*.ffn_gate_up_exps.weight"),
        ("model.layers.*.post_feedforward_layernorm_1", "blk.*.post_ffw_norm_1"),
        ("model.layers.*.post_feedforward_layernorm_2", "blk.*.post_ffw_norm_2"),
        ("model.layers.*.pre_feedforward_layernorm_2", "blk.*.pre_ffw_norm_2"),
        ("model.layers.*.router.per_expert_scale", "blk.*.ffn_down_exps.scale"),
        ("model.layers.*.router.proj", "blk.*.ffn_gate_inp"),
        ("model.layers.*.router.scale", "blk.*.ffn_gate_inp.scale"),
    ];
    let settings = |w: &mut GgufWriter| {
        let full = [("attention.key_length", 16), ("attention.value_length", 16), ("rope.dimension_count", 16)];
        let windowed = [("attention.key_length_swa", 12), ("attention.value_length_swa", 12), ("rope.dimension_count_swa", 12)];
        let experts = [("expert_count", 6), ("expert_used_count", 2), ("expert_feed_forward_length", 20)];
        let more = [("embedding_length_per_layer_input", 0), ("attention.shared_kv_layers", 0)];
        windows(w, "gemma4", 30.0, &[&full[..], &windowed, &experts, &more].concat());
        w.set("gemma4.attention.head_count_kv", &[2, 1, 2, 1][..]);
        // A quarter of the pairs of heads that see all keys rotate.
        let by: Vec<u8> = [1f32, 1.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30].iter().flat_map(|v| v.to_le_bytes()).collect();
        w.tensor("rope_freqs.weight", tensorlogic::DType::F32, &[8], by).unwrap();
    };
    let change = |name: &str, part: Part| vec![(name.to_string(), part)];
    check(&from, &convert(&from, &[&ENDS[..], &ATTENTION, &FEED, &GEMMA, &own].concat(), settings, change));
}

#[test]
fn kimi_linear() {
    let from = folder("models2/kimi_linear-base");
    let own = [
        ("model.layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
        ("model.layers.*.block_sparse_moe.gate_proj", "blk.*.ffn_gate"),
        ("model.layers.*.block_sparse_moe.up_proj", "blk.*.ffn_up"),
        ("model.layers.*.block_sparse_moe.down_proj", "blk.*.ffn_down"),
        ("model.layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp"),
        ("model.layers.*.block_sparse_moe.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias"),
        ("model.layers.*.block_sparse_moe.shared_experts.gate_proj", "blk.*.ffn_gate_shexp"),
        ("model.layers.*.block_sparse_moe.shared_experts.up_proj", "blk.*.ffn_up_shexp"),
        ("model.layers.*.block_sparse_moe.shared_experts.down_proj", "blk.*.ffn_down_shexp"),
        ("model.layers.*.self_attn.A_log", "blk.*.ssm_a"),
        ("model.layers.*.self_attn.dt_bias", "blk.*.ssm_dt.bias"),
        ("model.layers.*.self_attn.b_proj", "blk.*.ssm_beta"),
        ("model.layers.*.self_attn.f_a_proj", "blk.*.ssm_f_a"),
        ("model.layers.*.self_attn.f_b_proj", "blk.*.ssm_f_b"),
        ("model.layers.*.self_attn.g_a_proj", "blk.*.ssm_g_a"),
        ("model.layers.*.self_attn.g_b_proj", "blk.*.ssm_g_b"),
        ("model.layers.*.self_attn.o_norm", "blk.*.ssm_norm"),
        ("model.layers.*.self_attn.q_conv1d", "blk.*.ssm_conv1d_q"),
        ("model.layers.*.self_attn.k_conv1d", "blk.*.ssm_conv1d_k"),
        ("model.layers.*.self_attn.v_conv1d", "blk.*.ssm_conv1d_v"),
        ("model.layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
        ("model.layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
        ("model.layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b"),
    ];
    let settings = |w: &mut GgufWriter| {
        let latents = [("attention.kv_lora_rank", 16), ("rope.dimension_count", 4), ("attention.key_length", 20)];
        let heads = [("attention.key_length_mla", 16), ("attention.value_length_mla", 12), ("ssm.conv_kernel", 4), ("kda.head_dim", 12)];
        let experts = [("expert_count", 6), ("expert_used_count", 2), ("expert_feed_forward_length", 20), ("expert_shared_count", 1)];
        let more = [("leading_dense_block_count", 1), ("expert_gating_func", 2)];
        sizes(w, "kimi-linear", 4, 80, 1e-5, &[&latents[..], &heads, &experts, &more].concat());
        w.set("kimi-linear.expert_weights_scale", 2.4f32);
        w.set("kimi-linear.attention.head_count_kv", &[0, 0, 1, 0][..]);
        w.set("kimi-linear.rope.freq_base", 10000f32);
    };
    let named = |part: &'static str, of: &'static str| {
        (0..6).map(move |e| -> Named {
            let hub = format!("model.layers.*.block_sparse_moe.experts.{e}.{of}").leak();
            (hub, format!("blk.*.{part}.{e}").leak())
        })
    };
    let experts: Vec<Named> = [("ffn_gate_exps", "w1"), ("ffn_up_exps", "w3"), ("ffn_down_exps", "w2")]
        .into_iter()
        .flat_map(|(part, of)| named(part, of))
        .collect();
    let stacks = Stacks::default();
    let change = |name: &str, part: Part| {
        if let Some((all, _)) = name.split_once("_exps.") {
            return stacks.add(6, format!("{all}_exps.weight"), name, part);
        }
        let (rows, shape) = (part.shape[0], part.shape.clone());
        vec![match self::part(name) {
            "ssm_a" => (name.to_string(), part.map(|a| -a.exp())),
            own if own.starts_with("ssm_conv1d_") => (name.to_string(), part.of(&[1, rows, 1, shape[2]])),
            // Of each head the rows of keys, 12, transposed, and those of values, 12.
            "attn_kv_b.weight" => {
                let heads = |from: usize| (0..4).map(move |h| (h * 24 + from, h * 24 + from + 12));
                let keys = Part::joined(&heads(0).map(|(a, b)| part.rows(a, b).transposed()).collect::<Vec<_>>());
                let values = Part::joined(&heads(12).map(|(a, b)| part.rows(a, b)).collect::<Vec<_>>());
                let layer = name.strip_suffix("attn_kv_b.weight").unwrap();
                return vec![
                    (format!("{layer}attn_k_b.weight"), keys.of(&[4, 16, 12])),
                    (format!("{layer}attn_v_b.weight"), values.of(&[4, 12, 16])),
                ];
            }
            _ => (name.to_string(), part),
        }]
    };
    check(&from, &convert(&from, &[&ENDS[..], &ATTENTION, &own, &experts].concat(), settings, change));
}
