//! Results that have to be exact: the entropy of bytes, the neighbours of numbers, and integers with scales, with the products that read them.

use super::graph::{Call, Kind, Pick, Value};
use super::ops::{List, is_float};
use super::reference::{entropy, groups, neighbour, quantized};
use crate::conformance_support::{Array, noise};
use tensorlogic::quant::{Affine, Bits, Granularity, Mapping};
use tensorlogic::{DType, Tensor, TensorResult};

pub fn list(l: &mut List) {
    bytes(l);
    neighbours(l);
    integers(l);
    products(l);
}

/// Steps of 1 in which results are counted that are f32 in graphs of every type.
const STEPS: f64 = 1024.0;

/// How many steps a tensor's elements are.
fn counted(t: &Tensor, steps: f64) -> TensorResult<Tensor> {
    t.mul(steps)?.round()?.cast(DType::I32)
}

/// The same by the reference, where no element is near the middle of two steps.
fn steps(a: &Array) -> Option<Array> {
    let clear = |v: &f64| ((v * STEPS).fract().abs() - 0.5).abs() > 0.01 + 1e-6 * (v * STEPS).abs();
    a.data.iter().all(clear).then(|| a.map(|v| (v * STEPS).round()))
}

fn bytes(l: &mut List) {
    l.add("byte_entropy", |p| {
        let x = p.value(|v| v.kind == Kind::Byte && v.rank() > 0)?;
        let window = [1, 2, 3, 5, 8, 13, 256, 257][p.below(8)];
        // Of a few different bytes, or of all that there are.
        let few = p.flag();
        let own = move |v: f64| if few { (v / 64.0).floor() } else { v };
        let of = move |a: &Array| a.map(own).rows(&[-1], |row| entropy(row, window), true);
        steps(&of(&p.of(x).array))?;
        let text = if few { "{0}.cast(DType::I32)?.div_trunc(64)?.cast(DType::U8)?" } else { "{0}" };
        let c = Call::new(format!("{text}.byte_entropy({window})?.mul({STEPS:?})?.round()?.cast(DType::I32)"), &[x], move |t| {
            let bytes = if few { t[0].cast(DType::I32)?.div_trunc(64)?.cast(DType::U8)? } else { t[0].clone() };
            counted(&bytes.byte_entropy(window)?, STEPS)
        });
        Some(c.kind(Kind::Int).reference(move |a| of(&a[0]).map(|v| (v * STEPS).round())))
    });
}

/// Multiples of 1/16 near a tensor's elements, as f32: the same numbers in graphs of every type.
fn snapped(t: &Tensor) -> TensorResult<Tensor> {
    t.cast(DType::F32)?.mul(16.0)?.round()?.mul(0.0625)
}

fn snapped_text(k: usize) -> String {
    format!("{{{k}}}.cast(DType::F32)?.mul(16.0)?.round()?.mul(0.0625)?")
}

fn snap(a: &Array) -> Array {
    a.map(|v| (v * 16.0).round() / 16.0)
}

/// Whether it is certain to which multiples the elements are near.
fn snaps(v: &Value) -> bool {
    let clear = |x: &f64| ((x * 16.0).fract().abs() - 0.5).abs() > 16.0 * v.margin();
    v.array.data.iter().all(|x| clear(x) && x.abs() < 60.0)
}

fn neighbours(l: &mut List) {
    // Distances of neighbours are 2⁻³¹ or more, but for those of 0.
    const UNIT: f64 = 2147483648.0;
    l.add("nextafter", |p| {
        let x = p.value(|v| is_float(v) && snaps(v))?;
        let y = p.partner(x)?;
        let text = format!("{0}.nextafter(&{1})?.sub(&{0})?.mul({UNIT:?})?.cast(DType::I32)", snapped_text(0), snapped_text(1));
        let c = Call::new(text, &[x, y], |t| {
            let (from, to) = (snapped(&t[0])?, snapped(&t[1])?);
            from.nextafter(&to)?.sub(&from)?.mul(UNIT)?.cast(DType::I32)
        });
        let moved = |x: f64, y: f64| (f64::from(neighbour(x as f32, y as f32)) - x) * UNIT;
        snaps(p.of(y)).then(|| c.kind(Kind::Int).reference(move |a| snap(&a[0]).zip(&snap(&a[1]), moved).map(f64::trunc)))
    });
}

/// A way to quantize a tensor of this shape.
fn affine(p: &mut Pick, shape: &[usize]) -> Affine {
    let bits = if p.flag() { Bits::Four } else { Bits::Eight };
    let mapping = if p.flag() { Mapping::Symmetric } else { Mapping::Asymmetric };
    let granularity = match p.below(3) {
        0 => Granularity::PerTensor,
        1 => {
            let axis = p.below(shape.len());
            Granularity::PerChannel(p.signed(axis, shape.len()))
        }
        _ => Granularity::Block([1, 2, 3, 5, 8, 32][p.below(6)]),
    };
    Affine { bits, mapping, granularity }
}

fn integers(l: &mut List) {
    let pick = |p: &mut Pick| {
        let x = p.value(|v| is_float(v) && v.rank() > 0 && snaps(v))?;
        let how = affine(p, &p.shape(x));
        let (integers, values) = quantized(&snap(&p.of(x).array), &how)?;
        Some((x, how, integers, values))
    };
    l.add("quantize", move |p| {
        let (x, how, ..) = pick(p)?;
        let cols = *p.shape(x).last()?;
        let text = format!("{}.quantize(&{how:?})?.values()?.narrow(-1, 0, {cols})?.cast(DType::I32)", snapped_text(0));
        let c = Call::new(text, &[x], move |t| snapped(&t[0])?.quantize(&how)?.values()?.narrow(-1, 0, cols)?.cast(DType::I32));
        Some(c.kind(Kind::Int).reference(move |a| quantized(&snap(&a[0]), &how).map_or_else(|| a[0].clone(), |q| q.0)))
    });
    l.add("Quantized::dequantize", move |p| {
        let (x, how, _, values) = pick(p)?;
        steps(&values)?;
        let text = format!("{}.quantize(&{how:?})?.dequantize()?.mul({STEPS:?})?.round()?.cast(DType::I32)", snapped_text(0));
        let c = Call::new(text, &[x], move |t| counted(&snapped(&t[0])?.quantize(&how)?.dequantize()?, STEPS));
        let of = move |a: &Array| quantized(&snap(a), &how).map_or_else(|| a.clone(), |q| q.1);
        Some(c.kind(Kind::Int).reference(move |a| of(&a[0]).map(|v| (v * STEPS).round())))
    });
}

/// Weights `[n, k]` whose scales are powers of two, and what they are once they are quantized.
fn weights(p: &mut Pick, n: usize, k: usize, how: &Affine) -> [Array; 2] {
    let [least, most] = how.range().map(f64::from);
    let step = if how.bits == Bits::Eight { 1.0 / 128.0 } else { 1.0 / 8.0 };
    let symmetric = how.mapping == Mapping::Symmetric;
    let zero = if symmetric { 0.0 } else { least + p.below((most - least) as usize + 1) as f64 };
    let (groups, noise) = (groups(&[n, k], how.granularity), noise(n * k, p.below(1 << 16) as u64));
    let of = |i: usize| {
        let behind = groups[..i].iter().filter(|g| **g == groups[i]).count();
        match behind {
            // The largest magnitude is cut off.
            0 if symmetric => [most + 0.5, most],
            0 => [least; 2],
            1 if !symmetric => [most; 2],
            _ => [(least + 1.0 + (noise[i] * (most - least - 1.0)).floor()); 2],
        }
    };
    let alone = |i: usize| !symmetric && groups.iter().filter(|g| **g == groups[i]).count() == 1;
    let values: Vec<[f64; 2]> = (0..n * k).map(|i| if alone(i) { [0.0; 2] } else { of(i).map(|q| (q - zero) * step) }).collect();
    [0, 1].map(|part| Array { shape: vec![n, k], data: values.iter().map(|v| v[part]).collect() })
}

fn products(l: &mut List) {
    l.add("matmul_quantized", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let k = *p.shape(x).last()?;
        let n = 1 + p.below(if k > 20 { 5 } else { 20 });
        let how = affine(p, &[n, k]);
        let [stored, meant] = weights(p, n, k, &how);
        let list: Vec<f32> = stored.data.iter().map(|&v| v as f32).collect();
        let text = format!("{{0}}.matmul_quantized(&Tensor::from_vec(vec!{list:?}, &[{n}, {k}], &device)?.quantize(&{how:?})?)");
        let c =
            Call::new(text, &[x], move |t| t[0].matmul_quantized(&Tensor::from_vec(list.clone(), &[n, k], t[0].device())?.quantize(&how)?));
        let transposed = meant.permute(&[1, 0]);
        Some(c.reference(move |a| a[0].matmul(&transposed)))
    });
}
