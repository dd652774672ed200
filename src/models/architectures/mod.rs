//! The architectures that there are, a file for each family: what its paper adds to Llama, or has instead.

mod apertus;
mod arcee;
mod bitnet;
mod bloom;
mod cohere;
mod cohere2_moe;
mod common;
mod deepseek;
mod dots1;
pub(crate) mod encoders;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod experts;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gguf_keys;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_oss;
mod gptj;
mod gptneox;
mod granite;
mod granite_hybrid;
mod granite_swa;
mod granitemoe;
mod helium;
mod hunyuan;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod minicpm3;
mod minimax_m2;
mod mistral;
mod mistral4;
mod mixtral;
mod mpt;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo_hybrid;
mod olmoe;
mod opt;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen_moe;
mod seed_oss;
pub(crate) mod seq2seq;
mod smollm3;
mod stablelm;
mod starcoder2;
pub(crate) mod towers;

use crate::error::{TensorError, TensorResult};
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::Settings;

/// A model's architecture.
pub(crate) struct Architecture {
    /// Its names in files: `general.architecture` of a GGUF file, `model_type` of a folder. The first is the one that messages say.
    pub names: &'static [&'static str],
    /// What the settings describe.
    pub describe: fn(&Settings<'_>) -> TensorResult<Description>,
    /// What the settings describe where they say that tokens see each other, for embeddings.
    pub encoder: Option<DescribeEncoder>,
    /// Whether GGUF files of it are read.
    pub gguf: bool,
    /// Writes the settings of a folder's model as GGUF's metadata; refuses what GGUF has no key for.
    pub to_gguf: Option<ToGguf>,
}

/// See [`Architecture::encoder`].
pub(crate) type DescribeEncoder = fn(&Settings<'_>) -> TensorResult<Option<EncoderSpec>>;

/// See [`Architecture::to_gguf`].
pub(crate) type ToGguf = fn(&Settings<'_>, &Description, &mut GgufWriter) -> TensorResult<()>;

impl Architecture {
    const fn new(names: &'static [&'static str], describe: fn(&Settings<'_>) -> TensorResult<Description>) -> Architecture {
        Architecture { names, describe, encoder: None, gguf: true, to_gguf: None }
    }
    /// What the settings describe, with the names that tensors have in their file.
    pub fn described(&self, s: &Settings<'_>) -> TensorResult<Description> {
        if !self.gguf && !s.is_hub() {
            let message = format!("{}: GGUF files of {} are not implemented; folders of it are", s.file(), self.names[0]);
            return Err(TensorError::Unsupported(message));
        }
        let d = (self.describe)(s)?;
        Ok(match s.text_part() {
            Some(text) => Description { left_out: text.left_out(&d.left_out), names: d.names.nested(text.nesting()), ..d },
            None => d,
        })
    }
    const fn only_folders(self) -> Architecture {
        Architecture { gguf: false, ..self }
    }
    const fn with_encoder(self, encoder: DescribeEncoder) -> Architecture {
        Architecture { encoder: Some(encoder), ..self }
    }
    const fn with_gguf(self, to_gguf: ToGguf) -> Architecture {
        Architecture { to_gguf: Some(to_gguf), ..self }
    }
}

/// The list.
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture::new(&["llama"], llama::describe).with_gguf(common::to_gguf),
    Architecture::new(&["gpt2"], gpt2::describe).with_gguf(gpt2::to_gguf),
    Architecture::new(&["gemma3", "gemma3_text"], gemma3::describe).with_encoder(gemma3::describe_encoder).with_gguf(gguf_keys::gemma3),
    Architecture::new(&["mistral"], mistral::describe).with_gguf(gguf_keys::mistral),
    Architecture::new(&["ministral"], mistral::describe_ministral),
    Architecture::new(&["ministral3"], mistral::describe_ministral3),
    Architecture::new(&["qwen2"], qwen2::describe).with_gguf(qwen2::to_gguf),
    Architecture::new(&["qwen3"], qwen3::describe).with_gguf(qwen2::to_gguf),
    Architecture::new(&["gemma"], gemma::describe).with_gguf(gguf_keys::gemma),
    Architecture::new(&["gemma2"], gemma2::describe).with_gguf(gguf_keys::gemma2),
    Architecture::new(&["phi2", "phi"], phi::describe),
    Architecture::new(&["phi3"], phi3::describe).with_gguf(gguf_keys::phi3),
    Architecture::new(&["smollm3"], smollm3::describe).with_gguf(gguf_keys::smollm3),
    Architecture::new(&["olmo"], olmo::describe).with_gguf(gguf_keys::olmo),
    Architecture::new(&["olmo2"], olmo2::describe).with_gguf(qwen2::to_gguf),
    Architecture::new(&["olmo3"], olmo2::describe3),
    Architecture::new(&["granite"], granite::describe).with_gguf(granite::to_gguf),
    Architecture::new(&["granite_swa"], granite_swa::describe),
    Architecture::new(&["glm"], glm4::describe),
    Architecture::new(&["glm4"], glm4::describe_0414).with_gguf(common::to_gguf),
    Architecture::new(&["starcoder2"], starcoder2::describe).with_gguf(gguf_keys::starcoder2),
    Architecture::new(&["gpt_bigcode", "starcoder"], gpt_bigcode::describe),
    Architecture::new(&["stablelm"], stablelm::describe).with_gguf(gguf_keys::stablelm),
    Architecture::new(&["command-r", "cohere"], cohere::describe),
    Architecture::new(&["cohere2"], cohere::describe2),
    Architecture::new(&["gptneox", "gpt_neox"], gptneox::describe),
    Architecture::new(&["gpt_neo"], gpt_neo::describe),
    Architecture::new(&["gptj"], gptj::describe),
    Architecture::new(&["falcon"], falcon::describe),
    Architecture::new(&["bloom"], bloom::describe),
    Architecture::new(&["mpt"], mpt::describe),
    Architecture::new(&["opt"], opt::describe),
    Architecture::new(&["nemotron"], nemotron::describe),
    Architecture::new(&["arcee"], arcee::describe),
    Architecture::new(&["seed_oss"], seed_oss::describe),
    Architecture::new(&["ernie4_5"], ernie4_5::describe),
    Architecture::new(&["exaone4"], exaone4::describe),
    Architecture::new(&["hunyuan_v1_dense", "hunyuan-dense"], hunyuan::describe),
    Architecture::new(&["helium"], helium::describe),
    Architecture::new(&["apertus"], apertus::describe),
    Architecture::new(&["bitnet"], bitnet::describe),
    Architecture::new(&["gemma3n_text"], gemma3n::describe).only_folders(),
    Architecture::new(&["gemma4_text"], gemma4::describe).only_folders(),
    Architecture::new(&["lfm2"], lfm2::describe),
    Architecture::new(&["lfm2_moe"], lfm2_moe::describe).only_folders(),
    Architecture::new(&["lfm3"], lfm3::describe).only_folders(),
    Architecture::new(&["qwen3_5_text", "qwen35"], qwen3_5::describe),
    Architecture::new(&["qwen3_5_moe_text", "qwen35moe"], qwen3_5::describe_moe),
    Architecture::new(&["qwen3_next", "qwen3next"], qwen3_5::describe_next),
    Architecture::new(&["olmo_hybrid"], olmo_hybrid::describe).only_folders(),
    Architecture::new(&["kimi_linear"], kimi_linear::describe).only_folders(),
    Architecture::new(&["mamba"], mamba::describe),
    Architecture::new(&["jamba"], mamba::describe_jamba).only_folders(),
    Architecture::new(&["mamba2"], mamba2::describe),
    Architecture::new(&["granitehybrid", "granitemoehybrid"], granite_hybrid::describe).only_folders(),
    Architecture::new(&["nemotron_h"], nemotron_h::describe).only_folders(),
    Architecture::new(&["falcon_h1"], falcon_h1::describe).only_folders(),
    Architecture::new(&["mixtral"], mixtral::describe).with_gguf(gguf_keys::mixtral),
    Architecture::new(&["qwen2moe", "qwen2_moe"], qwen_moe::describe2).with_gguf(|s, d, w| experts::to_gguf(s, d, w, false)),
    Architecture::new(&["qwen3moe", "qwen3_moe"], qwen_moe::describe3).with_gguf(|s, d, w| experts::to_gguf(s, d, w, true)),
    Architecture::new(&["olmoe"], olmoe::describe).with_gguf(olmoe::to_gguf),
    Architecture::new(&["granitemoe"], granitemoe::describe),
    Architecture::new(&["gpt-oss", "gpt_oss"], gpt_oss::describe),
    Architecture::new(&["glm4_moe", "glm4moe"], glm4_moe::describe),
    Architecture::new(&["dots1"], dots1::describe),
    Architecture::new(&["minimax_m2", "minimax-m2"], minimax_m2::describe),
    Architecture::new(&["phimoe"], phimoe::describe),
    Architecture::new(&["ernie4_5_moe", "ernie4_5-moe"], ernie4_5_moe::describe),
    Architecture::new(&["cohere2_moe"], cohere2_moe::describe),
    Architecture::new(&["deepseek2", "deepseek_v2"], deepseek::describe2),
    Architecture::new(&["deepseek_v3", "kimi_k2"], deepseek::describe3),
    Architecture::new(&["glm4_moe_lite"], glm4_moe_lite::describe),
    Architecture::new(&["mistral4"], mistral4::describe),
    Architecture::new(&["minicpm3"], minicpm3::describe).only_folders(),
    Architecture::new(&["llama4_text"], llama4::describe),
];

/// The architecture of this name.
pub(crate) fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.names.contains(&name))
}
