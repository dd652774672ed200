//! What an inference reads, as the user gives it and as the model takes it: everything is checked before anything runs.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::models::ModelShape;
use crate::tensor::Tensor;
use std::panic::Location;

/// The inputs of [`Inference::run`](super::Inference::run), named as in Hugging Face transformers. They may be on any device.
///
/// ```
/// use tensorlogic::models::inference::Inputs;
/// use tensorlogic::prelude::*;
/// let device = Device::cpu();
/// let tokens = Tensor::new(&[[1, 2, 3], [4, 5, 0]], &device)?;
/// let mask = Tensor::new(&[[1, 1, 1], [1, 1, 0]], &device)?;
/// let inputs = Inputs::tokens(&tokens).attention_mask(&mask);
/// assert!(inputs.position_ids.is_none()); // they follow from the mask
/// # Ok::<(), TensorError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Token ids, integers `[B,T]`. At masked positions too they have to be in the vocabulary.
    pub tokens: Option<Tensor>,
    /// Embeddings, floats `[B,T,d]`, instead of tokens: transformers' `inputs_embeds`. Gemma's are expected to be scaled by √d already.
    pub embeddings: Option<Tensor>,
    /// `[B,T]`: 1 (or true) for tokens, 0 for padding, on either side or between tokens. All ones when absent.
    pub attention_mask: Option<Tensor>,
    /// The position of each token, integers `[B,T]`. When absent, the number of valid tokens before it.
    pub position_ids: Option<Tensor>,
    /// The kind of each token, integers `[B,T]`: 0 for a first text and 1 for a second one. For encoders only, which have a vector for each kind; all 0
    /// when absent.
    pub token_type_ids: Option<Tensor>,
}

/// On which side shorter rows of a batch are padded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    /// Tokens stand at the end of their row.
    Left,
    /// Tokens stand at the beginning of their row: no mask is needed, since no token sees what comes after it.
    Right,
}

impl Inputs {
    /// Tokens `[B,T]`.
    pub fn tokens(tokens: &Tensor) -> Inputs {
        Inputs { tokens: Some(tokens.clone()), ..Inputs::default() }
    }

    /// Embeddings `[B,T,d]` instead of tokens.
    pub fn embeddings(embeddings: &Tensor) -> Inputs {
        Inputs { embeddings: Some(embeddings.clone()), ..Inputs::default() }
    }

    /// Sets the attention mask `[B,T]`.
    pub fn attention_mask(self, mask: &Tensor) -> Inputs {
        Inputs { attention_mask: Some(mask.clone()), ..self }
    }

    /// Sets the positions `[B,T]`.
    pub fn position_ids(self, positions: &Tensor) -> Inputs {
        Inputs { position_ids: Some(positions.clone()), ..self }
    }

    /// Sets the kinds of tokens `[B,T]`.
    pub fn token_type_ids(self, types: &Tensor) -> Inputs {
        Inputs { token_type_ids: Some(types.clone()), ..self }
    }

    /// A batch of rows of different lengths, padded with token 0, and its mask.
    ///
    /// # Errors
    /// When there is no row, a row is empty, or a token does not fit i32.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// let inputs = Inputs::padded(&[vec![7, 8, 9], vec![5]], Padding::Left)?;
    /// assert_eq!(inputs.tokens.unwrap().to_vec()?, [7.0, 8.0, 9.0, 0.0, 0.0, 5.0]);
    /// assert_eq!(inputs.attention_mask.unwrap().to_vec()?, [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn padded<R: AsRef<[u32]>>(rows: &[R], padding: Padding) -> TensorResult<Inputs> {
        let at = Location::caller();
        let len = rows.iter().map(|r| r.as_ref().len()).max().unwrap_or(0);
        if rows.is_empty() {
            return Err(wrong(at, "rows: there are none; expected at least one".into()));
        }
        let (mut tokens, mut mask) = (vec![0i32; rows.len() * len], vec![0u8; rows.len() * len]);
        for (n, row) in rows.iter().map(AsRef::as_ref).enumerate() {
            if row.is_empty() {
                return Err(wrong(at, format!("rows: row {n} is empty; expected at least one token")));
            }
            let start = n * len + if padding == Padding::Left { len - row.len() } else { 0 };
            for (i, &token) in row.iter().enumerate() {
                let out = || wrong(at, format!("rows: row {n}, column {i}: token {token} does not fit i32"));
                tokens[start + i] = i32::try_from(token).map_err(|_| out())?;
                mask[start + i] = 1;
            }
        }
        let sizes = [rows.len(), len];
        let (tokens, mask) = (Tensor::from_vec(tokens, &sizes, &Device::cpu())?, Tensor::from_vec(mask, &sizes, &Device::cpu())?);
        Ok(Inputs::tokens(&tokens).attention_mask(&mask))
    }
}

/// The error for an argument.
pub(crate) fn wrong(at: At, message: String) -> TensorError {
    TensorError::Argument { op: "inference", message, at }
}

/// Inputs that passed every check, on the host.
pub(crate) struct Checked {
    pub batch: usize,
    /// Columns of the batch, padding included.
    pub len: usize,
    pub tokens: Option<Vec<i32>>,
    pub embeddings: Option<Tensor>,
    /// Row by row, whether there is a token.
    pub valid: Vec<bool>,
    /// The column of each row's last token.
    pub last: Vec<usize>,
    /// Whether padding comes before a token, so that attention needs a mask.
    pub masked: bool,
    /// The positions, where they are not the columns.
    pub positions: Option<Vec<i32>>,
}

impl Inputs {
    /// Checks every input against a model of this shape. Errors name the argument and `at`.
    pub(crate) fn check(&self, shape: &ModelShape, at: At) -> TensorResult<Checked> {
        let (batch, len) = self.sizes(shape, at)?;
        let tokens = self.tokens.as_ref().map(|t| check_tokens(t, len, shape, at)).transpose()?;
        if let Some(x) = &self.embeddings {
            check_embeddings(x, at)?;
        }
        let valid = match &self.attention_mask {
            Some(mask) => check_mask(mask, batch, len, at)?,
            None => vec![true; batch * len],
        };
        let last: Vec<usize> = valid.chunks(len).map(|row| row.iter().rposition(|v| *v).unwrap_or(0)).collect();
        let masked = valid.chunks(len).zip(&last).any(|(row, &last)| row[..last].contains(&false));
        let positions = match &self.position_ids {
            Some(positions) => check_positions(positions, batch, len, shape, at)?,
            None => positions_of(&valid, len, shape, at)?,
        };
        // Where every token's position is its column, no table has to be gathered; a wider batch has columns beyond the context.
        let plain = len <= shape.context && positions.iter().zip(&valid).enumerate().all(|(i, (&p, &v))| !v || p as usize == i % len);
        let positions = (!plain).then_some(positions);
        Ok(Checked { batch, len, tokens, embeddings: self.embeddings.clone(), valid, last, masked, positions })
    }

    /// B and T of the tokens or embeddings.
    fn sizes(&self, shape: &ModelShape, at: At) -> TensorResult<(usize, usize)> {
        let (batch, len, name, given) = match (&self.tokens, &self.embeddings) {
            (Some(_), Some(_)) => return Err(wrong(at, "tokens and embeddings are both given; expected one of them".into())),
            (None, None) => return Err(wrong(at, "neither tokens nor embeddings are given; expected one of them".into())),
            (Some(t), None) => match *t.dims() {
                [batch, len] => (batch, len, "tokens", t.shape()),
                _ => return Err(wrong(at, format!("tokens: the shape is {}; expected [B,T]", t.shape()))),
            },
            (None, Some(x)) => match *x.dims() {
                [batch, len, width] if width == shape.width => (batch, len, "embeddings", x.shape()),
                _ => return Err(wrong(at, format!("embeddings: the shape is {}; expected [B,T,{}]", x.shape(), shape.width))),
            },
        };
        if batch == 0 || len == 0 {
            return Err(wrong(at, format!("{name}: the shape {given} has no elements; expected at least one token")));
        }
        Ok((batch, len))
    }
}

/// Integers of any dtype.
fn integers(name: &str, t: &Tensor, at: At) -> TensorResult<Vec<i64>> {
    Ok(match t.dtype() {
        DType::I64 => t.to_vec_of::<i64>()?,
        DType::I32 => t.to_vec_of::<i32>()?.into_iter().map(i64::from).collect(),
        DType::U32 => t.to_vec_of::<u32>()?.into_iter().map(i64::from).collect(),
        DType::I8 | DType::U8 | DType::I16 | DType::U16 => t.to_vec()?.into_iter().map(|v| v as i64).collect(),
        other => return Err(wrong(at, format!("{name}: the dtype is {other}; expected integers"))),
    })
}

/// The name of the element at index `i` of an argument.
fn place(name: &str, i: usize, len: usize) -> String {
    format!("{name}: row {}, column {}", i / len, i % len)
}

fn check_tokens(tokens: &Tensor, len: usize, shape: &ModelShape, at: At) -> TensorResult<Vec<i32>> {
    let ids = integers("tokens", tokens, at)?;
    let fits = |id: &i64| (0..shape.vocab as i64).contains(id);
    match ids.iter().position(|id| !fits(id)) {
        Some(i) => Err(wrong(at, format!("{}: token {} is not in the vocabulary of {}", place("tokens", i, len), ids[i], shape.vocab))),
        None => Ok(ids.into_iter().map(|id| id as i32).collect()),
    }
}

fn check_embeddings(x: &Tensor, at: At) -> TensorResult<()> {
    if !x.dtype().is_float() || x.dtype().is_block() {
        return Err(wrong(at, format!("embeddings: the dtype is {}; expected a plain float dtype", x.dtype())));
    }
    let values = x.to_vec()?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => {
            let (len, width) = (x.dims()[1], x.dims()[2]);
            let place = place("embeddings", i / width, len);
            Err(wrong(at, format!("{place}: element {} is {}; expected finite numbers", i % width, values[i])))
        }
        None => Ok(()),
    }
}

fn check_mask(mask: &Tensor, batch: usize, len: usize, at: At) -> TensorResult<Vec<bool>> {
    let name = "attention_mask";
    if mask.dims() != [batch, len] {
        return Err(wrong(at, format!("{name}: the shape is {}; expected [{batch},{len}], as the tokens'", mask.shape())));
    }
    if mask.dtype().is_block() {
        return Err(wrong(at, format!("{name}: the dtype is {}; expected integers, bool or floats", mask.dtype())));
    }
    let values = mask.to_vec()?;
    if let Some(i) = values.iter().position(|&v| v != 0.0 && v != 1.0) {
        return Err(wrong(at, format!("{} is {}; expected 0 or 1", place(name, i, len), values[i])));
    }
    let valid: Vec<bool> = values.into_iter().map(|v| v == 1.0).collect();
    match valid.chunks(len).position(|row| !row.contains(&true)) {
        Some(row) => Err(wrong(at, format!("{name}: row {row} masks every token; expected at least one 1"))),
        None => Ok(valid),
    }
}

fn check_positions(positions: &Tensor, batch: usize, len: usize, shape: &ModelShape, at: At) -> TensorResult<Vec<i32>> {
    let name = "position_ids";
    if positions.dims() != [batch, len] {
        return Err(wrong(at, format!("{name}: the shape is {}; expected [{batch},{len}], as the tokens'", positions.shape())));
    }
    let values = integers(name, positions, at)?;
    match values.iter().position(|p| !(0..shape.context as i64).contains(p)) {
        Some(i) => {
            let place = place(name, i, len);
            Err(wrong(at, format!("{place}: position {} is outside the context of {}", values[i], shape.context)))
        }
        None => Ok(values.into_iter().map(|p| p as i32).collect()),
    }
}

/// How many tokens come before each; 0 for padding, as transformers' `generate` has it.
fn positions_of(valid: &[bool], len: usize, shape: &ModelShape, at: At) -> TensorResult<Vec<i32>> {
    let mut positions = Vec::with_capacity(valid.len());
    for (n, row) in valid.chunks(len).enumerate() {
        let mut next = 0;
        for &v in row {
            positions.push(if v { next } else { 0 });
            next += i32::from(v);
        }
        if next as usize > shape.context {
            return Err(wrong(at, format!("tokens: row {n} has {next}; the model's context is {}", shape.context)));
        }
    }
    Ok(positions)
}
