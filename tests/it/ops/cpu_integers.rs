//! i16, u16 and u64, which the CPU alone has: values at the ends of their ranges against Rust's own integers.

use std::collections::BTreeMap;
use tensorlogic::backends::Bytes;
use tensorlogic::io::{SafeTensors, write_safetensors};
use tensorlogic::{DType, Device, Tensor};

/// What a type's operations give, beside Rust's wrapping ones.
macro_rules! ends {
    ($test:ident, $t:ty) => {
        #[test]
        fn $test() {
            let device = Device::cpu();
            let all: Vec<$t> = vec![0, 1, <$t>::MAX, <$t>::MAX / 2, <$t>::MIN, <$t>::MAX / 2 + 1, 77, <$t>::MAX - 1];
            let of = |v: &[$t]| Tensor::from_vec(v.to_vec(), &[v.len()], &device).unwrap();
            let back = |t: tensorlogic::TensorResult<Tensor>| t.unwrap().to_vec_of::<$t>().unwrap();
            let (x, mut other) = (of(&all), all.clone());
            other.rotate_left(3);
            let y = of(&other);
            let each = |f: fn($t, $t) -> $t| all.iter().zip(&other).map(|(&a, &b)| f(a, b)).collect::<Vec<$t>>();
            assert_eq!(x.dtype(), <$t as tensorlogic::Element>::DTYPE);
            assert_eq!(back(x.add(&y)), each(<$t>::wrapping_add));
            assert_eq!(back(x.sub(&y)), each(<$t>::wrapping_sub));
            assert_eq!(back(x.mul(&y)), each(<$t>::wrapping_mul));
            assert_eq!(back(x.maximum(&y)), each(<$t>::max));
            assert_eq!(back(x.bitwise_and(&y)), each(|a, b| a & b));
            assert_eq!(back(x.bitwise_xor(&y)), each(|a, b| a ^ b));
            assert_eq!(back(x.bitwise_not()), each(|a, _| !a));
            assert_eq!(back(x.neg()), each(|a, _| a.wrapping_neg()));
            assert_eq!(back(x.abs()), each(|a, _| (a as i128).unsigned_abs() as $t));
            assert_eq!(back(x.bitwise_right_shift(1)), each(|a, _| a >> 1));
            assert_eq!(back(x.bitwise_left_shift(3)), each(|a, _| a << 3));
            let less: Vec<u8> = all.iter().zip(&other).map(|(a, b)| u8::from(a < b)).collect();
            assert_eq!(x.lt(&y).unwrap().to_vec_of::<u8>().unwrap(), less);
            // Seven, so that the rows of the sort are filled up.
            let seven = of(&all[..7]);
            let (mut up, mut down) = (all[..7].to_vec(), all[..7].to_vec());
            up.sort();
            down.sort_by(|a, b| b.cmp(a));
            assert_eq!(back(seven.sort(0, false).map(|s| s.0)), up);
            assert_eq!(back(seven.sort(0, true).map(|s| s.0)), down);
            assert_eq!(x.max(&[0], false).unwrap().to_vec_of::<$t>().unwrap(), [<$t>::MAX]);
            assert_eq!(x.min(&[0], false).unwrap().to_vec_of::<$t>().unwrap(), [<$t>::MIN]);
            assert_eq!(back(x.cummax(0).map(|c| c.0)).last(), Some(&<$t>::MAX));
            assert_eq!(back(x.clamp(Some(1.0), Some(80.0))), each(|a, _| a.clamp(1, 80)));
            assert_eq!(back(x.clamp(Some(-1e30), Some(1e30))), all);
            assert_eq!(back(x.flip(0)), all.iter().rev().copied().collect::<Vec<_>>());
            let index = Tensor::from_vec(vec![2 as $t, 0, 2], &[3], &device).unwrap();
            assert_eq!(back(x.index_select(0, &index)), [all[2], all[0], all[2]]);
            assert_eq!(back(x.index_add(0, &index, &of(&[1, 2, 3])))[2], all[2].wrapping_add(4));
            let square = of(&all[..4]).reshape(&[2, 2]).unwrap();
            let dot = |i: usize, j: usize| all[2 * i].wrapping_mul(all[j]).wrapping_add(all[2 * i + 1].wrapping_mul(all[2 + j]));
            assert_eq!(back(square.matmul(&square)), [dot(0, 0), dot(0, 1), dot(1, 0), dot(1, 1)]);
            // Through every other type that holds them, and through a file.
            assert_eq!(x.cast(DType::F64).unwrap().to_vec_of::<f64>().unwrap(), all.iter().map(|&a| a as f64).collect::<Vec<_>>());
            assert_eq!(x.cast(DType::I64).unwrap().to_vec_of::<i64>().unwrap(), all.iter().map(|&a| a as i64).collect::<Vec<_>>());
            assert_eq!(x.cast(DType::I8).unwrap().to_vec_of::<i8>().unwrap(), all.iter().map(|&a| a as i8).collect::<Vec<_>>());
            let mut file = Vec::new();
            let put = |bytes: &[u8]| {
                file.extend_from_slice(bytes);
                Ok(())
            };
            write_safetensors(&BTreeMap::from([("x".to_string(), x.clone())]), &[], put).unwrap();
            assert_eq!(back(SafeTensors::from_bytes(file).unwrap().load("x", &device)), all);
            let bytes: Vec<u8> = all.iter().flat_map(|a| a.to_le_bytes()).collect();
            assert_eq!(x.to_bytes().unwrap(), bytes);
            assert_eq!(back(Tensor::from_bytes(Bytes::Owned(std::sync::Arc::new(bytes)), x.dtype(), &[8], &device)), all);
        }
    };
}
ends!(i16_ends, i16);
ends!(u16_ends, u16);
ends!(u64_ends, u64);

#[test]
fn sums_hold_what_they_add() {
    let device = Device::cpu();
    let sum = Tensor::new(&[65_535u16, 65_535], &device).unwrap().sum_all().unwrap();
    assert_eq!((sum.dtype(), sum.item().unwrap()), (DType::I64, 131_070.0));
    let x = Tensor::new(&[1u64 << 63, (1 << 63) - 1], &device).unwrap();
    assert_eq!(x.sum_all().unwrap().to_vec_of::<u64>().unwrap(), [u64::MAX]);
    assert_eq!(x.cumsum(0).unwrap().to_vec_of::<u64>().unwrap(), [1 << 63, u64::MAX]);
    let error = x.add(&Tensor::new(&[-1i64, 1], &device).unwrap()).unwrap_err().to_string();
    assert!(error.contains("u64") && error.contains("cast"), "{error}");
}
