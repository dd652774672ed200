//! Unpacked weights against the plain decoders.

use super::gpu::unpack;
use crate::ops::tests::*;

#[test]
fn unpacked_weights() {
    for d in DType::WEIGHTS.into_iter().filter(|d| d.is_block()) {
        for n in [1, 37, 600] {
            let b = Operand::random(d, &[n, 256], 1);
            let want = b.values.clone();
            check(&format!("{d}, {n} rows"), unpack, &[b], (F16, &[n, 256]), &[], &want, 5e-4);
        }
        // Some rows of a larger weight.
        let layout = Layout::contiguous(Shape::of(&[40, 512])).slice(0, 7, 21, 1);
        let b = Operand::view(d, &[21, 512], layout, noise(40 * 512, 2));
        let want = b.values.clone();
        check(&format!("{d}, a window"), unpack, &[b], (F32, &[21, 512]), &[], &want, 1e-6);
    }
}
