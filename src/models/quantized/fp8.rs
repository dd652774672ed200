//! Weights of eight-bit floats, E4M3, with a factor for the tensor, for each row, or for each tile. Activations are not rounded.

use super::keys::Keys;
use super::part::{Parts, blocks};
use super::{Blocks, bad};
use crate::dtype::DType;
use crate::error::TensorResult;

/// The settings.
#[derive(Debug)]
pub(super) struct Fp8 {
    /// Rows and columns of a tile.
    tile: Option<[usize; 2]>,
}

impl Fp8 {
    /// What `quantization_config` of method fp8 says.
    pub fn of(keys: &Keys<'_>) -> TensorResult<Fp8> {
        keys.only(&[
            "quant_method",
            "fmt",
            "activation_scheme",
            "weight_block_size",
            "modules_to_not_convert",
            "ignored_layers",
            "scale_fmt",
            "dequantize",
            "weight_per_tensor",
            "act_per_tensor",
        ])?;
        if keys.text("fmt")?.is_some_and(|f| !["e4m3", "float8_e4m3fn"].contains(&f)) {
            return Err(keys.refuse_key("fmt", "floats of E4M3 are implemented"));
        }
        Ok(Fp8 { tile: tile(keys, "weight_block_size")? })
    }

    /// What `quantization_config` of compressed-tensors says.
    pub fn compressed(keys: &Keys<'_>) -> TensorResult<Fp8> {
        let weights = keys.compressed_group()?;
        if weights.text("type")? != Some("float") || weights.needed("num_bits")? != 8 || weights.flag("symmetric")? == Some(false) {
            return Err(weights.refuse("symmetric floats of 8 bits are implemented"));
        }
        Ok(Fp8 { tile: tile(&weights, "block_structure")? })
    }

    /// The weight of a layer.
    pub fn weight(&self, all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
        let (weight, scales) = (all.of(layer, ".weight")?, all.any(layer, &[".weight_scale_inv", ".weight_scale"])?);
        let (lead, rows, columns) = weight.matrix(&["F8_E4M3"])?;
        let all_rows = lead.iter().product::<usize>() * rows;
        let factors = scales.floats()?;
        // Tiles of a matrix, or rows, or the matrix.
        let tiles = self.tile.map(|[h, w]| ([h, w], [rows.div_ceil(h), columns.div_ceil(w)]));
        let per_tile = tiles.filter(|(_, n)| scales.shape() == [lead, n].concat());
        let [height, width] = match (per_tile, factors.len()) {
            (Some((tile, _)), _) => tile,
            (None, 1) => [all_rows, columns],
            (None, n) if n == all_rows => [1, columns],
            (None, n) if n == all_rows / rows.max(1) => [rows, columns],
            _ => return Err(bad(layer, format!("scales {:?} for a weight {:?}", scales.shape(), weight.shape()))),
        };
        if width % 32 != 0 && width < columns {
            return Err(bad(layer, format!("tiles of {width} columns; expected multiples of 32")));
        }
        let (across, down) = (columns.div_ceil(width.max(1)), rows.div_ceil(height.max(1)));
        blocks(DType::F8_E4M3, weight.shape().to_vec(), layer, |r, b, block| {
            let row = if per_tile.is_some() { r / rows * down + r % rows / height } else { r / height };
            block[..4].copy_from_slice(&factors[row * across + b * 32 / width].to_le_bytes());
            block[4..].copy_from_slice(&weight.bytes[r * columns + 32 * b..][..32]);
        })
    }
}

/// Rows and columns of a tile.
fn tile(keys: &Keys<'_>, key: &str) -> TensorResult<Option<[usize; 2]>> {
    let Some(value) = keys.get(key) else { return Ok(None) };
    let sizes = value.as_array().filter(|a| a.len() == 2).and_then(|a| Some([a[0].as_u64()? as usize, a[1].as_u64()? as usize]));
    sizes
        .filter(|s| s.iter().all(|n| (1..1 << 24).contains(n)))
        .map(Some)
        .ok_or_else(|| keys.refuse_key(key, "expected the rows and columns of a tile"))
}
