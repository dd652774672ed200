//! A text encoder with what sentence-transformers' files say of it: pooling, dense layers, normalisation, prompts and the longest text.

use super::Encoder;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::SafeTensors;
use crate::io::gguf::Value;
use crate::models::activation::ActivationFn;
use crate::models::inference::{Inputs, Pooling};
use crate::models::{Projection, Weights};
use crate::tensor::Tensor;
use serde_json::Value as Json;
use std::path::Path;

/// Texts to vectors (Reimers & Gurevych, 2019): an [`Encoder`], and how the states of a text's tokens become one vector, as `modules.json`,
/// `1_Pooling/config.json` and `config_sentence_transformers.json` say.
///
/// ```
/// use tensorlogic::models::inference::{Inputs, Padding};
/// use tensorlogic::models::{Embedder, Weights};
/// use tensorlogic::prelude::*;
///
/// let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/encoders/models2/distilbert-base");
/// let embedder = Embedder::open(&Weights::open(folder, &Device::cpu())?, None)?.normalized(true);
/// let vectors = embedder.embed(&Inputs::padded(&[vec![5, 6, 7, 8], vec![9, 10]], Padding::Right)?)?;
/// assert_eq!(vectors.dims(), [2, embedder.width()]);
/// # Ok::<(), TensorError>(())
/// ```
pub struct Embedder {
    encoder: Encoder,
    /// Vectors of several kinds stand one behind the other.
    pooling: Vec<Pooling>,
    dense: Vec<(Projection, ActivationFn)>,
    normalize: bool,
    prompts: Vec<(String, String)>,
    default_prompt: Option<String>,
    max_tokens: usize,
    lower_case: bool,
}

/// How a GGUF file says that states are pooled, by llama.cpp's numbers; `None` where it does not say, and for folders.
fn pooling_in_gguf(weights: &Weights) -> TensorResult<Option<Pooling>> {
    let Some(file) = weights.gguf() else { return Ok(None) };
    let key = format!("{}.pooling_type", weights.architecture()?);
    match file.opt(&key, Value::u64)? {
        None => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::Cls)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(n) => {
            Err(TensorError::Unsupported(format!("{}: `{key}` is {n}; supported are 1 (mean), 2 (cls) and 3 (last)", weights.file())))
        }
    }
}

impl Embedder {
    /// Loads the encoder of a folder in Hub layout and what the files next to it say, or of a GGUF file with its `pooling_type`. Without `modules.json`, states are pooled by their mean, those of a
    /// decoder by the last token, and vectors keep their length.
    ///
    /// # Errors
    /// Those of [`Encoder::load`]; [`TensorError::Unsupported`] for a module or a setting that is not implemented, by its name.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::inference::Pooling;
    /// use tensorlogic::models::{Embedder, Weights};
    /// let embedder = Embedder::open(&Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?, None)?;
    /// assert_eq!((embedder.pooling(), embedder.normalizes()), (&[Pooling::Mean][..], false)); // there is no modules.json
    /// assert_eq!((embedder.width(), embedder.max_tokens()), (48, 64));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(weights: &Weights, dtype: Option<DType>) -> TensorResult<Embedder> {
        let encoder = Encoder::load(weights, dtype)?;
        let usual = if encoder.is_causal() { Pooling::Last } else { Pooling::Mean };
        let max_tokens = encoder.shape().context;
        let mut e = Embedder {
            encoder,
            pooling: vec![usual],
            dense: Vec::new(),
            normalize: false,
            prompts: Vec::new(),
            default_prompt: None,
            max_tokens,
            lower_case: false,
        };
        if let Some(pooling) = pooling_in_gguf(weights)? {
            e.pooling = vec![pooling];
        }
        let Some(folder) = weights.folder() else { return Ok(e) };
        if let Some(modules) = read(&folder.join("modules.json"))? {
            e.modules(folder, &modules)?;
        }
        if let Some(config) = read(&folder.join("config_sentence_transformers.json"))? {
            let prompts = config["prompts"].as_object().into_iter().flatten();
            e.prompts = prompts.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_string()))).collect();
            e.default_prompt = config["default_prompt_name"].as_str().map(String::from);
        }
        e.limits(folder)?;
        Ok(e)
    }

    /// What comes behind the encoder.
    fn modules(&mut self, folder: &Path, modules: &Json) -> TensorResult<()> {
        let file = folder.join("modules.json");
        let refuse = |what: &str| TensorError::Unsupported(format!("{}: {what}", file.display()));
        let all = modules.as_array().ok_or_else(|| refuse("not a list of modules"))?;
        for module in all {
            let (kind, path) = (module["type"].as_str().unwrap_or_default(), module["path"].as_str().unwrap_or_default());
            let path = folder.join(path);
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" if path == folder.join("") => {}
                "Transformer" => return Err(refuse("the transformer is in a folder of its own; give that folder, or move its files up")),
                "Pooling" => self.pooling = pooling(&path.join("config.json"))?,
                "Dense" => self.dense.push(dense(&path, self.encoder.device(), self.encoder.shape().dtype)?),
                "Normalize" => self.normalize = true,
                "Dropout" => {}
                _ => {
                    return Err(refuse(&format!(
                        "the module {kind:?} is not implemented; supported: Transformer, Pooling, Dense, Normalize"
                    )));
                }
            }
        }
        let mut width = self.encoder.shape().width * self.pooling.len();
        for (linear, _) in &self.dense {
            let [out, inputs] = *linear.weight.dims() else { return Err(refuse("a dense layer is not a matrix")) };
            if inputs != width {
                return Err(refuse(&format!("a dense layer expects {inputs} numbers; it gets {width}")));
            }
            width = out;
        }
        Ok(())
    }

    /// The longest text, and whether texts are in lower case.
    fn limits(&mut self, folder: &Path) -> TensorResult<()> {
        let kinds = ["bert", "roberta", "distilbert", "camembert", "xlm-roberta"];
        for kind in kinds {
            let Some(config) = read(&folder.join(format!("sentence_{kind}_config.json")))? else { continue };
            self.lower_case = config["do_lower_case"] == true;
            if let Some(n) = config["max_seq_length"].as_u64() {
                self.max_tokens = self.max_tokens.min(n as usize);
                return Ok(());
            }
        }
        if let Some(n) = read(&folder.join("tokenizer_config.json"))?.and_then(|c| c["model_max_length"].as_f64()) {
            self.max_tokens = (n.min(self.max_tokens as f64)) as usize;
        }
        Ok(())
    }

    /// Pools by this instead.
    pub fn with_pooling(self, pooling: Pooling) -> Embedder {
        Embedder { pooling: vec![pooling], ..self }
    }

    /// Whether vectors are scaled to length 1, instead of what the files say.
    pub fn normalized(self, on: bool) -> Embedder {
        Embedder { normalize: on, ..self }
    }

    /// The encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// How the states of a text become a vector.
    pub fn pooling(&self) -> &[Pooling] {
        &self.pooling
    }

    /// Whether vectors are scaled to length 1.
    pub fn normalizes(&self) -> bool {
        self.normalize
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        let pooled = self.encoder.shape().width * self.pooling.len();
        self.dense.last().map_or(pooled, |(linear, _)| linear.weight.dims()[0])
    }

    /// Tokens that a text has at most, special ones included; sentence-transformers leaves out what comes behind.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Whether texts are to be put in lower case.
    pub fn lower_case(&self) -> bool {
        self.lower_case
    }

    /// Texts that stand before others for a purpose, by name.
    pub fn prompts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.prompts.iter().map(|(name, text)| (&**name, &**text))
    }

    /// The text of the prompt of this name, or of the one that the files make the usual one; empty where there is none.
    ///
    /// # Errors
    /// [`TensorError::Value`] when there is no prompt of this name; the message lists those that there are.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Embedder, Weights};
    /// let embedder = Embedder::open(&Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?, None)?;
    /// assert_eq!(embedder.prompt(None)?, "");
    /// let error = embedder.prompt(Some("query")).unwrap_err();
    /// assert_eq!(error.to_string(), "there is no prompt \"query\"; this model has none");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn prompt(&self, name: Option<&str>) -> TensorResult<&str> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        self.prompts().find(|(n, _)| *n == name).map(|(_, text)| text).ok_or_else(|| {
            let known: Vec<&str> = self.prompts().map(|(n, _)| n).collect();
            TensorError::Value(format!(
                "there is no prompt {name:?}; this model has {}",
                if known.is_empty() { "none".into() } else { known.join(", ") }
            ))
        })
    }

    /// A vector `[B,width]` in f32 and in host memory for each text of a batch, whose tokens include those that the tokenizer puts around a text.
    ///
    /// # Errors
    /// Those of [`Encoder::run`].
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Embedder, Weights};
    /// use tensorlogic::prelude::*;
    /// let weights = Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?;
    /// let embedder = Embedder::open(&weights, None)?.normalized(true);
    /// let vectors = embedder.embed(&Inputs::padded(&[vec![5, 6, 7], vec![8, 9]], Padding::Right)?)?;
    /// assert_eq!(vectors.dims(), [2, 48]);
    /// let squares = vectors.square()?.sum(&[-1], false)?.to_vec()?;
    /// assert!(squares.iter().all(|s| (s - 1.0).abs() < 1e-5), "{squares:?}"); // vectors of length 1
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn embed(&self, inputs: &Inputs) -> TensorResult<Tensor> {
        let outputs = self.encoder.run(inputs)?;
        let parts = self.pooling.iter().map(|&p| outputs.pooled(p)).collect::<TensorResult<Vec<_>>>()?;
        let mut x = if parts.len() == 1 { parts[0].clone() } else { Tensor::cat(&parts, -1)? };
        for (linear, activation) in &self.dense {
            let y = linear.forward(&x.to_device(self.encoder.device())?.cast(linear.weight.dtype())?)?;
            x = activation.of(&y)?.cast(DType::F32)?;
        }
        let (mut values, width) = (x.to_vec()?, self.width());
        if self.normalize {
            for row in values.chunks_mut(width) {
                let length = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
                row.iter_mut().filter(|_| length > 0.0).for_each(|v| *v = (f64::from(*v) / length) as f32);
            }
        }
        Tensor::from_vec(values, x.dims(), &Device::cpu())
    }
}

/// A JSON file, if there is one.
fn read(file: &Path) -> TensorResult<Option<Json>> {
    match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| TensorError::format("config", format!("{}: {e}", file.display()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(TensorError::io(file, e)),
    }
}

/// What `1_Pooling/config.json` says: the kinds that are on, in the order in which their vectors stand.
fn pooling(file: &Path) -> TensorResult<Vec<Pooling>> {
    const KINDS: [(&str, &str, Pooling); 6] = [
        ("pooling_mode_cls_token", "cls", Pooling::Cls),
        ("pooling_mode_max_tokens", "max", Pooling::Max),
        ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrtLength),
        ("pooling_mode_weightedmean_tokens", "weightedmean", Pooling::WeightedMean),
        ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
    ];
    let refuse = |what: String| TensorError::Unsupported(format!("{}: {what}", file.display()));
    let config = read(file)?.ok_or_else(|| refuse("the file is missing".into()))?;
    let mut kinds: Vec<Pooling> = Vec::new();
    for (key, value) in config.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("word_embedding_dimension" | "embedding_dimension", _) | ("include_prompt", Json::Bool(true)) => {}
            ("pooling_mode", value) => {
                let names: Vec<&str> = value
                    .as_str()
                    .map_or_else(|| value.as_array().into_iter().flatten().filter_map(Json::as_str).collect(), |name| vec![name]);
                for name in names {
                    let kind = KINDS.iter().find(|k| k.1 == name).ok_or_else(|| refuse(format!("`pooling_mode` is {value}")))?;
                    kinds.push(kind.2);
                }
            }
            (key, Json::Bool(on)) if KINDS.iter().any(|k| k.0 == key) => {
                kinds.extend(KINDS.iter().filter(|k| *on && k.0 == key).map(|k| k.2));
            }
            (key, value) => return Err(refuse(format!("`{key}` is {value}; this setting of a pooling is not implemented"))),
        }
    }
    kinds.sort_by_key(|kind| KINDS.iter().position(|k| k.2 == *kind));
    kinds.dedup();
    if kinds.is_empty() { Err(refuse("no kind of pooling is on".into())) } else { Ok(kinds) }
}

/// The layer act(W·x + b) of a folder with `config.json` and `model.safetensors`.
fn dense(folder: &Path, device: &Device, dtype: DType) -> TensorResult<(Projection, ActivationFn)> {
    let file = folder.join("config.json");
    let refuse = |what: String| TensorError::Unsupported(format!("{}: {what}", file.display()));
    let config = read(&file)?.ok_or_else(|| refuse("the file is missing".into()))?;
    let name = config["activation_function"].as_str().unwrap_or("torch.nn.modules.activation.Tanh");
    let activation = match name.rsplit('.').next().unwrap_or_default() {
        "Identity" => ActivationFn::Identity,
        "Tanh" => ActivationFn::Tanh,
        "ReLU" => ActivationFn::Relu,
        "GELU" => ActivationFn::GeluExact,
        "SiLU" => ActivationFn::Silu,
        "Sigmoid" => ActivationFn::Sigmoid,
        _ => return Err(refuse(format!("`activation_function` is {name:?}, which is not implemented"))),
    };
    let weights = SafeTensors::open(folder.join("model.safetensors"))?;
    let tensor = |name: &str| -> TensorResult<Tensor> {
        let info = weights.tensor(name)?;
        let bytes = crate::backends::Bytes::Owned(weights.bytes_of(info).to_vec().into());
        let t = Tensor::from_bytes(bytes, info.dtype()?, &info.shape, device)?.cast(dtype)?;
        t.eval()?;
        Ok(t)
    };
    let bias = if config["bias"] == false { None } else { Some(tensor("linear.bias")?) };
    Ok((Projection::new(tensor("linear.weight")?, bias), activation))
}
