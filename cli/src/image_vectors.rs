//! `tl embed --image`: image files in, the vectors of a tower out.

use crate::embed::{By, EmbedArgs, numbers};
use crate::model::{self, go_on, unreadable};
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tensorlogic::models::{ImageProcessor, ImageTextModel, RgbImage, VisionTower, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// A tower, or the pair that it is part of, whose vectors of images are compared with those of texts.
enum Tower {
    Alone(Box<VisionTower>),
    OfPair(Box<ImageTextModel>),
}

/// Whether these weights are those of a tower for images, or of a pair of one for images and one for texts.
pub fn is_for(weights: &Weights) -> TensorResult<bool> {
    Ok(VisionTower::is_for(weights)? || ImageTextModel::is_for(weights)?)
}

impl Tower {
    fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<Tower> {
        Ok(match ImageTextModel::is_for(weights)? {
            true => Tower::OfPair(Box::new(ImageTextModel::load(weights, dtype)?)),
            false => Tower::Alone(Box::new(VisionTower::load(weights, dtype)?)),
        })
    }

    /// A vector for each image: what the model pools, or its states pooled by `by`; `None` where the model has no way of its own.
    fn vectors(&self, pixels: &Tensor, by: Option<By>) -> TensorResult<Option<Tensor>> {
        let tower = match (self, by) {
            (Tower::OfPair(pair), None) => return pair.embed_images(pixels).map(Some),
            (Tower::OfPair(pair), Some(_)) => pair.vision(),
            (Tower::Alone(tower), _) => tower,
        };
        let outputs = tower.run(pixels)?;
        let (states, last) = (&outputs.hidden_states, outputs.hidden_states.dims()[1] - 1);
        Ok(match by {
            None => outputs.pooled,
            Some(By::Mean) => Some(states.mean(&[1], false)?),
            Some(By::Max) => Some(states.max(&[1], false)?),
            Some(By::Cls) => Some(states.narrow(1, 0, 1)?.squeeze(1)?),
            Some(By::Last) => Some(states.narrow(1, last, 1)?.squeeze(1)?),
        })
    }
}

/// Runs `tl embed --image` with the tower of this file.
pub fn embed(args: &EmbedArgs, path: &Path, global: Global) -> Result<(), Failure> {
    if args.model.adapter.is_some() {
        return Err(Failure::Usage("--adapter: adapters are for models that generate text".into()));
    }
    let (dtype, mut device) = (args.model.dtype()?, args.model.device()?);
    if !is_for(&model::open(path, &Device::cpu())?).map_err(|e| unreadable(path, e))? {
        let message = "--image: it is not an image tower; ViT, DINOv2, SigLIP and CLIP are";
        return Err(Failure::Error(format!("{}: {message}", path.display())));
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let processor = ImageProcessor::open(folder)?;
    if !global.quiet {
        output::note(&format!("{} on {}", path.file_name().unwrap_or(path.as_os_str()).to_string_lossy(), device.name()));
    }
    let mut tower = on_a_device(args, path, dtype, &mut device)?;
    interrupt::install();
    let (start, mut found, mut width) = (Instant::now(), Vec::new(), 0);
    for files in args.image.chunks(args.texts.batch.into()) {
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        let images = files.iter().map(RgbImage::open).collect::<TensorResult<Vec<_>>>()?;
        let pixels = processor.pixels(&images, &Device::cpu()).map_err(|e| in_batch(files, &e.to_string()))?;
        let vectors = loop {
            match tower.vectors(&pixels, args.pooling).map_err(Failure::from) {
                Err(Failure::Device(e)) => device = go_on(&device, e)?,
                done => break done?,
            }
            tower = on_a_device(args, path, dtype, &mut device)?;
        };
        let Some(vectors) = vectors else {
            let message = "the model does not produce an image embedding; use --pooling cls or mean";
            return Err(Failure::Usage(format!("{}: {message}", path.display())));
        };
        width = vectors.dims()[1];
        for (file, vector) in files.iter().zip(vectors.to_vec2::<f32>()?) {
            let vector = args.finished(vector);
            if vector.iter().any(|v| !v.is_finite()) {
                return Err(Failure::Error("the model gave NaN or infinite values; try --dtype f32".into()));
            }
            match global.json {
                true => found.push(json!({ "image": file.to_string_lossy(), "embedding": vector })),
                false => output::result(&numbers(&vector))?,
            }
        }
    }
    let rate = args.image.len() as f64 / start.elapsed().as_secs_f64();
    if global.json {
        let pooling = args.pooling.map(|by| tensorlogic::models::inference::Pooling::from(by).to_string());
        let value = json!({ "images": found, "width": width, "pooling": pooling, "normalized": args.normalize, "images_per_s": rate,
            "device": device.name() });
        output::result(&value.to_string())?;
    }
    if !global.quiet {
        output::note(&format!("{} images, {rate:.1} a second", args.image.len()));
    }
    Ok(())
}

/// The tower on this device, or on the next one of the list where it is lost or full.
fn on_a_device(args: &EmbedArgs, path: &Path, dtype: Option<DType>, device: &mut Device) -> Result<Tower, Failure> {
    loop {
        match Tower::load(&args.model.open(path, device)?, dtype).map_err(|e| unreadable(path, e)) {
            Err(Failure::Device(e)) => *device = go_on(device, e)?,
            loaded => return loaded,
        }
    }
}

/// The error of images that were prepared together, with their names.
fn in_batch(files: &[PathBuf], error: &str) -> Failure {
    let names: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
    Failure::Error(format!("{}: {error}", names.join(", ")))
}
