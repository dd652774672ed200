//! Convolutions and pools.

use super::graph::{Call, Pick};
use super::ops::{List, is_float};
use super::reference::{Axis, conv, conv_transpose, inside, taps};
use crate::conformance_support::Array;
use tensorlogic::ops::convolution::{ConvOptions, Divisor, WindowOptions};
use tensorlogic::ops::{Interpolation, Resize};

pub fn list(l: &mut List) {
    convolutions(l);
    pools(l);
    interpolations(l);
}

/// Linear and nearest: what an output is made of, by the distance of middles.
fn interpolations(l: &mut List) {
    l.add("interpolate", |p| {
        let x = images(p)?;
        let (shape, linear) = (p.shape(x), p.flag());
        let sizes: Vec<usize> = shape[2..].iter().map(|&n| 1 + p.below(2 * n)).collect();
        let mode = if linear { Interpolation::Linear } else { Interpolation::NearestExact };
        let mut whole = shape[..2].to_vec();
        whole.extend(&sizes);
        // Nearest: no place half-way between two middles.
        let place = |d: usize, o: usize, n: usize| (o as f64 + 0.5) * shape[d] as f64 / n as f64;
        let clear = linear || sizes.iter().enumerate().all(|(i, &n)| (0..n).all(|o| place(i + 2, o, n).fract() != 0.0));
        let fits = clear && whole.iter().product::<usize>() <= 400;
        let text = format!("{{0}}.interpolate(Resize::To(&{sizes:?}), Interpolation::{mode:?}, false)");
        let c = Call::new(text, &[x], move |t| t[0].interpolate(Resize::To(&sizes), mode, false));
        fits.then(|| {
            c.reference(move |a| {
                let share = |i: usize, o: usize, d: usize| {
                    let n = a[0].shape[d];
                    let at = (o as f64 + 0.5) * n as f64 / whole[d] as f64 - 0.5;
                    match linear {
                        true => (1.0 - (at.clamp(0.0, n as f64 - 1.0) - i as f64).abs()).max(0.0),
                        false => f64::from((at - i as f64).abs() < 0.5),
                    }
                };
                Array::from_fn(&whole, |o| {
                    let mut sum = 0.0;
                    Array::from_fn(&a[0].shape, |i| {
                        if i[..2] == o[..2] {
                            sum += (2..i.len()).map(|d| share(i[d], o[d], d)).product::<f64>() * a[0].at(i);
                        }
                        0.0
                    });
                    sum
                })
            })
        })
    });
}

/// Windows in each dimension after the first two.
fn axes(p: &mut Pick, kernel: &[usize]) -> Vec<Axis> {
    let axis = |&kernel: &usize| Axis { kernel, stride: 1 + p.below(3), padding: (p.below(3), p.below(3)), dilation: 1 + p.below(2) };
    kernel.iter().map(axis).collect()
}

fn options(axes: &[Axis], ceil: bool) -> WindowOptions {
    WindowOptions {
        stride: axes.iter().map(|a| a.stride).collect(),
        padding: axes.iter().map(|a| a.padding).collect(),
        dilation: axes.iter().map(|a| a.dilation).collect(),
        ceil,
    }
}

/// Floats `[N, C, …]` of one to three more dimensions.
fn images(p: &mut Pick) -> Option<usize> {
    p.value(|v| is_float(v) && (3..=5).contains(&v.rank()) && !v.array.data.is_empty())
}

fn convolutions(l: &mut List) {
    l.add("conv", |p| {
        let x = images(p)?;
        let shape = p.shape(x);
        // The channels in one group, or each in its own.
        let (groups, inner) = if p.flag() { (1, shape[1]) } else { (shape[1], 1) };
        let w = p.value(|v| {
            is_float(v)
                && v.rank() == shape.len()
                && v.array.shape[1] == inner
                && v.array.shape[0] % groups == 0
                && !v.array.data.is_empty()
        })?;
        let kernel = p.shape(w)[2..].to_vec();
        let a = axes(p, &kernel);
        let counts: Option<Vec<usize>> = a.iter().zip(&shape[2..]).map(|(a, &n)| a.count(n, false)).collect();
        let outputs = p.shape(w)[0];
        counts?;
        let bias = p.value(|v| is_float(v) && v.array.shape == [outputs]).filter(|_| p.flag());
        let o = ConvOptions { windows: options(&a, false), groups, output_padding: vec![] };
        let inputs: Vec<usize> = [x, w].into_iter().chain(bias).collect();
        let text = format!("{{0}}.conv(&{{1}}, {}, &{o:?})", if bias.is_some() { "Some(&{2})" } else { "None" });
        let c = Call::new(text, &inputs, move |t| t[0].conv(&t[1], t.get(2), &o));
        Some(c.reference(move |v| conv(&v[0], &v[1], v.get(2), &a, groups)))
    });
    l.add("conv_transpose", |p| {
        let x = images(p)?;
        let shape = p.shape(x);
        let w = p.value(|v| is_float(v) && v.rank() == shape.len() && v.array.shape[0] == shape[1] && !v.array.data.is_empty())?;
        let groups = if p.flag() { 1 } else { shape[1] };
        let kernel = p.shape(w)[2..].to_vec();
        let a = axes(p, &kernel);
        let more: Vec<usize> = a.iter().map(|a| p.below(a.stride)).collect();
        let whole = |d: usize| (shape[d + 2] - 1) * a[d].stride + a[d].dilation * (a[d].kernel - 1) + 1 + more[d];
        // Something is left, and the kernel reaches over every margin that is taken away.
        let fits = (0..a.len()).all(|d| whole(d) > a[d].padding.0 + a[d].padding.1);
        let o = ConvOptions { windows: options(&a, false), groups, output_padding: more.clone() };
        let c = Call::new(format!("{{0}}.conv_transpose(&{{1}}, None, &{o:?})"), &[x, w], move |t| t[0].conv_transpose(&t[1], None, &o));
        fits.then(|| c.reference(move |v| conv_transpose(&v[0], &v[1], None, &a, groups, &more)))
    });
}

/// A result for each window, of the elements inside and the number of its places within the margins.
fn pooled(x: &Array, axes: &[Axis], ceil: bool, f: impl Fn(&[f64], usize) -> f64) -> Array {
    let mut shape = x.shape[..2].to_vec();
    shape.extend(axes.iter().zip(&x.shape[2..]).map(|(a, &n)| a.count(n, ceil).expect("windows that fit")));
    Array::from_fn(&shape, |i| {
        let places = taps(axes, &i[2..]);
        let values: Vec<f64> = places.iter().filter_map(|(_, at)| inside(x, i[0], i[1], at)).collect();
        let ends: Vec<isize> = axes.iter().zip(&x.shape[2..]).map(|(a, &n)| (n + a.padding.1) as isize).collect();
        f(&values, places.iter().filter(|(_, at)| at.iter().zip(&ends).all(|(p, e)| p < e)).count())
    })
}

/// Images and the windows of a pool over them, whose margins are at most half a window.
fn pool(p: &mut Pick) -> Option<(usize, Vec<usize>, Vec<Axis>, bool)> {
    let x = images(p)?;
    let shape = p.shape(x);
    let kernel: Vec<usize> = shape[2..].iter().map(|n| 1 + p.below(3.min(*n))).collect();
    let mut a = axes(p, &kernel);
    for axis in &mut a {
        axis.padding = (axis.padding.0.min(axis.kernel / 2), axis.padding.1.min(axis.kernel / 2));
        axis.dilation = 1;
    }
    let ceil = p.flag();
    let counts: Option<Vec<usize>> = a.iter().zip(&shape[2..]).map(|(a, &n)| a.count(n, ceil)).collect();
    counts?;
    // Every window has an element.
    let full = pooled(&p.of(x).array, &a, ceil, |v, _| f64::from(!v.is_empty()));
    full.data.iter().all(|v| *v == 1.0).then_some((x, kernel, a, ceil))
}

fn pools(l: &mut List) {
    l.add("max_pool", |p| {
        let (x, kernel, a, ceil) = pool(p)?;
        let margin = 2.0 * p.of(x).margin();
        let apart = pooled(&p.of(x).array, &a, ceil, |v, _| {
            let mut v = v.to_vec();
            v.sort_by(f64::total_cmp);
            f64::from(v.windows(2).all(|w| w[1] - w[0] > margin))
        });
        let o = options(&a, ceil);
        let c = Call::new(format!("{{0}}.max_pool(&{kernel:?}, &{o:?})"), &[x], move |t| t[0].max_pool(&kernel, &o));
        apart
            .data
            .iter()
            .all(|v| *v == 1.0)
            .then(|| c.reference(move |v| pooled(&v[0], &a, ceil, |v, _| v.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x)))))
    });
    l.add("avg_pool", |p| {
        let (x, kernel, a, ceil) = pool(p)?;
        let by = [Divisor::Elements, Divisor::WithMargins, Divisor::Fixed(3.0)][p.below(3)];
        let o = options(&a, ceil);
        let c = Call::new(format!("{{0}}.avg_pool(&{kernel:?}, Divisor::{by:?}, &{o:?})"), &[x], move |t| t[0].avg_pool(&kernel, by, &o));
        Some(c.reference(move |v| {
            pooled(&v[0], &a, ceil, |v, places| {
                v.iter().sum::<f64>()
                    / match by {
                        Divisor::Elements => v.len() as f64,
                        Divisor::WithMargins => places as f64,
                        Divisor::Fixed(n) => n,
                    }
            })
        }))
    });
}
