//! Pairs of towers whose vectors of images and texts are compared: CLIP and SigLIP.

use super::VisionTower;
use super::description::TextToken;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::architectures::towers;
use crate::models::inference::Inputs;
use crate::models::settings::Settings;
use crate::models::weights::Tensors;
use crate::models::{Encoder, Projection, Weights};
use crate::tensor::Tensor;
use std::panic::Location;

/// Images and texts to vectors of one space: CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023).
pub struct ImageTextModel {
    text: Encoder,
    image: VisionTower,
    token: TextToken,
    text_head: Projection,
    image_head: Option<Projection>,
    scale: f32,
    bias: f32,
}

/// How well images and texts fit.
#[derive(Clone, Debug)]
pub struct Similarity {
    /// Vectors of images `[I,n]` of length 1.
    pub images: Tensor,
    /// Vectors of texts `[T,n]` of length 1.
    pub texts: Tensor,
    /// Their products, times the model's factor, plus its bias: transformers' `logits_per_image` `[I,T]`.
    pub logits: Tensor,
}

impl ImageTextModel {
    /// Whether weights are those of such a pair.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file does not name its architecture.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{ImageTextModel, Weights};
    /// let is_pair = |path: &str| ImageTextModel::is_for(&Weights::open(path, &Device::cpu())?);
    /// assert!(is_pair("tests/vectors/encoders/models2/clip-base")?);
    /// assert!(!is_pair("tests/vectors/encoders/models2/vit-class")?); // images alone
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn is_for(weights: &Weights) -> TensorResult<bool> {
        Ok(towers::find_pair(weights.architecture()?).is_some())
    }

    /// Loads the pair that a folder in Hub layout holds. `dtype` is the type of activations; by default f32 on the CPU and f16 on a GPU.
    ///
    /// # Errors
    /// As for [`load`](crate::models::load); [`TensorError::Unsupported`] for a GGUF file.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{ImageTextModel, Weights};
    /// let model = ImageTextModel::load(&Weights::open("tests/vectors/encoders/models2/clip-base", &Device::cpu())?, None)?;
    /// assert_eq!(model.vision().image_size(), [3, 32, 32]);
    /// assert_eq!(model.text().shape().context, 16);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<ImageTextModel> {
        let Some(known) = towers::find_pair(weights.architecture()?).filter(|_| weights.is_hub()) else {
            let names: Vec<&str> = towers::PAIRS.iter().map(|a| a.name).collect();
            let message = format!(
                "{}: `model_type` is \"{}\"; of pairs of towers, those in Hub folders of {} are supported",
                weights.file(),
                weights.architecture()?,
                names.join(" and ")
            );
            return Err(TensorError::Unsupported(message));
        };
        let dtype = dtype.unwrap_or_else(|| weights.device().default_float());
        let settings = Settings::new(weights)?;
        let spec = (known.describe)(&settings)?;
        let names = [spec.text.stack.names.clone(), spec.image.stack.names.clone()];
        let [tw, iw] = [0, 1].map(|i| Tensors::new(weights, &settings, &names[i], dtype));
        let (text_width, image_width) = (spec.text.stack.width, spec.image.stack.width);
        let (size, with_bias) = spec.text_projection;
        let text_head = tw.linear("projection", text_width, size, Some(with_bias))?;
        let image_head = spec.image_projection.map(|size| iw.linear("projection", image_width, size, Some(false))).transpose()?;
        let scale = tw.number("logit_scale")?.exp();
        let bias = if spec.bias { tw.number("logit_bias")? } else { 0.0 };
        let unused = [spec.text.stack.unused, spec.image.stack.unused].concat();
        let text = Encoder::read(spec.text, &settings, &tw, dtype)?;
        let image = VisionTower::read(spec.image, &iw, dtype)?;
        settings.finish_encoder()?;
        iw.add_to(&tw);
        tw.finish(&unused, &[])?;
        Ok(ImageTextModel { text, image, token: spec.token, text_head, image_head, scale, bias })
    }

    /// The tower for images.
    pub fn vision(&self) -> &VisionTower {
        &self.image
    }

    /// The tower for texts.
    pub fn text(&self) -> &Encoder {
        &self.text
    }

    /// Vectors `[B,n]` of texts, in f32 and in host memory. Their length is not 1.
    ///
    /// # Errors
    /// [`TensorError::Value`] where a text lacks the token that its vector is of; those of [`Encoder::run`].
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{ImageTextModel, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = ImageTextModel::load(&Weights::open("tests/vectors/encoders/models2/clip-base", &Device::cpu())?, None)?;
    /// let texts = [vec![0u32, 5, 6, 319], vec![0, 7, 319]]; // 319 ends a text
    /// assert_eq!(model.embed_texts(&Inputs::padded(&texts, Padding::Right)?)?.dims(), [2, 32]);
    /// assert!(model.embed_texts(&Inputs::padded(&[vec![0, 5]], Padding::Right)?).is_err()); // it does not end
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn embed_texts(&self, inputs: &Inputs) -> TensorResult<Tensor> {
        let outputs = self.text.run_at(inputs, false, Location::caller())?;
        let Some(tokens) = &inputs.tokens else { return Err(TensorError::Value("texts are given as tokens".into())) };
        let &[batch, len] = tokens.dims() else { return Err(TensorError::Value(format!("tokens: the shape is {}", tokens.shape()))) };
        let ids = tokens.to_vec()?;
        let place = |row: &[f32]| match self.token {
            TextToken::Last => Some(len - 1),
            TextToken::FirstOf(id) => row.iter().position(|&t| t == id as f32),
            TextToken::Largest => (0..len).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))),
        };
        let mut rows = Vec::with_capacity(batch);
        for (n, row) in ids.chunks(len).enumerate() {
            let missing = || TensorError::Value(format!("text {n} lacks token {:?}, whose state is the text's embedding", self.token));
            rows.push((n * len + place(row).ok_or_else(missing)?) as i32);
        }
        let states = outputs.hidden_states.flatten(0, 1)?.index_select(0, &Tensor::from_vec(rows, &[batch], &Device::cpu())?)?;
        self.projected(&states, Some(&self.text_head))
    }

    /// Vectors `[B,n]` of images `[B,C,H,W]`, in f32 and in host memory. Their length is not 1.
    ///
    /// # Errors
    /// Those of [`VisionTower::run`].
    ///
    /// ```
    /// use tensorlogic::models::{ImageTextModel, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = ImageTextModel::load(&Weights::open("tests/vectors/encoders/models2/clip-base", &Device::cpu())?, None)?;
    /// let images = Tensor::zeros(&[2, 3, 32, 32], DType::F32, &Device::cpu())?;
    /// assert_eq!(model.embed_images(&images)?.dims(), [2, 32]);
    /// assert!(model.embed_images(&images.narrow(1, 0, 1)?).is_err()); // one channel instead of three
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn embed_images(&self, pixels: &Tensor) -> TensorResult<Tensor> {
        let pooled =
            self.image.run(pixels)?.pooled.ok_or_else(|| TensorError::Value("this tower does not produce an image embedding".into()))?;
        self.projected(&pooled, self.image_head.as_ref())
    }

    fn projected(&self, x: &Tensor, head: Option<&Projection>) -> TensorResult<Tensor> {
        let Some(head) = head else { return Ok(x.clone()) };
        let y = head.forward(&x.to_device(self.text.device())?.cast(self.text.shape().dtype)?)?.cast(DType::F32)?;
        Tensor::from_vec(y.to_vec_of::<f32>()?, y.dims(), &Device::cpu())
    }

    /// Compares every image with every text.
    ///
    /// # Errors
    /// Those of [`ImageTextModel::embed_images`] and [`ImageTextModel::embed_texts`].
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{ImageTextModel, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = ImageTextModel::load(&Weights::open("tests/vectors/encoders/models2/clip-base", &Device::cpu())?, None)?;
    /// let images = Tensor::zeros(&[1, 3, 32, 32], DType::F32, &Device::cpu())?;
    /// let texts = Inputs::padded(&[vec![0, 5, 6, 319], vec![0, 7, 319]], Padding::Right)?;
    /// let found = model.compare(&images, &texts)?;
    /// assert_eq!(found.logits.dims(), [1, 2]); // an image, two texts
    /// assert!((found.images.square()?.sum_all()?.item()? - 1.0).abs() < 1e-5); // a vector of length 1
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn compare(&self, pixels: &Tensor, texts: &Inputs) -> TensorResult<Similarity> {
        let unit = |x: Tensor| -> TensorResult<Tensor> {
            let length = x.square()?.sum(&[-1], true)?.sqrt()?;
            x.div(&length)
        };
        let (texts, images) = (unit(self.embed_texts(texts)?)?, unit(self.embed_images(pixels)?)?);
        let logits = images.matmul(&texts.t()?)?.mul(self.scale)?.add(self.bias)?;
        Ok(Similarity { images, texts, logits })
    }
}
