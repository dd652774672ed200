//! Layers: modules with named parameters, as in PyTorch's `torch.nn`.

mod attention;
mod checkpointed;
mod conv;
mod dropout;
mod embedding;
mod encoder;
mod gpt_files;
pub mod init;
mod linear;
mod lora;
mod norm;
mod param;
mod sequential;
mod transformer;

pub use attention::MultiHeadAttention;
pub use checkpointed::checkpointed;
pub use conv::{AvgPool2d, Conv1d, Conv2d, MaxPool2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use encoder::{EncoderBlock, EncoderConfig};
pub use linear::Linear;
pub use lora::{Lora, LoraConfig};
pub use norm::{LayerNorm, RMSNorm};
pub use param::Param;
pub use sequential::{Act, Flatten, Mlp, Sequential};
pub use transformer::{Gpt, GptConfig};

use crate::error::{TensorError, TensorResult};
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// `dim` rounded up to a multiple of `multiple`, so that the rows of a matrix begin at whole vectors and tiles are full: GPT-2's vocabulary of 50,257
/// becomes 50,304. A `multiple` of 0 counts as 1.
///
/// ```
/// assert_eq!(tensorlogic::nn::align(50_257, 64), 50_304);
/// ```
pub const fn align(dim: usize, multiple: usize) -> usize {
    let multiple = if multiple == 0 { 1 } else { multiple };
    dim.div_ceil(multiple) * multiple
}

/// A layer or a model.
///
/// ```
/// use tensorlogic::nn::ModuleExt;
/// use tensorlogic::prelude::*;
///
/// /// A factor that is learned.
/// struct Scale(Param);
///
/// impl Module for Scale {
///     fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
///         x.mul(&self.0.get())
///     }
///     fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
///         vec![("scale", &self.0)]
///     }
/// }
///
/// let scale = Scale(Param::new(&Tensor::new(&[3.0], &Device::cpu())?)?);
/// assert_eq!(scale.forward(&Tensor::new(&[1.0, 2.0], &Device::cpu())?)?.to_vec()?, [3.0, 6.0]);
/// assert_eq!(scale.named_parameters()[0].0, "scale");
/// # Ok::<(), TensorError>(())
/// ```
pub trait Module: Send + Sync {
    /// The result for an input.
    ///
    /// # Errors
    /// When the input's shape, dtype or device does not suit the module.
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor>;
    /// Its own parameters with their names.
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        Vec::new()
    }
    /// The modules inside it with their names.
    fn children(&self) -> Vec<(String, &dyn Module)> {
        Vec::new()
    }
    /// Called when training starts (`true`) or ends. Modules that behave differently in training override it.
    fn on_mode(&self, _training: bool) {}
    /// The state of its own random stream, if it has one.
    fn random(&self) -> Option<Rng> {
        None
    }
    /// Restores the state of its own random stream.
    fn set_random(&self, _stream: Rng) {}
}

impl dyn Module + '_ {
    /// Every parameter with PyTorch's dotted name, the key space of safetensors. A shared parameter is listed once, under its first name.
    pub fn named_parameters(&self) -> Vec<(String, Param)> {
        let mut out: Vec<(String, Param)> = Vec::new();
        collect(self, "", &mut out);
        out
    }

    /// The state of every random stream inside (seed and number of draws) by the module's dotted name. For checkpoints.
    pub fn random_state(&self) -> BTreeMap<String, (u64, u32)> {
        let mut out = BTreeMap::new();
        walk(self, "", &mut |name, m| {
            if let Some(r) = m.random() {
                out.insert(name.to_string(), (r.seed, r.draws));
            }
        });
        out
    }

    /// Restores the state of every random stream.
    ///
    /// # Errors
    /// If a stream has no state of its name; then nothing changes.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::Dropout;
    ///
    /// let (drop, x) = (Dropout::new(0.5, 7), Tensor::ones(&[16], DType::F32, &Device::cpu())?);
    /// let module: &dyn Module = &drop;
    /// let before = module.random_state();
    /// let first = drop.forward(&x)?.to_vec()?;
    /// module.load_random_state(&before)?;
    /// assert_eq!(drop.forward(&x)?.to_vec()?, first); // the same draw again
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load_random_state(&self, state: &BTreeMap<String, (u64, u32)>) -> TensorResult<()> {
        let mut missing = None;
        walk(self, "", &mut |name, m| {
            if m.random().is_some() && !state.contains_key(name) {
                missing = Some(name.to_string());
            }
        });
        if let Some(name) = missing {
            return Err(TensorError::Value(format!("no random state for the module {name}")));
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

/// Methods of every module.
pub trait ModuleExt: Module {
    /// Every parameter with PyTorch's dotted name. A shared parameter is listed once, under its first name.
    fn named_parameters(&self) -> Vec<(String, Param)>;
    /// All parameters.
    fn parameters(&self) -> Vec<Param> {
        self.named_parameters().into_iter().map(|(_, p)| p).collect()
    }
    /// Switches to training mode: dropout is active.
    fn train(&self);
    /// Switches to evaluation mode: dropout is inactive.
    fn eval(&self);
    /// The total number of elements of its parameters.
    fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|p| p.get().numel()).sum()
    }
    /// The state of every random stream inside (of dropout) by the module's dotted name.
    fn random_state(&self) -> BTreeMap<String, (u64, u32)>;
    /// Restores the state of every random stream.
    ///
    /// # Errors
    /// If a stream has no state of its name; then nothing changes.
    ///
    /// ```
    /// use tensorlogic::nn::{Dropout, ModuleExt};
    /// use tensorlogic::prelude::*;
    /// let (drop, x) = (Dropout::new(0.5, 7), Tensor::ones(&[16], DType::F32, &Device::cpu())?);
    /// let before = drop.random_state();
    /// let first = drop.forward(&x)?.to_vec()?;
    /// drop.load_random_state(&before)?;
    /// assert_eq!(drop.forward(&x)?.to_vec()?, first); // the same draw again
    /// # Ok::<(), TensorError>(())
    /// ```
    fn load_random_state(&self, state: &BTreeMap<String, (u64, u32)>) -> TensorResult<()>;
    /// Clears all gradients.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Param::zero_grad);
    }
    /// Disables (`false`) or enables gradients of all parameters.
    ///
    /// # Errors
    /// Those of [`Param::set_trainable`].
    ///
    /// ```
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::prelude::*;
    /// let layer = Linear::new(4, 2, true, &mut Rng::new(0), &Device::cpu())?;
    /// layer.set_trainable(false)?;
    /// assert!(layer.parameters().iter().all(|p| !p.is_trainable()));
    /// # Ok::<(), TensorError>(())
    /// ```
    fn set_trainable(&self, on: bool) -> TensorResult<()> {
        self.parameters().iter().try_for_each(|p| p.set_trainable(on))
    }
    /// The parameters' values by name.
    fn state(&self) -> BTreeMap<String, Tensor> {
        self.named_parameters().into_iter().map(|(n, p)| (n, p.get().detach())).collect()
    }
    /// Replaces every parameter by the value with its name.
    ///
    /// # Errors
    /// If a name is missing or a shape differs; then nothing is replaced.
    ///
    /// ```
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::prelude::*;
    /// let mut rng = Rng::new(0);
    /// let [a, b] = [(); 2].map(|_| Linear::new(4, 2, true, &mut rng, &Device::cpu()));
    /// let (a, b) = (a?, b?);
    /// b.load_state(&a.state())?;
    /// let x = Tensor::ones(&[1, 4], DType::F32, &Device::cpu())?;
    /// assert_eq!(a.forward(&x)?.to_vec()?, b.forward(&x)?.to_vec()?);
    /// # Ok::<(), TensorError>(())
    /// ```
    fn load_state(&self, values: &BTreeMap<String, Tensor>) -> TensorResult<()> {
        let own = self.named_parameters();
        for (name, p) in &own {
            let Some(v) = values.get(name) else { return Err(TensorError::Value(format!("no value for the parameter {name}"))) };
            if v.shape() != p.get().shape() {
                return Err(TensorError::Value(format!("{name} has shape {}, the value {}", p.get().shape(), v.shape())));
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
