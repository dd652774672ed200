//! Groups of integers with a scale and a zero point: AWQ, GPTQ and compressed-tensors.

use super::keys::Keys;
use super::part::{Parts, blocks, number};
use super::{Blocks, bad};
use crate::dtype::DType;
use crate::error::TensorResult;
use half::f16;

/// Who stored the layers.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    Awq,
    /// What is added to stored zero points.
    Gptq(u16),
    Compressed,
}

/// The settings.
#[derive(Debug)]
pub(super) struct IntGroups {
    layout: Layout,
    bits: usize,
    /// Values of a group; more than a row has for whole rows.
    group: usize,
}

/// Which value of eight lies at each nibble of AWQ's words, the lowest first.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl IntGroups {
    /// What `quantization_config` of method awq says.
    pub fn awq(keys: &Keys<'_>) -> TensorResult<IntGroups> {
        keys.only(&[
            "quant_method",
            "bits",
            "group_size",
            "zero_point",
            "version",
            "modules_to_not_convert",
            "backend",
            "do_fuse",
            "fuse_max_seq_len",
            "exllama_config",
            "modules_to_fuse",
        ])?;
        if keys.text("version")?.is_some_and(|v| !v.eq_ignore_ascii_case("gemm")) {
            return Err(keys.refuse_key("version", "the layout gemm is implemented"));
        }
        IntGroups::sized(keys, Layout::Awq, &[4])
    }

    /// What `quantization_config` of method gptq says.
    pub fn gptq(keys: &Keys<'_>) -> TensorResult<IntGroups> {
        keys.only(&[
            "quant_method",
            "bits",
            "group_size",
            "desc_act",
            "sym",
            "checkpoint_format",
            "damp_percent",
            "true_sequential",
            "static_groups",
            "model_name_or_path",
            "model_file_base_name",
            "quantizer",
            "pack_dtype",
            "lm_head",
            "meta",
            "dataset",
            "tokenizer",
            "use_cuda_fp16",
            "model_seqlen",
            "block_name_to_quantize",
            "module_name_preceding_first_block",
            "batch_size",
            "pad_token_id",
            "use_exllama",
            "max_input_length",
            "exllama_config",
            "cache_block_outputs",
            "modules_in_block_to_quantize",
            "is_marlin_format",
            "damp_auto_increment",
            "backend",
        ])?;
        if keys.flag("is_marlin_format")? == Some(true) {
            return Err(keys.refuse_key("is_marlin_format", "this layout is not implemented"));
        }
        let above = match keys.text("checkpoint_format")? {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(_) => return Err(keys.refuse_key("checkpoint_format", "the layouts gptq and gptq_v2 are implemented")),
        };
        IntGroups::sized(keys, Layout::Gptq(above), &[2, 4, 8])
    }

    /// What `quantization_config` of compressed-tensors says.
    pub fn compressed(keys: &Keys<'_>) -> TensorResult<IntGroups> {
        let weights = keys.compressed_group()?;
        let bits = weights.needed("num_bits")?;
        if weights.text("type")? != Some("int") || ![4, 8].contains(&bits) {
            return Err(weights.refuse("integers of 4 and 8 bits are implemented"));
        }
        let group = match weights.text("strategy")? {
            Some("group") => weights.needed("group_size")?,
            Some("channel" | "tensor") => usize::MAX,
            _ => return Err(weights.refuse_key("strategy", "scales of groups, channels and tensors are implemented")),
        };
        Ok(IntGroups { layout: Layout::Compressed, bits, group })
    }

    fn sized(keys: &Keys<'_>, layout: Layout, bits: &[usize]) -> TensorResult<IntGroups> {
        let (width, group) = (keys.needed("bits")?, keys.needed("group_size")?);
        if !bits.contains(&width) {
            return Err(keys.refuse_key("bits", "this width is not implemented"));
        }
        Ok(IntGroups { layout, bits: width, group })
    }

    /// The dtype of its blocks.
    fn dtype(&self) -> DType {
        if self.bits > 4 { DType::Z8 } else { DType::Z4 }
    }

    /// The weight of a layer.
    pub fn weight(&self, all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
        match self.layout {
            Layout::Compressed => self.by_rows(all, layer),
            _ => self.by_columns(all, layer),
        }
    }

    /// AWQ and GPTQ: numbers of `[in,out]`, eight of a row or of a column in a word.
    fn by_columns(&self, all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
        let (awq, per_word) = (self.layout == Layout::Awq, 32 / self.bits);
        let (numbers, zeros, scales) = (all.of(layer, ".qweight")?, all.of(layer, ".qzeros")?, all.of(layer, ".scales")?);
        let (lead, high, wide) = numbers.matrix(&["I32", "U32"])?;
        let (inputs, outputs) = if awq { (high, wide * per_word) } else { (high * per_word, wide) };
        let group = self.group.min(inputs);
        if !lead.is_empty() || group == 0 || inputs % group != 0 || group % 32 != 0 || outputs % per_word != 0 {
            return Err(bad(
                layer,
                format!("a weight of {outputs} rows and {inputs} columns in groups of {group}; expected multiples of 32"),
            ));
        }
        let s = scales.expect(&[inputs / group, outputs])?.halves()?;
        let zeros = zeros.expect(&[inputs / group, outputs / per_word])?.words()?;
        let order = group_order(all, &format!("{layer}.g_idx"), inputs, group)?;
        let words = numbers.words()?;
        let (bits, mask) = (self.bits, (1u32 << self.bits) - 1);
        // The number of a column of a word that holds a row's.
        let place = |n: usize| bits * if awq { AWQ_ORDER.iter().position(|&v| v == n % 8).unwrap_or(0) } else { n % per_word };
        let above = if let Layout::Gptq(above) = self.layout { above } else { 0 };
        let number = |o: usize, i: usize| {
            let (word, at) = if awq { (i * wide + o / per_word, place(o)) } else { (i / per_word * wide + o, bits * (i % per_word)) };
            (words[word] >> at & mask) as u8
        };
        let of_group = |o: usize, g: usize| {
            let zero = (zeros[g * (outputs / per_word) + o / per_word] >> place(o) & mask) as u16 + above;
            (s[g * outputs + o], zero)
        };
        self.rows(vec![outputs, inputs], group, order, layer, number, of_group)
    }

    /// compressed-tensors: numbers of `[out,in]` in words of a row, or a byte each; zero points of `[out,in / group]` in words of a column.
    fn by_rows(&self, all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
        let numbers = all.any(layer, &[".weight_packed", ".weight"])?;
        let packed = numbers.kind() != "I8";
        let (lead, rows, wide) = numbers.matrix(&["I32", "U32", "I8"])?;
        let inputs = if packed { wide * 32 / self.bits } else { wide };
        let group = self.group.min(inputs);
        if !lead.is_empty() || group == 0 || inputs % group != 0 || group % 32 != 0 {
            return Err(bad(layer, format!("a weight of {rows} rows and {inputs} columns in groups of {group}; expected multiples of 32")));
        }
        let order = group_order(all, &format!("{layer}.weight_g_idx"), inputs, group)?;
        let per_row = inputs / group;
        let scales = all.of(layer, ".weight_scale")?;
        let s = scales.halves()?;
        let one = s.len() == 1;
        if !one && s.len() != rows * per_row {
            return Err(bad(layer, format!("scales {:?} for {rows} rows of {per_row} groups", scales.shape())));
        }
        // What zero is stored as: numbers are stored with half of their range added.
        let (bits, half) = (self.bits, 1u16 << (self.bits - 1));
        let zeros = all.get(&format!("{layer}.weight_zero_point"));
        let zero = match &zeros {
            Some(z) if z.kind() == "I8" => {
                z.expect(scales.shape())?;
                None
            }
            Some(z) => Some(z.expect(&[rows.div_ceil(32 / bits), per_row])?.words()?),
            None => None,
        };
        let row_bytes = if packed { 4 * wide } else { wide };
        let number = |r: usize, i: usize| {
            let row = &numbers.bytes[r * row_bytes..][..row_bytes];
            if packed { number(row, bits, i) } else { (row[i] as i8 as i16 + half as i16) as u8 }
        };
        let of_group = |r: usize, g: usize| {
            let place = if one { 0 } else { r * per_row + g };
            let zero = match (&zeros, &zero) {
                (_, Some(words)) => (words[r / (32 / bits) * per_row + g] >> (bits * (r % (32 / bits))) & ((1 << bits) - 1)) as u16,
                (Some(bytes), None) => (bytes.bytes[place] as i8 as i16 + half as i16) as u16,
                (None, None) => half,
            };
            (s[place], zero)
        };
        self.rows(vec![rows, inputs], group, order, layer, number, of_group)
    }

    /// The weight of `number(row, column)` under the scale and zero point `of_group(row, group)`. Where columns are in groups in another order, no
    /// block of neighbouring columns has one scale: such a weight is f16, each value rounded once, as the libraries decode it.
    fn rows(
        &self,
        shape: Vec<usize>,
        group: usize,
        order: Option<Vec<u32>>,
        layer: &str,
        number: impl Fn(usize, usize) -> u8 + Sync,
        of_group: impl Fn(usize, usize) -> (u16, u16) + Sync,
    ) -> TensorResult<Blocks> {
        let Some(order) = order else {
            return blocks(self.dtype(), shape, layer, |r, b, block| {
                let (scale, zero) = of_group(r, b * 32 / group);
                put(block, scale, zero, |i| number(r, 32 * b + i));
            });
        };
        blocks(DType::F16, shape, layer, |r, i, bytes| {
            let (scale, zero) = of_group(r, order[i] as usize);
            let value = f16::from_bits(scale).to_f32() * (f32::from(number(r, i)) - f32::from(zero));
            bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes());
        })
    }
}

/// The group of each of so many columns; `None` where neighbouring columns share one, in order.
fn group_order(all: &Parts<'_>, name: &str, columns: usize, group: usize) -> TensorResult<Option<Vec<u32>>> {
    let Some(part) = all.get(name) else { return Ok(None) };
    let order = part.expect(&[columns])?.words()?;
    if let Some(g) = order.iter().find(|&&g| g as usize >= columns / group) {
        return Err(bad(name, format!("group {g} of {}", columns / group)));
    }
    Ok(order.iter().enumerate().any(|(i, &g)| g as usize != i / group).then_some(order))
}

/// Stores a block: scale, zero point and numbers.
fn put(block: &mut [u8], scale: u16, zero: u16, number: impl Fn(usize) -> u8) {
    block[..2].copy_from_slice(&scale.to_le_bytes());
    block[2..4].copy_from_slice(&zero.to_le_bytes());
    let bytes = &mut block[4..];
    if bytes.len() == 32 {
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = number(i));
    } else {
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = number(2 * i) | number(2 * i + 1) << 4);
    }
}
