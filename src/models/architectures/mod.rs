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
mod folded;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
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
use crate::tensor::Tensor;

/// A model's architecture.
pub(crate) struct Architecture {
    /// Its names in files: `general.architecture` of a GGUF file, `model_type` of a folder. The first is the one that messages say.
    pub names: &'static [&'static str],
    /// What the settings describe.
    pub describe: fn(&Settings<'_>) -> TensorResult<Description>,
    /// What the settings describe where they say that tokens see each other, for embeddings.
    pub encoder: Option<DescribeEncoder>,
    /// Its GGUF files, which are read and written; none where llama.cpp has none, or others than are implemented.
    pub gguf: Option<GgufForm>,
}

/// See [`Architecture::encoder`].
pub(crate) type DescribeEncoder = fn(&Settings<'_>) -> TensorResult<Option<EncoderSpec>>;

/// The GGUF files of an architecture: what does not follow from its description and from what its reader asks for.
#[derive(Clone, Copy)]
pub(crate) struct GgufForm {
    /// `general.architecture`, which is also one of the names of the architecture that reads the files.
    pub name: &'static str,
    /// Whether llama.cpp limits layers to windows.
    pub windows: bool,
    /// Whether llama.cpp reads divisors of the rotations' frequencies, `rope_freqs.weight`.
    pub divisors: bool,
    /// Sets keys that are this architecture's own or mean something else here, also those that take the place of tensors, and refuses settings.
    pub keys: Option<GgufKeys>,
    /// Makes the description and the tensors of a folder those of a file, where numbers that GGUF has no keys for are in the tensors there.
    pub fold: Option<GgufFold>,
    /// Tensors whose rows say what no key does.
    pub sizes: &'static [&'static str],
}

/// See [`GgufForm::fold`].
pub(crate) type GgufFold = fn(&mut Description, &mut Vec<Named>) -> TensorResult<()>;

/// See [`GgufForm::keys`].
pub(crate) type GgufKeys = fn(&Settings<'_>, &Description, &mut Vec<Named>, &mut GgufWriter<'_>) -> TensorResult<()>;

/// A tensor of a folder by GGUF's name.
pub(crate) type Named = (String, Tensor);

impl GgufForm {
    const fn named(name: &'static str) -> GgufForm {
        GgufForm { name, windows: false, divisors: false, keys: None, fold: None, sizes: &[] }
    }
    const fn windows(self) -> GgufForm {
        GgufForm { windows: true, ..self }
    }
    const fn divisors(self) -> GgufForm {
        GgufForm { divisors: true, ..self }
    }
    const fn keys(self, keys: GgufKeys) -> GgufForm {
        GgufForm { keys: Some(keys), ..self }
    }
    const fn sizes(self, sizes: &'static [&'static str]) -> GgufForm {
        GgufForm { sizes, ..self }
    }
    const fn folded(self, fold: GgufFold) -> GgufForm {
        GgufForm { fold: Some(fold), ..self }
    }
}

impl Architecture {
    const fn new(names: &'static [&'static str], describe: fn(&Settings<'_>) -> TensorResult<Description>) -> Architecture {
        Architecture { names, describe, encoder: None, gguf: None }
    }
    /// What the settings describe, with the names that tensors have in their file.
    pub fn described(&self, s: &Settings<'_>) -> TensorResult<Description> {
        if self.gguf.is_none() && !s.is_hub() {
            let message = format!("{}: GGUF files of {} are not implemented; folders of it are", s.file(), self.names[0]);
            return Err(TensorError::Unsupported(message));
        }
        let d = (self.describe)(s)?;
        Ok(match s.text_part() {
            Some(text) => Description { left_out: text.left_out(&d.left_out), names: d.names.nested(text.nesting()), ..d },
            None => d,
        })
    }
    const fn with_encoder(self, encoder: DescribeEncoder) -> Architecture {
        Architecture { encoder: Some(encoder), ..self }
    }
    /// GGUF files under the first of its names.
    const fn gguf(self) -> Architecture {
        let form = GgufForm::named(self.names[0]);
        self.with_gguf(form)
    }
    const fn with_gguf(self, form: GgufForm) -> Architecture {
        Architecture { gguf: Some(form), ..self }
    }
}

/// The list.
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture::new(&["llama"], llama::describe).with_gguf(GgufForm::named("llama").divisors()),
    Architecture::new(&["gpt2"], gpt2::describe).with_gguf(GgufForm::named("gpt2").keys(gpt2::gguf_keys)),
    Architecture::new(&["gemma3", "gemma3_text"], gemma3::describe)
        .with_encoder(gemma3::describe_encoder)
        .with_gguf(GgufForm::named("gemma3").windows().keys(gemma3::gguf_keys)),
    Architecture::new(&["mistral"], mistral::describe).with_gguf(GgufForm::named("llama").divisors()),
    Architecture::new(&["ministral"], mistral::describe_ministral),
    Architecture::new(&["ministral3", "mistral3"], mistral::describe_ministral3)
        .with_gguf(GgufForm::named("mistral3").divisors().keys(mistral::gguf_keys)),
    Architecture::new(&["qwen2"], qwen2::describe).gguf(),
    Architecture::new(&["qwen3"], qwen3::describe).gguf(),
    Architecture::new(&["gemma"], gemma::describe).gguf(),
    Architecture::new(&["gemma2"], gemma2::describe).with_gguf(GgufForm::named("gemma2").windows()),
    Architecture::new(&["phi2", "phi"], phi::describe).gguf(),
    Architecture::new(&["phi3"], phi3::describe).with_gguf(GgufForm::named("phi3").windows().divisors().keys(phi3::gguf_keys)),
    Architecture::new(&["smollm3"], smollm3::describe).gguf(),
    Architecture::new(&["olmo"], olmo::describe).gguf(),
    Architecture::new(&["olmo2"], olmo2::describe).with_gguf(GgufForm::named("olmo2").windows()),
    Architecture::new(&["olmo3"], olmo2::describe3).with_gguf(GgufForm::named("olmo2").windows()),
    Architecture::new(&["granite"], granite::describe).with_gguf(GgufForm::named("granite").divisors().keys(granite::gguf_keys)),
    Architecture::new(&["granite_swa"], granite_swa::describe)
        .with_gguf(GgufForm::named("granite_swa").windows().divisors().keys(granite_swa::gguf_keys)),
    Architecture::new(&["glm", "chatglm"], glm4::describe).with_gguf(GgufForm::named("chatglm")),
    Architecture::new(&["glm4"], glm4::describe_0414).gguf(),
    Architecture::new(&["starcoder2"], starcoder2::describe).gguf(),
    Architecture::new(&["gpt_bigcode", "starcoder"], gpt_bigcode::describe).with_gguf(GgufForm::named("starcoder")),
    Architecture::new(&["stablelm"], stablelm::describe).gguf(),
    Architecture::new(&["command-r", "cohere"], cohere::describe).gguf(),
    Architecture::new(&["cohere2"], cohere::describe2).with_gguf(GgufForm::named("cohere2").windows()),
    Architecture::new(&["gptneox", "gpt_neox"], gptneox::describe).gguf(),
    Architecture::new(&["gpt_neo"], gpt_neo::describe),
    Architecture::new(&["gptj"], gptj::describe),
    Architecture::new(&["falcon"], falcon::describe).with_gguf(GgufForm::named("falcon").keys(falcon::gguf_keys)),
    Architecture::new(&["bloom"], bloom::describe).gguf(),
    Architecture::new(&["mpt"], mpt::describe).gguf(),
    Architecture::new(&["opt"], opt::describe),
    Architecture::new(&["nemotron"], nemotron::describe).gguf(),
    Architecture::new(&["arcee"], arcee::describe).with_gguf(GgufForm::named("arcee").divisors()),
    Architecture::new(&["seed_oss"], seed_oss::describe).gguf(),
    Architecture::new(&["ernie4_5"], ernie4_5::describe).gguf(),
    Architecture::new(&["exaone4"], exaone4::describe).with_gguf(GgufForm::named("exaone4").windows().divisors()),
    Architecture::new(&["hunyuan_v1_dense", "hunyuan-dense"], hunyuan::describe).with_gguf(GgufForm::named("hunyuan-dense")),
    Architecture::new(&["helium"], helium::describe),
    Architecture::new(&["apertus"], apertus::describe).with_gguf(GgufForm::named("apertus").divisors().keys(apertus::gguf_keys)),
    Architecture::new(&["bitnet"], bitnet::describe).gguf(),
    Architecture::new(&["gemma3n_text", "gemma3n"], gemma3n::describe)
        .with_gguf(GgufForm::named("gemma3n").windows().keys(gemma3n::gguf_keys).folded(gemma3n::fold).sizes(&gemma3n::SIZES)),
    Architecture::new(&["gemma4_text", "gemma4"], gemma4::describe)
        .with_gguf(GgufForm::named("gemma4").windows().divisors().keys(gemma4::gguf_keys).folded(gemma4::fold).sizes(&gemma3n::SIZES)),
    Architecture::new(&["lfm2"], lfm2::describe).gguf(),
    Architecture::new(&["lfm2_moe", "lfm2moe"], lfm2_moe::describe).with_gguf(GgufForm::named("lfm2moe")),
    Architecture::new(&["lfm3"], lfm3::describe),
    Architecture::new(&["qwen3_5_text", "qwen35"], qwen3_5::describe).with_gguf(GgufForm::named("qwen35").keys(qwen3_5::gguf_keys)),
    Architecture::new(&["qwen3_5_moe_text", "qwen35moe"], qwen3_5::describe_moe)
        .with_gguf(GgufForm::named("qwen35moe").keys(qwen3_5::gguf_keys)),
    Architecture::new(&["qwen3_next", "qwen3next"], qwen3_5::describe_next).with_gguf(GgufForm::named("qwen3next")),
    Architecture::new(&["olmo_hybrid"], olmo_hybrid::describe),
    Architecture::new(&["kimi_linear", "kimi-linear"], kimi_linear::describe)
        .with_gguf(GgufForm::named("kimi-linear").keys(kimi_linear::gguf_keys)),
    Architecture::new(&["mamba"], mamba::describe).gguf(),
    Architecture::new(&["jamba"], mamba::describe_jamba).gguf(),
    Architecture::new(&["mamba2"], mamba2::describe).gguf(),
    Architecture::new(&["granitehybrid", "granitemoehybrid"], granite_hybrid::describe)
        .with_gguf(GgufForm::named("granitehybrid").divisors().keys(granite_hybrid::gguf_keys)),
    Architecture::new(&["nemotron_h"], nemotron_h::describe).with_gguf(GgufForm::named("nemotron_h").keys(nemotron_h::gguf_keys)),
    Architecture::new(&["falcon_h1", "falcon-h1"], falcon_h1::describe).with_gguf(GgufForm::named("falcon-h1").folded(falcon_h1::fold)),
    Architecture::new(&["mixtral"], mixtral::describe).with_gguf(GgufForm::named("llama").divisors()),
    Architecture::new(&["qwen2moe", "qwen2_moe"], qwen_moe::describe2).gguf(),
    Architecture::new(&["qwen3moe", "qwen3_moe"], qwen_moe::describe3).gguf(),
    Architecture::new(&["olmoe"], olmoe::describe).gguf(),
    Architecture::new(&["granitemoe"], granitemoe::describe).with_gguf(GgufForm::named("granitemoe").divisors().keys(granite::gguf_keys)),
    Architecture::new(&["gpt-oss", "gpt_oss"], gpt_oss::describe).with_gguf(GgufForm::named("gpt-oss").windows()),
    Architecture::new(&["glm4_moe", "glm4moe"], glm4_moe::describe).with_gguf(GgufForm::named("glm4moe")),
    Architecture::new(&["dots1"], dots1::describe).gguf(),
    Architecture::new(&["minimax_m2", "minimax-m2"], minimax_m2::describe).with_gguf(GgufForm::named("minimax-m2")),
    Architecture::new(&["phimoe"], phimoe::describe),
    Architecture::new(&["ernie4_5_moe", "ernie4_5-moe"], ernie4_5_moe::describe).with_gguf(GgufForm::named("ernie4_5-moe")),
    Architecture::new(&["cohere2_moe", "cohere2moe"], cohere2_moe::describe).with_gguf(GgufForm::named("cohere2moe").windows()),
    Architecture::new(&["deepseek2", "deepseek_v2"], deepseek::describe2).gguf(),
    Architecture::new(&["deepseek_v3", "kimi_k2"], deepseek::describe3).with_gguf(GgufForm::named("deepseek2")),
    Architecture::new(&["glm4_moe_lite"], glm4_moe_lite::describe).with_gguf(GgufForm::named("deepseek2")),
    Architecture::new(&["mistral4"], mistral4::describe).with_gguf(GgufForm::named("mistral4").keys(mistral4::gguf_keys)),
    Architecture::new(&["minicpm3"], minicpm3::describe)
        .with_gguf(GgufForm::named("minicpm3").divisors().keys(minicpm3::gguf_keys).folded(minicpm3::fold)),
    Architecture::new(&["llama4_text", "llama4"], llama4::describe).with_gguf(GgufForm::named("llama4").divisors()),
];

/// The architecture of this name.
pub(crate) fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.names.contains(&name))
}
