//! MLX: rows of integers in words, with a scale and an offset for each group; or small floats with scales of a byte.

use super::keys::Keys;
use super::part::{Parts, blocks};
use super::{Blocks, bad, mxfp4};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::quant::power_of_two;
use std::collections::BTreeMap;

/// How a layer is stored.
#[derive(Clone, Debug)]
struct Kind {
    group: usize,
    bits: usize,
    mode: String,
}

/// The settings: of all layers, and of some.
#[derive(Debug)]
pub(super) struct Mlx {
    all: Kind,
    layers: BTreeMap<String, Option<Kind>>,
}

impl Kind {
    fn of(keys: &Keys<'_>, from: Option<&Kind>) -> TensorResult<Kind> {
        let mode = keys.text("mode")?.map(str::to_string).or(from.map(|k| k.mode.clone())).unwrap_or("affine".into());
        let (group, bits) = match from {
            Some(k) => (keys.size("group_size")?.unwrap_or(k.group), keys.size("bits")?.unwrap_or(k.bits)),
            None => (keys.needed("group_size")?, keys.needed("bits")?),
        };
        match (mode.as_str(), bits, group) {
            ("affine", 2 | 3 | 4 | 5 | 6 | 8, 32 | 64 | 128) | ("mxfp4", 4, 32) | ("nvfp4", 4, 16) | ("mxfp8", 8, 32) => {
                Ok(Kind { group, bits, mode })
            }
            _ => Err(keys.refuse("this combination of mode, bits and group size is not implemented")),
        }
    }
}

impl Mlx {
    /// What `quantization` says.
    pub fn of(keys: &Keys<'_>) -> TensorResult<Mlx> {
        let all = Kind::of(keys, None)?;
        let mut layers = BTreeMap::new();
        for (name, value) in keys.iter().filter(|(k, _)| !["group_size", "bits", "mode"].contains(&k.as_str())) {
            let kind = match value.as_bool() {
                Some(quantized) => quantized.then(|| all.clone()),
                None if value.is_object() => {
                    let own = Keys::new(format!("quantization.{name}"), value)?;
                    own.only(&["group_size", "bits", "mode"])?;
                    Some(Kind::of(&own, Some(&all))?)
                }
                None => return Err(keys.refuse_key(name, "this setting of quantized weights is not implemented")),
            };
            layers.insert(name.clone(), kind);
        }
        Ok(Mlx { all, layers })
    }

    fn kind(&self, layer: &str) -> Option<&Kind> {
        self.layers.get(layer).map_or(Some(&self.all), |k| k.as_ref())
    }
    /// Whether a layer that has scales is quantized.
    pub fn quantizes(&self, layer: &str) -> bool {
        self.kind(layer).is_some()
    }

    /// The weight of a layer.
    pub fn weight(&self, all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
        let Some(Kind { group, bits, mode }) = self.kind(layer).cloned() else { return Err(bad(layer, "it is not quantized")) };
        let (weight, scales) = (all.of(layer, ".weight")?, all.of(layer, ".scales")?);
        let (lead, rows, words) = weight.matrix(&["U32", "I32"])?;
        let columns = words * 32 / bits;
        let shape = [lead, &[rows, columns]].concat();
        let groups = [lead, &[rows, columns / group]].concat();
        scales.expect(&groups)?;
        if columns % group != 0 || words * 32 % bits != 0 {
            return Err(bad(layer, format!("rows of {words} words; expected groups of {group} numbers of {bits} bits")));
        }
        let row = |r: usize| &weight.bytes[r * words * 4..][..words * 4];
        let per_row = columns / group;
        if mode == "affine" {
            let (s, o) = (scales.halves()?, all.of(layer, ".biases")?.expect(&groups)?.halves()?);
            let dtype = match bits {
                2 => DType::A2,
                3 => DType::A3,
                4 => DType::A4,
                5 => DType::A5,
                6 => DType::A6,
                _ => DType::A8,
            };
            return blocks(dtype, shape, layer, |r, b, block| {
                let g = r * per_row + b * 32 / group;
                block[..2].copy_from_slice(&s[g].to_le_bytes());
                block[2..4].copy_from_slice(&o[g].to_le_bytes());
                block[4..].copy_from_slice(&row(r)[b * 4 * bits..][..4 * bits]);
            });
        }
        scales.matrix(&["U8"])?;
        let scale = |r: usize, g: usize| scales.bytes[r * per_row + g];
        match mode.as_str() {
            "mxfp4" => blocks(DType::MXFP4, shape, layer, |r, b, block| mxfp4::block(scale(r, b), &row(r)[16 * b..][..16], block)),
            "nvfp4" => blocks(DType::NVFP4, shape, layer, |r, b, block| {
                for g in 0..4 {
                    block[g] = scale(r, 4 * b + g);
                    mxfp4::halves(&row(r)[32 * b + 8 * g..][..8], &mut block[4 + 8 * g..][..8]);
                }
            }),
            _ => blocks(DType::F8_E4M3, shape, layer, |r, b, block| {
                block[..4].copy_from_slice(&(2.0 * power_of_two(scale(r, b))).to_le_bytes());
                block[4..].copy_from_slice(&row(r)[32 * b..][..32]);
            }),
        }
    }
}
