//! The settings of an image processor, from `preprocessor_config.json`, with a record of which were asked for: the rest is refused.

use super::resample::Resample;
use crate::error::{TensorError, TensorResult};
use crate::io::info::clip;
use serde_json::{Map, Value as Json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// What is done with an image, in this order.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    /// Whether images of other kinds are refused instead of converted.
    pub only_rgb: bool,
    pub resize: Option<(ImageSize, Resample)>,
    /// Height and width.
    pub crop: Option<[usize; 2]>,
    /// What levels are multiplied by.
    rescale: Option<f64>,
    /// The mean and the standard deviation of each channel.
    normalize: Option<[[f64; 3]; 2]>,
}

/// The size that images get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ImageSize {
    /// Height and width.
    Exact([usize; 2]),
    /// The shorter edge; the other one keeps the proportion.
    Shortest(usize),
}

/// A kind of processor, and what it does where files say nothing.
struct ProcessorKind {
    /// Its name in front of `ImageProcessor`.
    name: &'static str,
    /// The models whose kind it is where the file does not name one.
    model_types: &'static [&'static str],
    resample: Resample,
    size: ImageSize,
    /// Whether a number alone is height and width.
    square: bool,
    crop: Option<[usize; 2]>,
    normalize: [[f64; 3]; 2],
}

/// Of OpenAI's images: the mean and the standard deviation.
const CLIP: [[f64; 3]; 2] = [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]];

const SQUARE: ImageSize = ImageSize::Exact([224, 224]);
const SHORTEST: ImageSize = ImageSize::Shortest(224);
const HALVES: [[f64; 3]; 2] = [[0.5; 3]; 2];

#[rustfmt::skip]
const KINDS: [ProcessorKind; 4] = [
    ProcessorKind { name: "ViT", model_types: &["vit"], resample: Resample::Bilinear, size: SQUARE, square: true, crop: None, normalize: HALVES },
    ProcessorKind { name: "CLIP", model_types: &["clip"], resample: Resample::Bicubic, size: SHORTEST, square: false, crop: Some([224, 224]), normalize: CLIP },
    ProcessorKind { name: "Siglip", model_types: &["siglip", "siglip_vision_model"], resample: Resample::Bicubic, size: SQUARE, square: false, crop: None, normalize: HALVES },
    ProcessorKind { name: "Bit", model_types: &["dinov2"], resample: Resample::Bicubic, size: SHORTEST, square: false, crop: Some([224, 224]), normalize: CLIP },
];

/// What may follow the name of a kind: old files, transformers with torchvision, with PIL.
const ENDS: [&str; 4] = ["ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor"];

/// ProcessorKeys that change no pixel: what a program gets, where it computes, which class reads the file, and the size of a padding that is refused.
const WITHOUT_EFFECT: [&str; 7] =
    ["_valid_processor_keys", "device", "disable_grouping", "input_data_format", "pad_size", "processor_class", "return_tensors"];

/// The largest height or width that a setting may ask for.
const MAX_EDGE: u64 = 1 << 16;

impl Steps {
    /// What the files of this folder say.
    pub fn read(folder: &Path) -> TensorResult<Steps> {
        let keys = ProcessorKeys::read(folder)?;
        let kind = keys.kind(folder)?;
        let on = |key: &str, usual: bool| Ok::<_, TensorError>(keys.flag(key)?.unwrap_or(usual));
        let square = on("default_to_square", kind.square)?;
        let size = keys.size("size", square)?.unwrap_or(kind.size);
        let number = keys.whole("resample")?;
        let filter = number.map_or(Some(kind.resample), Resample::of).ok_or_else(|| keys.refuse("resample", "supported: 0 to 5"))?;
        let crop = match keys.size("crop_size", true)? {
            Some(ImageSize::Exact(size)) => Some(size),
            Some(ImageSize::Shortest(_)) => return Err(keys.refuse("crop_size", "a crop has `height` and `width`")),
            None => kind.crop,
        };
        let crop = match (on("do_center_crop", kind.crop.is_some())?, crop) {
            (true, None) => return Err(keys.refuse("do_center_crop", "`crop_size` is missing")),
            (wanted, crop) => crop.filter(|_| wanted),
        };
        let factor = keys.number("rescale_factor")?.unwrap_or(1.0 / 255.0);
        let [mean, std] = kind.normalize;
        let normalize = [keys.channels("image_mean")?.unwrap_or(mean), keys.channels("image_std")?.unwrap_or(std)];
        if normalize[1].contains(&0.0) {
            return Err(keys.refuse("image_std", "it divides, and one is 0"));
        }
        if on("do_pad", false)? {
            return Err(keys.refuse("do_pad", "padding behind an image is not implemented"));
        }
        if keys.get("data_format").is_some_and(|v| v != "channels_first") {
            return Err(keys.refuse("data_format", "towers read channels_first"));
        }
        let steps = Steps {
            only_rgb: !on("do_convert_rgb", true)?,
            resize: on("do_resize", true)?.then_some((size, filter)),
            crop,
            rescale: on("do_rescale", true)?.then_some(factor),
            normalize: on("do_normalize", true)?.then_some(normalize),
        };
        keys.finish()?;
        Ok(steps)
    }

    /// What becomes of each level, for red, green and blue; rounded where transformers rounds.
    pub fn values(&self) -> [[f32; 256]; 3] {
        let of = |channel: usize, level: usize| {
            let value = self.rescale.map_or(level as f32, |factor| (level as f64 * factor) as f32);
            self.normalize.map_or(value, |[mean, std]| (value - mean[channel] as f32) / std[channel] as f32)
        };
        std::array::from_fn(|channel| std::array::from_fn(|level| of(channel, level)))
    }
}

/// The keys of a file.
struct ProcessorKeys {
    file: PathBuf,
    keys: Map<String, Json>,
    asked: RefCell<BTreeSet<String>>,
}

impl ProcessorKeys {
    fn read(folder: &Path) -> TensorResult<ProcessorKeys> {
        let whole = folder.join("processor_config.json");
        if let Some(Json::Object(mut processor)) = read(&whole)? {
            if let Some(Json::Object(keys)) = processor.remove("image_processor") {
                return Ok(ProcessorKeys { file: whole, keys, asked: RefCell::default() });
            }
        }
        let file = folder.join("preprocessor_config.json");
        match read(&file)? {
            Some(Json::Object(keys)) => Ok(ProcessorKeys { file, keys, asked: RefCell::default() }),
            Some(_) => Err(TensorError::format("config", "not a JSON object").in_file(file)),
            None => Err(TensorError::io(file, std::io::ErrorKind::NotFound.into())),
        }
    }

    fn get(&self, key: &str) -> Option<&Json> {
        self.asked.borrow_mut().insert(key.into());
        // Null stands for nothing.
        self.keys.get(key).filter(|v| !v.is_null())
    }

    /// The refusal of a setting by its name and value.
    fn refuse(&self, key: &str, why: impl fmt::Display) -> TensorError {
        // JSON has escaped what is inside of texts; the quotes around them stay.
        let value = self.keys.get(key).map_or("missing".into(), |v| clip(&v.to_string()).replace("\\\"", "\""));
        TensorError::Unsupported(format!("{}: `{key}` is {value}; {why}", self.file.display()))
    }

    fn flag(&self, key: &str) -> TensorResult<Option<bool>> {
        self.get(key).map(|v| v.as_bool().ok_or_else(|| self.refuse(key, "it is true or false"))).transpose()
    }

    fn whole(&self, key: &str) -> TensorResult<Option<u64>> {
        self.get(key).map(|v| v.as_u64().ok_or_else(|| self.refuse(key, "it is a whole number"))).transpose()
    }

    fn number(&self, key: &str) -> TensorResult<Option<f64>> {
        self.get(key).map(|v| v.as_f64().ok_or_else(|| self.refuse(key, "it is a number"))).transpose()
    }

    /// A number for each channel, or one for all.
    fn channels(&self, key: &str) -> TensorResult<Option<[f64; 3]>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|list| list.iter().map(Json::as_f64).collect::<Option<Vec<_>>>());
        let three = list.and_then(|list| list.try_into().ok()).or(value.as_f64().map(|v| [v; 3]));
        three.ok_or_else(|| self.refuse(key, "it is a number for each of three channels")).map(Some)
    }

    /// A size: an object, a list of height and width, or a number, which is a square or the shorter edge.
    fn size(&self, key: &str, square: bool) -> TensorResult<Option<ImageSize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let edge = |value: &Json| value.as_u64().filter(|n| (1..=MAX_EDGE).contains(n)).map(|n| n as usize);
        let found = match value {
            Json::Object(o) if o.len() == 1 => o.get("shortest_edge").and_then(edge).map(ImageSize::Shortest),
            Json::Object(o) if o.len() == 2 => {
                let named = |name: &str| o.get(name).and_then(edge);
                named("height").zip(named("width")).map(|(h, w)| ImageSize::Exact([h, w]))
            }
            Json::Array(list) => match &list[..] {
                [h, w] => edge(h).zip(edge(w)).map(|(h, w)| ImageSize::Exact([h, w])),
                _ => None,
            },
            number => edge(number).map(|n| if square { ImageSize::Exact([n, n]) } else { ImageSize::Shortest(n) }),
        };
        let forms = format!("supported: `height` and `width`, `shortest_edge`, and a number, each from 1 to {MAX_EDGE}");
        found.map(Some).ok_or_else(|| self.refuse(key, forms))
    }

    /// The kind of processor.
    fn kind(&self, folder: &Path) -> TensorResult<&'static ProcessorKind> {
        let known = || KINDS.iter().map(|k| format!("{}ImageProcessor", k.name)).collect::<Vec<_>>().join(", ");
        let named = ["image_processor_type", "feature_extractor_type"].map(|key| (key, self.get(key)));
        if let Some((key, Some(name))) = named.into_iter().find(|(_, name)| name.is_some()) {
            let is = |k: &&ProcessorKind| name.as_str().and_then(|n| n.strip_prefix(k.name)).is_some_and(|end| ENDS.contains(&end));
            let found = KINDS.iter().find(is);
            return found.ok_or_else(|| self.refuse(key, format!("supported: {}", known())));
        }
        let config = read(&folder.join("config.json"))?;
        let model = config.as_ref().and_then(|c| c["model_type"].as_str()).unwrap_or_default();
        let message = || format!("supported: {}; `model_type` {model:?} implies none of them", known());
        KINDS.iter().find(|k| k.model_types.contains(&model)).ok_or_else(|| self.refuse("image_processor_type", message()))
    }

    /// Refuses every key that nobody asked for and that may change the result.
    fn finish(&self) -> TensorResult<()> {
        let known = |key: &str| WITHOUT_EFFECT.contains(&key) || self.asked.borrow().contains(key);
        match self.keys.iter().find(|(key, value)| !value.is_null() && !known(key)) {
            Some((key, _)) => Err(self.refuse(key, "this setting of an image processor is not implemented")),
            None => Ok(()),
        }
    }
}

/// A JSON file, if there is one.
fn read(file: &Path) -> TensorResult<Option<Json>> {
    match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| TensorError::format("config", e.to_string()).in_file(file)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(TensorError::io(file, e)),
    }
}
