//! A part of a decoder: some of its layers, with or without what stands around them.

use std::ops::Range;

/// What a part of a model holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its layers, by their numbers in the model.
    pub layers: Range<usize>,
    /// Whether it holds the embeddings, the last norm and the head.
    pub ends: bool,
}

impl Part {
    /// Whether the tensor of this name in a file belongs to the part.
    pub fn has(&self, name: &str) -> bool {
        layer_of(name).map_or(self.ends, |layer| self.layers.contains(&layer))
    }
}

/// The number of the layer that a tensor of this name in a file belongs to: the first number in it, as in `blk.3.attn_q.weight` and
/// `model.layers.3.mlp.experts.7.up_proj.weight`.
pub(crate) fn layer_of(name: &str) -> Option<usize> {
    name.split('.').find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_belong_to_the_layer_that_they_name() {
        assert_eq!(layer_of("blk.12.ffn_up_exps.weight"), Some(12));
        assert_eq!(layer_of("transformer.h.0.attn.c_attn.weight"), Some(0));
        assert_eq!(layer_of("model.layers.3.mlp.experts.7.up_proj.weight"), Some(3));
        assert_eq!(layer_of("token_embd.weight"), None);
        let last = Part { layers: 2..4, ends: false };
        assert!(last.has("blk.2.attn_q.weight") && !last.has("blk.4.attn_q.weight") && !last.has("output.weight"));
        assert!(Part { ends: true, ..last }.has("output.weight"));
    }
}
