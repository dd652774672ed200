//! A model's settings by name, from `config.json` or GGUF metadata, with a record of which were asked for: the rest is refused.

use crate::error::{TensorError, TensorResult};
use crate::io::gguf::{Value, ValueType};
use crate::io::info::clip;
use crate::models::Weights;
use crate::models::text_part::{TEXT_CONFIG, TextPart};
use crate::models::without_effect::WITHOUT_EFFECT_GGUF;
pub use crate::models::without_effect::without_effect;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

/// The spelling of a setting that one of the two formats has no key for.
pub(crate) const NONE: &str = "-";

/// Keys of `config.json` that transformers lets be `null`, which means the same as leaving them out.
const NULLABLE: [&str; 23] = [
    "architectures",
    "attention_chunk_size",
    "attn_logit_softcapping",
    "clip_qkv",
    "final_logit_softcapping",
    "head_dim",
    "hidden_activation",
    "layer_types",
    "mlp_layer_types",
    "mlp_only_layers",
    "moe_layers",
    "n_group",
    "n_inner",
    "no_rope_layers",
    "prefix_dense_intermediate_size",
    "q_lora_rank",
    "topk_group",
    "num_key_value_heads",
    "partial_rotary_factor",
    "rope_local_base_freq",
    "rope_theta",
    "sliding_window_pattern",
    "use_bidirectional_attention",
];

/// The settings of one model, read once: a fresh record of the keys that were asked for.
pub struct Settings<'a> {
    weights: &'a Weights,
    architecture: &'a str,
    asked: RefCell<BTreeSet<String>>,
    /// The sizes and switches that say which tensors there are, as `` `n_embd` 48 ``, for messages.
    sizes: RefCell<Vec<String>>,
}

/// A value as one of the two formats has it.
#[derive(Clone, Copy)]
enum Raw<'a> {
    Gguf(Value<'a>),
    Hub(&'a Json),
}

impl fmt::Display for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raw::Gguf(v) => write!(f, "{v}"),
            Raw::Hub(v) => f.write_str(&clip(&v.to_string())),
        }
    }
}

/// A number, or ±∞ as transformers writes it.
fn number_of(value: &Json) -> Option<f64> {
    match (value.as_f64(), value.get("__float__").and_then(Json::as_str)) {
        (Some(n), _) => Some(n),
        (_, Some("Infinity")) => Some(f64::INFINITY),
        (_, Some("-Infinity")) => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

impl<'a> Settings<'a> {
    /// The settings of `weights`, none of them asked for yet.
    ///
    /// # Errors
    /// When the file does not name its architecture.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.need("block_count", "n_layer", 1000)?, 2); // by `n_layer`, since this is a folder
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(weights: &'a Weights) -> TensorResult<Settings<'a>> {
        let architecture = weights.architecture()?;
        // The keys of quantized layers are accounted for, where they describe the whole model.
        let quantized = weights
            .quantized()?
            .filter(|_| weights.text_part().is_none())
            .map_or(&[][..], |_| &["quantization", "quantization_config"][..]);
        let asked = RefCell::new(["model_type"].iter().chain(quantized).map(|k| k.to_string()).collect());
        Ok(Settings { weights, architecture, asked, sizes: RefCell::default() })
    }

    /// Whether they are those of `config.json`.
    pub(crate) fn is_hub(&self) -> bool {
        self.weights.is_hub()
    }

    /// The name of a setting in this file.
    pub(crate) fn name(&self, gguf: &str, hub: &str) -> String {
        self.path(&self.key(gguf, hub))
    }

    /// The key of a setting, among those that describe the decoder.
    fn key(&self, gguf: &str, hub: &str) -> String {
        if self.weights.is_hub() { hub.to_string() } else { format!("{}.{gguf}", self.architecture) }
    }

    /// Where a key stands in the file.
    fn path(&self, key: &str) -> String {
        if self.weights.text_part().is_some() { format!("{TEXT_CONFIG}.{key}") } else { key.to_string() }
    }

    /// The file of the settings, for messages.
    pub(crate) fn file(&self) -> &str {
        self.weights.file()
    }

    /// An error about the file, which it names.
    pub(crate) fn wrong(&self, message: impl fmt::Display) -> TensorError {
        TensorError::format("config", format!("{}: {message}", self.weights.file()))
    }

    /// The refusal of a setting by its name and value.
    pub(crate) fn refuse(&self, gguf: &str, hub: &str, why: &str) -> TensorError {
        let value = self.raw(gguf, hub).ok().flatten().map_or("missing".to_string(), |v| v.to_string());
        TensorError::Unsupported(format!("{}: `{}` is {value}; {why}", self.weights.file(), self.name(gguf, hub)))
    }

    /// The value of a setting; its name is recorded.
    fn raw(&self, gguf: &str, hub: &str) -> TensorResult<Option<Raw<'a>>> {
        let key = self.key(gguf, hub);
        let raw = match (self.weights.gguf(), self.weights.config()) {
            (Some(g), _) if gguf != NONE => g.get(&key).map(Raw::Gguf),
            (_, Some(_)) if hub != NONE => match self.value_at(hub) {
                Some(Json::Null) if !NULLABLE.iter().any(|n| hub.ends_with(n)) => {
                    return Err(self.wrong(format!("`{}` is null", self.path(&key))));
                }
                Some(Json::Null) => None,
                v => v.map(Raw::Hub),
            },
            _ => return Ok(None),
        };
        self.asked.borrow_mut().insert(key);
        Ok(raw)
    }

    fn is_not<T>(&self, gguf: &str, hub: &str, value: Raw<'_>, wanted: &str) -> TensorResult<T> {
        Err(self.wrong(format!("`{}` is {value}, not {wanted}", self.name(gguf, hub))))
    }

    /// A finite number by its GGUF key without the architecture (`attention.head_count`) and its key in `config.json`, where dots lead into
    /// objects.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.number("attention.layer_norm_epsilon", "layer_norm_epsilon")?, Some(1e-5));
    /// assert_eq!(settings.number("rope.freq_base", "rope_theta")?, None);
    /// assert!(settings.number("activation", "activation_function").is_err()); // a text
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn number(&self, gguf: &str, hub: &str) -> TensorResult<Option<f64>> {
        let Some(raw) = self.raw(gguf, hub)? else { return Ok(None) };
        let number = match raw {
            Raw::Gguf(v) => v.f64().ok(),
            Raw::Hub(v) => v.as_f64(),
        };
        number.filter(|n| n.is_finite()).map_or_else(|| self.is_not(gguf, hub, raw, "a number"), |n| Ok(Some(n)))
    }

    /// As [`Settings::number`], above 0.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?, Some(1e-5));
    /// assert!(settings.positive("attention.dropout", "attn_pdrop").is_err()); // it is 0
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn positive(&self, gguf: &str, hub: &str) -> TensorResult<Option<f64>> {
        match (self.number(gguf, hub)?, self.raw(gguf, hub)?) {
            (Some(n), Some(raw)) if n <= 0.0 => self.is_not(gguf, hub, raw, "a number above 0"),
            (n, _) => Ok(n),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.text("activation", "activation_function")?, Some("gelu_new"));
    /// assert!(settings.text("block_count", "n_layer").is_err()); // a number
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn text(&self, gguf: &str, hub: &str) -> TensorResult<Option<&'a str>> {
        let Some(raw) = self.raw(gguf, hub)? else { return Ok(None) };
        let text = match raw {
            Raw::Gguf(v) => v.str().ok(),
            Raw::Hub(v) => v.as_str(),
        };
        text.map_or_else(|| self.is_not(gguf, hub, raw, "a text"), |t| Ok(Some(t)))
    }

    /// A list of texts of `config.json`.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.texts("architectures")?, Some(vec!["GPT2LMHeadModel"]));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn texts(&self, hub: &str) -> TensorResult<Option<Vec<&'a str>>> {
        match self.raw(NONE, hub)? {
            None => Ok(None),
            Some(Raw::Hub(Json::Array(all))) if all.iter().all(Json::is_string) => Ok(Some(all.iter().filter_map(Json::as_str).collect())),
            Some(raw) => self.is_not(NONE, hub, raw, "a list of texts"),
        }
    }

    /// A list of numbers of `config.json`.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/encoders/models2/dinov2-base", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.numbers("out_indices")?, Some(vec![3.0]));
    /// assert_eq!(settings.numbers("no_such_key")?, None);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn numbers(&self, hub: &str) -> TensorResult<Option<Vec<f64>>> {
        match self.raw(NONE, hub)? {
            None => Ok(None),
            Some(raw @ Raw::Hub(Json::Array(all))) => match all.iter().map(number_of).collect() {
                Some(numbers) => Ok(Some(numbers)),
                None => self.is_not(NONE, hub, raw, "a list of numbers"),
            },
            Some(raw) => self.is_not(NONE, hub, raw, "a list of numbers"),
        }
    }

    /// A list of numbers of GGUF's metadata, one for each layer; `None` where there is none or a single number.
    ///
    /// # Errors
    /// When an item is not a number.
    pub(crate) fn by_layer(&self, gguf: &str) -> TensorResult<Option<Vec<f64>>> {
        match self.raw(gguf, NONE)? {
            Some(Raw::Gguf(v)) if v.kind() == ValueType::Array => {
                self.note(gguf, NONE, v);
                v.array()?.values().map(Value::f64).collect::<TensorResult<_>>().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// As [`Settings::by_layer`], by a key that does not begin with the architecture's name.
    ///
    /// # Errors
    /// When an item is not a number.
    pub(crate) fn by_whole_key(&self, key: &str) -> TensorResult<Option<Vec<f64>>> {
        let Some(v) = self.weights.gguf().and_then(|g| g.get(key)).filter(|v| v.kind() == ValueType::Array) else { return Ok(None) };
        self.asked.borrow_mut().insert(key.to_string());
        v.array()?.values().map(Value::f64).collect::<TensorResult<_>>().map(Some)
    }

    /// A list of switches of GGUF's metadata, one for each layer; `None` where there is none or something else.
    ///
    /// # Errors
    /// When an item is not a boolean.
    pub(crate) fn flags_by_layer(&self, gguf: &str) -> TensorResult<Option<Vec<bool>>> {
        match self.raw(gguf, NONE)? {
            Some(Raw::Gguf(v)) if v.kind() == ValueType::Array => {
                self.note(gguf, NONE, v);
                v.array()?.values().map(Value::bool).collect::<TensorResult<_>>().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// As [`Settings::number`], of a number that says which tensors there are: messages about these name it.
    ///
    /// # Errors
    /// When the value is something else.
    pub(crate) fn count(&self, gguf: &str, hub: &str) -> TensorResult<Option<f64>> {
        let count = self.number(gguf, hub)?;
        count.into_iter().for_each(|n| self.note(gguf, hub, n));
        Ok(count)
    }

    /// Adds a setting to those that messages about tensors name.
    fn note(&self, gguf: &str, hub: &str, value: impl fmt::Display) {
        self.sizes.borrow_mut().push(format!("`{}` {value}", self.name(gguf, hub)));
    }

    /// A size that `config.json` may say and that nobody has asked for by this.
    pub(crate) fn size_said(&self, hub: &str) -> Option<usize> {
        self.value_at(hub)?.as_u64().map(|n| n as usize)
    }

    /// Whether this key of GGUF's metadata was asked for, or may be there all the same.
    pub(crate) fn takes(&self, key: &str) -> bool {
        let own = key.strip_prefix(self.architecture).and_then(|k| k.strip_prefix('.'));
        let without_effect = |k: &str| WITHOUT_EFFECT_GGUF.iter().any(|(_, keys)| keys.contains(&k));
        self.asked.borrow().contains(key) || own.is_none_or(without_effect)
    }

    /// Whether there is a tensor of this name in the file.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.weights.has(name)
    }

    /// Whether there is a tensor whose name ends so.
    pub(crate) fn has_tensor_like(&self, end: &str) -> bool {
        self.weights.stored_names().iter().any(|name| name.ends_with(end))
    }

    /// The sizes of a tensor by the name in its GGUF file.
    pub(crate) fn gguf_shape(&self, name: &str) -> Option<Vec<usize>> {
        self.weights.gguf()?.tensor(name).ok().map(|info| info.shape.to_vec())
    }

    /// What `layer_types` of `config.json` says: for each layer, whether a sliding window limits the keys that it sees.
    ///
    /// # Errors
    /// When there are other types, or not one for each layer.
    pub(crate) fn windowed_layers(&self, layers: usize) -> TensorResult<Option<Vec<bool>>> {
        let Some(types) = self.texts("layer_types")? else { return Ok(None) };
        if types.len() != layers || types.iter().any(|t| !["full_attention", "sliding_attention"].contains(t)) {
            let want = format!("expected {layers} times full_attention or sliding_attention ({})", self.sizes());
            return Err(self.refuse(NONE, "layer_types", &want));
        }
        Ok(Some(types.iter().map(|t| *t == "sliding_attention").collect()))
    }

    /// A switch.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.flag("attention.scale", "scale_attn_weights")?, Some(true));
    /// assert_eq!(settings.flag("attention.causal", "no_such_key")?, None);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn flag(&self, gguf: &str, hub: &str) -> TensorResult<Option<bool>> {
        let Some(raw) = self.raw(gguf, hub)? else { return Ok(None) };
        let flag = match raw {
            Raw::Gguf(v) => v.bool().ok(),
            Raw::Hub(v) => v.as_bool(),
        };
        // Folders say most of what they do not have.
        flag.filter(|on| *on || !self.is_hub()).into_iter().for_each(|on| self.note(gguf, hub, on));
        flag.map_or_else(|| self.is_not(gguf, hub, raw, "true or false"), |b| Ok(Some(b)))
    }

    /// A positive size of at most `limit`.
    ///
    /// # Errors
    /// When the value is something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.size("embedding_length", "n_embd", 1 << 20)?, Some(60));
    /// assert!(settings.size("embedding_length", "n_embd", 32).is_err()); // more than the limit
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn size(&self, gguf: &str, hub: &str, limit: usize) -> TensorResult<Option<usize>> {
        let Some(v) = self.number(gguf, hub)? else { return Ok(None) };
        let name = self.name(gguf, hub);
        if v < 1.0 || v.fract() != 0.0 || v > limit as f64 {
            return Err(self.wrong(format!("`{name}` is {v}; expected a whole number from 1 to {limit}")));
        }
        self.note(gguf, hub, v);
        Ok(Some(v as usize))
    }

    /// As [`Settings::size`], and an error when it is missing.
    ///
    /// # Errors
    /// When the value is missing or something else.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// assert_eq!(settings.need("attention.head_count", "n_head", 1 << 14)?, 3);
    /// let error = settings.need("expert_count", "num_experts", 1 << 14).unwrap_err().to_string();
    /// assert!(error.ends_with("`num_experts` is missing"), "{error}");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn need(&self, gguf: &str, hub: &str, limit: usize) -> TensorResult<usize> {
        self.size(gguf, hub, limit)?.ok_or_else(|| self.wrong(format!("`{}` is missing", self.name(gguf, hub))))
    }

    /// Refuses a number that is there and not `want`.
    ///
    /// # Errors
    /// When the value is another one; `why` ends the message.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// settings.only_number("context_length", "n_positions", 128.0, "only 128 positions are implemented")?;
    /// let error = settings.only_number("block_count", "n_layer", 12.0, "only 12 layers are implemented").unwrap_err().to_string();
    /// assert!(error.ends_with("`n_layer` is 2; only 12 layers are implemented"), "{error}");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn only_number(&self, gguf: &str, hub: &str, want: f64, why: &str) -> TensorResult<()> {
        match self.number(gguf, hub)? {
            Some(v) if v != want => Err(self.refuse(gguf, hub, why)),
            _ => Ok(()),
        }
    }

    /// Refuses a switch that is there and not `want`.
    ///
    /// # Errors
    /// When the value is another one; `why` ends the message.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("tests/vectors/models/gpt2-odd", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// settings.only_flag("attention.cross", "add_cross_attention", false, "only decoders are implemented")?;
    /// let error = settings.only_flag("tied", "tie_word_embeddings", false, "only separate heads are implemented").unwrap_err();
    /// assert!(error.to_string().ends_with("`tie_word_embeddings` is true; only separate heads are implemented"), "{error}");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn only_flag(&self, gguf: &str, hub: &str, want: bool, why: &str) -> TensorResult<()> {
        match self.flag(gguf, hub)? {
            Some(v) if v != want => Err(self.refuse(gguf, hub, why)),
            _ => Ok(()),
        }
    }

    /// Refuses a setting of `config.json` that is not `same` as GGUF's readers take it to be, since no key says so.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn only(&self, same: bool, hub: &str) -> TensorResult<()> {
        if same { Ok(()) } else { Err(self.refuse(NONE, hub, "GGUF has no key for it")) }
    }

    /// What `config.json` has at this path, where dots lead into objects. It is not asked for by this.
    fn value_at(&self, hub: &str) -> Option<&'a Json> {
        hub.split('.').try_fold(self.weights.config()?, |c, k| c.get(k))
    }

    /// Whether `config.json` has something at this path that is neither null nor an empty object. Its keys are still to be asked for.
    pub(crate) fn has_object(&self, hub: &str) -> bool {
        self.value_at(hub).is_some_and(|v| !v.is_null() && v.as_object().is_none_or(|o| !o.is_empty()))
    }

    /// Whether `config.json` has a key at this path whose value is anything but an empty list.
    pub(crate) fn says(&self, hub: &str) -> bool {
        self.value_at(hub).is_some_and(|v| v.as_array().is_none_or(|list| !list.is_empty()))
    }

    /// Whether `config.json` has null at this path, which is not the same as nothing.
    pub(crate) fn is_null(&self, hub: &str) -> bool {
        self.value_at(hub).is_some_and(Json::is_null)
    }

    /// Whether `config.json` has a text at this path.
    pub(crate) fn is_text(&self, hub: &str) -> bool {
        self.value_at(hub).is_some_and(Json::is_string)
    }

    /// Whether `config.json` has a list at this path.
    pub(crate) fn is_list(&self, hub: &str) -> bool {
        self.value_at(hub).is_some_and(Json::is_array)
    }

    /// Whether `config.json` has an object at this path.
    pub(crate) fn is_object(&self, hub: &str) -> bool {
        self.value_at(hub).is_some_and(Json::is_object)
    }

    /// Accepts whatever `config.json` has at this path, and inside.
    pub(crate) fn ignore(&self, hub: &str) {
        self.asked.borrow_mut().insert(hub.to_string());
    }

    /// Accepts what an object of `config.json` has of the keys that have no effect at the top either.
    pub(crate) fn ignore_without_effect(&self, hub: &str) {
        let keys = self.weights.config().and_then(|c| c.get(hub)).and_then(Json::as_object).into_iter().flatten();
        keys.filter(|(k, _)| without_effect(k).is_some()).for_each(|(k, _)| self.ignore(&format!("{hub}.{k}")));
    }

    /// As [`Settings::positive`], where null in `config.json` stands for nothing.
    ///
    /// # Errors
    /// When the value is something else.
    pub(crate) fn positive_or_null(&self, gguf: &str, hub: &str) -> TensorResult<Option<f64>> {
        if self.is_null(hub) { Ok(None) } else { self.positive(gguf, hub) }
    }

    /// The size of sliding windows, `missing` where no key says one; null stands for none.
    ///
    /// # Errors
    /// When the value is something else.
    pub(crate) fn window(&self, missing: Option<usize>) -> TensorResult<Option<usize>> {
        // Converters write 0 for none.
        if self.is_null("sliding_window") || !self.is_hub() && self.number("attention.sliding_window", NONE)? == Some(0.0) {
            return Ok(None);
        }
        Ok(self.size("attention.sliding_window", "sliding_window", 1 << 24)?.or(missing))
    }

    /// The sizes and switches that were read, for messages.
    pub(crate) fn sizes(&self) -> String {
        self.sizes.borrow().join(", ")
    }

    /// Refuses every key that nobody asked for and that may change the result.
    ///
    /// # Errors
    /// Names the first such key, its value, and the file.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Settings, Weights};
    /// let weights = Weights::open("models/tiny/tiny.gguf", &Device::cpu())?;
    /// let settings = Settings::new(&weights)?;
    /// let error = settings.finish().unwrap_err().to_string();
    /// assert!(error.contains("`gpt2.block_count` is 6; "), "{error}"); // nobody has asked for it yet
    /// for key in ["block_count", "context_length", "embedding_length", "feed_forward_length"] {
    ///     settings.number(key, "not_in_a_folder")?;
    /// }
    /// settings.number("attention.head_count", "n_head")?;
    /// settings.number("attention.layer_norm_epsilon", "layer_norm_epsilon")?;
    /// assert!(settings.finish().is_ok());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn finish(&self) -> TensorResult<()> {
        match (self.weights.gguf(), self.weights.config()) {
            (Some(gguf), _) => {
                gguf.metadata().filter(|(key, _)| !self.asked.borrow().contains(*key)).try_for_each(|(k, v)| self.left_in_gguf(k, v))
            }
            (_, Some(Json::Object(config))) => {
                self.same_for_all()?;
                self.beside_text()?;
                config.iter().filter(|(k, _)| without_effect(k).is_none()).try_for_each(|(k, v)| self.left_in_config(k, v))
            }
            _ => Err(self.wrong("not a JSON object")),
        }
    }

    /// The keys that nobody asked for and that may change the result, with their values, as `` `key` is value ``.
    pub(crate) fn left(&self) -> Vec<String> {
        let about = format!("{}: ", self.weights.file());
        let says = |result: TensorResult<()>| match result {
            Err(TensorError::Unsupported(m)) => {
                let key = m.strip_prefix(&about).unwrap_or(&m);
                Some(key.rsplit_once("; ").map_or(key, |(key, _)| key).to_string())
            }
            _ => None,
        };
        match (self.weights.gguf(), self.weights.config()) {
            (Some(gguf), _) => {
                let left = gguf.metadata().filter(|(key, _)| !self.asked.borrow().contains(*key));
                left.filter_map(|(k, v)| says(self.left_in_gguf(k, v))).collect()
            }
            (_, Some(Json::Object(config))) => {
                let general = [says(self.same_for_all()), says(self.beside_text())];
                let left = config.iter().filter(|(k, _)| without_effect(k).is_none());
                general.into_iter().flatten().chain(left.filter_map(|(k, v)| says(self.left_in_config(k, v)))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Refuses what is not known beside the settings of the text side of a model of images or sounds.
    fn beside_text(&self) -> TensorResult<()> {
        let quantized = self.weights.quantized()?.is_some();
        self.weights.text_part().map_or(Ok(()), |text| text.finish(self.weights.file(), quantized))
    }

    /// The text side of a model that reads images or sounds too.
    pub(crate) fn text_part(&self) -> Option<&'a TextPart> {
        self.weights.text_part()
    }

    /// As [`Settings::finish`], for an encoder: which head it has was asked for.
    pub(crate) fn finish_encoder(&self) -> TensorResult<()> {
        self.one_stack()?;
        self.finish_all()
    }

    /// As [`Settings::finish_encoder`], for an encoder and a decoder.
    pub(crate) fn finish_encoder_decoder(&self) -> TensorResult<()> {
        self.only_flag(NONE, "is_encoder_decoder", true, "a single stack of this architecture is not implemented")?;
        self.only_flag(NONE, "is_decoder", false, "a single stack of this architecture is not implemented")?;
        self.finish_all()
    }

    /// Refuses every key that nobody asked for, apart from those that are the same for all decoders.
    fn finish_all(&self) -> TensorResult<()> {
        if self.weights.gguf().is_some() {
            return self.finish();
        }
        match self.weights.config() {
            Some(Json::Object(config)) => {
                config.iter().filter(|(k, _)| without_effect(k).is_none()).try_for_each(|(k, v)| self.left_in_config(k, v))
            }
            _ => Err(self.wrong("not a JSON object")),
        }
    }

    /// The names of a classifier's labels in the order of their numbers: `id2label` of `config.json`, else as many as `num_labels` says, else two.
    ///
    /// # Errors
    /// When the value is something else.
    pub(crate) fn labels(&self) -> TensorResult<Vec<String>> {
        if let Some(Raw::Hub(raw)) = self.raw(NONE, "id2label")? {
            let name = |i: usize| raw.get(i.to_string()).and_then(Json::as_str).map(String::from);
            let names = raw.as_object().and_then(|o| (0..o.len()).map(name).collect::<Option<Vec<_>>>());
            return match names.filter(|names| !names.is_empty()) {
                Some(names) => Ok(names),
                None => self.is_not(NONE, "id2label", Raw::Hub(raw), "a name for each of the numbers from 0 on"),
            };
        }
        let count = self.size(NONE, "num_labels", 1 << 20)?.unwrap_or(2);
        Ok((0..count).map(|i| format!("LABEL_{i}")).collect())
    }

    /// Refuses a second stack of layers.
    fn one_stack(&self) -> TensorResult<()> {
        let encoder = "encoders beside the decoder are not implemented";
        for key in ["is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"] {
            self.only_flag(NONE, key, false, encoder)?;
        }
        Ok(())
    }

    /// Keys of every configuration of transformers.
    fn same_for_all(&self) -> TensorResult<()> {
        self.one_stack()?;
        if self.has_object("architectures") {
            let known = |name: &str| name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel");
            let names = self.texts("architectures")?.unwrap_or_default();
            if names.is_empty() || !names.into_iter().all(known) {
                return Err(self.refuse(NONE, "architectures", "only models that predict the next token are implemented"));
            }
        }
        Ok(())
    }

    fn left_in_config(&self, path: &str, value: &Json) -> TensorResult<()> {
        let inside = format!("{path}.");
        let known = |asked: &BTreeSet<String>| (asked.contains(path), asked.iter().any(|a| a.starts_with(&inside)));
        match (known(&self.asked.borrow()), value) {
            // Null is what transformers writes for what is not set.
            ((true, _), _) | (_, Json::Null) => Ok(()),
            ((_, true), Json::Object(items)) => items.iter().try_for_each(|(k, v)| self.left_in_config(&format!("{inside}{k}"), v)),
            // What changes the model only by what it contains.
            (_, Json::Object(items)) if items.is_empty() => Ok(()),
            _ => Err(self.unknown(path, Raw::Hub(value))),
        }
    }

    /// Settings of a model stand below its architecture's name; what stands elsewhere describes the file or the tokenizer.
    fn left_in_gguf(&self, key: &str, value: Value<'_>) -> TensorResult<()> {
        let refused = |why: &str| Err(TensorError::Unsupported(format!("{}: `{key}` is {value}; {why}", self.weights.file())));
        let own = key.strip_prefix(self.architecture).and_then(|k| k.strip_prefix('.'));
        match (key, own) {
            (_, Some(k)) if WITHOUT_EFFECT_GGUF.iter().any(|(_, keys)| keys.contains(&k)) => Ok(()),
            (_, Some(_)) => Err(self.unknown(key, Raw::Gguf(value))),
            ("general.type", _) if !matches!(value.str(), Ok("model")) => refused("only whole models are implemented"),
            ("general.quantization_version", _) if !matches!(value.u64(), Ok(2)) => refused("blocks of version 2 are implemented"),
            ("split.count", _) if value.u64().is_ok_and(|n| n > 1) && self.weights.gguf().is_some_and(|g| g.files() == 1) => {
                refused("the other files of the model are not there")
            }
            _ => Ok(()),
        }
    }

    fn unknown(&self, key: &str, value: Raw<'_>) -> TensorError {
        let why = format!("this setting of a {} model is not implemented", self.architecture);
        TensorError::Unsupported(format!("{}: `{}` is {value}; {why}", self.weights.file(), clip(&self.path(key))))
    }
}
