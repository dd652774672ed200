//! From images to the pixels that a tower reads: resized, cropped, rescaled and normalised as the files of the model say.

use super::RgbImage;
use super::processor_settings::{ImageSize, Steps};
use super::resample::resize;
use super::rgb_image::check_size;
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use std::path::Path;

/// What `preprocessor_config.json` says of a model's images: the image processors of ViT, CLIP, SigLIP (also of SigLIP 2 with images of one size) and
/// DINOv2. It computes what transformers' processors with PIL compute, to the bit; those with torchvision round otherwise.
#[derive(Clone, Debug)]
pub struct ImageProcessor {
    steps: Steps,
}

impl ImageProcessor {
    /// Reads what the folder of a model says: `image_processor` in `processor_config.json`, else `preprocessor_config.json`. Where these do not name
    /// the kind of processor, it is that of `model_type` in `config.json`; what they leave out is as for that kind in transformers 5.
    ///
    /// # Errors
    /// [`TensorError::Io`] and [`TensorError::Format`] where there is no such file or it is damaged; [`TensorError::Unsupported`] for another kind of
    /// processor and for each setting that is not known, by its name.
    ///
    /// ```
    /// use tensorlogic::models::ImageProcessor;
    /// let folder = std::env::temp_dir().join("image-processor-of-a-vit");
    /// let settings = r#"{"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}, "do_sharpen": true}"#;
    /// std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("preprocessor_config.json"), settings)).expect("writable");
    /// let error = ImageProcessor::open(&folder).unwrap_err().to_string();
    /// assert!(error.contains("`do_sharpen` is true"), "{error}");
    /// ```
    pub fn open(folder: impl AsRef<Path>) -> TensorResult<ImageProcessor> {
        Ok(ImageProcessor { steps: Steps::read(folder.as_ref())? })
    }

    /// The pixels `[B,3,H,W]` of images, in f32, for [`VisionTower::run`](super::VisionTower::run) and
    /// [`ImageTextModel::embed_images`](super::ImageTextModel::embed_images).
    ///
    /// # Errors
    /// [`TensorError::Value`] for no image, images whose sizes differ when prepared, one too large, and, where the files say that images are not
    /// converted, one that was not in RGB.
    ///
    /// ```
    /// use tensorlogic::models::{ImageProcessor, RgbImage};
    /// use tensorlogic::prelude::*;
    /// let folder = std::env::temp_dir().join("image-processor-of-siglip");
    /// let settings = r#"{"image_processor_type": "SiglipImageProcessor", "size": {"height": 1, "width": 2}, "resample": 0}"#;
    /// std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("preprocessor_config.json"), settings)).expect("writable");
    /// let red_and_blue = RgbImage::new([1, 2], vec![255, 0, 0, 0, 0, 255])?;
    /// let pixels = ImageProcessor::open(&folder)?.pixels(&[red_and_blue], &Device::cpu())?;
    /// assert_eq!(pixels.dims(), [1, 3, 1, 2]);
    /// assert_eq!(pixels.to_vec()?, [1.0, -1.0, -1.0, -1.0, -1.0, 1.0]); // red, green, blue: of each the left and the right pixel
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn pixels(&self, images: &[RgbImage], device: &Device) -> TensorResult<Tensor> {
        let (mut values, mut size) = (Vec::new(), None);
        for (n, image) in images.iter().enumerate() {
            if self.steps.only_rgb && !image.was_rgb() {
                let message = format!("image {n} is not in RGB, and the model's `do_convert_rgb` is false");
                return Err(TensorError::Value(message));
            }
            let (levels, found) = self.prepare(image)?;
            let first = *size.get_or_insert(found);
            if first != found {
                let [[a, b], [c, d]] = [first, found];
                let message =
                    format!("image {n} becomes {c} × {d} pixels, the first one {a} × {b}; images of one call become equally large");
                return Err(TensorError::Value(message));
            }
            for (channel, of_level) in self.steps.values().iter().enumerate() {
                values.extend(levels[channel..].iter().step_by(3).map(|&level| of_level[usize::from(level)]));
            }
        }
        let Some([height, width]) = size else { return Err(TensorError::Value("no image".into())) };
        Tensor::from_vec(values, &[images.len(), 3, height, width], device)
    }

    /// The levels of an image, resized and cropped.
    fn prepare(&self, image: &RgbImage) -> TensorResult<(Vec<u8>, [usize; 2])> {
        let (mut levels, mut size) = (std::borrow::Cow::Borrowed(image.levels()), image.size());
        if let Some((target, filter)) = self.steps.resize {
            let to = target.of(size);
            check_size("a resized image", to)?;
            // What lies between the passes along rows and along columns.
            check_size("a resized image", [size[0], to[1]])?;
            (levels, size) = (resize(&levels, size, to, filter).into(), to);
        }
        if let Some(crop) = self.steps.crop {
            (levels, size) = (center_crop(&levels, size, crop).into(), crop);
        }
        Ok((levels.into_owned(), size))
    }
}

impl ImageSize {
    /// The size that an image of this one gets.
    fn of(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            ImageSize::Exact(size) => size,
            ImageSize::Shortest(edge) => {
                let (short, long) = (height.min(width), height.max(width));
                let long = (edge as f64 * long as f64 / short as f64) as usize;
                if width <= height { [long, edge] } else { [edge, long] }
            }
        }
    }
}

/// The middle of an image; around one that is smaller there is black, of an odd rest one pixel more before than behind.
fn center_crop(levels: &[u8], size: [usize; 2], crop: [usize; 2]) -> Vec<u8> {
    // Of each direction: the first pixel that is taken, where it is put, and how many are.
    let part = |has: usize, wants: usize| match wants > has {
        true => (0, (wants - has).div_ceil(2), has),
        false => ((has - wants) / 2, 0, wants),
    };
    let ((top, down, rows), (left, right, columns)) = (part(size[0], crop[0]), part(size[1], crop[1]));
    let mut out = vec![0; 3 * crop[0] * crop[1]];
    for row in 0..rows {
        let from = &levels[3 * ((top + row) * size[1] + left)..][..3 * columns];
        out[3 * ((down + row) * crop[1] + right)..][..3 * columns].copy_from_slice(from);
    }
    out
}
