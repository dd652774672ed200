//! A model's weights by name, from a GGUF file or a folder in Hub layout; without a copy if the device can read the file.

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::{Gguf, SafeTensors, TensorInfo};
use crate::models::Projection;
use crate::models::settings::{NONE, Settings};
use crate::tensor::Tensor;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Weights under GGUF's names (`blk.0.attn_q.weight`), whatever the file calls them.
pub struct Weights {
    source: Source,
    /// The file that has the settings.
    file: String,
    device: Device,
}

enum Source {
    Gguf(Gguf),
    Hub { files: SafeTensors, config: Json },
}

impl Weights {
    /// Opens a GGUF file, a folder with `config.json` and safetensors, or one of those safetensors files.
    ///
    /// # Errors
    /// [`TensorError::Io`] where a file cannot be read, [`TensorError::Format`] where it is damaged, [`TensorError::Unsupported`] for a
    /// version of GGUF that is not supported.
    pub fn open(path: impl AsRef<Path>, device: &Device) -> TensorResult<Weights> {
        let path = path.as_ref();
        let meta = std::fs::metadata(path).map_err(|e| TensorError::io(path, e))?;
        let hub = meta.is_dir() || path.extension().is_some_and(|e| e == "safetensors" || e == "json");
        if !hub {
            return Ok(Weights { source: Source::Gguf(Gguf::open(path)?), file: path.display().to_string(), device: device.clone() });
        }
        let folder = if meta.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let file = folder.join("config.json");
        let text = std::fs::read(&file).map_err(|e| TensorError::io(&file, e))?;
        let config: Json = serde_json::from_slice(&text).map_err(|e| TensorError::format("config", format!("{}: {e}", file.display())))?;
        let index = folder.join("model.safetensors.index.json");
        let files = SafeTensors::open(if index.exists() { index } else { folder.join("model.safetensors") })?;
        Ok(Weights { source: Source::Hub { files, config }, file: file.display().to_string(), device: device.clone() })
    }

    /// Weights of an opened GGUF file.
    pub fn from_gguf(gguf: Gguf, device: &Device) -> Weights {
        Weights { source: Source::Gguf(gguf), file: "the GGUF file".into(), device: device.clone() }
    }

    /// These weights on another device.
    pub fn on(self, device: &Device) -> Weights {
        Weights { device: device.clone(), ..self }
    }

    /// The GGUF file, if it is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(g) => Some(g),
            Source::Hub { .. } => None,
        }
    }
    /// `config.json`, if it is a folder in Hub layout.
    pub(crate) fn config(&self) -> Option<&Json> {
        match &self.source {
            Source::Gguf(_) => None,
            Source::Hub { config, .. } => Some(config),
        }
    }
    /// The file that contains the settings, for messages.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }
    /// Whether tensors have Hugging Face's layouts: RoPE pairs in halves, GPT-2's matrices `[in,out]`.
    pub fn is_hub(&self) -> bool {
        matches!(self.source, Source::Hub { .. })
    }
    /// The device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The architecture's name.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file does not name it, or not as a string.
    pub fn architecture(&self) -> TensorResult<&str> {
        match &self.source {
            Source::Gguf(g) => g.str("general.architecture"),
            Source::Hub { config, .. } => config["model_type"].as_str().ok_or_else(|| TensorError::format("config", "no `model_type`")),
        }
    }

    fn info(&self, name: &str) -> TensorResult<(&TensorInfo, Bytes)> {
        let outside = |i: &TensorInfo| TensorError::format("weights", format!("`{}` is outside its file", i.name));
        let (info, data) = match &self.source {
            Source::Gguf(g) => {
                let i = g.tensor(name)?;
                (i, g.data())
            }
            Source::Hub { files, .. } => {
                let i = files.tensor(&self.stored_name(name))?;
                (i, files.data_of(i).ok_or_else(|| outside(i))?)
            }
        };
        data.check()?;
        let shared: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = data.clone();
        Ok((info, Bytes::Shared(shared, info.range.start, info.range.len())))
    }

    /// The file's name for this tensor.
    pub fn stored_name(&self, name: &str) -> String {
        match &self.source {
            Source::Gguf(_) => name.into(),
            Source::Hub { files, config } => {
                hub_name(name, config["model_type"].as_str().unwrap_or_default(), |n| files.tensors().iter().any(|t| *t.name == *n))
            }
        }
    }

    /// The names of all tensors in the file.
    pub fn stored_names(&self) -> Vec<String> {
        let tensors = match &self.source {
            Source::Gguf(g) => g.tensors(),
            Source::Hub { files, .. } => files.tensors(),
        };
        tensors.iter().map(|t| t.name.to_string()).collect()
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        match &self.source {
            Source::Gguf(g) => g.tensors().iter().any(|t| *t.name == *name),
            Source::Hub { files, .. } => {
                let stored = self.stored_name(name);
                files.tensors().iter().any(|t| *t.name == *stored)
            }
        }
    }

    /// A tensor whose shape is not known beforehand.
    ///
    /// # Errors
    /// [`TensorError::Format`] where there is no such tensor, [`TensorError::Unsupported`] where its type is not supported,
    /// [`TensorError::Io`] where the file was changed since it was opened; those of [`Tensor::from_bytes`].
    pub fn any(&self, name: &str) -> TensorResult<Tensor> {
        let (info, bytes) = self.info(name)?;
        Tensor::from_bytes(bytes, info.dtype()?, &info.shape, &self.device)
    }
}

/// The tensors of one model, read once: a record of those that were asked for.
pub struct Tensors<'a> {
    weights: &'a Weights,
    settings: &'a Settings<'a>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Tensors<'a> {
    /// The tensors of the model that `settings` describe, none of them asked for yet.
    pub fn new(weights: &'a Weights, settings: &'a Settings<'a>) -> Tensors<'a> {
        Tensors { weights, settings, asked: RefCell::default() }
    }

    /// Whether tensors have Hugging Face's layouts, as [`Weights::is_hub`].
    pub fn is_hub(&self) -> bool {
        self.weights.is_hub()
    }
    /// The device that tensors are put on.
    pub fn device(&self) -> &Device {
        &self.weights.device
    }
    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.weights.has(name)
    }

    /// A tensor whose shape is not known beforehand.
    ///
    /// # Errors
    /// When it is missing or of a type that is not supported.
    pub fn any(&self, name: &str) -> TensorResult<Tensor> {
        let stored = self.weights.stored_name(name);
        let t = self.weights.any(name).map_err(|e| match e {
            TensorError::Format { format, message, path } if !self.has(name) => {
                let message = format!("{message}; the settings ask for it ({})", self.settings.sizes());
                TensorError::Format { format, message, path }
            }
            e => e,
        });
        self.asked.borrow_mut().insert(stored);
        t
    }

    /// A tensor of this shape.
    ///
    /// # Errors
    /// When it is missing or has another shape; the message names the sizes that the settings give.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        let t = self.any(name)?;
        if t.dims() != shape {
            let (stored, sizes) = (self.weights.stored_name(name), self.settings.sizes());
            let message = format!("`{stored}` has shape {:?}; the settings ask for {shape:?} ({sizes})", t.dims());
            return Err(TensorError::format("weights", message));
        }
        Ok(t)
    }

    /// A small tensor (norm weights, biases) `[len]` as f32.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn vector(&self, name: &str, len: usize) -> TensorResult<Tensor> {
        let t = self.tensor(name, &[len])?;
        if t.dtype() == DType::F32 {
            return Ok(t);
        }
        let t = t.cast(DType::F32)?;
        t.eval()?;
        Ok(t)
    }

    /// The token embedding table `[vocabulary,width]`, with as many rows as the settings give.
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn embedding(&self, width: usize) -> TensorResult<Tensor> {
        let t = self.any("token_embd.weight")?;
        let stored = self.weights.stored_name("token_embd.weight");
        if t.rank() != 2 || t.dims()[1] != width {
            let sizes = self.settings.sizes();
            let message = format!("`{stored}` has shape {}; expected [vocabulary,{width}] ({sizes})", t.shape());
            return Err(TensorError::format("weights", message));
        }
        match self.settings.size("vocab_size", "vocab_size", 1 << 31)? {
            Some(n) if n != t.dims()[0] => {
                Err(self.settings.refuse("vocab_size", "vocab_size", &format!("`{stored}` has shape {}", t.shape())))
            }
            _ => Ok(t),
        }
    }

    /// A linear layer `name.weight` `[out,in]` with `name.bias`. If `bias` is `None`, the bias is loaded if present.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize, bias: Option<bool>) -> TensorResult<Projection> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let own = format!("{name}.bias");
        let bias = if bias.unwrap_or_else(|| self.has(&own)) { Some(self.vector(&own, outputs)?) } else { None };
        Ok(Projection::new(weight, bias))
    }

    /// The layer that computes logits: `output.weight`, or `embedding` if the file has none and `tie_word_embeddings` (`tied` if
    /// `config.json` has no such key) allows it.
    ///
    /// # Errors
    /// If the weight is missing or has another shape.
    pub fn head(&self, embedding: &Tensor, tied: bool) -> TensorResult<Projection> {
        let tied = self.settings.flag(NONE, "tie_word_embeddings")?.unwrap_or(tied || !self.is_hub());
        let [vocab, width] = embedding.dims() else { return Err(TensorError::format("weights", "the token embedding is not a matrix")) };
        if self.has("output.weight") {
            // Files that repeat the embedding here are as common as files where it is another matrix.
            return self.linear("output", *width, *vocab, Some(false));
        }
        if !tied {
            let message = format!("`tie_word_embeddings` is false, and there is no tensor `{}`", self.weights.stored_name("output.weight"));
            return Err(self.settings.wrong(message));
        }
        Ok(Projection::new(embedding.clone(), None))
    }

    /// Refuses every tensor that was not used, except those whose names end with one of `unused`.
    ///
    /// # Errors
    /// Names the first such tensor and the sizes that the settings give.
    pub fn finish(&self, unused: &[&str]) -> TensorResult<()> {
        let asked = self.asked.borrow();
        let left = |name: &String| !asked.contains(name) && !unused.iter().any(|end| name.ends_with(end));
        match self.weights.stored_names().into_iter().find(left) {
            Some(name) => {
                let (sizes, file) = (self.settings.sizes(), self.weights.file());
                Err(TensorError::Unsupported(format!("the tensor `{name}` has no place in the model that {file} describes ({sizes})")))
            }
            None => Ok(()),
        }
    }
}

/// Hugging Face's name of a tensor that GGUF calls `name`, in a model of this type.
fn hub_name(name: &str, model_type: &str, has: impl Fn(&str) -> bool) -> String {
    const LLAMA: [(&str, &str); 13] = [
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ];
    const GPT2: [(&str, &str); 6] = [
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ];
    let candidates = |tables: &[(&str, &str)], layers: &str, top: &[(&str, &str)]| -> Vec<String> {
        let mut out = Vec::new();
        if let Some(rest) = name.strip_prefix("blk.") {
            if let Some((n, field)) = rest.split_once('.') {
                for (from, to) in tables {
                    if let Some(tail) = field.strip_prefix(from).filter(|t| t.starts_with('.')) {
                        out.push(format!("{layers}.{n}.{to}{tail}"));
                    }
                }
            }
        }
        for (from, to) in top {
            if let Some(tail) = name.strip_prefix(from).filter(|t| t.starts_with('.')) {
                out.push(format!("{to}{tail}"));
            }
        }
        out
    };
    let mut all =
        candidates(&LLAMA, "model.layers", &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")]);
    // Gemma's two norms around the feed-forward block have names of their own.
    if name.contains("ffn_norm") && model_type.starts_with("gemma") {
        all.iter_mut().for_each(|n| *n = n.replace("post_attention_layernorm", "pre_feedforward_layernorm"));
    }
    if model_type == "gpt2" {
        all.clear();
    }
    let gpt2_top = [("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f"), ("output", "lm_head")];
    for n in candidates(&GPT2, "h", &gpt2_top) {
        all.push(format!("transformer.{n}"));
        all.push(n);
    }
    all.iter().find(|n| has(n)).or(all.first()).cloned().unwrap_or_else(|| name.to_string())
}
