//! Operations against what PyTorch computes, written by `tests/reference/make_ops.py`.

use crate::common::devices;
use serde_json::Value as Json;
use tensorlogic::ops::{Interpolation, Resize};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// The numbers of a tensor of the file; what is not finite is written as a text.
fn numbers(t: &Json) -> Vec<f64> {
    let one = |v: &Json| match v {
        Json::String(s) => s.parse().unwrap(),
        Json::Bool(b) => f64::from(*b),
        v => v.as_f64().unwrap(),
    };
    t["data"].as_array().unwrap().iter().map(one).collect()
}

fn sizes(t: &Json) -> Vec<usize> {
    t.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

fn tensor(t: &Json, device: &Device) -> TensorResult<Tensor> {
    let shape = sizes(&t["shape"]);
    let bools = t["data"].as_array().unwrap().first().is_some_and(Json::is_boolean);
    let x = Tensor::from_vec(numbers(t).iter().map(|v| *v as f32).collect(), &shape, device)?;
    if bools { x.cast(DType::Bool) } else { Ok(x) }
}

fn run(op: &str, attrs: &Json, x: &[Tensor]) -> TensorResult<Vec<Tensor>> {
    let d = attrs["dim"].as_i64().unwrap_or(0) as isize;
    let pair = |(a, b): (Tensor, Tensor)| vec![a, b];
    Ok(match op {
        "searchsorted" => vec![x[0].searchsorted(&x[1], attrs["right"].as_bool().unwrap())?],
        "cummax" => pair(x[0].cummax(d)?),
        "cummin" => pair(x[0].cummin(d)?),
        "nextafter" => vec![x[0].nextafter(&x[1])?],
        "signbit" => vec![x[0].signbit()?],
        "nonzero" => vec![x[0].nonzero()?],
        "masked_select" => vec![x[0].masked_select(&x[1])?],
        "fft" => vec![x[0].fft(d)?],
        "ifft" => vec![x[0].ifft(d)?],
        "rfft" => vec![x[0].rfft(d)?],
        "irfft" => vec![x[0].irfft(attrs["n"].as_u64().unwrap() as usize, d)?],
        "interpolate" => {
            let mode = match attrs["mode"].as_str().unwrap() {
                "nearest" => Interpolation::Nearest,
                "nearest-exact" => Interpolation::NearestExact,
                "bicubic" => Interpolation::Cubic,
                _ => Interpolation::Linear,
            };
            let factors: Option<Vec<f64>> = attrs["factors"].as_array().map(|f| f.iter().map(|v| v.as_f64().unwrap()).collect());
            let size = if factors.is_none() { sizes(&attrs["size"]) } else { Vec::new() };
            let to = factors.as_deref().map_or(Resize::To(&size), Resize::By);
            vec![x[0].interpolate(to, mode, attrs["align_corners"].as_bool().unwrap())?]
        }
        other => panic!("{other} is not known"),
    })
}

#[test]
fn operations_give_what_pytorch_gives() -> TensorResult<()> {
    let file: Json = serde_json::from_str(include_str!("../../vectors/breadth.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 100, "{} cases", cases.len());
    for device in devices() {
        for (n, case) in cases.iter().enumerate() {
            let (op, attrs) = (case["op"].as_str().unwrap(), &case["attrs"]);
            let inputs = case["in"].as_array().unwrap();
            // A GPU may treat NaN freely and flush subnormal numbers.
            let odd = inputs.iter().any(|t| numbers(t).iter().any(|v| v.is_nan() || *v != 0.0 && v.abs() < 1e-38));
            if !device.is_cpu() && (odd || op.ends_with("fft")) {
                continue;
            }
            let x = inputs.iter().map(|t| tensor(t, &device)).collect::<TensorResult<Vec<_>>>()?;
            let got = run(op, attrs, &x)?;
            let want = case["out"].as_array().unwrap();
            assert_eq!(got.len(), want.len());
            for (g, w) in got.iter().zip(want) {
                let (values, w_values) = (g.cast(DType::F64).or_else(|_| g.cast(DType::F32))?.to_vec()?, numbers(w));
                assert_eq!(g.dims(), sizes(&w["shape"]), "case {n}, {op} {attrs}");
                let tolerance = if op.ends_with("fft") || op == "interpolate" { 2e-5 } else { 0.0 };
                let near = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * (1.0 + b.abs());
                let wrong = values.iter().zip(&w_values).position(|(a, b)| !near(f64::from(*a), f64::from(*b as f32)));
                assert_eq!(wrong, None, "case {n}, {op} {attrs} on {}: {values:?}, not {w_values:?}", device.name());
            }
        }
    }
    Ok(())
}
