//! Examples of different lengths in one batch: filled up, with a mask that says what is there.

use super::{Dataset, Field, Part};
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;

/// How rows are filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PadOptions {
    /// The length of all rows; that of the longest when absent.
    pub length: Option<usize>,
    /// The length is rounded up to a multiple of this, so that fewer different shapes occur.
    pub multiple: usize,
    /// Whether what is missing is put before a row and not behind it.
    pub left: bool,
}

impl Default for PadOptions {
    fn default() -> Self {
        PadOptions { length: None, multiple: 1, left: false }
    }
}

/// Rows of one length.
#[derive(Clone, Debug)]
pub struct Padded {
    /// `[B, L]`.
    pub values: Tensor,
    /// `[B, L]`, bool: whether an element is one of its row.
    pub mask: Tensor,
}

/// `rows` as one tensor, filled up with `value`, and the mask of what is there. As the mask of attention's keys it is
/// `mask.unsqueeze(1)?.unsqueeze(1)?`.
///
/// # Errors
/// When there is no row, a row is longer than `options.length`, or the device lacks the type.
///
/// ```
/// # use tensorlogic::data::{PadOptions, pad_rows};
/// # use tensorlogic::{Device, TensorResult};
/// # fn main() -> TensorResult<()> {
/// let rows: [&[i32]; 2] = [&[5, 6, 7], &[8]];
/// let batch = pad_rows(&rows, 0, &PadOptions { multiple: 4, ..PadOptions::default() }, &Device::cpu())?;
/// assert_eq!(batch.values.to_vec2::<i32>()?, [[5, 6, 7, 0], [8, 0, 0, 0]]);
/// assert_eq!(batch.mask.to_vec()?, [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
pub fn pad_rows<T: Element>(rows: &[&[T]], value: T, options: &PadOptions, device: &Device) -> TensorResult<Padded> {
    let longest = rows.iter().map(|r| r.len()).max().unwrap_or(0);
    let length = crate::nn::align(options.length.unwrap_or(longest), options.multiple);
    if rows.is_empty() || longest > length {
        return Err(TensorError::Value(format!("{} rows of up to {longest} elements do not fit a length of {length}", rows.len())));
    }
    let mut values = vec![value; rows.len() * length];
    let mut mask = vec![0u8; values.len()];
    for (n, row) in rows.iter().enumerate() {
        let start = n * length + place(row.len(), length, options.left);
        values[start..start + row.len()].copy_from_slice(row);
        mask[start..start + row.len()].fill(1);
    }
    let shape = [rows.len(), length];
    Ok(Padded { values: Tensor::from_vec(values, &shape, device)?, mask: Tensor::from_vec(mask, &shape, device)?.cast(DType::Bool)? })
}

/// Where a row of `len` elements begins.
fn place(len: usize, length: usize, left: bool) -> usize {
    if left { length - len } else { 0 }
}

/// Sequences of tokens of different lengths as examples: `[length]` tokens in i32, and a mask `[length]` in u8 that is 1 where there is a token. Longer
/// sequences lose what is behind.
pub struct PaddedTokens {
    rows: Vec<Vec<i32>>,
    length: usize,
    value: i32,
    left: bool,
}

impl PaddedTokens {
    /// Sequences that are cut or filled up with `value` to `length` tokens, on their left or right.
    ///
    /// # Errors
    /// When `length` is 0.
    ///
    /// ```
    /// use tensorlogic::data::{Dataset, PaddedTokens, Part};
    /// let examples = PaddedTokens::new(vec![vec![5, 6, 7], vec![8]], 2, 0, true)?; // filled up on the left
    /// let (mut tokens, mut mask) = ([0; 2], [0; 2]);
    /// examples.read(1, &mut [Part::I32(&mut tokens), Part::U8(&mut mask)])?;
    /// assert_eq!((tokens, mask), ([0, 8], [0, 1]));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(rows: Vec<Vec<i32>>, length: usize, value: i32, left: bool) -> TensorResult<PaddedTokens> {
        if length == 0 {
            return Err(TensorError::Value("sequences of 0 tokens".into()));
        }
        Ok(PaddedTokens { rows, length, value, left })
    }
}

impl Dataset for PaddedTokens {
    fn len(&self) -> usize {
        self.rows.len()
    }
    fn fields(&self) -> Vec<Field> {
        [DType::I32, DType::U8].map(|dtype| Field { dtype, shape: vec![self.length] }).into()
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        let [Part::I32(tokens), Part::U8(mask)] = parts else {
            return Err(TensorError::Value("padded sequences have tokens and a mask".into()));
        };
        let row = &self.rows[index][..self.rows[index].len().min(self.length)];
        let start = place(row.len(), self.length, self.left);
        tokens.fill(self.value);
        mask.fill(0);
        tokens[start..start + row.len()].copy_from_slice(row);
        mask[start..start + row.len()].fill(1);
        Ok(())
    }
}
