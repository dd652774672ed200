//! Towers for images: ViT, DINOv2 and SigLIP; pairs of towers, for images and for texts: CLIP and SigLIP; and from image files to what they read.

#[cfg(feature = "images")]
mod decode;
pub(crate) mod description;
mod pair;
mod pool;
mod processor;
mod processor_settings;
mod resample;
mod rgb_image;

pub use pair::{ImageTextModel, Similarity};
pub use processor::ImageProcessor;
pub use rgb_image::RgbImage;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::eval_all;
use crate::models::architectures::towers;
use crate::models::block::Block;
use crate::models::decoder::norm::Norm;
use crate::models::decoder::{Context, DecoderLayer, normed};
use crate::models::settings::Settings;
use crate::models::weights::Tensors;
use crate::models::{KvCache, Projection, Weights};
use crate::ops::convolution::{ConvOptions, WindowOptions};
use crate::tensor::Tensor;
use description::{ImagePool, LabelsOf, VisionSpec};
use pool::Pool;

/// A transformer over the patches of images (Dosovitskiy et al., 2021): ViT, DINOv2, the tower of SigLIP.
pub struct VisionTower {
    spec: VisionSpec,
    dtype: DType,
    patches: Projection,         // [d, C, h, w]
    class_token: Option<Tensor>, // [1, 1, d]
    positions: Tensor,           // [1, n, d]
    first_norm: Option<Norm>,
    layers: Vec<DecoderLayer>,
    norm: Option<Norm>,
    pool: Pool,
    head: Option<Projection>,
}

/// The results of [`VisionTower::run`], in f32 and in host memory: tensors of [`Device::cpu`].
#[derive(Clone, Debug)]
pub struct VisionOutputs {
    /// Hidden states `[B,n,d]`, of the class token where there is one, then of the patches row by row: transformers' `last_hidden_state`.
    pub hidden_states: Tensor,
    /// A vector `[B,d]` for each image, where the model has one: transformers' `pooler_output`.
    pub pooled: Option<Tensor>,
    /// Logits `[B,L]` of the labels of a classifier.
    pub logits: Option<Tensor>,
}

impl VisionTower {
    /// Whether weights are those of a tower for images alone.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file does not name its architecture.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{VisionTower, Weights};
    /// let reads_images = |path: &str| VisionTower::is_for(&Weights::open(path, &Device::cpu())?);
    /// assert!(reads_images("tests/vectors/encoders/models2/vit-class")?);
    /// assert!(!reads_images("tests/vectors/encoders/models2/bert-odd")?);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn is_for(weights: &Weights) -> TensorResult<bool> {
        Ok(towers::find(weights.architecture()?).is_some())
    }

    /// Loads the tower that a folder in Hub layout holds. `dtype` is the type of activations; by default f32 on the CPU and f16 on a GPU.
    ///
    /// # Errors
    /// As for [`load`](crate::models::load); [`TensorError::Unsupported`] for a GGUF file.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{VisionTower, Weights};
    /// let tower = VisionTower::load(&Weights::open("tests/vectors/encoders/models2/vit-class", &Device::cpu())?, None)?;
    /// assert_eq!(tower.image_size(), [3, 24, 24]);
    /// assert_eq!(tower.labels().map(|names| names.len()), Some(10));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<VisionTower> {
        let Some(known) = towers::find(weights.architecture()?).filter(|_| weights.is_hub()) else {
            let names: Vec<&str> = towers::TOWERS.iter().map(|a| a.name).collect();
            let message = format!(
                "{}: `model_type` is \"{}\"; of towers for images, those in Hub folders of {} are supported",
                weights.file(),
                weights.architecture()?,
                names.join(", ")
            );
            return Err(TensorError::Unsupported(message));
        };
        let settings = Settings::new(weights)?;
        let spec = (known.describe)(&settings)?;
        let names = spec.stack.names.clone();
        let tensors = Tensors::new(weights, &settings, &names, dtype.unwrap_or_else(|| weights.device().default_float()));
        let tower = VisionTower::read(spec, &tensors, dtype.unwrap_or_else(|| weights.device().default_float()))?;
        settings.finish_encoder()?;
        tensors.finish(tower.spec.stack.unused, &[])?;
        crate::events::model_loaded(tower.spec.stack.architecture, tower.layers.len(), tower.positions.dims()[1]);
        Ok(tower)
    }

    /// Reads the weights from `w`, which records what was asked for.
    pub(crate) fn read(spec: VisionSpec, w: &Tensors<'_>, dtype: DType) -> TensorResult<VisionTower> {
        let d = &spec.stack;
        let ([height, width], [h, v]) = (spec.image, spec.patch);
        let count = (height / h) * (width / v) + usize::from(spec.class_token);
        let weight = w.tensor("patch_embd.weight", &[d.width, spec.channels, h, v])?;
        let bias = if spec.patch_bias { Some(w.vector("patch_embd.bias", d.width)?) } else { None };
        let layers = d.layers.iter().enumerate().map(|(i, l)| DecoderLayer::load(w, i, l, d.width)).collect::<TensorResult<Vec<_>>>()?;
        let inputs = |of: LabelsOf| if of == LabelsOf::FirstAndMean { 2 * d.width } else { d.width };
        let head = match &spec.labels {
            Some((of, names)) => Some(w.linear("cls.output", inputs(*of), names.len(), Some(true))?),
            None => None,
        };
        // Files have a row for each position, some with a dimension of 1 before, as the class token has.
        let positions = match w.has("position_embd") {
            true => w.tensor("position_embd", &[1, count, d.width])?,
            false => w.tensor("position_embd.weight", &[count, d.width])?.unsqueeze(0)?,
        };
        let class_token = match (spec.class_token, w.has("class_embd.vector")) {
            (false, _) => None,
            (true, true) => Some(w.tensor("class_embd.vector", &[d.width])?.reshape(&[1, 1, -1])?),
            (true, false) => Some(w.tensor("class_embd", &[1, 1, d.width])?),
        };
        let has_norm = d.final_norm || spec.pool == ImagePool::FirstNormed;
        Ok(VisionTower {
            dtype,
            patches: Projection::new(weight, bias),
            class_token,
            positions,
            first_norm: Norm::load_if(w, "first_norm", spec.first_norm, d.width)?,
            layers,
            norm: Norm::load_if(w, "output_norm", has_norm.then_some(d.norm), d.width)?,
            pool: Pool::load(w, &spec)?,
            head,
            spec,
        })
    }

    /// Channels, height and width of the images that positions were learned for.
    pub fn image_size(&self) -> [usize; 3] {
        [self.spec.channels, self.spec.image[0], self.spec.image[1]]
    }

    /// The names of the labels of a classifier, in the order of its logits.
    pub fn labels(&self) -> Option<&[String]> {
        self.spec.labels.as_ref().map(|(_, names)| &names[..])
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.positions.device()
    }

    /// Runs the tower over a batch of images `[B,C,H,W]`, normalised as the model wants them, and waits for the results.
    ///
    /// # Errors
    /// [`TensorError::Value`] for another number of channels or a size that the model cannot read; those of the evaluation.
    ///
    /// ```
    /// use tensorlogic::models::{VisionTower, Weights};
    /// use tensorlogic::prelude::*;
    /// let tower = VisionTower::load(&Weights::open("tests/vectors/encoders/models2/vit-class", &Device::cpu())?, None)?;
    /// let outputs = tower.run(&Tensor::zeros(&[2, 3, 24, 24], DType::F32, &Device::cpu())?)?;
    /// assert_eq!(outputs.hidden_states.dims(), [2, 10, 48]); // the class token, and 3 · 3 patches of 8 · 8 pixels
    /// assert_eq!(outputs.logits.expect("it is a classifier").dims(), [2, 10]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn run(&self, pixels: &Tensor) -> TensorResult<VisionOutputs> {
        no_grad(|| {
            let states = self.states(pixels)?;
            let pooled = self.pool.forward(&states, self.norm.as_ref())?;
            let logits = match (&self.head, &self.spec.labels) {
                (Some(head), Some((of, _))) => Some(head.forward(&self.read_out(&states, *of)?)?.cast(DType::F32)?),
                _ => None,
            };
            let states = states.cast(DType::F32)?;
            let pooled = pooled.map(|p| p.cast(DType::F32)).transpose()?;
            eval_all(&[Some(&states), pooled.as_ref(), logits.as_ref()].into_iter().flatten().collect::<Vec<_>>())?;
            let host = |t: &Tensor| Tensor::from_vec(t.to_vec_of::<f32>()?, t.dims(), &Device::cpu());
            let (pooled, logits) = (pooled.as_ref().map(host).transpose()?, logits.as_ref().map(host).transpose()?);
            Ok(VisionOutputs { hidden_states: host(&states)?, pooled, logits })
        })
    }

    fn read_out(&self, states: &Tensor, of: LabelsOf) -> TensorResult<Tensor> {
        let first = states.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?;
        match of {
            LabelsOf::First => Ok(first),
            LabelsOf::FirstAndMean => {
                let mean = states.narrow(1, 1, states.dims()[1] - 1)?.mean(&[1], false)?;
                Tensor::cat(&[first, mean], -1)
            }
        }
    }

    fn states(&self, pixels: &Tensor) -> TensorResult<Tensor> {
        let [channels, height, width] = self.image_size();
        let wrong = |want: &str| TensorError::Value(format!("images have shape {}; this model reads {want}", pixels.shape()));
        let &[batch, c, h, v] = pixels.dims() else { return Err(wrong(&format!("[B,{channels},{height},{width}]"))) };
        let [ph, pw] = self.spec.patch;
        if c != channels || (!self.spec.any_size && [h, v] != [height, width]) || h < ph || v < pw {
            return Err(wrong(&format!("[B,{channels},{height},{width}]")));
        }
        let windows = WindowOptions { stride: vec![ph, pw], ..WindowOptions::default() };
        let options = ConvOptions { windows, ..ConvOptions::default() };
        let x = pixels.to_device(self.device())?.cast(self.dtype)?;
        let weight = self.patches.weight.cast(self.dtype)?;
        let bias = self.patches.bias.as_ref().map(|b| b.cast(self.dtype)).transpose()?;
        let x = x.conv(&weight, bias.as_ref(), &options)?.flatten(2, 3)?.transpose(1, 2)?; // [B, n, d]
        let x = match &self.class_token {
            Some(token) => {
                let token = token.cast(self.dtype)?.broadcast_to(&[batch, 1, self.spec.stack.width])?;
                Tensor::cat(&[token.contiguous()?, x.contiguous()?], 1)?
            }
            None => x.contiguous()?,
        };
        let x = x.add(&self.positions_for([h / ph, v / pw])?.cast(self.dtype)?)?;
        let mut x = normed(self.first_norm.as_ref(), &x)?;
        let context = Context { ropes: [].into(), mask: None, biases: None, kv_len: None, causal: false, per_layer: None };
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.run(i, &x, &context, &mut KvCache::none())?;
        }
        if self.spec.pool == ImagePool::FirstNormed { Ok(x) } else { normed(self.norm.as_ref(), &x) }
    }

    /// The positions `[1,n,d]` of so many rows and columns of patches: the learned ones, or cubic interpolations between them.
    fn positions_for(&self, [rows, columns]: [usize; 2]) -> TensorResult<Tensor> {
        let [height, width] = [self.spec.image[0] / self.spec.patch[0], self.spec.image[1] / self.spec.patch[1]];
        if [rows, columns] == [height, width] {
            return Ok(self.positions.clone());
        }
        let (d, before) = (self.spec.stack.width, usize::from(self.spec.class_token));
        let values = self.positions.to_vec()?;
        let mut out = values[..before * d].to_vec();
        let (by_row, by_column) = (cubic(height, rows), cubic(width, columns));
        for row in &by_row {
            for column in &by_column {
                let mut sum = vec![0f64; d];
                for (&y, &wy) in row.0.iter().zip(&row.1) {
                    for (&x, &wx) in column.0.iter().zip(&column.1) {
                        let place = &values[(before + y * width + x) * d..][..d];
                        sum.iter_mut().zip(place).for_each(|(s, &v)| *s += wy * wx * f64::from(v));
                    }
                }
                out.extend(sum.into_iter().map(|v| v as f32));
            }
        }
        Tensor::from_vec(out, &[1, before + rows * columns, d], self.device())
    }
}

/// For each of `to` places, the four of `from` around it and their weights (Keys, 1981, with a = −0.75; centres of pixels, as PyTorch's bicubic).
fn cubic(from: usize, to: usize) -> Vec<([usize; 4], [f64; 4])> {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let place = |i: usize| {
        let at = (i as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let (whole, t) = (at.floor(), at - at.floor());
        let index = [-1.0, 0.0, 1.0, 2.0].map(|k| (whole + k).clamp(0.0, from as f64 - 1.0) as usize);
        (index, [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)])
    };
    (0..to).map(place).collect()
}
