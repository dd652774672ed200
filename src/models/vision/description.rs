//! What a tower for images is made of: a decoder's layers over the patches of an image, and what is computed from their states.

use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::NormSpec;
use crate::models::encoder::description::EncoderSpec;

/// A tower for images (Dosovitskiy et al., 2021), before its weights are read.
#[derive(Clone, Debug)]
pub(crate) struct VisionSpec {
    /// The layers. The norm behind them is that of all states, or of the pooled one only.
    pub stack: Description,
    /// Height and width of an image.
    pub image: [usize; 2],
    /// Height and width of a patch.
    pub patch: [usize; 2],
    pub channels: usize,
    /// Whether the product of patches has a bias.
    pub patch_bias: bool,
    /// Whether a learned token stands before the patches.
    pub class_token: bool,
    /// The norm before the first layer.
    pub first_norm: Option<NormSpec>,
    /// Whether images may have other sizes than the one that positions were learned for; positions are interpolated then.
    pub any_size: bool,
    pub pool: ImagePool,
    /// What logits of labels are computed from, and the labels' names.
    pub labels: Option<(LabelsOf, Vec<String>)>,
}

/// How an image becomes one vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ImagePool {
    None,
    /// The state of the first token.
    First,
    /// The same, which alone is normalised.
    FirstNormed,
    /// act(W·h + b) of the first token, of this size, where the file has the layer.
    Dense(usize, ActivationFn),
    /// A learned query attends to all states; then x + W₂·act(W₁·norm(x)).
    Probe,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LabelsOf {
    /// The first token.
    First,
    /// The first token, and behind it the mean of the others.
    FirstAndMean,
}

/// Two towers, before their weights are read.
pub(crate) struct PairSpec {
    pub text: EncoderSpec,
    pub image: VisionSpec,
    /// Which token of a text its vector is of.
    pub token: TextToken,
    /// Numbers of a text's vector, and whether the product that gives it has a bias.
    pub text_projection: (usize, bool),
    /// Numbers of an image's vector, where a product gives it.
    pub image_projection: Option<usize>,
    /// Whether a learned number is added to similarities.
    pub bias: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TextToken {
    /// The last place of the row, padding or not.
    Last,
    /// The first one with this number.
    FirstOf(u32),
    /// The one with the largest number.
    Largest,
}
