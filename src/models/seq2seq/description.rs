//! What a model of two stacks is made of: an encoder that reads a source, and a decoder whose layers look at its states as well.

use crate::models::decoder::Description;
use crate::models::encoder::description::RelativeSpec;

/// An encoder and a decoder, before their weights are read.
#[derive(Clone, Debug)]
pub(crate) struct Seq2SeqSpec {
    /// The layers that read the source, with the Hub's names of their tensors.
    pub encoder: Description,
    /// The layers that write, with theirs.
    pub decoder: Description,
    /// Biases of the scores by distance, which the layers of a stack share.
    pub relative: Option<RelativeSpec>,
    /// How the source becomes states, where it is sound and not tokens.
    pub audio: Option<AudioSpec>,
    /// What the last states are multiplied with before the output matrix.
    pub head_scale: Option<f64>,
    /// The token that every answer begins with.
    pub start: u32,
    /// The tokens that end an answer.
    pub ends: Vec<u32>,
}

/// Two convolutions over the frames of a spectrogram, the second one with a stride of 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AudioSpec {
    /// Channels of a frame.
    pub mels: usize,
    /// Frames of a spectrogram, twice the positions of the encoder.
    pub frames: usize,
}
