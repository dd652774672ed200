//! Converts a [`Gpt`]'s settings and weights to and from the format of Hugging Face's `gpt2`.

use super::{Gpt, GptConfig, ModuleExt};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::SafeTensors;
use crate::ops::PadMode;
use crate::tensor::Tensor;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Layers whose weights are `[inputs, outputs]` in the files.
const TRANSPOSED: [&str; 4] = ["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"];

/// The embeddings, whose table may have more rows than there are tokens.
const TABLE: &str = "wte.weight";

fn transposed(name: &str) -> bool {
    TRANSPOSED.iter().any(|t| name.ends_with(t))
}

impl GptConfig {
    /// The `config.json` of such a model. `end` is the token that ends a text.
    pub fn to_hub(&self, end: Option<u32>) -> Value {
        json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": self.vocab, "n_positions": self.context,
            "n_ctx": self.context, "n_embd": self.width, "n_layer": self.layers, "n_head": self.heads, "n_inner": 4 * self.width,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "embd_pdrop": self.dropout,
            "resid_pdrop": self.dropout, "attn_pdrop": self.dropout, "tie_word_embeddings": true, "torch_dtype": "float32",
            "bos_token_id": end, "eos_token_id": end, "trained_without_biases": !self.bias,
        })
    }

    /// The settings of a `config.json`, without dropout.
    ///
    /// # Errors
    /// If it is not GPT-2's, a size is missing or 0, or a key requires a model other than [`Gpt`].
    ///
    /// ```
    /// use serde_json::json;
    /// use tensorlogic::nn::GptConfig;
    ///
    /// let sizes = json!({ "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768 });
    /// assert_eq!(GptConfig::from_hub(&sizes)?, GptConfig::GPT2);
    /// assert!(GptConfig::from_hub(&json!({ "model_type": "llama" })).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_hub(config: &Value) -> TensorResult<GptConfig> {
        if config["model_type"] != "gpt2" {
            return Err(TensorError::format("config", format!("`model_type` is {}, not gpt2", config["model_type"])));
        }
        let size = |key: &str| {
            let n = config[key].as_u64().filter(|&n| n > 0 && n < 1 << 31);
            n.map(|n| n as usize).ok_or_else(|| TensorError::format("config", format!("`{key}` is {}, not a size", config[key])))
        };
        let bias = config["trained_without_biases"] != true;
        let (vocab, context, layers) = (size("vocab_size")?, size("n_positions")?, size("n_layer")?);
        let (heads, width) = (size("n_head")?, size("n_embd")?);
        let fixed = [
            ("activation_function", vec![json!("gelu_new"), json!("gelu_fast"), json!("gelu_pytorch_tanh")]),
            ("n_inner", vec![json!(4 * width)]),
            ("layer_norm_epsilon", vec![json!(1e-5)]),
            ("scale_attn_weights", vec![json!(true)]),
            ("scale_attn_by_inverse_layer_idx", vec![json!(false)]),
            ("add_cross_attention", vec![json!(false)]),
            ("tie_word_embeddings", vec![json!(true)]),
        ];
        for (key, allowed) in fixed {
            if !config[key].is_null() && !allowed.contains(&config[key]) {
                let message = format!("`{key}` is {}; only {} can be trained", config[key], json!(allowed));
                return Err(TensorError::Unsupported(message));
            }
        }
        Ok(GptConfig { vocab, context, layers, heads, width, bias, dropout: 0.0 })
    }

    /// Converts the weights of a [`Gpt`] to the names and layouts of the files. Missing biases become zeros; rows of no token are left out.
    ///
    /// # Errors
    /// If a weight is missing, or an evaluation fails.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
    ///
    /// let config = GptConfig { vocab: 65, context: 8, layers: 1, heads: 2, width: 16, bias: false, dropout: 0.0 };
    /// let model = Gpt::padded(config, 64, &mut Rng::new(1), &Device::cpu())?; // 128 rows for 65 tokens
    /// let weights = config.weights_to_hub(&model.state())?;
    /// assert_eq!(weights["transformer.wte.weight"].dims(), [65, 16]);
    /// assert_eq!(weights["transformer.h.0.attn.c_attn.weight"].dims(), [16, 48]); // [inputs, outputs]
    /// assert_eq!(weights["transformer.h.0.mlp.c_fc.bias"].to_vec()?, [0.0; 64]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn weights_to_hub(&self, own: &BTreeMap<String, Tensor>) -> TensorResult<BTreeMap<String, Tensor>> {
        let mut out = BTreeMap::new();
        for (name, t) in own {
            let t = t.detach();
            let t = match name.as_str() {
                TABLE if t.shape()[0] > self.vocab => t.narrow(0, 0, self.vocab)?.contiguous()?,
                _ if transposed(name) => t.t()?.contiguous()?,
                _ => t,
            };
            out.insert(format!("transformer.{name}"), t);
        }
        let Some(first) = own.values().next() else { return Err(TensorError::Value("a model without weights".into())) };
        let (device, d) = (first.device(), self.width);
        let mut zeros = |name: String, n: usize| -> TensorResult<()> {
            if let Entry::Vacant(place) = out.entry(name) {
                place.insert(Tensor::zeros(&[n], DType::F32, device)?);
            }
            Ok(())
        };
        for i in 0..self.layers {
            for (part, n) in [("ln_1", d), ("ln_2", d), ("attn.c_attn", 3 * d), ("attn.c_proj", d), ("mlp.c_fc", 4 * d), ("mlp.c_proj", d)]
            {
                zeros(format!("transformer.h.{i}.{part}.bias"), n)?;
            }
        }
        zeros("transformer.ln_f.bias".into(), d)?;
        Ok(out)
    }
}

impl Gpt {
    /// Loads the weights of a safetensors file in GPT-2's layout. Tensors that the model does not have (zero biases, masks) are skipped.
    ///
    /// # Errors
    /// If a weight is missing or of another shape; nothing changes then.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::io::SafeTensors;
    /// use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
    ///
    /// let folder = "tests/vectors/models/gpt2-odd"; // as from the Hub
    /// let config = GptConfig::from_hub(&serde_json::from_slice(&std::fs::read(format!("{folder}/config.json"))?)?)?;
    /// let model = Gpt::new(config, &mut Rng::new(1), &Device::cpu())?;
    /// let files = SafeTensors::open(folder)?;
    /// model.load_hub(&files)?;
    /// assert_eq!(model.state()["wpe.weight"].to_vec()?, files.load("transformer.wpe.weight", &Device::cpu())?.to_vec()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load_hub(&self, files: &SafeTensors) -> TensorResult<()> {
        let mut values = BTreeMap::new();
        for (name, p) in self.named_parameters() {
            let long = format!("transformer.{name}");
            let info = files.tensor(&long).or_else(|_| files.tensor(&name))?;
            let shape: Vec<usize> = info.shape.to_vec();
            let bytes = crate::backends::Bytes::Owned(std::sync::Arc::new(files.bytes_of(info).to_vec()));
            let t = Tensor::from_bytes(bytes, info.dtype()?, &shape, p.get().device())?.cast(DType::F32)?;
            let rows = p.get().shape()[0];
            let t = match name.as_str() {
                TABLE if t.shape()[0] == self.config.vocab && rows > self.config.vocab => {
                    t.pad(&[(0, (rows - self.config.vocab) as isize), (0, 0)], PadMode::Constant(0.0))?
                }
                _ if transposed(&name) => t.t()?.contiguous()?,
                _ => t,
            };
            t.eval()?;
            values.insert(name, t);
        }
        self.load_state(&values)
    }
}
