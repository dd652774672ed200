//! GGUF files of layers with states, converted as llama.cpp's converter does it, give what the folders' references in f64 say.

use super::gguf_layouts::{Part, check, convert, folder, keys, open, read, usual};
use tensorlogic::DType;
use tensorlogic::io::{GgufWriter, SafeTensors};
use tensorlogic::models;

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
