//! Operations through their methods: on every device under test, over every way in which their operands can lie in memory.

use super::unpack;
use crate::device::Device;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// How a tensor lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lies {
    /// Element after element.
    Whole,
    /// With its last two dimensions exchanged.
    Transposed,
    /// Within a larger one: rows that are further apart than they are long, from an odd place on.
    Within,
    /// Back to front along the last dimension.
    Backwards,
}

pub(crate) const LIES: [Lies; 4] = [Lies::Whole, Lies::Transposed, Lies::Within, Lies::Backwards];

/// How the operands of the `nth` case lie: in every way on a CPU, and in one on a GPU, which compiles a kernel for each.
pub(crate) fn lies_of(nth: usize, device: &Device) -> &'static [Lies] {
    if device.is_cpu() { &LIES } else { &LIES[nth % LIES.len()..][..1] }
}

/// A tensor on a device, which lies as it is told to, and its values in row-major order, as its type holds them.
pub(crate) fn tensor(values: &[f64], shape: &[usize], dtype: DType, lies: Lies, device: &Device) -> (Tensor, Vec<f64>) {
    let (cpu, rank) = (Device::cpu(), shape.len());
    let plain = Tensor::from_vec(values.to_vec(), shape, &cpu).unwrap().cast(dtype).unwrap();
    let stored = read(&plain);
    let cols = shape.last().copied().unwrap_or(1);
    let lying = match lies {
        Lies::Transposed if rank > 1 => plain.transpose(-2, -1).unwrap().contiguous().unwrap().to_device(device).unwrap().transpose(-2, -1),
        Lies::Within if rank > 0 => {
            let beside = |n: usize| {
                let sizes: Vec<usize> = shape[..rank - 1].iter().copied().chain([n]).collect();
                Tensor::full(7.0, &sizes, dtype, &cpu).unwrap()
            };
            let larger = Tensor::cat(&[&beside(1), &plain, &beside(4)], -1).unwrap();
            larger.to_device(device).unwrap().narrow(-1, 1, cols)
        }
        Lies::Backwards if rank > 0 => plain.flip(-1).unwrap().contiguous().unwrap().to_device(device).unwrap().flip(-1),
        _ => plain.to_device(device),
    };
    (lying.unwrap(), stored)
}

/// What a tensor holds.
pub(crate) fn read(t: &Tensor) -> Vec<f64> {
    t.to_device(&Device::cpu()).unwrap().cast(DType::F64).unwrap().to_vec_of::<f64>().unwrap()
}

/// Compares with `want`, to `tolerance` of the largest value; what is not finite must be the same.
#[track_caller]
pub(crate) fn assert_near(name: &str, got: &Tensor, want: &[f64], tolerance: f64) {
    let name = format!("{name} on {}", got.device().name());
    let got = read(got);
    assert_eq!(got.len(), want.len(), "{name}");
    let scale = want.iter().filter(|v| v.is_finite()).fold(1e-30f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let near = if w.is_finite() { (g - w).abs() <= tolerance * scale } else { g.to_string() == w.to_string() };
        assert!(near, "{name}: element {i} is {g}, should be {w}");
    }
}

/// How far from f64 arithmetic results of a type may be, of which those in f32 are within `exact` of the largest.
pub(crate) fn tolerance(d: DType, exact: f64) -> f64 {
    match d {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => exact,
    }
}

/// Whether an error says this, of this file.
#[track_caller]
pub(crate) fn assert_refused(result: crate::error::TensorResult<Tensor>, want: &str, file: &str) {
    let error = result.expect_err(want).to_string();
    assert!(error.contains(want) && error.contains(file), "{error}\nlacks {want}");
}

#[test]
fn tensors_hold_their_values_however_they_lie() {
    let values = super::noise(2 * 3 * 5, 1);
    for lies in LIES {
        for shape in [&[2, 3, 5][..], &[30]] {
            let (t, stored) = tensor(&values, shape, DType::F16, lies, &Device::cpu());
            assert_eq!((t.dims(), read(&t)), (shape, stored.clone()), "{lies:?}");
            assert_eq!(stored, unpack(&super::pack(&values, DType::F16), DType::F16), "{lies:?}");
        }
    }
}
