//! What a forward pass reads besides weights and cache: tokens or embeddings, their positions, and which keys are padding.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;

/// The inputs of one forward pass, and the hidden states that it leaves behind if asked to.
pub struct Pass<'a> {
    source: PassSource<'a>,
    /// The position of each token, i32 `[B,T]`, each within the context; consecutive ones from the cache's length on when absent.
    pub positions: Option<&'a Tensor>,
    /// What is added to the attention scores, besides the causal mask; broadcasts to `[B,H,T,S]`.
    pub mask: Option<&'a Tensor>,
    /// Where [`Pass::keep`] puts the input of each block.
    kept: Option<Vec<Tensor>>,
    /// Whether blocks keep only their inputs for the backward pass.
    checkpointing: bool,
    /// How many tokens the text has that is read.
    text: Option<usize>,
}

/// What the first block is computed from.
#[derive(Clone, Copy)]
enum PassSource<'a> {
    Tokens(&'a Tensor),
    Embeddings(&'a Tensor),
}

impl<'a> Pass<'a> {
    /// Tokens `[T]` or `[B,T]` at the next positions, all of them valid.
    pub fn tokens(tokens: &'a Tensor) -> Pass<'a> {
        Pass { source: PassSource::Tokens(tokens), positions: None, mask: None, kept: None, checkpointing: false, text: None }
    }

    /// Embeddings `[B,T,d]` in place of the rows of the embedding table. Gemma's are expected to be scaled by √d already, as in
    /// transformers.
    pub fn embeddings(embeddings: &'a Tensor) -> Pass<'a> {
        Pass { source: PassSource::Embeddings(embeddings), positions: None, mask: None, kept: None, checkpointing: false, text: None }
    }

    /// Keeps the input `[B,T,d]` of every block.
    pub fn keep_layers(mut self) -> Pass<'a> {
        self.kept = Some(Vec::new());
        self
    }

    /// For training: each block keeps only its input for the backward pass, which computes the rest again (Chen et al., 2016). The pass must have no
    /// cache.
    pub fn checkpointing(mut self, on: bool) -> Pass<'a> {
        self.checkpointing = on;
        self
    }

    /// States that the pass is a part of reading a text that will have `count` tokens then; by default it ends with the pass.
    pub fn of_text(mut self, count: usize) -> Pass<'a> {
        self.text = Some(count);
        self
    }

    /// For models: the same pass, as layers on another device run it, with its positions and mask there. They keep nothing.
    pub(crate) fn beside<'b>(&self, positions: Option<&'b Tensor>, mask: Option<&'b Tensor>) -> Pass<'b>
    where
        'a: 'b,
    {
        Pass { source: self.source, positions, mask, kept: None, checkpointing: self.checkpointing, text: self.text }
    }

    /// For models: the length of the text that is read, of which this pass reaches up to `end`.
    pub(crate) fn text_length(&self, end: usize) -> usize {
        self.text.unwrap_or(end)
    }

    /// For models: the tokens, where there is one for each sequence behind the first `len` of its text and the pass asks for nothing else.
    pub(crate) fn next_tokens(&self, len: usize) -> Option<&'a Tensor> {
        let PassSource::Tokens(ids) = self.source else { return None };
        let plain = self.positions.is_none() && self.mask.is_none() && self.kept.is_none() && !self.checkpointing;
        let one = matches!(ids.dims(), [1] | [_, 1]) && self.text_length(len + 1) == len + 1;
        (plain && one).then_some(ids)
    }

    /// For models: whether that was asked for.
    pub fn checkpoints(&self) -> bool {
        self.checkpointing
    }

    /// The kept inputs of the blocks, first to last.
    pub fn into_layers(self) -> Option<Vec<Tensor>> {
        self.kept
    }

    /// For models: the embeddings `[B,T,d]` in `dtype`, looked up by `table` where tokens are given, and T.
    ///
    /// # Errors
    /// [`TensorError::Value`] where tokens are not `[T]` or `[B,T]`, or embeddings not `[B,T,d]`; those of `table` and of the cast.
    ///
    /// ```
    /// use tensorlogic::models::Pass;
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let (tokens, table) = (Tensor::new(&[2, 0], &device)?, Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &device)?);
    /// let (x, length) = Pass::tokens(&tokens).embed(DType::F32, |ids| table.embedding(ids))?;
    /// assert_eq!((x.to_vec3::<f32>()?, length), (vec![vec![vec![5.0, 6.0], vec![1.0, 2.0]]], 2));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn embed(&self, dtype: DType, table: impl FnOnce(&Tensor) -> TensorResult<Tensor>) -> TensorResult<(Tensor, usize)> {
        match self.source {
            PassSource::Tokens(tokens) => {
                let (tokens, t) = batch_of(tokens)?;
                Ok((table(&tokens)?.cast(dtype)?, t))
            }
            PassSource::Embeddings(x) => match x.dims() {
                [_, t, _] => Ok((x.cast(dtype)?, *t)),
                _ => Err(TensorError::Value(format!("embeddings have shape {}, expected [B,T,d]", x.shape()))),
            },
        }
    }

    /// For models: keeps the input of a block if that was asked for.
    pub fn keep(&mut self, x: &Tensor) {
        if let Some(kept) = &mut self.kept {
            kept.push(x.clone());
        }
    }
}

/// Tokens `[T]` or `[B,T]` as `[B,T]`, and T.
fn batch_of(tokens: &Tensor) -> TensorResult<(Tensor, usize)> {
    match tokens.dims() {
        [t] => Ok((tokens.unsqueeze(0)?, *t)),
        [_, t] => Ok((tokens.clone(), *t)),
        _ => Err(TensorError::Value(format!("tokens have shape {}, expected [T] or [B,T]", tokens.shape()))),
    }
}
