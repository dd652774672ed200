//! Weights that a folder in Hub layout keeps quantized, under the names of the plain weights and as blocks that the library computes with.
//!
//! | what `config.json` says | tensors of a layer | read as |
//! |---|---|---|
//! | MLX: `quantization` with `group_size`, `bits`, `mode` (affine, mxfp4, nvfp4, mxfp8) | `weight`, `scales`, `biases` | A2 to A8; MXFP4, NVFP4, F8_E4M3 |
//! | `quant_method` fp8 | `weight` F8_E4M3, `weight_scale_inv` or `weight_scale` | F8_E4M3 |
//! | mxfp4 | `…_blocks`, `…_scales` | MXFP4 |
//! | awq, gptq | `qweight`, `qzeros`, `scales`, `g_idx` | Z4, Z8; f16 where columns are in groups out of order |
//! | bitsandbytes of 4 bits (nf4, fp4) | `weight`, `weight.absmax`, `weight.quant_map`, `weight.quant_state…` | f16, bf16, f32 |
//! | compressed-tensors (pack-quantized, int-quantized, float-quantized, mxfp4-pack-quantized) | `weight_packed` or `weight`, `weight_scale`, `weight_zero_point` | Z4, Z8, F8_E4M3, MXFP4 |
//!
//! Scales of Z and A are f16 in memory: what is f16 in the file stays as it is, and bf16 of 2^-17 and more too; smaller ones are rounded to a
//! multiple of 2^-24. Everything else is exact. What is none of these is refused by its name and value.

mod four_bit;
mod fp8;
mod int_groups;
mod keys;
mod mlx;
mod mxfp4;
mod part;

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::SafeTensors;
use keys::Keys;
use part::Parts;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// A weight as blocks.
pub(crate) struct Blocks {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// How layers are stored.
#[derive(Debug)]
enum Scheme {
    Mlx(mlx::Mlx),
    Fp8(fp8::Fp8),
    MxFp4,
    IntGroups(int_groups::IntGroups),
    FourBit,
}

/// The quantized layers of a folder.
#[derive(Debug)]
pub(crate) struct Quantized {
    scheme: Scheme,
    /// The names under which weights are asked for, and those without `.weight` or the like of their parts.
    layers: BTreeMap<String, String>,
    /// The parts of layers, which nobody asks for.
    parts: BTreeSet<String>,
}

impl Quantized {
    /// What `config.json` and the names of the tensors say; `None` where nothing is quantized.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] for a method, or a key of one, that is not implemented; its name and value are in the message.
    pub fn of(config: &Json, files: &SafeTensors) -> TensorResult<Option<Quantized>> {
        let named = |name: &'static str| config.get(name).filter(|v| !v.is_null()).map(|v| Keys::new(name, v));
        let (own, common) = (named("quantization").transpose()?, named("quantization_config").transpose()?);
        let scheme = match (own, common) {
            (None, None) => return Ok(None),
            (Some(keys), None) => Scheme::Mlx(mlx::Mlx::of(&keys)?),
            (Some(keys), Some(common)) if keys.same(&common) => Scheme::Mlx(mlx::Mlx::of(&keys)?),
            (Some(_), Some(common)) => return Err(common.refuse("it is not what `quantization` is")),
            (None, Some(keys)) => match keys.text("quant_method")? {
                Some("fp8") => Scheme::Fp8(fp8::Fp8::of(&keys)?),
                Some("mxfp4") => {
                    keys.only(&["quant_method", "modules_to_not_convert"])?;
                    Scheme::MxFp4
                }
                Some("bitsandbytes") => {
                    four_bit::check(&keys)?;
                    Scheme::FourBit
                }
                Some("awq") => Scheme::IntGroups(int_groups::IntGroups::awq(&keys)?),
                Some("gptq") => Scheme::IntGroups(int_groups::IntGroups::gptq(&keys)?),
                Some("compressed-tensors") => Quantized::compressed(&keys)?,
                None if keys.has("bits") && keys.has("group_size") => Scheme::Mlx(mlx::Mlx::of(&keys)?),
                _ => return Err(keys.refuse("this way to quantize weights is not implemented")),
            },
        };
        let all = Parts(files);
        let (mut layers, mut parts) = (BTreeMap::new(), BTreeSet::new());
        for tensor in files.tensors() {
            let Some((layer, weight)) = scheme.layer(&all, &tensor.name) else { continue };
            parts.extend(scheme.parts().iter().map(|end| format!("{layer}{end}")).filter(|name| all.get(name).is_some()));
            layers.insert(weight, layer);
        }
        if layers.is_empty() {
            let key = if config.get("quantization").is_some_and(|v| !v.is_null()) { "quantization" } else { "quantization_config" };
            return Err(TensorError::Unsupported(format!("`{key}` is {}; no tensor is stored so", config[key])));
        }
        Ok(Some(Quantized { scheme, layers, parts }))
    }

    fn compressed(keys: &Keys) -> TensorResult<Scheme> {
        Ok(match keys.text("format")? {
            Some("pack-quantized" | "int-quantized") => Scheme::IntGroups(int_groups::IntGroups::compressed(keys)?),
            Some("float-quantized" | "naive-quantized") => Scheme::Fp8(fp8::Fp8::compressed(keys)?),
            Some("mxfp4-pack-quantized") => {
                keys.compressed_group()?;
                Scheme::MxFp4
            }
            _ => return Err(keys.refuse_key("format", "this format of compressed-tensors is not implemented")),
        })
    }

    /// The names under which tensors are asked for, in place of those that the files have.
    pub fn names(&self, files: &SafeTensors) -> Vec<String> {
        let plain = files.tensors().iter().map(|t| t.name.to_string()).filter(|name| !self.parts.contains(name));
        plain.chain(self.layers.keys().cloned()).collect()
    }

    /// Whether a name is that of a quantized weight, or of a part of one.
    pub fn knows(&self, name: &str) -> Option<bool> {
        match (self.layers.contains_key(name), self.parts.contains(name)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    /// A quantized weight; `None` where a tensor of this name is not quantized.
    ///
    /// # Errors
    /// [`TensorError::Format`] where its parts do not fit together, [`TensorError::Unsupported`] where they are of a kind that is not implemented.
    pub fn weight(&self, files: &SafeTensors, name: &str) -> TensorResult<Option<Blocks>> {
        let Some(layer) = self.layers.get(name) else { return Ok(None) };
        let all = Parts(files);
        let blocks = match &self.scheme {
            Scheme::Mlx(mlx) => mlx.weight(&all, layer),
            Scheme::Fp8(fp8) => fp8.weight(&all, layer),
            Scheme::MxFp4 => mxfp4::weight(&all, layer),
            Scheme::IntGroups(groups) => groups.weight(&all, layer),
            Scheme::FourBit => four_bit::weight(&all, layer),
        };
        blocks.map(Some)
    }
}

impl Scheme {
    /// Ends of the names of a layer's parts.
    fn parts(&self) -> &'static [&'static str] {
        match self {
            Scheme::Mlx(_) => &[".weight", ".scales", ".biases"],
            Scheme::Fp8(_) => &[".weight", ".weight_scale_inv", ".weight_scale", ".input_scale", ".activation_scale"],
            Scheme::MxFp4 => &["_blocks", "_scales", ".weight_packed", ".weight_scale", ".input_global_scale"],
            Scheme::FourBit => &[
                ".weight",
                ".weight.absmax",
                ".weight.quant_map",
                ".weight.nested_absmax",
                ".weight.nested_quant_map",
                ".weight.quant_state.bitsandbytes__nf4",
                ".weight.quant_state.bitsandbytes__fp4",
            ],
            Scheme::IntGroups(_) => &[
                ".qweight",
                ".qzeros",
                ".scales",
                ".g_idx",
                ".weight",
                ".weight_packed",
                ".weight_scale",
                ".weight_zero_point",
                ".weight_shape",
                ".weight_g_idx",
                ".input_scale",
            ],
        }
    }

    /// The layer and the name of the plain weight where a tensor is the part of a layer that holds its numbers.
    fn layer(&self, all: &Parts<'_>, tensor: &str) -> Option<(String, String)> {
        let with = |end: &str, scales: &[&str]| {
            let layer = tensor.strip_suffix(end)?;
            scales.iter().any(|s| all.get(&format!("{layer}{s}")).is_some()).then(|| (layer.to_string(), format!("{layer}.weight")))
        };
        match self {
            Scheme::Mlx(mlx) => with(".weight", &[".scales"]).filter(|(layer, _)| mlx.quantizes(layer)),
            Scheme::Fp8(_) => with(".weight", &[".weight_scale_inv", ".weight_scale"]),
            Scheme::MxFp4 => {
                let layer = tensor.strip_suffix("_blocks").filter(|l| all.get(&format!("{l}_scales")).is_some());
                layer.map(|l| (l.to_string(), l.to_string())).or_else(|| with(".weight_packed", &[".weight_scale"]))
            }
            Scheme::FourBit => with(".weight", &[".weight.absmax"]),
            Scheme::IntGroups(_) => {
                let ends = [(".qweight", ".scales"), (".weight_packed", ".weight_scale"), (".weight", ".weight_scale")];
                ends.into_iter().find_map(|(end, scales)| with(end, &[scales]))
            }
        }
    }
}

/// An error about a layer.
fn bad(layer: &str, message: impl std::fmt::Display) -> TensorError {
    TensorError::format("weights", format!("`{layer}`: {message}"))
}
