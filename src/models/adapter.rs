//! Adapters of a model's layers: attaching, saving and loading them in PEFT's format, and merging them into the weights.

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::{Gguf, GgufWriter, SafeTensors, save_folder, write_safetensors};
use crate::models::{Layer, Model, Weights};
use crate::nn::{Lora, LoraConfig, Module, Param, Sequential};
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// PEFT's files of an adapter.
const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// The prefix of PEFT's keys.
const PREFIX: &str = "base_model.model.";

/// The adapters of a model. The model shares them: training them changes what the model computes.
pub struct Adapters {
    config: LoraConfig,
    layers: Vec<Adapted>,
}

struct Adapted {
    module: String,
    tensor: String,
    head_rows: Option<usize>,
    file_rows: Option<Arc<[i32]>>,
    transposed: bool,
    lora: Lora,
}

/// Layers that get adapters where none are named, by the ends of their tensors' names: the first of these sets that a model has some of. Queries' and
/// values', or what has them together with the keys', as in PEFT; those of attention by latents; the first layers of mixers that are not attention.
const USUAL_TARGETS: [&[&str]; 3] =
    [&[".attn_q", ".attn_v", ".attn_qkv"], &[".attn_q_a", ".attn_q_b", ".attn_kv_a_mqa"], &[".ssm_in", ".shortconv.in_proj"]];

/// The default layers for adapters.
fn usual_targets(layers: &[Layer<'_>]) -> Vec<String> {
    let mut targets = Vec::new();
    for ends in USUAL_TARGETS {
        for layer in layers.iter().filter(|l| ends.iter().any(|end| l.tensor.ends_with(end))) {
            let last = layer.module.rsplit('.').next().unwrap_or_default().to_string();
            if !targets.contains(&last) {
                targets.push(last);
            }
        }
        if !targets.is_empty() {
            break;
        }
    }
    targets
}

/// The first of these that a layer's name ends with, as PEFT writes it: `q_proj`, `q` and `self_attn.q_proj` name
/// `model.layers.0.self_attn.q_proj`, and `all` every layer.
fn target_of<'t>(module: &str, targets: &'t [String]) -> Option<(&'t String, String)> {
    let last = module.rsplit('.').next().unwrap_or(module);
    targets.iter().find_map(|t| {
        let whole = module.strip_suffix(t.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let short = t == "all" || last.strip_suffix("_proj") == Some(t) || last.strip_prefix("c_") == Some(t);
        (whole || short).then(|| (t, if whole { t.clone() } else { last.to_string() }))
    })
}

impl Adapted {
    /// Attaches an adapter to a layer.
    fn new(layer: Layer<'_>, lora: Lora) -> Adapted {
        layer.linear.adapter = Some(lora.clone());
        let Layer { module, tensor, head_rows, transposed, linear } = layer;
        Adapted { module, tensor, head_rows, file_rows: linear.file_rows.clone(), transposed, lora }
    }

    /// Rows `[outputs, …]` of the layer in the order of the model's file.
    fn in_file_order(&self, t: &Tensor) -> TensorResult<Tensor> {
        let Some(rows) = &self.file_rows else { return Ok(t.clone()) };
        let mut places = vec![0; rows.len()];
        rows.iter().enumerate().for_each(|(place, row)| places[*row as usize] = place as i32);
        t.index_select(0, &Tensor::from_vec(places, &[rows.len()], t.device())?)
    }

    /// The file's name of the weight; a folder of the bare model leaves out what precedes the first dot.
    fn stored(&self, weights: &Weights) -> String {
        if !weights.is_hub() {
            return format!("{}.weight", self.tensor);
        }
        let whole = format!("{}.weight", self.module);
        let bare = whole.split_once('.').map(|(_, rest)| rest.to_string());
        bare.filter(|bare| !weights.has(&whole) && weights.has(bare)).unwrap_or(whole)
    }
}

impl Adapters {
    /// Attaches new adapters to a model's layers, whose weights stay frozen. Initially the model's results are unchanged.
    ///
    /// # Errors
    /// If a target does not match a layer of the model, or a setting is out of range.
    ///
    /// ```
    /// use tensorlogic::models::{self, Adapters, Weights};
    /// use tensorlogic::nn::LoraConfig;
    /// use tensorlogic::prelude::*;
    /// let mut model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// let config = LoraConfig { rank: 2, ..LoraConfig::default() };
    /// let adapters = Adapters::attach(&mut *model, &config, &mut Rng::new(1))?;
    /// assert_eq!(adapters.config().targets, ["c_attn"]); // queries, keys and values of GPT-2
    /// assert_eq!(adapters.parameter_count(), 6 * 2 * (384 + 1152)); // 6 layers, rank 2, from 384 to 1152
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn attach(model: &mut dyn Model, config: &LoraConfig, rng: &mut Rng) -> TensorResult<Adapters> {
        config.check()?;
        let architecture = model.shape().architecture;
        let wanted = match config.targets.is_empty() {
            true => usual_targets(&model.layers()),
            false => config.targets.clone(),
        };
        let (mut layers, mut used, mut targets, mut known) = (Vec::new(), Vec::new(), Vec::<String>::new(), Vec::<String>::new());
        for layer in model.layers() {
            let last = layer.module.rsplit('.').next().unwrap_or_default().to_string();
            if !known.contains(&last) {
                known.push(last);
            }
            let Some((target, name)) = target_of(&layer.module, &wanted) else { continue };
            let [outputs, inputs] = *layer.linear.weight.dims() else { continue };
            let lora = Lora::new(inputs, outputs, config, rng, layer.linear.weight.device())?;
            layers.push(Adapted::new(layer, lora));
            used.push(target);
            if !targets.contains(&name) {
                targets.push(name);
            }
        }
        if let Some(unknown) = wanted.iter().find(|t| !used.contains(t)) {
            return Err(TensorError::Config(format!("{architecture} has no layer {unknown}; expected all, {}", known.join(", "))));
        }
        if layers.is_empty() {
            return Err(TensorError::Config(format!("{architecture} has no layers for adapters; name some: {}", known.join(", "))));
        }
        Ok(Adapters { config: LoraConfig { targets, ..config.clone() }, layers })
    }

    /// Their configuration.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// All matrices with their names, such as `model.layers.0.self_attn.q_proj.lora_A.weight`.
    pub fn named_parameters(&self) -> Vec<(String, Param)> {
        let parts =
            |l: &Adapted| l.lora.own_parameters().into_iter().map(|(n, p)| (format!("{}.{n}", l.module), p.clone())).collect::<Vec<_>>();
        self.layers.iter().flat_map(parts).collect()
    }

    /// The adapters as a sequence of modules that share their parameters and random streams.
    pub fn modules(&self) -> Sequential {
        self.layers.iter().fold(Sequential::new(), |s, l| s.push(l.lora.clone()))
    }

    /// The total number of their parameters' elements.
    pub fn parameter_count(&self) -> usize {
        self.named_parameters().iter().map(|(_, p)| p.get().numel()).sum()
    }

    /// Switches training mode on or off: dropout is active only in training.
    pub fn train(&self, on: bool) {
        for l in &self.layers {
            l.lora.children().iter().for_each(|(_, m)| m.on_mode(on));
        }
    }

    /// Disables gradients, for text generation.
    fn freeze(&self) -> TensorResult<()> {
        self.train(false);
        self.named_parameters().iter().try_for_each(|(_, p)| p.set_trainable(false))
    }

    /// Makes the adapters trainable again after [`Adapters::load`].
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// ```
    /// use tensorlogic::models::{self, Adapters, Weights};
    /// use tensorlogic::prelude::*;
    /// let mut model = models::load(&Weights::open("tests/vectors/models/llama3-rope", &Device::cpu())?, None)?;
    /// let adapters = Adapters::load("tests/vectors/lora/llama3-rope", &mut *model)?;
    /// let trainable = || adapters.named_parameters().iter().all(|(_, p)| p.is_trainable());
    /// assert!(!trainable());
    /// adapters.unfreeze()?;
    /// assert!(trainable());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn unfreeze(&self) -> TensorResult<()> {
        self.train(true);
        self.named_parameters().iter().try_for_each(|(_, p)| p.set_trainable(true))
    }

    /// Saves them in PEFT's format: a folder with `adapter_config.json` and `adapter_model.safetensors`, written atomically. `base`
    /// names the model they belong to.
    ///
    /// # Errors
    /// The system's, and device errors.
    ///
    /// ```
    /// use tensorlogic::models::{self, Adapters, Weights};
    /// use tensorlogic::nn::LoraConfig;
    /// use tensorlogic::prelude::*;
    /// let mut model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// let adapters = Adapters::attach(&mut *model, &LoraConfig::default(), &mut Rng::new(1))?;
    /// let folder = std::env::temp_dir().join(format!("tl-doc-adapters-save-{}", std::process::id()));
    /// adapters.save(&folder, "tiny")?;
    /// let loaded = Adapters::load(&folder, &mut *model)?;
    /// assert_eq!((loaded.config(), loaded.parameter_count()), (adapters.config(), adapters.parameter_count()));
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn save(&self, folder: impl AsRef<Path>, base: &str) -> TensorResult<()> {
        let mut tensors = BTreeMap::new();
        for l in &self.layers {
            let (a, b) = (l.lora.a.get().detach(), l.lora.b.get().detach());
            tensors.insert(format!("{PREFIX}{}.lora_A.weight", l.module), a.contiguous()?);
            tensors.insert(format!("{PREFIX}{}.lora_B.weight", l.module), to_halves(&l.in_file_order(&b)?, l.head_rows)?);
        }
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.config.rank,
            "lora_alpha": self.config.alpha,
            "lora_dropout": self.config.dropout,
            "target_modules": self.config.targets,
            "fan_in_fan_out": self.layers.iter().any(|l| l.transposed),
            "bias": "none",
            "inference_mode": true,
            "init_lora_weights": true,
            "modules_to_save": null,
            "use_rslora": false,
            "use_dora": false,
            "rank_pattern": {},
            "alpha_pattern": {},
        });
        let text = serde_json::to_vec_pretty(&config).map_err(|e| TensorError::format("adapter", e.to_string()))?;
        save_folder(folder, |out| {
            out.file(TENSORS, |f| write_safetensors(&tensors, &[("format", "pt")], |bytes| f.put(bytes)))?;
            out.bytes(CONFIG, &text)
        })
    }

    /// Attaches the adapters of a folder in PEFT's format to a model, for inference.
    ///
    /// # Errors
    /// If the files are damaged, are not plain LoRA, or do not match the model.
    ///
    /// ```
    /// use tensorlogic::models::{self, Adapters, Weights};
    /// use tensorlogic::prelude::*;
    /// let mut model = models::load(&Weights::open("tests/vectors/models/llama3-rope", &Device::cpu())?, None)?;
    /// let adapters = Adapters::load("tests/vectors/lora/llama3-rope", &mut *model)?;
    /// assert_eq!((adapters.config().rank, adapters.config().alpha), (4, 12.0));
    /// assert!(adapters.named_parameters().iter().any(|(name, _)| name == "model.layers.0.self_attn.q_proj.lora_A.weight"));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load(folder: impl AsRef<Path>, model: &mut dyn Model) -> TensorResult<Adapters> {
        let folder = folder.as_ref();
        let bad = |m: String| TensorError::format("adapter", format!("{}: {m}", folder.display()));
        let path = folder.join(CONFIG);
        let text = std::fs::read(&path).map_err(|e| TensorError::io(&path, e))?;
        let json: Json = serde_json::from_slice(&text).map_err(|e| bad(format!("{CONFIG}: {e}")))?;
        let filled = |key: &str| match &json[key] {
            Json::Array(a) => !a.is_empty(),
            Json::Object(o) => !o.is_empty(),
            Json::Null | Json::Bool(false) => false,
            Json::String(s) => s != "none",
            _ => true,
        };
        if json["peft_type"].as_str() != Some("LORA") {
            return Err(bad(format!("peft_type is {}; only LORA is supported", json["peft_type"])));
        }
        let others = [
            "use_dora",
            "alpha_pattern",
            "modules_to_save",
            "bias",
            "lora_bias",
            "use_qalora",
            "use_bdlora",
            "layer_replication",
            "target_parameters",
            "trainable_token_indices",
            "alora_invocation_tokens",
        ];
        if let Some(key) = others.into_iter().find(|k| filled(k)) {
            return Err(bad(format!("`{key}` is {}, which is not supported", json[key])));
        }
        let rank = json["r"].as_u64().ok_or_else(|| bad("no number `r`".into()))? as usize;
        let alpha = json["lora_alpha"].as_f64().ok_or_else(|| bad("no number `lora_alpha`".into()))?;
        // Kalajdzievski, 2023: the product is divided by √rank.
        let stabilized = json["use_rslora"].as_bool().unwrap_or(false);
        let targets = json["target_modules"].as_array().into_iter().flatten().filter_map(|t| t.as_str().map(String::from)).collect();
        let config = LoraConfig { rank, alpha, dropout: 0.0, targets };
        config.check()?;

        let files = SafeTensors::open(folder.join(TENSORS))?;
        let architecture = model.shape().architecture;
        let mut rest: Vec<&str> = files.tensors().iter().map(|t| &*t.name).collect();
        let mut layers = Vec::new();
        for layer in model.layers() {
            let names = ["lora_A", "lora_B"].map(|part| format!("{}.{part}.weight", layer.module));
            let find = |name: &str| rest.iter().copied().find(|t| t.strip_prefix(PREFIX).unwrap_or(t) == name);
            let (a, b) = match [find(&names[0]), find(&names[1])] {
                [None, None] => continue,
                [Some(a), Some(b)] => (a, b),
                _ => return Err(bad(format!("{} has only one of its two matrices", layer.module))),
            };
            rest.retain(|t| *t != a && *t != b);
            let [outputs, inputs] = *layer.linear.weight.dims() else { continue };
            let device = layer.linear.weight.device();
            let (a, b) = (read(&files, a, device)?, read(&files, b, device)?);
            let own = a.dims().first().copied().unwrap_or(0);
            if a.dims() != [own, inputs] || b.dims() != [outputs, own] || own == 0 {
                return Err(bad(format!("{} is {}·{}; the layer is [{outputs},{inputs}]", layer.module, b.shape(), a.shape())));
            }
            let alpha = if stabilized { alpha * (own as f64).sqrt() } else { alpha };
            let b = match &layer.linear.file_rows {
                Some(rows) => b.index_select(0, &Tensor::from_vec(rows.to_vec(), &[rows.len()], device)?)?,
                None => to_neighbours(&b, layer.head_rows)?,
            };
            let lora = Lora::from_parts(&a, &b, &LoraConfig { rank: own, alpha, ..config.clone() }, 0)?;
            layers.push(Adapted::new(layer, lora));
        }
        if let Some(unknown) = rest.first() {
            return Err(bad(format!("`{unknown}` does not match a layer of this {architecture} model of {} blocks", model.shape().layers)));
        }
        let adapters = Adapters { config, layers };
        adapters.freeze()?;
        Ok(adapters)
    }

    /// The merged weights of the adapted layers under the file's names. Plain types are kept; block formats become f16.
    fn merged(&self, weights: &Weights) -> TensorResult<BTreeMap<String, Tensor>> {
        let mut out = BTreeMap::new();
        for l in &self.layers {
            let name = l.stored(weights);
            let base = weights.any(&name)?;
            let delta = l.in_file_order(&l.lora.delta()?)?.to_device(base.device())?;
            let delta = if l.transposed && weights.is_hub() { delta.t()? } else { delta };
            let dtype = if base.dtype().is_block() { DType::F16 } else { base.dtype() };
            let sum = base.cast(DType::F32)?.add(&delta)?.cast(dtype)?;
            sum.eval()?;
            out.insert(name, sum);
        }
        Ok(out)
    }

    /// Writes the GGUF file `base` with the adapters added to its weights; adapted ones in block formats become f16.
    ///
    /// # Errors
    /// If the adapters do not match this model, or on I/O errors.
    ///
    /// ```
    /// use tensorlogic::models::{self, Adapters, Weights};
    /// use tensorlogic::nn::LoraConfig;
    /// use tensorlogic::prelude::*;
    /// let mut model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// let adapters = Adapters::attach(&mut *model, &LoraConfig::default(), &mut Rng::new(1))?;
    /// let out = std::env::temp_dir().join(format!("tl-doc-merge-gguf-{}.gguf", std::process::id()));
    /// adapters.merge_gguf("models/tiny/tiny.gguf".as_ref(), &out)?;
    /// let merged = Weights::open(&out, &Device::cpu())?;
    /// assert_eq!(merged.any("blk.0.attn_qkv.weight")?.dtype(), DType::F16); // adapted
    /// assert_eq!(merged.any("blk.0.ffn_up.weight")?.dtype(), DType::Q5_0); // as it was
    /// # std::fs::remove_file(&out).ok();
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn merge_gguf(&self, base: &Path, out: &Path) -> TensorResult<()> {
        let gguf = Gguf::open(base)?;
        let merged = self.merged(&Weights::open(base, &Device::cpu())?)?;
        let mut w = GgufWriter::new();
        for (key, value) in gguf.metadata() {
            w.set(key, value);
        }
        for t in gguf.tensors() {
            match merged.get(&*t.name) {
                Some(m) => w.tensor(&t.name, m.dtype(), m.dims(), m.to_bytes()?)?,
                None => w.tensor(&t.name, t.dtype()?, &t.shape, gguf.bytes_of(t))?,
            };
        }
        w.write(out)
    }

    /// Writes the model of the folder `base` (Hub layout) with the adapters added to its weights as a folder with the same other files.
    ///
    /// # Errors
    /// If the adapters do not match this model, or on I/O errors.
    ///
    /// ```
    /// use std::path::Path;
    /// use tensorlogic::models::{self, Adapters, Weights};
    /// use tensorlogic::prelude::*;
    /// let base = Path::new("tests/vectors/models/llama3-rope");
    /// let mut model = models::load(&Weights::open(base, &Device::cpu())?, None)?;
    /// let adapters = Adapters::load("tests/vectors/lora/llama3-rope", &mut *model)?;
    /// let out = std::env::temp_dir().join(format!("tl-doc-merge-folder-{}", std::process::id()));
    /// adapters.merge_folder(base, &out)?;
    /// let merged = models::load(&Weights::open(&out, &Device::cpu())?, None)?;
    /// let tokens = Tensor::new(&[[5, 6, 7, 8]], &Device::cpu())?;
    /// let losses = [models::loss(&*model, &tokens, &tokens)?.item()?, models::loss(&*merged, &tokens, &tokens)?.item()?];
    /// assert!((losses[0] - losses[1]).abs() < 1e-3, "{losses:?}"); // the same model, without adapters
    /// # std::fs::remove_dir_all(&out).ok();
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn merge_folder(&self, base: &Path, out: &Path) -> TensorResult<()> {
        let cpu = Device::cpu();
        let merged = self.merged(&Weights::open(base, &cpu)?)?;
        let files = SafeTensors::open(base)?;
        let mut tensors = BTreeMap::new();
        for t in files.tensors() {
            let value = match merged.get(&*t.name) {
                Some(m) => m.clone(),
                None => {
                    let outside = || TensorError::format("weights", format!("`{}` is outside its file", t.name));
                    let file: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = files.data_of(t).ok_or_else(outside)?.clone();
                    Tensor::from_bytes(Bytes::Shared(file, t.range.start, t.range.len()), t.dtype()?, &t.shape, &cpu)?
                }
            };
            tensors.insert(t.name.to_string(), value);
        }
        save_folder(out, |folder| {
            for entry in std::fs::read_dir(base).map_err(|e| TensorError::io(base, e))?.flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                let Some(name) = name.to_str() else { continue };
                let text = [".json", ".jinja", ".txt", ".md"].iter().any(|end| name.ends_with(end));
                if text && path.is_file() && !name.ends_with(".index.json") && name != "manifest.json" {
                    folder.bytes(name, &std::fs::read(&path).map_err(|e| TensorError::io(&path, e))?)?;
                }
            }
            folder.file("model.safetensors", |f| write_safetensors(&tensors, &[("format", "pt")], |bytes| f.put(bytes)))
        })
    }
}

fn read(files: &SafeTensors, name: &str, device: &Device) -> TensorResult<Tensor> {
    let info = files.tensor(name)?;
    let bytes = Bytes::Owned(Arc::new(files.bytes_of(info).to_vec()));
    let t = Tensor::from_bytes(bytes, info.dtype()?, &info.shape, device)?.cast(DType::F32)?;
    t.eval()?;
    Ok(t)
}

/// Converts rows `[H·D, r]` from interleaved RoPE pairs in each head of D to Hugging Face's order, where the second of a pair is D/2 further.
fn to_halves(b: &Tensor, head: Option<usize>) -> TensorResult<Tensor> {
    reorder(b, head, |half| [half, 2])
}

/// The reverse of [`to_halves`].
fn to_neighbours(b: &Tensor, head: Option<usize>) -> TensorResult<Tensor> {
    reorder(b, head, |half| [2, half])
}

fn reorder(b: &Tensor, head: Option<usize>, split: impl Fn(usize) -> [usize; 2]) -> TensorResult<Tensor> {
    let (Some(head), [rows, rank]) = (head, b.dims()) else { return b.contiguous() };
    let (rows, rank, [x, y]) = (*rows, *rank, split(head / 2));
    b.reshape(&[rows / head, x, y, rank])?.transpose(1, 2)?.reshape(&[rows, rank])?.contiguous()
}
