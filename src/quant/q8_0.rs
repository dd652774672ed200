//! Q8_0: 32 values in 34 bytes. `x = d·q`, q a signed byte.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..34   q, i8
//! ```

use super::{BlockFormat, extreme, f16_at, inverse, put_f16};
use crate::dtype::DType;

/// The format.
pub(super) struct Q8_0;

impl BlockFormat for Q8_0 {
    fn dtype(&self) -> DType {
        DType::Q8_0
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for (x, &q) in out.iter_mut().zip(&block[2..]) {
            *x = f32::from(q as i8) * d;
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let d = extreme(values).abs() / 127.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        for (q, &x) in block[2..].iter_mut().zip(values) {
            *q = (x * id).round() as i8 as u8;
        }
    }
}
