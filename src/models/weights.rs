//! A model's weights and settings by name, from a GGUF file or a folder in Hub layout, without copying where the device can read the file.

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::{Gguf, SafeTensors, TensorInfo};
use crate::models::Linear;
use crate::tensor::Tensor;
use serde_json::Value as Json;
use std::path::Path;
use std::sync::Arc;

/// Weights under GGUF's names (`blk.0.attn_q.weight`), whatever the file calls them.
pub struct Weights {
    source: Source,
    device: Device,
}

enum Source {
    Gguf(Gguf),
    Hub { files: SafeTensors, config: Json },
}

impl Weights {
    /// Opens a GGUF file, a folder with `config.json` and safetensors, or one of those safetensors files.
    pub fn open(path: impl AsRef<Path>, device: &Device) -> TensorResult<Weights> {
        let path = path.as_ref();
        let meta = std::fs::metadata(path).map_err(|e| TensorError::io(path, e))?;
        let hub = meta.is_dir() || path.extension().is_some_and(|e| e == "safetensors" || e == "json");
        if !hub {
            return Ok(Weights { source: Source::Gguf(Gguf::open(path)?), device: device.clone() });
        }
        let folder = if meta.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let config = folder.join("config.json");
        let text = std::fs::read(&config).map_err(|e| TensorError::io(&config, e))?;
        let config: Json =
            serde_json::from_slice(&text).map_err(|e| TensorError::format("config", format!("{}: {e}", config.display())))?;
        let index = folder.join("model.safetensors.index.json");
        let files = SafeTensors::open(if index.exists() { index } else { folder.join("model.safetensors") })?;
        Ok(Weights { source: Source::Hub { files, config }, device: device.clone() })
    }

    /// Weights of an opened GGUF file.
    pub fn from_gguf(gguf: Gguf, device: &Device) -> Weights {
        Weights { source: Source::Gguf(gguf), device: device.clone() }
    }

    /// The same weights for another device.
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
    /// Whether tensors have Hugging Face's layouts: rope pairs are halves, GPT-2's matrices are `[in,out]`.
    pub fn is_hub(&self) -> bool {
        matches!(self.source, Source::Hub { .. })
    }
    /// The device that tensors are put on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The architecture's name.
    pub fn architecture(&self) -> TensorResult<&str> {
        match &self.source {
            Source::Gguf(g) => g.str("general.architecture"),
            Source::Hub { config, .. } => config["model_type"].as_str().ok_or_else(|| TensorError::format("config", "no `model_type`")),
        }
    }

    /// A number by its GGUF key without the architecture (`attention.head_count`) and its key in `config.json`.
    pub fn number(&self, gguf: &str, hub: &str) -> TensorResult<Option<f64>> {
        match &self.source {
            Source::Gguf(g) => g.opt(&format!("{}.{gguf}", self.architecture()?), crate::io::gguf::Value::f64),
            Source::Hub { config, .. } => {
                let v = hub.split('.').fold(config, |c, k| &c[k]);
                match v {
                    Json::Null => Ok(None),
                    Json::Number(n) => Ok(n.as_f64()),
                    other => Err(TensorError::format("config", format!("`{hub}` is {other}, not a number"))),
                }
            }
        }
    }

    /// A text setting.
    pub fn text(&self, gguf: &str, hub: &str) -> TensorResult<Option<&str>> {
        match &self.source {
            Source::Gguf(g) => g.opt(&format!("{}.{gguf}", self.architecture()?), crate::io::gguf::Value::str),
            Source::Hub { config, .. } => Ok(hub.split('.').fold(config, |c, k| &c[k]).as_str()),
        }
    }

    /// A switch of `config.json`; GGUF files have none.
    pub fn flag(&self, hub: &str) -> bool {
        match &self.source {
            Source::Gguf(_) => false,
            Source::Hub { config, .. } => config[hub].as_bool().unwrap_or(false),
        }
    }

    /// A positive size of at most `limit`.
    pub fn size(&self, gguf: &str, hub: &str, limit: usize) -> TensorResult<Option<usize>> {
        let Some(v) = self.number(gguf, hub)? else { return Ok(None) };
        if v < 1.0 || v.fract() != 0.0 || v > limit as f64 {
            let name = if self.is_hub() { hub } else { gguf };
            return Err(TensorError::format("config", format!("`{name}` is {v}; want a whole number from 1 to {limit}")));
        }
        Ok(Some(v as usize))
    }

    /// As [`Weights::size`], and an error when it is missing.
    pub fn need(&self, gguf: &str, hub: &str, limit: usize) -> TensorResult<usize> {
        self.size(gguf, hub, limit)?
            .ok_or_else(|| TensorError::format("config", format!("`{}` is missing", if self.is_hub() { hub } else { gguf })))
    }

    fn info(&self, name: &str) -> TensorResult<(&TensorInfo, Bytes)> {
        let outside = |i: &TensorInfo| TensorError::format("weights", format!("`{}` lies outside of its file", i.name));
        let (info, data) = match &self.source {
            Source::Gguf(g) => {
                let i = g.tensor(name)?;
                (i, g.data())
            }
            Source::Hub { files, .. } => {
                let i = files.tensor(&hub_name(name, |n| files.tensors().iter().any(|t| *t.name == *n)))?;
                (i, files.data_of(i).ok_or_else(|| outside(i))?)
            }
        };
        data.check()?;
        let shared: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = data.clone();
        Ok((info, Bytes::Shared(shared, info.range.start, info.range.len())))
    }

    /// What the file calls the tensor of this name.
    pub fn stored_name(&self, name: &str) -> String {
        match &self.source {
            Source::Gguf(_) => name.into(),
            Source::Hub { files, .. } => hub_name(name, |n| files.tensors().iter().any(|t| *t.name == *n)),
        }
    }

    /// The names of all tensors as the file has them.
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
                let has = |n: &str| files.tensors().iter().any(|t| *t.name == *n);
                has(&hub_name(name, has))
            }
        }
    }

    /// A tensor; an error when its shape is not `shape`.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        let (info, bytes) = self.info(name)?;
        if info.shape[..] != *shape {
            return Err(TensorError::format(
                "weights",
                format!("`{}` has shape {:?}; the settings ask for {shape:?}", info.name, &info.shape[..]),
            ));
        }
        Tensor::from_bytes(bytes, info.dtype()?, shape, &self.device)
    }

    /// A tensor whose shape is not known beforehand.
    pub fn any(&self, name: &str) -> TensorResult<Tensor> {
        let (info, bytes) = self.info(name)?;
        Tensor::from_bytes(bytes, info.dtype()?, &info.shape, &self.device)
    }

    /// A small tensor (norm weights, biases) as f32.
    pub fn vector(&self, name: &str, len: usize) -> TensorResult<Tensor> {
        let t = self.tensor(name, &[len])?;
        if t.dtype() == DType::F32 {
            return Ok(t);
        }
        let t = t.cast(DType::F32)?;
        t.eval()?;
        Ok(t)
    }

    /// A linear layer `name.weight` `[out,in]` with `name.bias` where there is one.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize) -> TensorResult<Linear> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, outputs)?) } else { None };
        Ok(Linear::new(weight, bias))
    }
}

/// Hugging Face's name of a tensor that GGUF calls `name`.
fn hub_name(name: &str, has: impl Fn(&str) -> bool) -> String {
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
    if name.contains("ffn_norm") {
        let gemma = all.iter().map(|n| n.replace("post_attention_layernorm", "pre_feedforward_layernorm")).collect::<Vec<_>>();
        all.splice(0..0, gemma);
    }
    let gpt2_top = [("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f"), ("output", "lm_head")];
    for n in candidates(&GPT2, "h", &gpt2_top) {
        all.push(format!("transformer.{n}"));
        all.push(n);
    }
    all.iter().find(|n| has(n)).or(all.first()).cloned().unwrap_or_else(|| name.to_string())
}
