//! The names that a newcomer meets: nested arrays in and out, indexing, operators, sizes with a hole, ranges, PyTorch's short names.

use crate::common::devices;
use std::ops::{Range, RangeInclusive};
use tensorlogic::prelude::*;

/// A result's shape and values, within `tolerance` of its reference relative to 1 and the value.
#[track_caller]
fn check(name: &str, got: TensorResult<Tensor>, shape: &[usize], want: &[f64], tolerance: f64) {
    let got = got.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(got.dims(), shape, "{name}");
    let values = got.to_vec().unwrap();
    assert_eq!(values.len(), want.len(), "{name}");
    for (i, (g, w)) in values.iter().zip(want).enumerate() {
        let near = (f64::from(*g) - w).abs() <= tolerance * (1.0 + w.abs());
        assert!(near || (g.is_nan() && w.is_nan()), "{name}: {g} at {i}, not {w}");
    }
}

/// An error that names the operation, says this, and points to this file.
#[track_caller]
fn check_error<T>(got: TensorResult<T>, parts: &[&str]) {
    let Err(error) = got else { panic!("no error; wanted {parts:?}") };
    let text = error.to_string();
    assert!(parts.iter().all(|p| text.contains(p)) && text.contains("api.rs:"), "{text}");
}

fn iota(shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_vec((0..shape.iter().product::<usize>()).map(|i| i as f32).collect(), shape, device).unwrap()
}

#[test]
fn nested_arrays_become_tensors() -> TensorResult<()> {
    for device in devices() {
        check("array of arrays", Tensor::new(&[[1.0, 2.0]], &device), &[1, 2], &[1.0, 2.0], 0.0);
        check("by value", Tensor::new([[1, 2], [3, 4], [5, 6]], &device), &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.0);
        check("vectors", Tensor::new(vec![vec![1.5f32, 2.5], vec![3.5, 4.5]], &device), &[2, 2], &[1.5, 2.5, 3.5, 4.5], 0.0);
        check("slice", Tensor::new(&[7u8, 8][..], &device), &[2], &[7.0, 8.0], 0.0);
        check("scalar", Tensor::new(2.5, &device), &[], &[2.5], 0.0);
        check("three deep", Tensor::new(&[[[1], [2]], [[3], [4]]], &device), &[2, 2, 1], &[1.0, 2.0, 3.0, 4.0], 0.0);
        check("empty", Tensor::new(&[[0.0; 0]; 2], &device), &[2, 0], &[], 0.0);
        check("no rows", Tensor::new(Vec::<f32>::new(), &device), &[0], &[], 0.0);
        let halves = Tensor::new(&[half::f16::from_f32(0.5)], &device)?;
        assert_eq!(halves.dtype(), DType::F16);
        let truth = Tensor::new(&[true, false, true], &device)?;
        assert_eq!((truth.dtype(), truth.to_vec_of::<u8>()?), (DType::Bool, vec![1, 0, 1]));
        check("mask", truth.where_(1.0, -1.0), &[3], &[1.0, -1.0, 1.0], 0.0);
        check_error(Tensor::new(vec![vec![1], vec![]], &device), &["new: rows of different lengths"]);
        check_error(Tensor::new([[[[[[[[[1]]]]]]]]], &device), &["new: 9 dimensions; at most 8"]);
    }
    Ok(())
}

#[test]
fn values_are_read_by_rank() -> TensorResult<()> {
    for device in devices() {
        let x = Tensor::new(&[[[1, 2, 3], [4, 5, 6]]], &device)?;
        assert_eq!(x.to_vec3::<i32>()?, [[[1, 2, 3], [4, 5, 6]]]);
        assert_eq!(x.i(0)?.t()?.to_vec2::<i32>()?, [[1, 4], [2, 5], [3, 6]]);
        assert_eq!(x.i((0, 1))?.to_vec1::<i32>()?, [4, 5, 6]);
        assert_eq!(x.i((0, 1, 2))?.to_scalar::<i32>()?, 6);
        assert_eq!(x.gt(3)?.i(0)?.to_vec2::<u8>()?, [[0, 0, 0], [1, 1, 1]]);
        assert_eq!(Tensor::zeros(&[2, 0], DType::F32, &device)?.to_vec2::<f32>()?, vec![Vec::<f32>::new(); 2]);
        check_error(x.to_vec2::<i32>(), &["to_vec2", "[1,2,3]", "3 dimensions, not 2"]);
        check_error(x.i((0, 0, ..1))?.to_scalar::<i32>(), &["to_scalar", "item()"]);
        check_error(x.i((0, 0))?.to_vec1::<f32>(), &["i32, not f32"]);
    }
    Ok(())
}

#[test]
fn indices_are_pythons() -> TensorResult<()> {
    for device in devices() {
        let x = iota(&[3, 4, 5], &device);
        // What the picks leave of each dimension, and the dimensions that go, by hand from numpy's rules.
        let check_picks = |name: &str, got: TensorResult<Tensor>, kept: [&[usize]; 3], gone: &[usize]| {
            let mut want = Vec::new();
            for &a in kept[0] {
                for &b in kept[1] {
                    want.extend(kept[2].iter().map(|&c| (a * 20 + b * 5 + c) as f64));
                }
            }
            let shape: Vec<usize> = (0..3).filter(|d| !gone.contains(d)).map(|d| kept[d].len()).collect();
            check(name, got, &shape, &want, 0.0);
        };
        let (a, b, c): (&[usize], &[usize], &[usize]) = (&[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 3, 4]);
        check_picks("1", x.i(1), [&[1], b, c], &[0]);
        check_picks("-1", x.i(-1), [&[2], b, c], &[0]);
        check_picks("..", x.i(..), [a, b, c], &[]);
        check_picks("1..", x.i(1..), [&[1, 2], b, c], &[]);
        check_picks(".., 1", x.i((.., 1)), [a, &[1], c], &[1]);
        check_picks(".., .., -2", x.i((.., .., -2)), [a, b, &[3]], &[2]);
        check_picks(".., 1..3, ..=1", x.i((.., 1..3, ..=1)), [a, &[1, 2], &[0, 1]], &[]);
        check_picks("2, -3..-1, 1..=-2", x.i((2, -3..-1, RangeInclusive::new(1, -2))), [&[2], &[1, 2], &[1, 2, 3]], &[0]);
        check_picks("0usize, .., 4isize", x.i((0usize, .., 4isize)), [&[0], b, &[4]], &[0, 2]);
        check_picks("1, 2, 3", x.i((1, 2, 3)), [&[1], &[2], &[3]], &[0, 1, 2]);
        check_picks("empty range", x.i((.., 2..2)), [a, &[], c], &[]);
        let index = Tensor::new(&[3, 0, 3], &device)?;
        check_picks("1.., index, 2", x.i((1.., &index, 2)), [&[1, 2], &[3, 0, 3], &[2]], &[2]);
        check_picks("index number", x.i((.., &Tensor::new(2, &device)?)), [a, &[2], c], &[1]);
        check_error(x.i((.., 4)), &["i: index 4 of dimension 1 of [3,4,5], which has 4"]);
        check_error(x.i(-4), &["i: index -4 of dimension 0"]);
        check_error(x.i(usize::MAX), &["dimension 0"]);
        check_error(x.i((.., .., 2..6)), &["i: 2..6 of dimension 2 of [3,4,5], which has 5"]);
        check_error(x.i(Range { start: 2, end: 1 }), &["i: 2..1 of dimension 0"]);
        check_error(x.i(..=i32::MAX), &["dimension 0"]);
        check_error(x.i((0, 0, 0, 0)), &["i: 4 indices for [3,4,5]"]);
        check_error(x.i((0, 0, 0))?.i(0), &["i: 1 indices for []"]);
    }
    Ok(())
}

/// Views by index pass gradients to where they look.
#[test]
fn indices_pass_gradients() -> TensorResult<()> {
    for device in devices() {
        let x = iota(&[2, 3], &device).requires_grad()?;
        let index = Tensor::new(&[1, 1], &device)?;
        let loss = (x.i((.., -1))?.sum_all()? + x.i((0, &index))?.mul(10.0)?)?.sum_all()?;
        loss.backward()?;
        // The last column is counted once for each of the two entries it is added to.
        check("gradient", Ok(x.grad().unwrap()), &[2, 3], &[0.0, 20.0, 2.0, 0.0, 0.0, 2.0], 1e-6);
    }
    Ok(())
}

#[test]
fn operators_take_values_references_numbers_and_results() -> TensorResult<()> {
    for device in devices() {
        let (p, q) = ([1.5f64, -2.0, 0.25], [4.0f64, 0.5, -8.0]);
        let (a, b) = (Tensor::new(p.map(|v| v as f32), &device)?, Tensor::new(q.map(|v| v as f32), &device)?);
        macro_rules! each {
            ($($op:tt)*) => { $(
                let want: Vec<f64> = (0..3).map(|i| p[i] $op q[i]).collect();
                let hold = |name: &str, got, want: &[f64]| check(&format!("{name} {}", stringify!($op)), got, &[3], want, 1e-6);
                hold("&a &b", &a $op &b, &want);
                hold("a &b", a.clone() $op &b, &want);
                hold("&a b", &a $op b.clone(), &want);
                hold("a b", a.clone() $op b.clone(), &want);
                hold("&a Ok(b)", &a $op Ok(b.clone()), &want);
                hold("a Ok(b)", a.clone() $op Ok(b.clone()), &want);
                hold("Ok(a) &b", Ok(a.clone()) $op &b, &want);
                hold("Ok(a) b", Ok(a.clone()) $op b.clone(), &want);
                let (left, right): (Vec<f64>, Vec<f64>) = ((0..3).map(|i| p[i] $op 3.5).collect(), (0..3).map(|i| 3.5 $op p[i]).collect());
                hold("&a 3.5", &a $op 3.5, &left);
                hold("a 3.5", a.clone() $op 3.5, &left);
                hold("3.5 &a", 3.5 $op &a, &right);
                hold("3.5 a", 3.5 $op a.clone(), &right);
                hold("&a 3", &a $op 3, &p.map(|v| v $op 3.0));
                hold("3 &a", 3 $op &a, &p.map(|v| 3.0 $op v));
                hold("3 a", 3 $op a.clone(), &p.map(|v| 3.0 $op v));
                // As broadcast with a view.
                let row = Tensor::new(&[[2.0], [5.0]], &device)?;
                let wide = (&row $op &a)?;
                assert_eq!(wide.dims(), [2, 3]);
                check_error(&a $op &iota(&[2], &device), &["[3] and [2] do not broadcast"]);
            )* };
        }
        each!(+ - * /);
        check("-a", -a.clone(), &[3], &p.map(|v| -v), 0.0);
        check("-&a", -&a, &[3], &p.map(|v| -v), 0.0);
        let bad: TensorResult<Tensor> = &a + &iota(&[2], &device);
        check_error(bad + &a, &["add: [3] and [2]"]);

        // Integers stay integers but for quotients.
        let n = Tensor::new(&[1, 2, 4], &device)?;
        let less = (10 - &n)?;
        assert_eq!((less.dtype(), less.to_vec1::<i32>()?), (DType::I32, vec![9, 8, 6]));
        assert_eq!((0.5 - &n)?.dtype(), DType::F32);
        let part = (1 / &n)?;
        assert_eq!((part.dtype(), part.to_vec()?), (DType::F32, vec![1.0, 0.5, 0.25]));
        check("1 - mask", 1 - &n.gt(1)?, &[3], &[1.0, 0.0, 0.0], 0.0);

        // d(c − x)/dx = −1, d(c/x)/dx = −c/x².
        let x = a.requires_grad()?;
        (2.0 - &x)?.mul(&b)?.sum_all()?.backward()?;
        check("gradient of 2 - x", Ok(x.grad().unwrap()), &[3], &q.map(|v| -v), 1e-6);
        let x = a.requires_grad()?;
        (3.0 / &x)?.sum_all()?.backward()?;
        check("gradient of 3 / x", Ok(x.grad().unwrap()), &[3], &p.map(|v| -3.0 / (v * v)), 1e-5);
    }
    Ok(())
}

#[test]
fn sizes_may_have_a_hole() -> TensorResult<()> {
    let device = Device::cpu();
    let x = iota(&[2, 3, 4], &device);
    let (rows, signed) = (x.dims()[0], 4isize);
    for (name, got, want) in [
        ("tuple", x.reshape((2, ())), &[2, 12][..]),
        ("tuple of variables", x.reshape((rows, (), signed)), &[2, 3, 4]),
        ("hole first", x.reshape(((), 6)), &[4, 6]),
        ("array", x.reshape([rows * 3, 4]), &[6, 4]),
        ("reference", x.reshape(&[-1, signed]), &[6, 4]),
        ("vector", x.reshape(vec![rows, 12]), &[2, 12]),
        ("slice", x.reshape(x.dims()), &[2, 3, 4]),
        ("shape", x.reshape(x.shape()), &[2, 3, 4]),
        ("number", x.reshape(24), &[24]),
        ("hole alone", x.reshape(()), &[24]),
        ("expand", x.unsqueeze(0)?.expand((5, (), (), ())), &[5, 2, 3, 4]),
        ("expand by usize", iota(&[1, 3], &device).expand([rows, 3]), &[2, 3]),
        ("unflatten", x.unflatten(-1, ((), 2)), &[2, 3, 2, 2]),
        ("scalar", x.sum_all()?.reshape(Shape::SCALAR), &[]),
    ] {
        assert_eq!(got.unwrap_or_else(|e| panic!("{name}: {e}")).dims(), want, "{name}");
    }
    for sizes in [&[-1, -1][..], &[-2, 12], &[0, -1], &[7, -1], &[5, 5], &[isize::MAX, 4], &[isize::MAX, 0, -1]] {
        check_error(x.reshape(sizes), &["reshape: 24 elements of [2,3,4] do not fit"]);
    }
    check_error(x.reshape([usize::MAX, 2]), &["reshape"]);
    check_error(x.expand([usize::MAX, 2, 3, 4]), &["expand"]);
    check_error(x.unflatten(1, (2, ())), &["unflatten: dimension 1 of [2,3,4], which has 3, does not split into [2, -1]"]);
    check_error(x.unflatten(1, ((), ())), &["unflatten"]);
    Ok(())
}

#[test]
fn linspace_is_numpys() -> TensorResult<()> {
    for device in devices() {
        for (start, end, steps) in [(0.0, 1.0, 11), (-3.0, 7.0, 2), (5.0, -5.0, 1000), (2.5, 2.5, 3), (1.0, 9.0, 1), (0.0, 1.0, 0)] {
            let want: Vec<f64> = (0..steps).map(|i| start + (end - start) * i as f64 / (steps.max(2) - 1) as f64).collect();
            let name = format!("linspace({start}, {end}, {steps}) on {}", device.name());
            let x = Tensor::linspace(start, end, steps, DType::F32, &device)?;
            // A product and a sum, each rounded at the size of the ends.
            check(&name, Ok(x.clone()), &[steps], &want, f64::from(f32::EPSILON) * start.abs().max(end.abs()));
            if steps > 1 {
                let ends = x.to_vec()?;
                assert_eq!((ends[0], ends[steps - 1]), (start as f32, end as f32), "{name}");
            }
            check(&name, Tensor::linspace(start, end, steps, DType::F16, &device), &[steps], &want, 1e-3);
        }
        let whole = Tensor::linspace(0.0, 10.0, 5, DType::I32, &device)?;
        assert_eq!(whole.to_vec1::<i32>()?, [0, 2, 5, 7, 10]);
        check_error(Tensor::linspace(0.0, f64::INFINITY, 3, DType::F32, &device), &["linspace"]);
    }
    check("f64", Tensor::linspace(0.0, 1.0, 4, DType::F64, &Device::cpu()), &[4], &[0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0], 1e-7);
    Ok(())
}

#[test]
fn shared_random_numbers_follow_their_seed() -> TensorResult<()> {
    for device in devices() {
        let draw = || -> TensorResult<[Vec<f32>; 2]> {
            Ok([Tensor::rand(&[20_000], DType::F32, &device)?.to_vec()?, Tensor::randn(&[20_000], DType::F32, &device)?.to_vec()?])
        };
        manual_seed(11);
        let first = draw()?;
        assert_ne!(first, draw()?);
        manual_seed(11);
        assert_eq!(first, draw()?);
        // Means and variances of the two distributions, within five standard errors.
        for (values, mean, variance) in [(&first[0], 0.5, 1.0 / 12.0), (&first[1], 0.0, 1.0)] {
            let n = values.len() as f64;
            let got = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let spread = values.iter().map(|&v| (f64::from(v) - got).powi(2)).sum::<f64>() / n;
            assert!((got - mean).abs() < 5.0 * (variance / n).sqrt(), "{got}");
            assert!((spread - variance).abs() < 0.05 * variance, "{spread}");
        }
        check_error(Tensor::rand(&[1; 9], DType::F32, &device), &["uniform: 9 dimensions"]);
    }
    Ok(())
}

#[test]
fn short_names_are_their_compositions() -> TensorResult<()> {
    for device in devices() {
        let wave = |shape: &[usize]| {
            let v: Vec<f64> = (0..shape.iter().product::<usize>()).map(|i| (i as f64 * 1.7).sin()).collect();
            (v.clone(), Tensor::from_vec(v.into_iter().map(|v| v as f32).collect(), shape, &device).unwrap())
        };
        let ((p, a), (q, b)) = (wave(&[2, 3, 5]), wave(&[2, 5, 4]));
        let product = |i: usize, r: usize, c: usize| (0..5).map(|k| p[(i * 3 + r) * 5 + k] * q[(i * 5 + k) * 4 + c]).sum::<f64>();
        let want: Vec<f64> = (0..24).map(|n| product(n / 12, n / 4 % 3, n % 4)).collect();
        check("bmm", a.bmm(&b), &[2, 3, 4], &want, 1e-5);
        check_error(a.bmm(&b.i(..1)?), &["bmm: [2,3,5]·[1,5,4]"]);

        let index = Tensor::new(&[[0, 1, 1], [2, 0, 2]], &device)?;
        let (from, source) = wave(&[2, 3]);
        let mut sums = vec![1.0; 9];
        for (n, &to) in [0, 1, 1, 2, 0, 2].iter().enumerate() {
            sums[to * 3 + n % 3] += from[n];
        }
        check("scatter_add", Tensor::ones(&[3, 3], DType::F32, &device)?.scatter_add(0, &index, &source), &[3, 3], &sums, 1e-6);

        let x = iota(&[2, 3, 4], &device);
        let moved: Vec<f64> = (0..24).map(|n| (n % 2 * 12 + n / 2) as f64).collect();
        check("movedim", x.movedim(0, -1), &[3, 4, 2], &moved, 0.0);
        check_error(x.movedim(0, 3), &["movedim"]);

        let (_, values) = wave(&[4, 7]);
        let (median, place) = values.median(1)?;
        let rows = values.to_vec2::<f32>()?;
        let want: Vec<f64> = rows
            .iter()
            .map(|r| {
                let mut r = r.clone();
                r.sort_by(f32::total_cmp);
                f64::from(r[3])
            })
            .collect();
        check("median", Ok(median.clone()), &[4], &want, 0.0);
        check("its index", values.gather(1, &place.unsqueeze(1)?)?.squeeze(1), &[4], &want, 0.0);
        let odd = Tensor::new(&[[4.0, 1.0, 3.0, 2.0], [1.0, f32::NAN, 0.0, 2.0]], &device)?;
        let (median, place) = odd.median(-1)?;
        check("median of an even number, and of NaN", Ok(median), &[2], &[2.0, f64::NAN], 0.0);
        assert_eq!(place.to_vec1::<i32>()?, [3, 1]);
        check_error(Tensor::zeros(&[2, 0], DType::F32, &device)?.median(1), &["median: dimension 1 of [2,0] is empty"]);

        let grid = Tensor::meshgrid(&[iota(&[2], &device), iota(&[3], &device), iota(&[2], &device)])?;
        for (d, t) in grid.into_iter().enumerate() {
            let want: Vec<f64> = (0..12).map(|n| [n / 6, n / 2 % 3, n % 2][d] as f64).collect();
            check("meshgrid", Ok(t), &[2, 3, 2], &want, 0.0);
        }
        check("full_like", x.i((0, 0))?.full_like(2.5), &[4], &[2.5; 4], 0.0);
    }
    Ok(())
}

/// Adds the files of a folder.
fn sources(dir: &std::path::Path, out: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Types of the prelude whose methods are held to it.
const TYPES: [&str; 12] = [
    "Activation",
    "AttentionDropout",
    "AttentionOptions",
    "ConvOptions",
    "DType",
    "Device",
    "NllOptions",
    "Param",
    "Rng",
    "Shape",
    "Tensor",
    "WindowOptions",
];

/// Public methods of these types that give a `TensorResult`, those that macros write among them, and whether each has `# Errors` and an example.
fn fallible_methods(text: &str) -> Vec<(String, bool, bool)> {
    let lines: Vec<&str> = text.lines().collect();
    // The type and the indentation of the `impl` block that a line is in, where it is one of these types.
    let mut block: Option<(&str, usize)> = None;
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let (indent, code) = (line.len() - line.trim_start().len(), line.trim_start());
        let begun = |name: &&str| code.starts_with(&format!("impl {name} {{")) || code.contains(&format!("=> {{ impl {name} {{"));
        if let Some(name) = TYPES.into_iter().find(|name| begun(name)) {
            block = Some((name, indent));
        } else if block.is_some_and(|b| b.1 == indent) && code.starts_with('}') {
            block = None;
        }
        let Some(rest) = code.strip_prefix("pub fn ").or_else(|| code.strip_prefix("pub async fn ")) else { continue };
        let signature = lines[i..].iter().take_while(|l| !l.trim_start().starts_with('}')).take(8).copied().collect::<Vec<_>>().join(" ");
        let signature = signature.split('{').next().unwrap();
        let Some((of, _)) = block.filter(|_| signature.contains("-> TensorResult<")) else { continue };
        // Documentation and attributes above, also those of several lines.
        let above = lines[..i].iter().rev().take_while(|l| l.contains("///") || !l.is_empty() && **l != "    }" && !l.ends_with(" {"));
        let above: Vec<&str> = above.copied().collect();
        let has = |what: &str| above.iter().any(|l| l.contains(what));
        let name = format!("{of}::{}", rest.split(['(', '<']).next().unwrap());
        found.push((name, has("# Errors"), has("```") || has("#[doc = example!(")));
    }
    found
}

/// Every public method of the prelude's types that can fail says when, and shows its use in an example, which runs with the tests.
#[test]
fn every_fallible_method_says_when_and_shows_how() {
    let mut files = Vec::new();
    sources(&std::path::Path::new(env!("TENSORLOGIC_ROOT")).join("src"), &mut files);
    let mut count = 0;
    let mut lacking = Vec::new();
    for file in files {
        for (name, errors, example) in fallible_methods(&std::fs::read_to_string(&file).unwrap()) {
            count += 1;
            if !errors || !example {
                lacking.push(format!(
                    "{}: {name}{}{}",
                    file.display(),
                    if errors { "" } else { ", `# Errors`" },
                    if example { "" } else { ", an example" }
                ));
            }
        }
    }
    assert!(count > 185, "only {count} methods were found");
    assert!(lacking.is_empty(), "{} of {count} lack documentation:\n{}", lacking.len(), lacking.join("\n"));
}
