//! Image files and image processors, against PIL and transformers (tests/reference/make_images.py); and towers from files on.

use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::models::{ImageProcessor, ImageTextModel, RgbImage, VisionTower, Weights};
use tensorlogic::{DType, Device, Tensor, TensorError, TensorResult};

fn root() -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/images")
}

fn expected() -> SafeTensors {
    SafeTensors::open(root().join("expected.safetensors")).unwrap()
}

/// The values of a tensor of bytes or of floats.
fn values(file: &SafeTensors, name: &str) -> (Vec<usize>, Vec<f32>) {
    let info = file.tensor(name).unwrap();
    let (bytes, count) = (file.bytes_of(info), info.shape.iter().product::<usize>());
    let values = match bytes.len() == count {
        true => bytes.iter().map(|&b| f32::from(b)).collect(),
        false => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
    };
    (info.shape.to_vec(), values)
}

/// The processor that these files describe.
fn processor(test: &str, files: &[(&str, &str)]) -> TensorResult<ImageProcessor> {
    let folder = std::env::temp_dir().join(format!("tl-images-{}-{test}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    let opened = ImageProcessor::open(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    opened
}

fn of_config(test: &str, config: &str) -> TensorResult<ImageProcessor> {
    processor(test, &[("preprocessor_config.json", config)])
}

fn cases() -> Vec<Json> {
    serde_json::from_slice(&std::fs::read(root().join("cases.json")).unwrap()).unwrap()
}

#[test]
fn files_are_read_as_pil_reads_them() {
    let (file, mut count) = (expected(), 0);
    for entry in std::fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with("png") && !name.ends_with("jpg") || name == "four-inks.jpg" {
            continue;
        }
        let (image, (shape, want)) = (RgbImage::open(&path).unwrap(), values(&file, &format!("rgb.{name}")));
        assert_eq!(image.size()[..], shape[..2], "{name}");
        let apart: Vec<f32> = image.levels().iter().zip(&want).map(|(&a, &b)| (f32::from(a) - b).abs()).collect();
        let (most, mean) = (apart.iter().copied().fold(0.0, f32::max), apart.iter().sum::<f32>() / apart.len() as f32);
        // A JPEG decoder may round the cosine transform and the colours its own way.
        let allowed = if name.ends_with("png") { (0.0, 0.0) } else { (3.0, 0.5) };
        println!("{name}: at most {most} apart, {mean:.3} on average");
        assert!(most <= allowed.0 && mean <= allowed.1, "{name}: at most {most} apart, {mean} on average");
        count += 1;
    }
    assert!(count >= 20, "{count}");
}

#[test]
fn processors_equal_those_of_transformers() {
    let file = expected();
    for (n, case) in cases().iter().enumerate() {
        let what = format!("case {n}, {case}");
        let image = RgbImage::open(root().join(case["image"].as_str().unwrap())).unwrap();
        let processor = of_config("equal", &case["config"].to_string()).unwrap_or_else(|e| panic!("{what}: {e}"));
        // Each image of a batch is processed alone.
        let pixels = processor.pixels(&[image.clone(), image], &Device::cpu()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (shape, want) = values(&file, &format!("case.{n}"));
        assert_eq!(pixels.dims(), [&[2], &shape[..]].concat(), "{what}");
        let got = pixels.to_vec().unwrap();
        for half in got.chunks(want.len()) {
            let most = half.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(half == want, "{what}: at most {most} apart");
        }
    }
}

/// The settings with which the reference pixels of the towers were made, by the order of `cases`.
fn case_of(kind: &str) -> (usize, Json) {
    let of_tower =
        |c: &Json| c["config"]["image_processor_type"] == format!("{kind}ImageProcessor") && c["config"].get("do_rescale").is_none();
    let (n, case) = cases().into_iter().enumerate().find(|(_, c)| of_tower(c)).unwrap();
    (n, case)
}

#[test]
fn a_tower_gives_the_vector_of_the_reference_pixels() {
    let models = root().parent().unwrap().join("encoders/models2");
    for (kind, model) in [("ViT", "vit-class"), ("Bit", "dinov2-base"), ("Siglip", "siglip_vision-base"), ("CLIP", "clip-base")] {
        let (n, case) = case_of(kind);
        let image = RgbImage::open(root().join(case["image"].as_str().unwrap())).unwrap();
        let pixels = of_config("tower", &case["config"].to_string()).unwrap().pixels(&[image], &Device::cpu()).unwrap();
        let (shape, want) = values(&expected(), &format!("case.{n}"));
        let reference = Tensor::from_vec(want, &[&[1], &shape[..]].concat(), &Device::cpu()).unwrap();
        let weights = Weights::open(models.join(model), &Device::cpu()).unwrap();
        let vector = |pixels: &Tensor| -> TensorResult<Vec<f32>> {
            if kind == "CLIP" {
                return ImageTextModel::load(&weights, Some(DType::F32))?.embed_images(pixels)?.to_vec();
            }
            let outputs = VisionTower::load(&weights, Some(DType::F32))?.run(pixels)?;
            outputs.pooled.or(outputs.logits).unwrap().to_vec()
        };
        let (got, want, black) = (vector(&pixels).unwrap(), vector(&reference).unwrap(), vector(&reference.mul(0.0).unwrap()).unwrap());
        assert_eq!(got, want, "{model}");
        assert!(got.iter().zip(&black).any(|(a, b)| (a - b).abs() > 1e-3), "{model}: the vector is that of any image");
    }
}

#[test]
fn settings_have_the_forms_of_every_version() {
    let size = |name: &str, files: &[(&str, &str)]| -> Vec<usize> {
        let image = RgbImage::new([20, 10], vec![7; 600]).unwrap();
        processor(name, files).unwrap_or_else(|e| panic!("{files:?}: {e}")).pixels(&[image], &Device::cpu()).unwrap().dims()[2..].to_vec()
    };
    let of = |config: &str| size("forms", &[("preprocessor_config.json", config)]);
    assert_eq!(of(r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 8, "crop_size": 6, "do_center_crop": true}"#), [6, 6]);
    assert_eq!(of(r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 8, "do_center_crop": false}"#), [16, 8]);
    assert_eq!(of(r#"{"image_processor_type": "ViTFeatureExtractor", "size": 8}"#), [8, 8]);
    assert_eq!(
        of(r#"{"image_processor_type": "ViTImageProcessorFast", "size": [6, 8], "device": "cpu", "do_pad": null, "pad_size": null}"#),
        [6, 8]
    );
    assert_eq!(of(r#"{"image_processor_type": "ViTImageProcessor", "size": 8, "default_to_square": false}"#), [16, 8]);
    assert_eq!(of(r#"{"image_processor_type": "BitImageProcessorPil"}"#), [224, 224]);
    assert_eq!(of(r#"{"image_processor_type": "SiglipImageProcessor", "size": null, "do_center_crop": null}"#), [224, 224]);
    for (model, want) in [("vit", [8, 8]), ("siglip", [16, 8]), ("dinov2", [224, 224])] {
        let config = format!(r#"{{"model_type": "{model}"}}"#);
        assert_eq!(size("model", &[("preprocessor_config.json", r#"{"size": 8}"#), ("config.json", &config)]), want);
    }
    // As transformers writes them.
    for (folder, want) in [("vit", [24, 24]), ("clip", [224, 224]), ("siglip", [32, 32]), ("bit", [224, 224])] {
        let config = std::fs::read_to_string(root().join(folder).join("preprocessor_config.json")).unwrap();
        assert_eq!(of(&config), want, "{config}");
    }
    // What a processor of texts and images has inside stands over the file of images alone, and beside its other parts.
    let nested = r#"{"processor_class": "CLIPProcessor", "image_processor": {"image_processor_type": "ViTImageProcessor", "size": 5}}"#;
    let alone = r#"{"image_processor_type": "ViTImageProcessor", "size": 8}"#;
    assert_eq!(size("nested", &[("processor_config.json", nested), ("preprocessor_config.json", alone)]), [5, 5]);
    assert_eq!(size("legacy", &[("processor_config.json", "{}"), ("preprocessor_config.json", alone)]), [8, 8]);
}

#[test]
fn unknown_settings_are_refused_by_name() {
    let check = |config: &str, words: &str| match of_config("refused", config) {
        Err(e @ (TensorError::Unsupported(_) | TensorError::Format { .. })) => {
            let text = e.to_string();
            assert!(text.contains(words) && text.contains("preprocessor_config.json"), "{config}: {text}");
        }
        other => panic!("{config}: {other:?}"),
    };
    let vit = |more: &str| format!(r#"{{"image_processor_type": "ViTImageProcessor", {more}}}"#);
    for (more, words) in [
        (r#""do_reduce_labels": true"#, "`do_reduce_labels` is true; this setting"),
        (r#""crop_pct": 0.9"#, "`crop_pct` is 0.9; this setting"),
        (r#""auto_map": {"AutoImageProcessor": "code.Processor"}"#, "`auto_map` is"),
        (r#""do_pad": true"#, "`do_pad` is true; padding"),
        (r#""data_format": "channels_last""#, "`data_format` is \"channels_last\""),
        (r#""resample": 6"#, "`resample` is 6; supported: 0 to 5"),
        (r#""resample": "bicubic""#, "`resample` is \"bicubic\""),
        (r#""size": {"longest_edge": 5}"#, "`size` is {\"longest_edge\":5}; supported:"),
        (r#""size": {"shortest_edge": 5, "longest_edge": 9}"#, "`size` is"),
        (r#""size": {"height": 5, "width": 0}"#, "`size` is"),
        (r#""size": -3"#, "`size` is -3"),
        (r#""size": 70000"#, "`size` is 70000"),
        (r#""crop_size": {"shortest_edge": 3}"#, "`crop_size` is"),
        (r#""do_center_crop": true"#, "`do_center_crop` is true; `crop_size` is missing"),
        (r#""do_resize": 1"#, "`do_resize` is 1; it is true or false"),
        (r#""image_mean": [0.5, 0.5]"#, "`image_mean` is [0.5,0.5]"),
        (r#""image_std": [0.5, 0.0, 0.5]"#, "`image_std` is [0.5,0.0,0.5]; it divides"),
        (r#""rescale_factor": "1/255""#, "`rescale_factor` is"),
    ] {
        check(&vit(more), words);
    }
    check(
        r#"{"image_processor_type": "Siglip2ImageProcessor"}"#,
        "`image_processor_type` is \"Siglip2ImageProcessor\"; supported: ViTImageProcessor, ",
    );
    check(r#"{"feature_extractor_type": "DeiTFeatureExtractor"}"#, "`feature_extractor_type` is \"DeiTFeatureExtractor\"");
    check(r#"{"size": 8}"#, "`image_processor_type` is missing; supported:");
    check("[]", "not a JSON object");
    check("{", "EOF while parsing");
    assert!(matches!(processor("missing", &[]), Err(TensorError::Io { path, .. }) if path.ends_with("preprocessor_config.json")));
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let check = |config: &str, images: &[RgbImage], words: &str| {
        let error = of_config("images", config).unwrap().pixels(images, &Device::cpu()).unwrap_err();
        assert!(matches!(&error, TensorError::Value(text) if text.contains(words)), "{config}: {error}");
    };
    let image = |height, width| RgbImage::new([height, width], vec![0; 3 * height * width]).unwrap();
    let whole = r#"{"image_processor_type": "CLIPImageProcessor", "size": 8, "do_center_crop": false}"#;
    check(whole, &[], "no image");
    check(whole, &[image(10, 10), image(10, 20)], "image 1 becomes 8 × 16 pixels, the first one 8 × 8");
    // The longer edge of a line would have 80 million pixels; and so would the shorter one, between the passes.
    check(whole, &[image(1, 10_000_000)], "a resized image of 8 × 80000000 pixels");
    let flat = r#"{"image_processor_type": "ViTImageProcessor", "size": {"height": 1, "width": 9000}}"#;
    check(flat, &[image(10_000, 1)], "a resized image of 10000 × 9000 pixels");
    let rgb = r#"{"image_processor_type": "ViTImageProcessor", "size": 8, "do_convert_rgb": false}"#;
    for (name, fits) in [
        ("wide.png", true),
        ("photo-444.jpg", true),
        ("grey.png", false),
        ("palette.png", false),
        ("alpha.png", false),
        ("grey.jpg", false),
    ] {
        let image = RgbImage::open(root().join(name)).unwrap();
        match of_config("rgb", rgb).unwrap().pixels(&[image], &Device::cpu()) {
            Err(TensorError::Value(text)) if text.contains("`do_convert_rgb` is false") => assert!(!fits, "{name}"),
            other => assert!(fits && other.is_ok(), "{name}"),
        }
    }
    for (size, levels) in [([0, 3], 0), ([2, 2], 11), ([1 << 40, 1 << 40], 0)] {
        assert!(matches!(RgbImage::new(size, vec![0; levels]), Err(TensorError::Value(_))), "{size:?}");
    }
}

/// A PNG file that begins as one of this size, with the sums of its parts.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut head = b"IHDR".to_vec();
    head.extend(width.to_be_bytes().into_iter().chain(height.to_be_bytes()).chain([8, 2, 0, 0, 0]));
    let mut sum = flate2::Crc::new();
    sum.update(&head);
    [b"\x89PNG\r\n\x1a\n\0\0\0\r", &head[..], &sum.sum().to_be_bytes(), b"\0\0\0\0IDAT\x35\xaf\x06\x1e\0\0\0\0IEND\xae\x42\x60\x82"]
        .concat()
}

#[test]
fn damaged_files_are_errors() {
    let check = |what: &str, bytes: &[u8], words: &str| match RgbImage::decode(bytes) {
        Err(e) => assert!(e.to_string().contains(words), "{what}: {e}"),
        Ok(image) => panic!("{what}: {image:?}"),
    };
    check("nothing", b"", "the file is empty");
    check("text", b"a picture of a cat", "neither PNG nor JPEG");
    check("gif", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "neither PNG nor JPEG");
    check("without height", &png_header(3, 0), "png");
    check("larger than memory", &png_header(2_000_000_000, 2_000_000_000), "needs more than");
    check("more than is read", &png_header(10_000, 9_000), "larger than the 89478485 that are read");
    check("without data", &png_header(3, 3), "png");
    let file = |name: &str| std::fs::read(root().join(name)).unwrap();
    check("four inks", &file("four-inks.jpg"), "four inks");
    for name in ["photo-420.jpg", "progressive.jpg", "palette.png", "rgb-16.png"] {
        let whole = file(name);
        // What follows the data in a PNG file is 16 bytes without which PIL reads it too.
        let end = if name.ends_with("png") { whole.len() - 16 } else { whole.len() };
        for len in 2..end {
            check(&format!("{len} bytes of {name}"), &whole[..len], "");
        }
        // Whatever bytes are wrong: an error, or an image of some kind.
        for at in 0..whole.len() {
            for bits in [1, 0x80, 0xff] {
                let mut wrong = whole.clone();
                wrong[at] ^= bits;
                let _ = RgbImage::decode(&wrong);
            }
        }
    }
    let path = root().join("missing.png");
    assert!(matches!(RgbImage::open(&path), Err(TensorError::Io { path: named, .. }) if named == path));
    let inks = RgbImage::open(root().join("four-inks.jpg")).unwrap_err().to_string();
    assert!(inks.contains("four-inks.jpg: a JPEG file of four inks"), "{inks}");
}
