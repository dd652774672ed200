//! A folder's model in GGUF's names and layouts. Its keys are those of the description that the reader of GGUF files asks for; what they say is read
//! back and has to be the same description.

use super::{keys, layouts, same};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::{Gguf, GgufWriter};
use crate::models::Weights;
use crate::models::architectures::{self, Architecture, GgufForm, Named};
use crate::models::decoder::{Decoder, Description};
use crate::models::rope_settings::{FACTORS, unscaled};
use crate::models::settings::{NONE, Settings};
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// The architecture of a folder and its GGUF files.
fn known(name: &str) -> TensorResult<(&'static Architecture, &'static GgufForm)> {
    architectures::find(name).and_then(|a| Some((a, a.gguf.as_ref()?))).ok_or_else(|| {
        TensorError::Unsupported(format!("a folder of architecture `{name}` as GGUF: docs/models.md has the list of those that there are"))
    })
}

/// Sets the metadata of a folder's model; its tensors are returned.
pub(super) fn from_folder(weights: &Weights, w: &mut GgufWriter<'_>) -> TensorResult<Vec<Named>> {
    let (known, form) = known(weights.architecture()?)?;
    let s = Settings::new(weights)?;
    let mut d = known.described(&s)?;
    let names = d.names.clone();
    let read = Tensors::new(weights, &s, &names, DType::F32);
    Decoder::read(d.clone(), &read, DType::F32)?;
    s.finish()?;
    read.finish(d.unused, &d.left_out)?;
    let mut tensors = read.into_read();
    tensors.extend(divisors(&s, &d, form)?);
    if let Some(fold) = form.fold {
        fold(&mut d, &mut tensors)?;
    }

    let vocab = tensors.iter().find(|(n, _)| n == "token_embd.weight").map_or(0, |(_, t)| t.dims()[0]);
    let dense = d.layers.iter().find(|l| l.flow.has_feed() && l.feed.experts.is_none()).map(|l| l.feed.size);
    let has_feed = d.layers.iter().any(|l| l.flow.has_feed());
    let feed = if has_feed { dense.or(s.size_said("intermediate_size")).unwrap_or(d.layers[0].feed.size) } else { 0 };
    let mut all = GgufWriter::new();
    keys::metadata(&d, form, vocab, feed, &mut all);
    if let Some(keys) = form.keys {
        keys(&s, &d, &mut tensors, &mut all)?;
    }
    // A file of these keys, whose tensors have their names and nothing else, but for the rows of those that sizes are taken from.
    for (name, t) in &tensors {
        let rows = if form.sizes.iter().any(|of| of == name) { t.dims()[0] } else { 1 };
        all.tensor(&d.names.gguf(name), DType::F32, &[rows], vec![0; 4 * rows])?;
    }
    let sketch = Weights::from_gguf(Gguf::from_bytes(all.to_bytes()?)?, &Device::cpu());
    let file = read_back(&s, &sketch, &tensors, w)?;
    same::check(&s, &d, &file)?;
    layouts::in_gguf(&d, &file, tensors)
}

/// What the reader of GGUF files makes of a sketch. The keys that it asks for are set.
fn read_back(s: &Settings<'_>, sketch: &Weights, tensors: &[Named], w: &mut GgufWriter<'_>) -> TensorResult<Description> {
    let other = |e: TensorError| TensorError::Unsupported(format!("{}: it cannot be a GGUF file: {e}", s.file()));
    let name = sketch.architecture()?;
    let reader = architectures::find(name).ok_or_else(|| TensorError::Internal(format!("nothing reads GGUF files of `{name}`")))?;
    let settings = Settings::new(sketch)?;
    let mut d = reader.described(&settings).map_err(other)?;
    // The embedding says the same.
    settings.number("vocab_size", NONE)?;
    let values = |name: &str| tensors.iter().find(|(n, _)| n == name).map(|(_, t)| t.to_vec()).transpose();
    if let Some(table) = d.ropes.first_mut() {
        if let Some(by) = values("rope_freqs.weight")? {
            table.slow(&by);
        }
        if let (Some(short), Some(long)) = (values(FACTORS[0])?, values(FACTORS[1])?) {
            table.divide(&short, &long);
        }
    }
    let gguf = sketch.gguf().ok_or_else(|| TensorError::Internal("a sketch that is not a GGUF file".into()))?;
    for (key, value) in gguf.metadata().filter(|(key, _)| settings.takes(key)) {
        w.set(key, value);
    }
    Ok(d)
}

/// A scaling of rotations that no key says is written as divisors, one for each pair.
fn divisors(s: &Settings<'_>, d: &Description, form: &GgufForm) -> TensorResult<Vec<Named>> {
    let Some(rope) = d.ropes.first() else { return Ok(Vec::new()) };
    let tensor = |name: &str, by: Vec<f64>| -> TensorResult<Named> {
        let by: Vec<f32> = by.into_iter().map(|by| by as f32).collect();
        let n = by.len();
        Ok((name.to_string(), Tensor::from_vec(by, &[n], &Device::cpu())?))
    };
    let plain = unscaled(rope.base, 2 * rope.freqs.len());
    let refuse = || s.only(form.divisors, if s.has_object("rope_scaling") { "rope_scaling" } else { "rope_parameters" });
    match &rope.long {
        Some(long) => {
            refuse()?;
            let of = |freqs: &[f64]| plain.iter().zip(freqs).map(|(plain, f)| plain / f).collect();
            FACTORS.into_iter().zip([&rope.freqs, &long.freqs]).map(|(name, freqs)| tensor(name, of(freqs))).collect()
        }
        None if rope.yarn.is_some() || keys::linear(rope).is_some() => Ok(Vec::new()),
        None => {
            refuse()?;
            Ok(vec![tensor("rope_freqs.weight", keys::divisors(rope))?])
        }
    }
}
