//! What an encoder of texts is made of: the layers of a decoder whose tokens see each other, and what BERT and its successors put around them.

use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::NormSpec;

/// An encoder, before its weights are read.
#[derive(Clone, Debug)]
pub(crate) struct EncoderSpec {
    /// Embedding, layers, norms and rotations.
    pub stack: Description,
    /// Whether tokens see only those before them: a decoder whose states serve as embeddings.
    pub causal: bool,
    /// How far to either side the tokens of each layer see, `None` for all the text. No entries stand for no limits.
    pub reach: Vec<Option<usize>>,
    /// How many kinds of tokens (first text, second text) have a vector that is added to the embedding.
    pub types: Option<usize>,
    /// Learned positions are counted over the tokens that are not this one, from the row behind its number on.
    pub pad: Option<u32>,
    /// A bias of the scores by the distance of query and key, which all layers share.
    pub relative: Option<RelativeSpec>,
    /// What is computed from the states.
    pub read_out: Option<ReadOut>,
}

/// Learned biases of distances, of which long ones share a bucket (Raffel et al., 2020).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RelativeSpec {
    /// Rows of the table.
    pub rows: usize,
    /// Rows that are used, half of them for keys behind the query.
    pub buckets: usize,
    /// The distance from which on all share the last bucket.
    pub farthest: usize,
}

/// From states to logits: output(norm(act(dense(states)))).
#[derive(Clone, Debug)]
pub(crate) struct ReadOut {
    pub of: ReadOutOf,
    pub dense: Option<DenseSpec>,
    pub norm: Option<NormSpec>,
    pub to: ReadOutTo,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ReadOutOf {
    /// Each token.
    Tokens,
    /// The first token of a text.
    First,
    /// The mean over the tokens of a text.
    Mean,
    /// Each token, and the logits of a text are the mean of those of its tokens.
    MeanOfLogits,
}

/// A linear layer and the function behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DenseSpec {
    pub activation: ActivationFn,
    pub bias: bool,
}

impl DenseSpec {
    /// tanh(W·x + b), as BERT pools the first token.
    pub fn tanh() -> DenseSpec {
        DenseSpec { activation: ActivationFn::Tanh, bias: true }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReadOutTo {
    /// Logits of tokens, by the embedding where the file has no other matrix.
    Vocabulary { bias: bool },
    /// Logits of the labels of these names.
    Labels { names: Vec<String>, bias: bool },
}

impl EncoderSpec {
    /// A stack whose tokens see the whole text.
    pub fn new(stack: Description) -> EncoderSpec {
        EncoderSpec { stack, causal: false, reach: Vec::new(), types: None, pad: None, relative: None, read_out: None }
    }
}
