//! GGUF's names of tensors and the Hub's, as one table for a family of models.

/// The Hub's names of the tensors that GGUF calls `blk.N.part.weight` and `part.weight`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Names {
    /// What precedes most names, which folders of the bare model leave out.
    prefix: &'static str,
    /// What precedes the number of a layer, behind the prefix.
    layers: &'static str,
    /// Parts of layers.
    parts: Vec<(&'static str, &'static str)>,
    /// Parts of the model, by whole names.
    top: Vec<(&'static str, &'static str)>,
    /// Parts of layers that an architecture's GGUF files call otherwise.
    gguf: &'static [(&'static str, &'static str)],
    /// Words of the Hub's names, and what some files have in their place.
    spellings: &'static [(&'static str, &'static str)],
    /// Whether matrices of layers are `[in,out]` on the Hub.
    pub transposed: bool,
    /// Where the decoder stands in the folder's model.
    nesting: Nesting,
}

/// Where a decoder stands in the model of a folder, which its tensors' names say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Nesting {
    /// It is all of the model: `model.layers…`, `lm_head`.
    #[default]
    Whole,
    /// Beside other parts and under the same head: `model.language_model.layers…`, `lm_head`.
    BesideParts,
    /// As a model of its own, as older files of images and texts have it: `language_model.model.layers…`, `language_model.lm_head`.
    OwnModel,
}

impl Nesting {
    /// Where tensors of these names stand.
    pub fn of_tensors<'n>(names: impl Iterator<Item = &'n str>) -> Nesting {
        let start = |name: &str| match name {
            _ if name.starts_with("language_model.model.") || name.starts_with("language_model.lm_head.") => Some(Nesting::OwnModel),
            _ if name.starts_with("model.language_model.") || name.starts_with("language_model.") => Some(Nesting::BesideParts),
            _ => None,
        };
        // A folder of the second kind may have bare names of the third one's start.
        names.filter_map(start).max_by_key(|n| *n == Nesting::OwnModel).unwrap_or_default()
    }

    /// The folder's name of what the decoder alone calls `name`.
    pub fn name(self, name: &str) -> String {
        match (self, name.strip_prefix("model.")) {
            (Nesting::BesideParts, Some(rest)) => format!("model.language_model.{rest}"),
            (Nesting::OwnModel, _) => format!("language_model.{name}"),
            _ => name.to_string(),
        }
    }
}

impl Names {
    /// A table; names of `top` are whole.
    pub fn new(
        prefix: &'static str,
        layers: &'static str,
        top: &[(&'static str, &'static str)],
        parts: &[(&'static str, &'static str)],
    ) -> Names {
        Names {
            prefix,
            layers,
            parts: parts.to_vec(),
            top: top.to_vec(),
            gguf: &[],
            spellings: &[],
            transposed: false,
            nesting: Nesting::Whole,
        }
    }

    /// The names that most models since Llama have.
    pub fn llama() -> Names {
        Names::new(
            "model.",
            "layers",
            &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")],
            &[
                ("attn_norm", "input_layernorm"),
                ("attn_q", "self_attn.q_proj"),
                ("attn_k", "self_attn.k_proj"),
                ("attn_v", "self_attn.v_proj"),
                ("attn_qkv", "self_attn.qkv_proj"),
                ("attn_output", "self_attn.o_proj"),
                ("attn_q_norm", "self_attn.q_norm"),
                ("attn_k_norm", "self_attn.k_norm"),
                ("attn_sinks.weight", "self_attn.sinks"),
                ("ffn_norm", "post_attention_layernorm"),
                ("ffn_gate", "mlp.gate_proj"),
                ("ffn_up", "mlp.up_proj"),
                ("ffn_down", "mlp.down_proj"),
                ("ffn_gate_inp", "mlp.gate"),
                ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
                ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
                ("ffn_up_exps", "mlp.experts.*.up_proj"),
                ("ffn_down_exps", "mlp.experts.*.down_proj"),
                ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
                ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
                ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
            ],
        )
    }

    /// The names of Mixtral's experts besides.
    pub fn mixtral() -> Names {
        Names::llama().with(&[
            ("ffn_gate_inp", "block_sparse_moe.gate"),
            ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
            ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
        ])
    }

    /// The same names, of which GGUF files have these parts of layers under others.
    pub fn in_gguf(self, parts: &'static [(&'static str, &'static str)]) -> Names {
        Names { gguf: parts, ..self }
    }

    /// The same names, of which some of the Hub's files spell a word otherwise.
    pub fn also_spelled(self, words: &'static [(&'static str, &'static str)]) -> Names {
        Names { spellings: words, ..self }
    }

    /// The other spellings of a whole name of the Hub.
    pub fn spelled<'n>(&'n self, name: &'n str) -> impl Iterator<Item = String> + 'n {
        self.spellings.iter().filter(|(word, _)| name.contains(word)).map(|(word, other)| name.replace(word, other))
    }

    /// The same names in a folder whose model the decoder is a part of.
    pub fn nested(self, nesting: Nesting) -> Names {
        Names { nesting, ..self }
    }

    /// The name in GGUF files.
    pub fn gguf(&self, name: &str) -> String {
        let own = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).and_then(|(n, part)| {
            let find = |part: &str| self.gguf.iter().find(|(g, _)| *g == part).map(|(_, other)| *other);
            // A whole name, or one that ends with `.weight` or `.bias`.
            if let Some(whole) = find(part) {
                return Some(format!("blk.{n}.{whole}"));
            }
            let (part, end) = part.rsplit_once('.')?;
            Some(format!("blk.{n}.{}.{end}", find(part)?))
        });
        own.unwrap_or_else(|| name.to_string())
    }

    /// The same names of matrices of layers that are `[in,out]` on the Hub.
    pub fn transposed(self) -> Names {
        Names { transposed: true, ..self }
    }

    /// The same names with these parts of layers called otherwise, or added.
    pub fn with(mut self, parts: &[(&'static str, &'static str)]) -> Names {
        for (gguf, hub) in parts {
            self.parts.retain(|(g, _)| g != gguf);
            self.parts.push((gguf, hub));
        }
        self
    }

    /// The same with these parts of the model.
    pub fn with_top(mut self, top: &[(&'static str, &'static str)]) -> Names {
        for (gguf, hub) in top {
            self.top.retain(|(g, _)| g != gguf);
            self.top.push((gguf, hub));
        }
        self
    }

    /// The names of the file for the tensor that GGUF calls `name`, the likelier first: a folder of the bare model has no prefix.
    pub fn hub(&self, name: &str) -> [String; 2] {
        let find = |table: &[(&'static str, &'static str)], name: &str| table.iter().find(|(g, _)| *g == name).map(|(_, h)| *h);
        // A whole name, or one that ends with `.weight` or `.bias`.
        let renamed = |table: &[(&'static str, &'static str)], name: &str| match (find(table, name), name.rsplit_once('.')) {
            (Some(whole), _) => whole.to_string(),
            (None, Some((part, end))) => format!("{}.{end}", find(table, part).unwrap_or(part)),
            (None, None) => name.to_string(),
        };
        let whole = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((n, part)) => format!("{}{}.{n}.{}", self.prefix, self.layers, renamed(&self.parts, part)),
            None => renamed(&self.top, name),
        };
        let whole = self.nesting.name(&whole);
        let bare = whole.strip_prefix(self.prefix).unwrap_or(&whole).to_string();
        [whole, bare]
    }
}
