//! How a model's matrices are stored: all in one type, or in one of llama.cpp's mixes, which keep more bits where few of them matter more.

use crate::dtype::DType;
use std::fmt;
use std::str::FromStr;

/// A mix of types.
#[derive(Debug, PartialEq, Eq)]
pub struct Mix {
    /// As llama.cpp calls it.
    pub name: &'static str,
    /// The type of most matrices.
    pub base: DType,
    /// That of a joined query, key and value matrix.
    joined: DType,
    /// llama.cpp's number of such a file.
    pub file_type: u32,
}

/// The mixes that there are. Values and the second matrices of feed-forward networks have 6 bits in half of the layers.
pub static MIXES: [Mix; 2] = [
    Mix { name: "q4_K_M", base: DType::Q4_K, joined: DType::Q5_K, file_type: 15 },
    Mix { name: "q5_K_M", base: DType::Q5_K, joined: DType::Q6_K, file_type: 17 },
];

/// The types of a model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightTypes {
    /// One for all.
    One(DType),
    /// A mix.
    Mix(&'static Mix),
}

impl From<DType> for WeightTypes {
    fn from(dtype: DType) -> Self {
        WeightTypes::One(dtype)
    }
}

impl fmt::Display for WeightTypes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            WeightTypes::One(dtype) => dtype.fmt(f),
            WeightTypes::Mix(mix) => f.write_str(mix.name),
        }
    }
}

impl FromStr for WeightTypes {
    type Err = String;

    /// The types of this name, in either case.
    ///
    /// ```
    /// use tensorlogic::quant::WeightTypes;
    /// assert_eq!("Q4_K_M".parse::<WeightTypes>()?.to_string(), "q4_K_M");
    /// assert_eq!("q8_0".parse::<WeightTypes>()?, WeightTypes::One(tensorlogic::DType::Q8_0));
    /// # Ok::<(), String>(())
    /// ```
    fn from_str(name: &str) -> Result<Self, String> {
        let mix = MIXES.iter().find(|m| m.name.eq_ignore_ascii_case(name)).map(WeightTypes::Mix);
        let one = || DType::WEIGHTS.into_iter().find(|d| d.name().eq_ignore_ascii_case(name)).map(WeightTypes::One);
        mix.or_else(one).ok_or_else(|| format!("{name}: not a type of weights"))
    }
}

/// Whether matrix `i` of `n` has more bits: those of the first and the last eighth, and every third between them.
fn has_more_bits(i: usize, n: usize) -> bool {
    let eighth = n / 8;
    i < eighth || i >= 7 * n / 8 || (i - eighth) % 3 == 2
}

/// The layer in a tensor's name in GGUF, and what follows it.
fn layer(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part.strip_suffix(".weight")?))
}

impl WeightTypes {
    /// The type of most matrices.
    pub fn base(self) -> DType {
        match self {
            WeightTypes::One(dtype) => dtype,
            WeightTypes::Mix(mix) => mix.base,
        }
    }

    /// The types of the tensors with these names in GGUF: all tensors of a model with `experts` experts. Tensors outside of layers get the base type.
    ///
    /// ```
    /// use tensorlogic::{DType, quant::WeightTypes};
    /// let names: Vec<String> = (0..16).flat_map(|i| ["attn_q", "attn_v"].map(|part| format!("blk.{i}.{part}.weight"))).collect();
    /// let names: Vec<&str> = names.iter().map(String::as_str).collect();
    /// let types = "q4_K_M".parse::<WeightTypes>()?.of(&names, 0);
    /// assert_eq!((types[0], types[1], types[5]), (DType::Q4_K, DType::Q6_K, DType::Q4_K));
    /// # Ok::<(), String>(())
    /// ```
    pub fn of(self, names: &[&str], experts: usize) -> Vec<DType> {
        let WeightTypes::Mix(mix) = self else { return vec![self.base(); names.len()] };
        let parts: Vec<Option<(usize, &str)>> = names.iter().map(|n| layer(n)).collect();
        let layers = parts.iter().flatten().map(|(i, _)| i + 1).max().unwrap_or(0);
        // A part's place among those of its kind, which some layers have not.
        let place = |kind: &str, at: usize| {
            let of_kind: Vec<usize> = parts.iter().flatten().filter(|(_, part)| *part == kind).map(|(i, _)| *i).collect();
            (of_kind.iter().filter(|i| **i < at).count(), of_kind.len())
        };
        let eight = experts == 8;
        let one = |part: Option<(usize, &str)>| match part {
            Some((_, "attn_v" | "attn_k")) if eight => DType::Q8_0,
            Some((_, "attn_output")) if eight && mix.base == DType::Q4_K => DType::Q5_K,
            Some((i, kind @ ("attn_v" | "ffn_down"))) => {
                let (at, count) = if kind == "ffn_down" && experts > 1 { (i, layers) } else { place(kind, i) };
                if has_more_bits(at, count) { DType::Q6_K } else { mix.base }
            }
            Some((i, "ffn_down_exps")) if has_more_bits(i, layers) => DType::Q6_K,
            Some((_, "attn_qkv")) => mix.joined,
            _ => mix.base,
        };
        parts.iter().map(|part| one(*part)).collect()
    }
}
