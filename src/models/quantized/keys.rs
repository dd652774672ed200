//! The keys of a folder's settings of quantization: each is honoured, or refused by name and value.

use crate::error::{TensorError, TensorResult};
use serde_json::{Map, Value as Json};

/// An object of `config.json`, with its path for messages.
pub(super) struct Keys<'a> {
    path: String,
    object: &'a Map<String, Json>,
    all: &'a Json,
}

impl<'a> Keys<'a> {
    /// The object at a key.
    pub fn new(path: impl Into<String>, value: &'a Json) -> TensorResult<Keys<'a>> {
        let path = path.into();
        match value.as_object() {
            Some(object) => Ok(Keys { path, object, all: value }),
            None => Err(TensorError::Unsupported(format!("`{path}` is {value}; expected an object"))),
        }
    }

    pub fn same(&self, other: &Keys) -> bool {
        self.all == other.all
    }
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }
    /// A value that is not null.
    pub fn get(&self, key: &str) -> Option<&'a Json> {
        self.object.get(key).filter(|v| !v.is_null())
    }
    pub fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Json)> {
        self.object.iter()
    }

    /// The refusal of all of it.
    pub fn refuse(&self, why: &str) -> TensorError {
        TensorError::Unsupported(format!("`{}` is {}; {why}", self.path, self.all))
    }
    /// The refusal of a key.
    pub fn refuse_key(&self, key: &str, why: &str) -> TensorError {
        let value = self.object.get(key).unwrap_or(&Json::Null);
        TensorError::Unsupported(format!("`{}.{key}` is {value}; {why}", self.path))
    }

    /// Refuses keys that are not among these.
    pub fn only(&self, known: &[&str]) -> TensorResult<()> {
        match self.object.iter().find(|(k, v)| !v.is_null() && !known.contains(&k.as_str())) {
            Some((k, _)) => Err(self.refuse_key(k, "this setting of quantized weights is not implemented")),
            None => Ok(()),
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> TensorResult<Option<&'a str>> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| self.refuse_key(key, "expected a text"))).transpose()
    }
    /// A count; −1 stands for a whole row.
    pub fn size(&self, key: &str) -> TensorResult<Option<usize>> {
        let size = |v: &Json| match v.as_i64() {
            Some(-1) => Ok(usize::MAX),
            Some(n) if n > 0 && n < 1 << 24 => Ok(n as usize),
            _ => Err(self.refuse_key(key, "expected a count")),
        };
        self.get(key).map(size).transpose()
    }
    /// A count that must be there.
    pub fn needed(&self, key: &str) -> TensorResult<usize> {
        self.size(key)?.ok_or_else(|| self.refuse(&format!("`{key}` is missing")))
    }
    /// A switch.
    pub fn flag(&self, key: &str) -> TensorResult<Option<bool>> {
        self.get(key).map(|v| v.as_bool().ok_or_else(|| self.refuse_key(key, "expected true or false"))).transpose()
    }

    /// The weights' settings of a folder of compressed-tensors, which has one group of layers.
    pub fn compressed_group(&self) -> TensorResult<Keys<'a>> {
        self.only(&[
            "quant_method",
            "format",
            "config_groups",
            "ignore",
            "quantization_status",
            "global_compression_ratio",
            "version",
            "sparsity_config",
            "transform_config",
        ])?;
        for key in ["sparsity_config", "transform_config"] {
            if self.get(key).is_some_and(|v| v.as_object().is_none_or(|o| !o.is_empty())) {
                return Err(self.refuse_key(key, "this part of compressed-tensors is not implemented"));
            }
        }
        let groups = Keys::new(format!("{}.config_groups", self.path), self.get("config_groups").unwrap_or(&Json::Null))?;
        let mut all = groups.iter();
        let (Some((name, group)), None) = (all.next(), all.next()) else {
            return Err(groups.refuse("one group of layers is implemented"));
        };
        // What activations were rounded to, they are not rounded to here.
        let group = Keys::new(format!("{}.{name}", groups.path), group)?;
        group.only(&["targets", "weights", "input_activations", "output_activations", "format"])?;
        let weights = Keys::new(format!("{}.weights", group.path), group.get("weights").unwrap_or(&Json::Null))?;
        weights.only(&[
            "num_bits",
            "type",
            "symmetric",
            "strategy",
            "group_size",
            "block_structure",
            "dynamic",
            "observer",
            "observer_kwargs",
            "actorder",
            "scale_dtype",
            "zp_dtype",
        ])?;
        if weights.flag("dynamic")? == Some(true) {
            return Err(weights.refuse_key("dynamic", "weights are read, not quantized"));
        }
        Ok(weights)
    }
}
