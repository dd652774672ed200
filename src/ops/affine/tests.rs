//! Scales, and integers packed two in a byte, against plain arithmetic.

use super::decode::{nibble, pack, unpack};
use crate::device::Device;
use crate::quant::Affine;
use crate::tensor::Tensor;

#[test]
fn four_bit_integers_are_packed_in_pairs() {
    let check = |q: Vec<i32>, shape: &[usize], bytes: &[u8]| {
        let cols = shape[shape.len() - 1];
        let t = Tensor::from_vec(q.clone(), shape, &Device::cpu()).unwrap();
        let packed = pack(&t).unwrap();
        assert_eq!(packed.flatten(0, -1).unwrap().to_vec1::<u8>().unwrap(), bytes);
        let back = unpack(&packed).unwrap().narrow(-1, 0, cols).unwrap();
        assert_eq!(back.flatten(0, -1).unwrap().to_vec1::<i32>().unwrap(), q);
        for (row, bytes) in q.chunks(cols).zip(bytes.chunks(cols.div_ceil(2))) {
            let each: Vec<i32> = (0..cols).map(|i| nibble(bytes[i / 2].into(), i % 2)).collect();
            assert_eq!(each, row);
        }
    };
    check((-8..8).collect(), &[16], &[0x98, 0xba, 0xdc, 0xfe, 0x10, 0x32, 0x54, 0x76]);
    check(vec![7, -8, 1, -1, 0, 5], &[2, 3], &[0x87, 0x01, 0x0f, 0x05]);
}

#[test]
fn scales_include_zero_and_have_a_floor() {
    let check = |affine: Affine, low: f32, high: f32, scale: f32, zero: i32| {
        let p = affine.params(low, high);
        assert_eq!((p.scale, p.zero_point), (scale, zero), "{affine:?} of {low} … {high}");
        assert_eq!(p.inverse, 1.0 / scale);
    };
    check(Affine::int8(), -1.28, 1.27, (1.27 + 1.28) / 255.0, 0);
    check(Affine::int8(), 0.0, 25.5, 0.1, -128);
    // Ranges that do not include 0 are extended to it.
    check(Affine::int8(), 10.0, 25.5, 0.1, -128);
    check(Affine::int8(), -25.5, -10.0, 0.1, 127);
    check(Affine::int8().symmetric(), -12.75, 3.0, 0.1, 0);
    check(Affine::int4(), -0.8, 0.7, 1.5 / 15.0, 0);
    check(Affine::int4().symmetric(), 0.0, 0.75, 0.1, 0);
    check(Affine::int8(), 0.0, 0.0, f32::MIN_POSITIVE, -128);
    for (low, high) in [(f32::NAN, 1.0), (0.0, f32::NAN), (f32::NEG_INFINITY, 0.0), (-3e38, 3e38)] {
        let p = Affine::int8().params(low, high);
        assert!(p.scale.is_nan() && p.inverse == 0.0 && p.zero_point == 0, "{low} … {high}: {p:?}");
    }
}
