//! Layers: modules with named parameters, as in PyTorch's `torch.nn`.

mod conv;
mod dropout;
mod embedding;
mod gpt_files;
pub mod init;
mod linear;
mod lora;
mod norm;
mod param;
mod sequential;
mod transformer;

pub use conv::{AvgPool2d, Conv1d, Conv2d, MaxPool2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use linear::Linear;
pub use lora::{Lora, LoraConfig};
pub use norm::{LayerNorm, RMSNorm};
pub use param::Param;
pub use sequential::{Act, Flatten, Mlp, Sequential};
pub use transformer::{Gpt, GptConfig, MultiHeadAttention};

use crate::error::{TensorError, TensorResult};
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// A layer or a model.
pub trait Module: Send + Sync {
    /// The result for an input.
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor>;
    /// Its own parameters with their names.
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        Vec::new()
    }
    /// The modules inside it with their names.
    fn children(&self) -> Vec<(String, &dyn Module)> {
        Vec::new()
    }
    /// Told when training begins (`true`) or ends; only what behaves differently listens.
    fn on_mode(&self, _training: bool) {}
    /// Where its own random stream stands, if it has one.
    fn random(&self) -> Option<Rng> {
        None
    }
    /// Sets where its own random stream stands.
    fn set_random(&self, _stream: Rng) {}
}

impl dyn Module + '_ {
    /// Every parameter with PyTorch's dotted name, the key space of safetensors. One that stands in several places has its first name.
    pub fn named_parameters(&self) -> Vec<(String, Param)> {
        let mut out: Vec<(String, Param)> = Vec::new();
        collect(self, "", &mut out);
        out
    }

    /// Where every random stream inside stands: seed and draws made, by the module's dotted name. For checkpoints.
    pub fn random_state(&self) -> BTreeMap<String, (u64, u32)> {
        let mut out = BTreeMap::new();
        walk(self, "", &mut |name, m| {
            if let Some(r) = m.random() {
                out.insert(name.to_string(), (r.seed, r.draws));
            }
        });
        out
    }

    /// Sets where every random stream stands.
    ///
    /// # Errors
    /// When a stream has no state of its name; nothing is set then.
    pub fn load_random_state(&self, state: &BTreeMap<String, (u64, u32)>) -> TensorResult<()> {
        let mut missing = None;
        walk(self, "", &mut |name, m| {
            if m.random().is_some() && !state.contains_key(name) {
                missing = Some(name.to_string());
            }
        });
        if let Some(name) = missing {
            return Err(TensorError::Value(format!("there is no random state for the module {name}")));
        }
        walk(self, "", &mut |name, m| {
            if let (Some(_), Some(&(seed, draws))) = (m.random(), state.get(name)) {
                m.set_random(Rng { seed, draws });
            }
        });
        Ok(())
    }
}

fn walk(m: &dyn Module, path: &str, f: &mut dyn FnMut(&str, &dyn Module)) {
    f(path, m);
    for (name, child) in m.children() {
        let dot = if path.is_empty() { "" } else { "." };
        walk(child, &format!("{path}{dot}{name}"), f);
    }
}

fn collect(m: &dyn Module, path: &str, out: &mut Vec<(String, Param)>) {
    for (name, p) in m.own_parameters() {
        if !out.iter().any(|(_, q)| q.same(p)) {
            out.push((format!("{path}{name}"), p.clone()));
        }
    }
    for (name, child) in m.children() {
        collect(child, &format!("{path}{name}."), out);
    }
}

/// What every module can do.
pub trait ModuleExt: Module {
    /// Every parameter with PyTorch's dotted name. One that stands in several places has its first name.
    fn named_parameters(&self) -> Vec<(String, Param)>;
    /// Every parameter.
    fn parameters(&self) -> Vec<Param> {
        self.named_parameters().into_iter().map(|(_, p)| p).collect()
    }
    /// Begins training: dropout drops.
    fn train(&self);
    /// Ends training: dropout passes everything on.
    fn eval(&self);
    /// How many numbers its parameters hold.
    fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|p| p.get().numel()).sum()
    }
    /// Where every random stream inside (dropout's) stands, by the module's dotted name.
    fn random_state(&self) -> BTreeMap<String, (u64, u32)>;
    /// Sets where every random stream stands.
    ///
    /// # Errors
    /// When a stream has no state of its name; nothing is set then.
    fn load_random_state(&self, state: &BTreeMap<String, (u64, u32)>) -> TensorResult<()>;
    /// Forgets all gradients.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Param::zero_grad);
    }
    /// Collects no gradients from here on (`false`), or does again.
    fn set_trainable(&self, on: bool) -> TensorResult<()> {
        self.parameters().iter().try_for_each(|p| p.set_trainable(on))
    }
    /// The parameters' values by name.
    fn state(&self) -> BTreeMap<String, Tensor> {
        self.named_parameters().into_iter().map(|(n, p)| (n, p.get().detach())).collect()
    }
    /// Replaces every parameter by the value of its name.
    ///
    /// # Errors
    /// When a name is missing or a shape differs; nothing is replaced then.
    fn load_state(&self, values: &BTreeMap<String, Tensor>) -> TensorResult<()> {
        let own = self.named_parameters();
        for (name, p) in &own {
            let Some(v) = values.get(name) else { return Err(TensorError::Value(format!("there is no value for the parameter {name}"))) };
            if v.shape() != p.get().shape() {
                return Err(TensorError::Value(format!("{name} is {}, the value {}", p.get().shape(), v.shape())));
            }
        }
        own.iter().try_for_each(|(name, p)| p.set(&values[name].cast(p.get().dtype())?.to_device(p.get().device())?))
    }
}

impl<M: Module> ModuleExt for M {
    fn named_parameters(&self) -> Vec<(String, Param)> {
        (self as &dyn Module).named_parameters()
    }
    fn train(&self) {
        set_mode(self, true);
    }
    fn eval(&self) {
        set_mode(self, false);
    }
    fn random_state(&self) -> BTreeMap<String, (u64, u32)> {
        (self as &dyn Module).random_state()
    }
    fn load_random_state(&self, state: &BTreeMap<String, (u64, u32)>) -> TensorResult<()> {
        (self as &dyn Module).load_random_state(state)
    }
}

fn set_mode(m: &dyn Module, training: bool) {
    m.on_mode(training);
    m.children().iter().for_each(|(_, c)| set_mode(*c, training));
}
