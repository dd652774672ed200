//! A model's weights by name, from a GGUF file or a folder in Hub layout; without a copy if the device can read the file.

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::{Gguf, SafeTensors};
use crate::models::Projection;
use crate::models::decoder::names::Names;
use crate::models::quantized::{Blocks, Quantized};
use crate::models::rounding::Rounding;
use crate::models::settings::{NONE, Settings};
use crate::models::text_part::TextPart;
use crate::tensor::Tensor;
use half::f16;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

/// Weights under the names of their file.
pub struct Weights {
    source: WeightSource,
    /// The file that has the settings.
    file: String,
    device: Device,
    /// What activations are rounded to before they are multiplied by weights.
    rounding: Option<Rounding>,
}

enum WeightSource {
    Gguf(Gguf),
    Hub { files: SafeTensors, config: Json, text: Option<Box<TextPart>>, quantized: TensorResult<Option<Quantized>> },
}

impl Weights {
    /// Opens a GGUF file, a folder with `config.json` and safetensors, or one of those safetensors files.
    ///
    /// # Errors
    /// [`TensorError::Io`] where a file cannot be read, [`TensorError::Format`] where it is damaged, [`TensorError::Unsupported`] for a
    /// version of GGUF that is not supported.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::Weights;
    /// let device = Device::cpu();
    /// assert!(Weights::open("models/tiny/tiny.gguf", &device)?.gguf().is_some());
    /// assert!(Weights::open("tests/vectors/models/gpt2-odd", &device)?.is_hub());
    /// assert!(Weights::open("no/such/file.gguf", &device).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(path: impl AsRef<Path>, device: &Device) -> TensorResult<Weights> {
        let path = path.as_ref();
        let meta = std::fs::metadata(path).map_err(|e| TensorError::io(path, e))?;
        let hub = meta.is_dir() || path.extension().is_some_and(|e| e == "safetensors" || e == "json");
        if !hub {
            return Ok(Weights {
                source: WeightSource::Gguf(Gguf::open(path)?),
                file: path.display().to_string(),
                device: device.clone(),
                rounding: None,
            });
        }
        let folder = if meta.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let file = folder.join("config.json");
        let text = std::fs::read(&file).map_err(|e| TensorError::io(&file, e))?;
        let config = serde_json::from_slice(&text).or_else(|e| serde_json::from_slice(&with_infinities(&text)).map_err(|_| e));
        let config: Json = config.map_err(|e| TensorError::format("config", format!("{}: {e}", file.display())))?;
        let index = folder.join("model.safetensors.index.json");
        let files = SafeTensors::open(if index.exists() { index } else { folder.join("model.safetensors") })?;
        let quantized = Quantized::of(&config, &files);
        let text = TextPart::of(&config, files.tensors().iter().map(|t| &*t.name)).map(Box::new);
        Ok(Weights {
            source: WeightSource::Hub { files, config, text, quantized },
            file: file.display().to_string(),
            device: device.clone(),
            rounding: None,
        })
    }

    /// Weights of an opened GGUF file.
    pub fn from_gguf(gguf: Gguf, device: &Device) -> Weights {
        Weights { source: WeightSource::Gguf(gguf), file: "the GGUF file".into(), device: device.clone(), rounding: None }
    }

    /// These weights on another device.
    pub fn on(self, device: &Device) -> Weights {
        Weights { device: device.clone(), ..self }
    }

    /// Has what linear layers multiply by their weights rounded first (not their sums, nor anything between layers), as llama.cpp does on a processor.
    /// Activations in f16 and the weights of experts stay as they are.
    pub fn round_activations(self, to: Option<Rounding>) -> Weights {
        Weights { rounding: to, ..self }
    }

    /// The GGUF file, if it is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            WeightSource::Gguf(g) => Some(g),
            WeightSource::Hub { .. } => None,
        }
    }
    /// The settings of `config.json`, if it is a folder in Hub layout; those of texts where its model reads images or sounds too.
    pub(crate) fn config(&self) -> Option<&Json> {
        match &self.source {
            WeightSource::Gguf(_) => None,
            WeightSource::Hub { text: Some(text), .. } => Some(text.settings()),
            WeightSource::Hub { config, .. } => Some(config),
        }
    }
    /// The text side of a folder whose model reads images or sounds too.
    pub(crate) fn text_part(&self) -> Option<&TextPart> {
        match &self.source {
            WeightSource::Hub { text, .. } => text.as_deref(),
            WeightSource::Gguf(_) => None,
        }
    }
    /// The quantized layers of a folder, if it has any.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] where layers are quantized in a way that is not implemented; the message names the key, its value and the file.
    pub(crate) fn quantized(&self) -> TensorResult<Option<&Quantized>> {
        match &self.source {
            WeightSource::Hub { quantized: Ok(quantized), .. } => Ok(quantized.as_ref()),
            WeightSource::Hub { quantized: Err(TensorError::Unsupported(message)), .. } => {
                Err(TensorError::Unsupported(format!("{}: {message}", self.file)))
            }
            WeightSource::Hub { quantized: Err(e), .. } => Err(e.clone()),
            WeightSource::Gguf(_) => Ok(None),
        }
    }
    /// The file that contains the settings, for messages.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }
    /// The folder of `config.json`, if it is one in Hub layout.
    pub(crate) fn folder(&self) -> Option<&Path> {
        if self.is_hub() { Path::new(&self.file).parent() } else { None }
    }
    /// Whether tensors have Hugging Face's layouts: RoPE pairs in halves, GPT-2's matrices `[in,out]`.
    pub fn is_hub(&self) -> bool {
        matches!(self.source, WeightSource::Hub { .. })
    }
    /// The device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The architecture's name: that of the decoder of texts where the model reads images or sounds too.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file does not name it, or not as a string.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::Weights;
    /// assert_eq!(Weights::open("models/tiny/tiny.gguf", &Device::cpu())?.architecture()?, "gpt2");
    /// assert_eq!(Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?.architecture()?, "bert");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn architecture(&self) -> TensorResult<&str> {
        match (&self.source, self.config()) {
            (WeightSource::Gguf(g), _) => g.str("general.architecture"),
            (_, config) => {
                let name = config.and_then(|c| c["model_type"].as_str());
                name.ok_or_else(|| TensorError::format("config", "no `model_type`"))
            }
        }
    }

    /// The names of all tensors in the file.
    /// A quantized layer is its weight alone.
    pub fn stored_names(&self) -> Vec<String> {
        if let WeightSource::Hub { files, quantized: Ok(Some(quantized)), .. } = &self.source {
            return quantized.names(files);
        }
        let tensors = match &self.source {
            WeightSource::Gguf(g) => g.tensors(),
            WeightSource::Hub { files, .. } => files.tensors(),
        };
        tensors.iter().map(|t| t.name.to_string()).collect()
    }

    /// The names of all tensors in the file with their bytes there.
    pub fn stored_bytes(&self) -> Vec<(String, u64)> {
        let tensors = match &self.source {
            WeightSource::Gguf(g) => g.tensors(),
            WeightSource::Hub { files, .. } => files.tensors(),
        };
        tensors.iter().map(|t| (t.name.to_string(), t.range.len() as u64)).collect()
    }

    /// Whether the file has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        if let Ok(Some(known)) = self.quantized().map(|q| q.and_then(|q| q.knows(name))) {
            return known;
        }
        let tensors = match &self.source {
            WeightSource::Gguf(g) => g.tensors(),
            WeightSource::Hub { files, .. } => files.tensors(),
        };
        tensors.iter().any(|t| *t.name == *name)
    }

    /// A tensor by the file's name, whose shape is not known beforehand.
    ///
    /// # Errors
    /// [`TensorError::Format`] where there is no such tensor, [`TensorError::Unsupported`] where its type is not supported,
    /// [`TensorError::Io`] where the file was changed since it was opened; those of [`Tensor::from_bytes`].
    ///
    /// ```
    /// use tensorlogic::models::Weights;
    /// use tensorlogic::prelude::*;
    /// let weights = Weights::open("models/tiny/tiny.gguf", &Device::cpu())?;
    /// let table = weights.any("position_embd.weight")?;
    /// assert_eq!((table.dims(), table.dtype()), (&[256, 384][..], DType::F16));
    /// assert!(weights.any("no_such_tensor").is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn any(&self, name: &str) -> TensorResult<Tensor> {
        if let (WeightSource::Hub { files, .. }, Some(quantized)) = (&self.source, self.quantized()?)
            && let Some(Blocks { dtype, shape, bytes }) = quantized.weight(files, name)?
        {
            return Tensor::from_bytes(Bytes::Owned(Arc::new(bytes)), dtype, &shape, &self.device);
        }
        let gguf = match &self.source {
            WeightSource::Gguf(gguf) => gguf,
            WeightSource::Hub { files, .. } => return files.load(name, &self.device),
        };
        let info = gguf.tensor(name)?;
        let data = gguf.data_of(info).ok_or_else(|| TensorError::format("weights", format!("`{}` is outside its file", info.name)))?;
        data.check()?;
        let shared: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = data.clone();
        let bytes = Bytes::Shared(shared, info.range.start, info.range.len());
        Tensor::from_bytes(bytes, info.dtype()?, &info.shape, &self.device)
    }
}

/// The tensors of one model under GGUF's names (`blk.0.attn_q.weight`) and in its layouts, read once: a record of those that were asked for.
pub(crate) struct Tensors<'a> {
    weights: &'a Weights,
    settings: &'a Settings<'a>,
    names: &'a Names,
    /// The type of activations, which biases are added to.
    dtype: DType,
    asked: RefCell<BTreeSet<String>>,
    /// What was read, by GGUF's names.
    read: RefCell<Vec<(String, Tensor)>>,
}

impl<'a> Tensors<'a> {
    /// The tensors of the model that `settings` describe, none of them asked for yet; `names` are the Hub's.
    pub fn new(weights: &'a Weights, settings: &'a Settings<'a>, names: &'a Names, dtype: DType) -> Tensors<'a> {
        Tensors { weights, settings, names, dtype, asked: RefCell::default(), read: RefCell::default() }
    }

    /// Whether tensors have Hugging Face's layouts, as [`Weights::is_hub`].
    pub fn is_hub(&self) -> bool {
        self.weights.is_hub()
    }
    /// The device that tensors are put on.
    pub fn device(&self) -> &Device {
        &self.weights.device
    }
    /// The file's name of what GGUF calls `name`.
    fn stored(&self, name: &str) -> String {
        if !self.is_hub() {
            return self.names.gguf(name);
        }
        let [whole, bare] = self.names.hub(name);
        // Files of the first BERT models call the weights of norms so.
        let first = |name: &str| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        let others = self.names.spelled(&whole).chain([first(&whole), first(&bare), bare]).collect::<Vec<_>>();
        if self.weights.has(&whole) { whole } else { others.into_iter().find(|n| self.weights.has(n)).unwrap_or(whole) }
    }
    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.weights.has(&self.stored(name))
    }
    /// What was read, by GGUF's names and in its layouts.
    pub fn into_read(self) -> Vec<(String, Tensor)> {
        self.read.into_inner()
    }

    /// A tensor as the file has it, whose shape is not known beforehand.
    fn any(&self, name: &str) -> TensorResult<Tensor> {
        let stored = self.stored(name);
        let t = self.weights.any(&stored).map_err(|e| match e {
            TensorError::Format { format, message, path } if !self.weights.has(&stored) => {
                let message = format!("{message}; the settings ask for it ({})", self.settings.sizes());
                TensorError::Format { format, message, path }
            }
            e => e,
        });
        let t = t.and_then(|t| fractions(&stored, t));
        self.asked.borrow_mut().insert(stored);
        t
    }

    /// As [`Tensors::any`], of this shape.
    fn shaped(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        let t = self.any(name)?;
        if t.dims() != shape {
            let (stored, sizes) = (self.stored(name), self.settings.sizes());
            let message = format!("`{stored}` has shape {:?}; the settings ask for {shape:?} ({sizes})", t.dims());
            return Err(TensorError::format("weights", message));
        }
        Ok(t)
    }

    /// Records what was read, in GGUF's layout.
    fn keep(&self, name: &str, t: Tensor) -> Tensor {
        self.read.borrow_mut().push((name.to_string(), t.clone()));
        t
    }

    /// A tensor of this shape.
    ///
    /// # Errors
    /// When it is missing or has another shape; the message names the sizes that the settings give.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        Ok(self.keep(name, self.shaped(name, shape)?))
    }

    /// As [`Tensors::tensor`], of a matrix that is multiplied.
    fn matrix(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        Ok(self.keep(name, self.for_products(self.shaped(name, shape)?)?))
    }

    /// A matrix for products with activations of `dtype`. One in f32 or bf16 is converted to f16 where activations are f16 and the backend wants
    /// it so, unless one of its elements is beyond f16: the product of an f16 and a wider number is f32, and no matrix unit computes it.
    fn for_products(&self, t: Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        if let Some((dim, parts)) = t.parts() {
            let made = parts.iter().map(|part| self.for_products(part.clone())).collect::<TensorResult<Vec<_>>>()?;
            // Where one part is beyond f16, all stay as they are.
            let alike = made.iter().all(|part| part.dtype() == made[0].dtype());
            return if alike { Tensor::of_parts(dim, made, at) } else { Ok(t) };
        }
        let wider = matches!(t.dtype(), DType::F32 | DType::BF16);
        if !wider || self.dtype != DType::F16 || !self.device().capabilities().f16_weights {
            return Ok(t);
        }
        // A NaN is not below the limit either.
        match t.abs()?.max_all()?.item()? <= f16::MAX.to_f64() {
            true => evaluated(t.cast(DType::F16)?),
            false => Ok(t),
        }
    }

    /// A small tensor (norm weights, biases) `[len]` as f32.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn vector(&self, name: &str, len: usize) -> TensorResult<Tensor> {
        let t = self.shaped(name, &[len])?;
        Ok(self.keep(name, evaluated(t.cast(DType::F32)?)?))
    }

    /// The weights `[channels,1,taps]` of a convolution of each channel by itself (in GGUF `[channels,taps]`) as `[taps,channels]` in f32.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn taps(&self, name: &str, channels: usize, taps: usize) -> TensorResult<Tensor> {
        let t = if self.is_hub() { self.shaped(name, &[channels, 1, taps])?.squeeze(1)? } else { self.shaped(name, &[channels, taps])? };
        evaluated(self.keep(name, t).cast(DType::F32)?.t()?.contiguous()?)
    }

    /// As [`Tensors::taps`], of several tensors whose channels stand one after the other. Only their sum counts: transformers writes parts of
    /// equal size, whatever the sizes of what is convolved.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn taps_of_parts(&self, names: &[String], channels: usize, taps: usize) -> TensorResult<Tensor> {
        let part = |name: &String| -> TensorResult<Tensor> {
            let t = self.any(name)?;
            let t = match t.dims() {
                &[_, 1, n] if n == taps => t.squeeze(1)?,
                &[_, n] if n == taps && !self.is_hub() => t,
                &[1, channels, 1, n] if n == taps && !self.is_hub() => t.reshape(&[channels, n])?,
                dims => {
                    let message =
                        format!("`{}` has shape {dims:?}; the settings ask for {taps} taps ({})", self.stored(name), self.settings.sizes());
                    return Err(TensorError::format("weights", message));
                }
            };
            self.keep(name, t).cast(DType::F32)
        };
        let all = Tensor::cat(&names.iter().map(part).collect::<TensorResult<Vec<_>>>()?, 0)?;
        if all.dims()[0] != channels {
            let stored: Vec<String> = names.iter().map(|name| format!("`{}`", self.stored(name))).collect();
            let (found, sizes) = (all.dims()[0], self.settings.sizes());
            let message = format!("{} have {found} channels together; the settings ask for {channels} ({sizes})", stored.join(", "));
            return Err(TensorError::format("weights", message));
        }
        evaluated(all.t()?.contiguous()?)
    }

    /// The rates of decay −exp(a) of a state space, from the Hub's a; GGUF's converter has worked them out.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn decay_rates(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        let t = if self.is_hub() { self.shaped(name, shape)? } else { self.spread(name, shape)? }.cast(DType::F32)?;
        let t = if self.is_hub() { t.exp()?.neg()? } else { t };
        Ok(self.keep(name, evaluated(t)?))
    }

    /// A vector `[len]` as f32, whose elements GGUF's converter may have spread over several dimensions.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn elements(&self, name: &str, len: usize) -> TensorResult<Tensor> {
        if self.is_hub() {
            return self.vector(name, len);
        }
        Ok(self.keep(name, evaluated(self.spread(name, &[len])?.cast(DType::F32)?)?))
    }

    /// A tensor of GGUF with as many elements as this shape has, in it.
    fn spread(&self, name: &str, shape: &[usize]) -> TensorResult<Tensor> {
        let t = self.any(name)?;
        if t.numel() != shape.iter().product::<usize>() {
            return self.shaped(name, shape);
        }
        t.reshape(shape)
    }

    /// A tensor of one element.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn number(&self, name: &str) -> TensorResult<f32> {
        let t = self.keep(name, self.any(name)?.cast(DType::F32)?);
        match t.to_vec()?[..] {
            [v] => Ok(v),
            _ => Err(TensorError::format("weights", format!("`{}` has shape {}; expected one element", self.stored(name), t.shape()))),
        }
    }

    /// The weights `[heads,size]` of norms of heads as f32: one tensor, or one for each head.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn norm_of_heads(&self, name: &str, heads: usize, size: usize, plus_one: bool) -> TensorResult<Tensor> {
        let part = |h: usize| format!("{name}.norms.{h}");
        if !self.is_hub() || !self.weights.has(&self.stored_part(name, &part(0))) {
            return self.norm(&format!("{name}.weight"), &[heads, size], plus_one);
        }
        let rows = (0..heads).map(|h| {
            let stored = self.stored_part(name, &part(h));
            self.asked.borrow_mut().insert(stored.clone());
            let row = fractions(&stored, self.weights.any(&stored)?)?.cast(DType::F32)?;
            match row.dims() == [size] {
                true => Ok(row),
                false => Err(TensorError::format("weights", format!("`{stored}` has shape {}; expected [{size}]", row.shape()))),
            }
        });
        let t = Tensor::stack(&rows.collect::<TensorResult<Vec<_>>>()?, 0)?;
        Ok(self.keep(&format!("{name}.weight"), evaluated(if plus_one { t.add(1.0)? } else { t })?))
    }

    /// The file's name of the weight of a part of `name`.
    fn stored_part(&self, name: &str, part: &str) -> String {
        let behind = part.strip_prefix(name).unwrap_or_default();
        let whole = self.stored(&format!("{name}.weight"));
        format!("{}{behind}.weight", whole.strip_suffix(".weight").unwrap_or(&whole))
    }

    /// The weights of a norm as f32; if `plus_one`, the Hub has them without the 1 that GGUF's converter adds.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn norm(&self, name: &str, shape: &[usize], plus_one: bool) -> TensorResult<Tensor> {
        let t = self.shaped(name, shape)?.cast(DType::F32)?;
        let t = if plus_one && self.is_hub() { t.add(1.0)? } else { t };
        Ok(self.keep(name, evaluated(t)?))
    }

    /// The token embedding table `[vocabulary,width]`, with as many rows as the settings give.
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn embedding(&self, width: usize) -> TensorResult<Tensor> {
        let t = self.any("token_embd.weight")?;
        let stored = self.stored("token_embd.weight");
        if t.rank() != 2 || t.dims()[1] != width {
            let sizes = self.settings.sizes();
            let message = format!("`{stored}` has shape {}; expected [vocabulary,{width}] ({sizes})", t.shape());
            return Err(TensorError::format("weights", message));
        }
        // Models of images and texts have the size among the text's settings.
        for key in ["vocab_size", "text_config.vocab_size"] {
            if self.settings.size("vocab_size", key, 1 << 31)?.is_some_and(|n| n != t.dims()[0]) {
                return Err(self.settings.refuse("vocab_size", key, &format!("`{stored}` has shape {}", t.shape())));
            }
        }
        Ok(self.keep("token_embd.weight", self.for_products(t)?))
    }

    /// A linear layer `name.weight` `[out,in]` with `name.bias`. If `bias` is `None`, the bias is loaded if present.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize, bias: Option<bool>) -> TensorResult<Projection> {
        self.linear_in_order(name, inputs, outputs, bias, None)
    }

    /// As [`Tensors::linear`], with the Hub's rows put in GGUF's order by `sorted`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn linear_by(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: Option<bool>,
        sorted: impl Fn(&Tensor) -> TensorResult<Tensor>,
    ) -> TensorResult<Projection> {
        self.linear_in_order(name, inputs, outputs, bias, if self.is_hub() { Some(&sorted) } else { None })
    }

    fn linear_in_order(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: Option<bool>,
        sorted: Option<&InOrder<'_>>,
    ) -> TensorResult<Projection> {
        let (own, bias_name) = (format!("{name}.weight"), format!("{name}.bias"));
        let in_order = |t: Tensor| sorted.map_or_else(|| Ok(t.clone()), |sorted| evaluated(sorted(&t)?));
        let weight = match self.is_hub() && self.names.transposed {
            true => evaluated(self.shaped(&own, &[inputs, outputs])?.t()?.contiguous()?)?,
            false => self.shaped(&own, &[outputs, inputs])?,
        };
        let weight = self.keep(&own, self.for_products(in_order(weight)?)?);
        let numbers = || Tensor::arange(0.0, outputs as f64, 1.0, DType::I32, &Device::cpu());
        let file_rows = sorted.map(|sorted| Ok(sorted(&numbers()?)?.to_vec_of::<i32>()?.into())).transpose()?;
        let bias = match bias.unwrap_or_else(|| self.has(&bias_name)) {
            true => Some(in_order(self.shaped(&bias_name, &[outputs])?.cast(DType::F32)?)?),
            false => None,
        };
        // Files keep biases in f32; what they are added to is of `dtype`.
        let bias = bias.map(|b| evaluated(self.keep(&bias_name, b).cast(self.dtype)?)).transpose()?;
        Ok(Projection { file_rows, ..self.projection(weight, bias) })
    }

    /// A layer that rounds what it reads where that is wanted.
    fn projection(&self, weight: Tensor, bias: Option<Tensor>) -> Projection {
        let rounding = self.weights.rounding.filter(|r| self.dtype == DType::F32 && r.is_for(weight.dtype()));
        Projection { rounding, ..Projection::new(weight, bias) }
    }

    /// Linear layers without biases: in GGUF one tensor `[count,outputs,inputs]`, on the Hub one of each number.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn linears(&self, name: &str, [count, outputs, inputs]: [usize; 3]) -> TensorResult<Vec<Projection>> {
        if self.is_hub() {
            return (0..count).map(|k| self.linear(&format!("{name}.{k}"), inputs, outputs, Some(false))).collect();
        }
        let all = self.shaped(&format!("{name}.weight"), &[count, outputs, inputs])?;
        let all = if all.dtype().is_block() { all.cast(DType::F32)? } else { all };
        let one = |k: usize| self.for_products(evaluated(all.narrow(0, k, 1)?.squeeze(0)?.contiguous()?)?);
        (0..count).map(|k| Ok(self.projection(one(k)?, None))).collect()
    }

    /// The matrices of experts `[count,outputs,inputs]` that GGUF calls `name`; a folder may have a tensor for each.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn experts(&self, name: &str, [count, outputs, inputs]: [usize; 3]) -> TensorResult<Tensor> {
        let own = format!("{name}.weight");
        let [pattern, bare] = self.names.hub(&own);
        if !self.is_hub() || !pattern.contains('*') {
            return self.matrix(&own, &[count, outputs, inputs]);
        }
        let one = |e: usize| {
            let [whole, bare] = [&pattern, &bare].map(|n| n.replace('*', &e.to_string()));
            let stored = if !self.weights.has(&whole) && self.weights.has(&bare) { bare } else { whole };
            self.asked.borrow_mut().insert(stored.clone());
            let t = fractions(&stored, self.weights.any(&stored)?)?;
            match t.dims() == [outputs, inputs] {
                true => Ok(t),
                false => {
                    let message = format!(
                        "`{stored}` has shape {}; the settings ask for [{outputs},{inputs}] ({})",
                        t.shape(),
                        self.settings.sizes()
                    );
                    Err(TensorError::format("weights", message))
                }
            }
        };
        let all = (0..count).map(one).collect::<TensorResult<Vec<_>>>()?;
        Ok(self.keep(&own, self.for_products(self.stacked(&all)?)?))
    }

    /// Matrices of one shape as one tensor, in parts where no buffer of the device holds all of them.
    fn stacked(&self, all: &[Tensor]) -> TensorResult<Tensor> {
        let whole = Tensor::stack(all, 0)?;
        let most = self.device().capabilities().max_tensor_bytes;
        let each = whole.dtype().bytes(whole.numel() / all.len()).unwrap_or(usize::MAX);
        if each.saturating_mul(all.len()) <= most || most < each {
            return evaluated(whole);
        }
        let parts = all.chunks(most / each).map(|some| evaluated(Tensor::stack(some, 0)?)).collect::<TensorResult<_>>()?;
        Tensor::of_parts(0, parts, Location::caller())
    }

    /// A vector `[len]`, or a row `[1,len]`, as f32.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn flat_vector(&self, name: &str, len: usize) -> TensorResult<Tensor> {
        let t = self.any(name)?;
        match t.dims() {
            &[1, n] if n == len => Ok(self.keep(name, evaluated(t.reshape(&[len])?.cast(DType::F32)?)?)),
            _ => self.vector(name, len),
        }
    }

    /// A linear layer with one output, whose weight `name.weight` is `[1,inputs]` or `[inputs]`.
    ///
    /// # Errors
    /// As for [`Tensors::tensor`].
    pub fn linear_or_vector(&self, name: &str, inputs: usize) -> TensorResult<Projection> {
        let weight = self.flat_vector(&format!("{name}.weight"), inputs)?;
        Ok(Projection::new(evaluated(weight.reshape(&[1, inputs])?.cast(self.dtype)?)?, None))
    }

    /// What one tensor of a folder has of several that GGUF has, as `parts` makes them of it.
    ///
    /// # Errors
    /// If it is missing or has another shape; those of `parts`.
    pub fn split<const N: usize>(
        &self,
        name: &str,
        shape: &[usize],
        into: [&str; N],
        parts: impl Fn(&Tensor) -> TensorResult<[Tensor; N]>,
    ) -> TensorResult<[Tensor; N]> {
        let whole = self.shaped(name, shape)?;
        let whole = if name.ends_with(".bias") { whole } else { self.for_products(whole)? };
        let made = parts(&whole)?.into_iter().zip(into).map(|(t, name)| Ok(self.keep(name, evaluated(t.contiguous()?)?)));
        let made = made.collect::<TensorResult<Vec<_>>>()?;
        made.try_into().map_err(|_| TensorError::Internal(format!("not {N} parts of `{name}`")))
    }

    /// The matrices of keys `[H,rank,plain]` and values `[H,value,rank]` of latents: joint, or as GGUF's converter separates them.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn latent_keys_values(&self, layer: &str, [heads, plain, value, rank]: [usize; 4]) -> TensorResult<[Tensor; 2]> {
        let [k, v, joint] = ["attn_k_b", "attn_v_b", "attn_kv_b"].map(|part| format!("{layer}.{part}.weight"));
        if !self.is_hub() && !self.has(&joint) {
            return Ok([self.matrix(&k, &[heads, rank, plain])?, self.matrix(&v, &[heads, value, rank])?]);
        }
        self.split(&joint, &[heads * (plain + value), rank], [&k, &v], |t| {
            let t = t.reshape(&[heads, plain + value, rank])?;
            Ok([t.narrow(1, 0, plain)?.transpose(1, 2)?, t.narrow(1, plain, value)?])
        })
    }

    /// The layer that computes logits: `output.weight`, or `embedding` if the file has none and `tie_word_embeddings` (`tied` if
    /// `config.json` has no such key) allows it.
    ///
    /// # Errors
    /// If the weight is missing or has another shape.
    pub fn head(&self, embedding: &Tensor, tied: bool, bias: bool) -> TensorResult<Projection> {
        let tied = self.settings.flag(NONE, "tie_word_embeddings")?.unwrap_or(tied || !self.is_hub());
        let [vocab, width] = embedding.dims() else { return Err(TensorError::format("weights", "the token embedding is not a matrix")) };
        if self.has("output.weight") {
            // Files that repeat the embedding here are as common as files where it is another matrix.
            let weight = self.matrix("output.weight", &[*vocab, *width])?;
            let bias = if bias { Some(self.vector("output.bias", *vocab)?) } else { None };
            return Ok(self.projection(weight, bias));
        }
        if !tied {
            let message = format!("`tie_word_embeddings` is false, and there is no tensor `{}`", self.stored("output.weight"));
            return Err(self.settings.wrong(message));
        }
        let bias = if bias { Some(self.vector("output.bias", *vocab)?) } else { None };
        Ok(self.projection(embedding.clone(), bias))
    }

    /// Counts what was asked for here as asked for there.
    pub fn add_to(self, other: &Tensors<'_>) {
        other.asked.borrow_mut().extend(self.asked.into_inner());
    }

    /// Accepts a tensor that the model has no use for.
    pub fn skip(&self, name: &str) {
        self.asked.borrow_mut().insert(self.stored(name));
    }

    /// The tensors that were not used, except those whose names end with one of `unused` or begin with one of `left_out`.
    pub fn left(&self, unused: &[&str], left_out: &[String]) -> Vec<String> {
        let asked = self.asked.borrow();
        let known = |name: &String| unused.iter().any(|end| name.ends_with(end)) || left_out.iter().any(|start| name.starts_with(start));
        self.weights.stored_names().into_iter().filter(|name| !asked.contains(name) && !known(name)).collect()
    }

    /// The starts of `left_out` that tensors have, how many have each, and their bytes in the file.
    pub fn parts_left_out<'s>(&self, left_out: &'s [String]) -> Vec<(&'s str, usize, u64)> {
        let all = self.weights.stored_bytes();
        let part = |start: &'s String| {
            let sizes: Vec<u64> = all.iter().filter(|(name, _)| name.starts_with(start.as_str())).map(|(_, n)| *n).collect();
            (start.as_str(), sizes.len(), sizes.iter().sum())
        };
        left_out.iter().map(part).filter(|(_, count, _)| *count > 0).collect()
    }

    /// Refuses every tensor that was not used, except those whose names end with one of `unused` or begin with one of `left_out`.
    ///
    /// # Errors
    /// Names the first such tensor and the sizes that the settings give.
    pub fn finish(&self, unused: &[&str], left_out: &[String]) -> TensorResult<()> {
        match self.left(unused, left_out).into_iter().next() {
            Some(name) => {
                let (sizes, file) = (self.settings.sizes(), self.weights.file());
                Err(TensorError::Unsupported(format!("the tensor `{name}` has no place in the model that {file} describes ({sizes})")))
            }
            None => Ok(()),
        }
    }
}

/// Puts the Hub's rows in GGUF's order.
type InOrder<'f> = dyn Fn(&Tensor) -> TensorResult<Tensor> + 'f;

/// The text with Python's bare `Infinity`, which JSON does not have, as transformers 5 writes it: `{"__float__": "Infinity"}`.
fn with_infinities(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut quoted) = (Vec::with_capacity(text.len() + 64), text, false);
    while let Some((&byte, behind)) = rest.split_first() {
        let word = [&b"-Infinity"[..], b"Infinity"].into_iter().find(|w| !quoted && rest.starts_with(w));
        if let Some(word) = word {
            out.extend([&b"{\"__float__\": \""[..], word, b"\"}"].concat());
            rest = &rest[word.len()..];
            continue;
        }
        out.push(byte);
        rest = behind;
        match byte {
            b'"' => quoted = !quoted,
            // What follows is a part of the text, a quote too.
            b'\\' if quoted => {
                out.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    out
}

/// The tensor called `stored`, unless it is one of integers.
fn fractions(stored: &str, t: Tensor) -> TensorResult<Tensor> {
    match t.dtype().is_float() {
        true => Ok(t),
        false => Err(TensorError::format("weights", format!("`{stored}` is {}; weights are fractions", t.dtype()))),
    }
}

/// The tensor in memory.
fn evaluated(t: Tensor) -> TensorResult<Tensor> {
    for part in t.parts().map_or(std::slice::from_ref(&t), |(_, parts)| parts) {
        part.eval()?;
    }
    Ok(t)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bare_infinities_become_json() {
        let text = br#"{"a": [0.0, Infinity, -Infinity], "b": "Infinity \" Infinity"}"#;
        let json: serde_json::Value = serde_json::from_slice(&super::with_infinities(text)).unwrap();
        assert_eq!(json["a"][1]["__float__"], "Infinity");
        assert_eq!(json["a"][2]["__float__"], "-Infinity");
        assert_eq!(json["b"], "Infinity \" Infinity");
    }
}
