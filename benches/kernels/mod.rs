//! Every ladder: the kinds of work, each from its definition written down to the kernel that the engine generates.

pub mod ladder;

mod byte_entropy;
mod chain;
mod product;
mod row_f16;
mod row_q4_0;
mod softmax;
mod sum;

use ladder::Ladder;

/// The ladders in the order they are climbed.
pub fn all() -> Vec<Ladder> {
    vec![
        product::f16(),
        product::f32(),
        row_f16::ladder(),
        row_q4_0::ladder(),
        sum::ladder(),
        softmax::ladder(),
        chain::ladder(),
        byte_entropy::ladder(),
    ]
}
