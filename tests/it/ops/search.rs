//! Places by value against plain loops: `searchsorted`, `nonzero`, `masked_select`, running extremes, and what bits say.

use crate::common::{devices, noise};
use tensorlogic::{DType, Device, Tensor};

fn floats(values: &[f32], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_vec(values.to_vec(), shape, device).unwrap()
}

/// The elements of a bool tensor.
fn flags(t: &Tensor) -> Vec<u8> {
    assert_eq!(t.dtype(), DType::Bool);
    t.cast(DType::U8).unwrap().to_vec_of::<u8>().unwrap()
}

/// The first place whose element is not before the value, by PyTorch's comparisons: NaN is largest.
fn place(row: &[f32], value: f32, right: bool) -> i32 {
    let before = |x: f32| if right { !(x > value) } else { !(x >= value) };
    let (mut low, mut high) = (0, row.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if before(row[middle]) { low = middle + 1 } else { high = middle }
    }
    low as i32
}

#[test]
fn searchsorted_finds_what_bisection_finds() {
    for device in devices() {
        for n in [0, 1, 2, 3, 8, 100, 1000] {
            let mut row: Vec<f32> = noise(n, n as u64).iter().map(|v| (v * 20.0).round() as f32).collect();
            row.sort_by(f32::total_cmp);
            if n > 2 {
                *row.last_mut().unwrap() = f32::NAN;
            }
            let mut values: Vec<f32> = noise(28, 7).iter().map(|v| (v * 24.0).round() as f32).collect();
            values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]);
            for right in [false, true] {
                let want: Vec<i32> = values.iter().map(|&v| place(&row, v, right)).collect();
                let (table, asked) = (floats(&row, &[n], &device), floats(&values, &[4, 8], &device));
                let got = table.searchsorted(&asked, right).unwrap();
                assert_eq!((got.dims(), got.dtype()), (&[4, 8][..], DType::I32));
                // A GPU may treat NaN freely.
                if device.is_cpu() {
                    assert_eq!(got.to_vec_of::<i32>().unwrap(), want, "{n} right {right} on {}", device.name());
                }
                let scalar = table.searchsorted(&floats(&[3.0], &[], &device), right).unwrap();
                assert_eq!((scalar.dims(), scalar.to_vec_of::<i32>().unwrap()[0]), (&[][..], place(&row, 3.0, right)));
            }
        }
        // Rows of their own, integers, and an empty list of values.
        let rows = Tensor::new(&[[1, 3, 5, 7], [2, 2, 2, 9]], &device).unwrap();
        let values = Tensor::new(&[[4, 7, 0], [2, 3, 10]], &device).unwrap();
        assert_eq!(rows.searchsorted(&values, false).unwrap().to_vec2::<i32>().unwrap(), [[2, 3, 0], [0, 3, 4]]);
        assert_eq!(rows.searchsorted(&values, true).unwrap().to_vec2::<i32>().unwrap(), [[2, 4, 0], [3, 3, 4]]);
        assert_eq!(rows.searchsorted(&Tensor::zeros(&[2, 0], DType::I32, &device).unwrap(), true).unwrap().dims(), [2, 0]);
        let wrong = rows.searchsorted(&Tensor::new(&[1, 2], &device).unwrap(), true).unwrap_err().to_string();
        assert!(wrong.starts_with("searchsorted: ") && wrong.contains("leading sizes differ"), "{wrong}");
    }
}

#[test]
fn elements_that_are_not_zero_and_those_under_a_mask() {
    for device in devices() {
        let x = floats(&[0.0, -1.0, f32::NAN, -0.0, 2.0, 0.0], &[2, 3], &device);
        if device.is_cpu() {
            assert_eq!(x.nonzero().unwrap().to_vec2::<i32>().unwrap(), [[0, 1], [0, 2], [1, 1]]);
        }
        let flags = Tensor::new(&[[[true, false], [false, true]]], &device).unwrap();
        assert_eq!(flags.nonzero().unwrap().to_vec2::<i32>().unwrap(), [[0, 0, 0], [0, 1, 1]]);
        assert_eq!(Tensor::zeros(&[3, 0], DType::I32, &device).unwrap().nonzero().unwrap().dims(), [0, 2]);
        assert_eq!(Tensor::new(5, &device).unwrap().nonzero().unwrap().dims(), [1, 0]);
        assert_eq!(Tensor::new(0, &device).unwrap().nonzero().unwrap().dims(), [0, 0]);

        let y = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], &device).requires_grad().unwrap();
        let kept = y.masked_select(&Tensor::new(&[true, false, true], &device).unwrap()).unwrap();
        assert_eq!(kept.to_vec().unwrap(), [1.0, 3.0, 4.0, 6.0]);
        kept.mul(&floats(&[1.0, 10.0, 100.0, 1000.0], &[4], &device)).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(y.grad().unwrap().to_vec().unwrap(), [1.0, 0.0, 10.0, 100.0, 0.0, 1000.0]);
        // Both broadcast; nothing may be left.
        let row = floats(&[7.0, 8.0], &[2], &device);
        let mask = Tensor::new(&[[true], [false]], &device).unwrap();
        assert_eq!(row.masked_select(&mask).unwrap().to_vec().unwrap(), [7.0, 8.0]);
        assert_eq!(row.masked_select(&mask.logical_and(&Tensor::new(false, &device).unwrap()).unwrap()).unwrap().dims(), [0]);
        assert!(row.masked_select(&row).unwrap_err().to_string().contains("the mask is f32, not bool"));
    }
}

/// Running extremes of a row and their places, element after element: of equal ones the last, NaN wins and stays.
fn running(row: &[f32], largest: bool) -> (Vec<f32>, Vec<i32>) {
    let (mut best, mut at) = (row.first().copied().unwrap_or(0.0), 0);
    let mut out = (Vec::new(), Vec::new());
    for (i, &v) in row.iter().enumerate() {
        let better = if largest { v >= best } else { v <= best };
        if v.is_nan() || !best.is_nan() && better {
            (best, at) = (v, i as i32);
        }
        out.0.push(best);
        out.1.push(at);
    }
    out
}

#[test]
fn running_extremes_and_their_places() {
    for device in devices() {
        for (n, nan) in [(1, false), (2, false), (7, false), (100, false), (100, true), (1000, false)] {
            if nan && !device.is_cpu() {
                continue;
            }
            let mut row: Vec<f32> = noise(n, 3).iter().map(|v| (v * 30.0).round() as f32).collect();
            if nan {
                (row[40], row[60]) = (f32::NAN, f32::NAN);
            }
            row[0] = f32::NEG_INFINITY;
            for largest in [true, false] {
                let x = floats(&row, &[n, 1], &device).broadcast_to(&[n, 3]).unwrap();
                let (values, places) = if largest { x.cummax(-2) } else { x.cummin(0) }.unwrap();
                let (want, at) = running(&row, largest);
                let column = |t: &Tensor| t.select(1, 1).unwrap();
                let got = column(&values).to_vec().unwrap();
                assert!(got.iter().zip(&want).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{n} {largest}: {got:?} {want:?}");
                assert_eq!(column(&places).to_vec_of::<i32>().unwrap(), at, "{n} {largest} on {}", device.name());
            }
        }
        let x = floats(&[1.0, 3.0, 2.0, 3.0], &[4], &device).requires_grad().unwrap();
        x.cummax(0).unwrap().0.sum_all().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), [1.0, 2.0, 0.0, 1.0]);
        let (values, places) = Tensor::new(&[[true], [false]], &device).unwrap().cummin(0).unwrap();
        assert_eq!((flags(&values), places.to_vec_of::<i32>().unwrap()), (vec![1, 0], vec![0, 1]));
        assert_eq!(Tensor::zeros(&[2, 0], DType::F32, &device).unwrap().cummax(1).unwrap().1.dims(), [2, 0]);
        assert_eq!(Tensor::new(4, &device).unwrap().cummax(0).unwrap().0.to_scalar::<i32>().unwrap(), 4);
    }
    let wide = Tensor::from_vec(vec![i64::MIN, 5, i64::MAX], &[3], &Device::cpu()).unwrap();
    assert_eq!(wide.cummax(0).unwrap().0.to_vec_of::<i64>().unwrap(), [i64::MIN, 5, i64::MAX]);
    assert_eq!(wide.cummin(0).unwrap().1.to_vec_of::<i32>().unwrap(), [0, 0, 0]);
}

#[test]
fn signs_and_neighbours_of_floats() {
    for device in devices() {
        let x = floats(&[-2.0, -0.0, 0.0, 1.0, f32::NEG_INFINITY, -1e-30], &[6], &device);
        let want = [1, 1, 0, 0, 1, 1];
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            if device.supports(dtype) {
                assert_eq!(flags(&x.cast(dtype).unwrap().signbit().unwrap()), want, "{dtype} on {}", device.name());
            }
        }
        assert_eq!(flags(&Tensor::new(&[-3, 0, 4], &device).unwrap().signbit().unwrap()), [1, 0, 0]);
        assert_eq!(flags(&Tensor::new(&[true], &device).unwrap().signbit().unwrap()), [0]);

        let mut points =
            vec![0.0, -0.0, 1.0, -1.0, 1.5, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, 3e-39, f32::from_bits(1)];
        points.extend(noise(20, 1).iter().map(|v| (v * 1e3) as f32));
        let (from, to): (Vec<f32>, Vec<f32>) = points.iter().flat_map(|a| points.iter().map(move |b| (*a, *b))).unzip();
        let got = floats(&from, &[from.len()], &device).nextafter(&floats(&to, &[to.len()], &device)).unwrap().to_vec().unwrap();
        for ((a, b), got) in from.iter().zip(&to).zip(got) {
            let want = libm_free(*a, *b);
            assert_eq!(got.to_bits(), want.to_bits(), "{a:e} to {b:e} on {}: {got:e}, not {want:e}", device.name());
        }
        let half = x.cast(DType::F16).unwrap();
        assert!(half.nextafter(&half).unwrap_err().to_string().contains("expected f32 or f64"));
    }
    let wide = Tensor::from_vec(vec![1f64, 0.0], &[2], &Device::cpu()).unwrap();
    let next = wide.nextafter(&Tensor::from_vec(vec![f64::INFINITY, -1.0], &[2], &Device::cpu()).unwrap()).unwrap();
    assert_eq!(next.to_vec_of::<f64>().unwrap(), [1.0 + f64::EPSILON, -f64::from_bits(1)]);
    let nan = floats(&[1.0, f32::NAN], &[2], &Device::cpu()).nextafter(&floats(&[f32::NAN, 1.0], &[2], &Device::cpu())).unwrap();
    assert!(nan.to_vec().unwrap().iter().all(|v| v.is_nan()));
}

/// The neighbour by Rust's own functions; C keeps the sign of a number that becomes zero.
fn libm_free(a: f32, b: f32) -> f32 {
    if a == b {
        b
    } else if b > a {
        if a == -f32::from_bits(1) { -0.0 } else { a.next_up() }
    } else if a == f32::from_bits(1) {
        0.0
    } else {
        a.next_down()
    }
}

#[test]
fn indices_of_64_bits_reach_every_device_where_they_fit() {
    for device in devices() {
        let table = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2], &device);
        let index = Tensor::from_vec(vec![2i64, 0], &[2], &Device::cpu()).unwrap();
        let here = index.to_device(&device).unwrap();
        assert_eq!(table.index_select(0, &here).unwrap().to_vec().unwrap(), [5.0, 6.0, 1.0, 2.0]);
        assert_eq!(table.embedding(&here).unwrap().to_vec().unwrap(), [5.0, 6.0, 1.0, 2.0]);
        let columns = Tensor::from_vec(vec![1i64, 0, 1], &[3, 1], &Device::cpu()).unwrap().to_device(&device).unwrap();
        assert_eq!(table.gather(1, &columns).unwrap().to_vec().unwrap(), [2.0, 3.0, 6.0]);
        let added = table.zeros_like().unwrap().index_add(0, &here, &floats(&[1.0; 4], &[2, 2], &device)).unwrap();
        assert_eq!(added.to_vec().unwrap(), [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        if !device.is_cpu() {
            let large = Tensor::from_vec(vec![1i64 << 40], &[1], &Device::cpu()).unwrap();
            assert!(large.to_device(&device).unwrap_err().to_string().contains("does not fit i32"));
            let made = Tensor::from_vec(vec![1i64], &[1], &device).unwrap_err().to_string();
            assert!(made.contains("i64"), "{made}");
        }
    }
}
