//! Reductions, scans, orders, normalizations and losses.

use super::graph::{Call, Kind, Pick, Value, broadcast};
use super::ops::{List, away, bounded_text, bounds, distinct_rows, is_float};
use crate::conformance_support::Array;
use tensorlogic::ops::loss::{NllOptions, Reduction};
use tensorlogic::{Tensor, TensorResult};

pub fn list(l: &mut List) {
    reductions(l);
    all_elements(l);
    orders(l);
    softmax(l);
    norms(l);
    lengths(l);
    losses(l);
    classes(l);
}

/// Dimensions of a value as a user may write them (none for all), and what they mean.
fn dimensions(p: &mut Pick, x: usize) -> (Vec<isize>, Vec<usize>) {
    let rank = p.of(x).rank();
    let first: Vec<usize> = (0..rank).filter(|_| p.flag()).collect();
    let meant = if first.is_empty() { (0..rank).collect() } else { first.clone() };
    (first.iter().map(|&d| p.signed(d, rank)).collect(), meant)
}

/// A reduction of rows to one number each.
fn reduced(a: &Array, dims: &[usize], keep: bool, f: impl Fn(&[f64]) -> f64) -> Array {
    let list: Vec<isize> = dims.iter().map(|&d| d as isize).collect();
    let out = a.rows(&list, |r| vec![f(r)], false);
    let shape: Vec<usize> =
        (0..a.shape.len()).filter(|d| keep || !dims.contains(d)).map(|d| if dims.contains(&d) { 1 } else { a.shape[d] }).collect();
    out.reshape(&shape)
}

fn mean(r: &[f64]) -> f64 {
    r.iter().sum::<f64>() / r.len() as f64
}
fn variance(r: &[f64], correction: f64) -> f64 {
    let m = mean(r);
    r.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / (r.len() as f64 - correction).max(0.0)
}
fn largest(r: &[f64]) -> f64 {
    r.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v))
}
fn smallest(r: &[f64]) -> f64 {
    r.iter().fold(f64::INFINITY, |m, &v| m.min(v))
}
fn logsumexp(r: &[f64]) -> f64 {
    let m = largest(r);
    m + r.iter().map(|v| (v - m).exp()).sum::<f64>().ln()
}
fn place(r: &[f64], best: f64) -> f64 {
    r.iter().position(|&v| v == best).unwrap_or(0) as f64
}

type Over = fn(&Tensor, &[isize], bool) -> TensorResult<Tensor>;

/// What a reduction wants of its rows.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    Any,
    /// Something to choose from, and no two near each other.
    Distinct,
    /// More than one element.
    Spread,
    /// No element near zero.
    Away,
}

/// A reduction; `settings` is the text of what stands before its dimensions, and behind them.
fn reduction(l: &mut List, name: &'static str, settings: [&'static str; 2], wants: Rows, call: Over, f: fn(&[f64]) -> f64) {
    let [before, after] = settings;
    l.add(name, move |p| {
        let x = p.float()?;
        let ((dims, meant), keep) = (dimensions(p, x), p.flag());
        let long: usize = meant.iter().map(|&d| p.of(x).array.shape[d]).product();
        let fits = match wants {
            Rows::Any => true,
            Rows::Distinct => long > 0 && distinct_rows(p.of(x), &meant),
            Rows::Spread => long > 1 && distinct_rows(p.of(x), &meant),
            Rows::Away => away(p.of(x), &[0.0]),
        };
        let c = Call::new(format!("{{0}}.{name}({before}&{dims:?}, {after}{keep})"), &[x], move |t| call(&t[0], &dims, keep));
        fits.then(|| c.reference(move |a| reduced(&a[0], &meant, keep, f)))
    });
}

fn reductions(l: &mut List) {
    reduction(l, "sum", ["", ""], Rows::Any, |t, d, k| t.sum(d, k), |r| r.iter().sum());
    reduction(l, "mean", ["", ""], Rows::Any, |t, d, k| t.mean(d, k), mean);
    reduction(l, "prod", ["", ""], Rows::Away, |t, d, k| t.prod(d, k), |r| r.iter().product());
    reduction(l, "max", ["", ""], Rows::Distinct, |t, d, k| t.max(d, k), largest);
    reduction(l, "min", ["", ""], Rows::Distinct, |t, d, k| t.min(d, k), smallest);
    reduction(l, "var", ["", "1, "], Rows::Spread, |t, d, k| t.var(d, 1, k), |r| variance(r, 1.0));
    reduction(l, "var", ["", "0, "], Rows::Spread, |t, d, k| t.var(d, 0, k), |r| variance(r, 0.0));
    reduction(l, "std", ["", "1, "], Rows::Spread, |t, d, k| t.std(d, 1, k), |r| variance(r, 1.0).sqrt());
    reduction(l, "logsumexp", ["", ""], Rows::Distinct, |t, d, k| t.logsumexp(d, k), logsumexp);
    reduction(l, "norm", ["1.0, ", ""], Rows::Away, |t, d, k| t.norm(1.0, d, k), |r| r.iter().map(|v| v.abs()).sum());
    reduction(l, "norm", ["2.0, ", ""], Rows::Spread, |t, d, k| t.norm(2.0, d, k), |r| r.iter().map(|v| v * v).sum::<f64>().sqrt());
    reduction(l, "norm", ["0.0, ", ""], Rows::Away, |t, d, k| t.norm(0.0, d, k), |r| r.len() as f64);
    l.add("norm", |p| {
        let x = p.float()?;
        let ((dims, meant), keep) = (dimensions(p, x), p.flag());
        let order = [3.0, 1.5, f64::INFINITY, f64::NEG_INFINITY][p.below(4)];
        let long: usize = meant.iter().map(|&d| p.of(x).array.shape[d]).product();
        let sizes = Value { array: p.of(x).array.map(f64::abs), ..p.of(x).clone() };
        let f = move |r: &[f64]| match order {
            f64::INFINITY => largest(r),
            f64::NEG_INFINITY => smallest(r),
            n => r.iter().map(|v| v.powf(n)).sum::<f64>().powf(1.0 / n),
        };
        let text = format!("{{0}}.norm(f64::from({order:?}), &{dims:?}, {keep})");
        let c = Call::new(text, &[x], move |t| t[0].norm(order, &dims, keep));
        (long > 0 && away(p.of(x), &[0.0]) && distinct_rows(&sizes, &meant))
            .then(|| c.reference(move |a| reduced(&a[0].map(f64::abs), &meant, keep, f)))
    });
    for (name, call, f) in [
        ("all", (|t, d, k| t.all(d, k)) as Over, (|r| f64::from(r.iter().all(|v| *v != 0.0))) as fn(&[f64]) -> f64),
        ("any", |t, d, k| t.any(d, k), |r| f64::from(r.iter().any(|v| *v != 0.0))),
    ] {
        l.add(name, move |p| {
            let x = p.value(|v| matches!(v.kind, Kind::Bool | Kind::Int))?;
            let ((dims, meant), keep) = (dimensions(p, x), p.flag());
            let c = Call::new(format!("{{0}}.{name}(&{dims:?}, {keep})"), &[x], move |t| call(&t[0], &dims, keep));
            Some(c.kind(Kind::Bool).reference(move |a| reduced(&a[0], &meant, keep, f)))
        });
    }
    for (name, call, f) in [
        ("argmax", (|t, d| t.argmax(d)) as fn(&Tensor, isize) -> TensorResult<Tensor>, (|r| place(r, largest(r))) as fn(&[f64]) -> f64),
        ("argmin", |t, d| t.argmin(d), |r| place(r, smallest(r))),
    ] {
        l.add(name, move |p| {
            let x = p.value(|v| v.rank() > 0 && matches!(v.kind, Kind::Float | Kind::Int))?;
            let d = p.dim(x)?;
            // Of equal whole numbers the first counts.
            let fits = p.of(x).array.shape[d] > 0 && (p.of(x).kind == Kind::Int || distinct_rows(p.of(x), &[d]));
            let c = Call::new(format!("{{0}}.{name}({d})"), &[x], move |t| call(&t[0], d as isize)).kind(Kind::Int);
            fits.then(|| c.reference(move |a| reduced(&a[0], &[d], false, f)))
        });
    }
}

fn all_elements(l: &mut List) {
    let all = |l: &mut List, name: &'static str, wants: Rows, call: fn(&Tensor) -> TensorResult<Tensor>, f: fn(&[f64]) -> f64| {
        l.add(name, move |p| {
            let x = p.float()?;
            let meant: Vec<usize> = (0..p.of(x).rank()).collect();
            let full = !p.of(x).array.data.is_empty();
            let fits = match wants {
                Rows::Distinct => full && distinct_rows(p.of(x), &meant),
                Rows::Away => away(p.of(x), &[0.0]),
                _ => full,
            };
            let c = Call::new(format!("{{0}}.{name}()"), &[x], move |t| call(&t[0]));
            fits.then(|| c.reference(move |a| Array { shape: vec![], data: vec![f(&a[0].data)] }))
        });
    };
    all(l, "sum_all", Rows::Any, |t| t.sum_all(), |r| r.iter().sum());
    all(l, "mean_all", Rows::Any, |t| t.mean_all(), mean);
    all(l, "max_all", Rows::Distinct, |t| t.max_all(), largest);
    all(l, "min_all", Rows::Distinct, |t| t.min_all(), smallest);
    all(l, "prod_all", Rows::Away, |t| t.prod_all(), |r| r.iter().product());
}

/// The order that sorts a row.
fn sorted(r: &[f64], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..r.len()).collect();
    order.sort_by(|&a, &b| if descending { r[b].total_cmp(&r[a]) } else { r[a].total_cmp(&r[b]) });
    order
}

/// A float value with distinct elements along one dimension.
fn orderable(p: &mut Pick) -> Option<(usize, usize)> {
    let x = p.value(|v| is_float(v) && v.rank() > 0)?;
    let d = p.dim(x)?;
    distinct_rows(p.of(x), &[d]).then_some((x, d))
}

fn along(a: &Array, d: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Array {
    a.rows(&[d as isize], f, true)
}

fn orders(l: &mut List) {
    l.add("sort", |p| {
        let ((x, d), down) = (orderable(p)?, p.flag());
        let c = Call::new(format!("{{0}}.sort({d}, {down})?.0"), &[x], move |t| Ok(t[0].sort(d as isize, down)?.0));
        Some(c.reference(move |a| along(&a[0], d, |r| sorted(r, down).into_iter().map(|i| r[i]).collect())))
    });
    l.add("median", |p| {
        let (x, d) = orderable(p)?;
        let s = p.signed(d, p.of(x).rank());
        let c = Call::new(format!("{{0}}.median({s})?.0"), &[x], move |t| Ok(t[0].median(s)?.0));
        let lower_middle = |r: &[f64]| r[sorted(r, false)[(r.len() - 1) / 2]];
        (p.shape(x)[d] > 0).then(|| c.reference(move |a| reduced(&a[0], &[d], false, lower_middle)))
    });
    l.add("argsort", |p| {
        let ((x, d), down) = (orderable(p)?, p.flag());
        let c = Call::new(format!("{{0}}.argsort({d}, {down})"), &[x], move |t| t[0].argsort(d as isize, down)).kind(Kind::Int);
        Some(c.reference(move |a| along(&a[0], d, |r| sorted(r, down).into_iter().map(|i| i as f64).collect())))
    });
    l.add("topk", |p| {
        let ((x, d), most) = (orderable(p)?, p.flag());
        let k = p.below(p.shape(x)[d] + 1);
        let c = Call::new(format!("{{0}}.topk({k}, {d}, {most})?.0"), &[x], move |t| Ok(t[0].topk(k, d as isize, most)?.0));
        Some(c.reference(move |a| {
            let all = along(&a[0], d, |r| sorted(r, most).into_iter().map(|i| r[i]).collect());
            super::reference::narrowed(&all, d, 0, k)
        }))
    });
    for (name, call, largest) in [
        ("cummax", (|t, d| Ok(t.cummax(d)?.0)) as fn(&Tensor, isize) -> TensorResult<Tensor>, true),
        ("cummin", |t, d| Ok(t.cummin(d)?.0), false),
    ] {
        l.add(name, move |p| {
            let (x, d) = orderable(p)?;
            let s = p.signed(d, p.of(x).rank());
            let c = Call::new(format!("{{0}}.{name}({s})?.0"), &[x], move |t| call(&t[0], s));
            Some(c.reference(move |a| {
                along(&a[0], d, |r| {
                    let mut best = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
                    r.iter()
                        .map(|&v| {
                            best = if largest { best.max(v) } else { best.min(v) };
                            best
                        })
                        .collect()
                })
            }))
        });
    }
    l.add("searchsorted", |p| {
        let row = p.value(|v| is_float(v) && v.rank() == 1)?;
        let (x, right) = (p.float()?, p.flag());
        let margin = 4.0 * (p.of(row).margin() + p.of(x).margin());
        let values = &p.of(x).array.data;
        let apart = p.of(row).array.data.iter().all(|a| values.iter().all(|b| (a - b).abs() > margin));
        let text = format!("{{0}}.sort(0, false)?.0.searchsorted(&{{1}}, {right})");
        let c = Call::new(text, &[row, x], move |t| t[0].sort(0, false)?.0.searchsorted(&t[1], right)).kind(Kind::Int);
        apart.then(|| c.reference(|a| a[1].map(|v| a[0].data.iter().filter(|x| **x < v).count() as f64)))
    });
    l.add("masked_select", |p| {
        let x = p.float()?;
        let shape = p.shape(x);
        let m = p.value(|v| v.kind == Kind::Bool && broadcast(&shape, &v.array.shape).is_some())?;
        let c = Call::new("{0}.masked_select(&{1})", &[x, m], |t| t[0].masked_select(&t[1]));
        Some(c.reference(|a| {
            let (values, mask) = (a[0].zip(&a[1], |x, _| x), a[0].zip(&a[1], |_, m| m));
            let data: Vec<f64> = values.data.iter().zip(&mask.data).filter(|(_, m)| **m != 0.0).map(|(v, _)| *v).collect();
            Array { shape: vec![data.len()], data }
        }))
    });
    l.add("nonzero", |p| {
        let x = p.value(|v| matches!(v.kind, Kind::Bool | Kind::Int) && v.rank() > 0)?;
        let c = Call::new("{0}.nonzero()", &[x], |t| t[0].nonzero()).kind(Kind::Int);
        Some(c.reference(|a| {
            let mut data = Vec::new();
            Array::from_fn(&a[0].shape, |i| {
                let v = a[0].at(i);
                if v != 0.0 {
                    data.extend(i.iter().map(|&i| i as f64));
                }
                v
            });
            Array { shape: vec![data.len() / a[0].shape.len(), a[0].shape.len()], data }
        }))
    });
    for (name, call, combine) in [
        ("cumsum", (|t, d| t.cumsum(d)) as fn(&Tensor, isize) -> TensorResult<Tensor>, (|a, b| a + b) as fn(f64, f64) -> f64),
        ("cumprod", |t, d| t.cumprod(d), |a, b| a * b),
    ] {
        l.add(name, move |p| {
            let x = p.value(|v| is_float(v) && v.rank() > 0)?;
            let d = p.dim(x)?;
            let c = Call::new(format!("{{0}}.{name}({d})"), &[x], move |t| call(&t[0], d as isize));
            Some(c.reference(move |a| {
                along(&a[0], d, |r| {
                    let mut sum = if name == "cumsum" { 0.0 } else { 1.0 };
                    r.iter()
                        .map(|&v| {
                            sum = combine(sum, v);
                            sum
                        })
                        .collect()
                })
            }))
        });
    }
}

fn softmax(l: &mut List) {
    for (name, call, log) in [
        ("softmax", (|t, d| t.softmax(d)) as fn(&Tensor, isize) -> TensorResult<Tensor>, false),
        ("log_softmax", |t, d| t.log_softmax(d), true),
    ] {
        l.add(name, move |p| {
            let x = p.value(|v| is_float(v) && v.rank() > 0)?;
            let d = p.dim(x)?;
            let s = p.signed(d, p.of(x).rank());
            let c = Call::new(format!("{{0}}.{name}({s})"), &[x], move |t| call(&t[0], s));
            Some(c.reference(move |a| {
                along(&a[0], d, |r| {
                    let sum = logsumexp(r);
                    r.iter().map(|v| if log { v - sum } else { (v - sum).exp() }).collect()
                })
            }))
        });
    }
    l.add("glu", |p| {
        let x = p.value(|v| is_float(v) && v.array.shape.iter().any(|n| n % 2 == 0))?;
        let even: Vec<usize> = (0..p.of(x).rank()).filter(|&d| p.of(x).array.shape[d] % 2 == 0).collect();
        let d = even[p.below(even.len())];
        let c = Call::new(format!("{{0}}.glu({d})"), &[x], move |t| t[0].glu(d as isize));
        Some(c.reference(move |a| {
            let n = a[0].shape[d] / 2;
            let half = |start| super::reference::narrowed(&a[0], d, start, n);
            half(0).zip(&half(n), |x, y| x / (1.0 + (-y).exp()))
        }))
    });
}

/// A float value of one entry per entry of dimension `d` of another.
fn per_entry(p: &mut Pick, x: usize, d: usize) -> Option<usize> {
    let n = p.shape(x)[d];
    p.value(|v| is_float(v) && v.array.shape == [n])
}

/// Rows centred (unless `rms`) and scaled.
fn normalized(a: &Array, rms: bool, eps: f64) -> Array {
    along(a, a.shape.len() - 1, |r| {
        let m = if rms { 0.0 } else { mean(r) };
        let square = r.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / r.len() as f64;
        r.iter().map(|x| (x - m) / (square + eps).sqrt()).collect()
    })
}

fn norms(l: &mut List) {
    const EPS: f64 = 0.125;
    l.add("layer_norm", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let last = p.of(x).rank() - 1;
        let Some(w) = per_entry(p, x, last).filter(|_| p.flag()) else {
            let c = Call::new(format!("{{0}}.layer_norm(None, None, {EPS:?})"), &[x], |t| t[0].layer_norm(None, None, EPS));
            return Some(c.reference(|a| normalized(&a[0], false, EPS)));
        };
        let text = format!("{{0}}.layer_norm(Some(&{{1}}), Some(&{{1}}), {EPS:?})");
        let c = Call::new(text, &[x, w], |t| t[0].layer_norm(Some(&t[1]), Some(&t[1]), EPS));
        Some(c.reference(|a| normalized(&a[0], false, EPS).zip(&a[1], |x, w| x * w + w)))
    });
    l.add("rms_norm", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let last = p.of(x).rank() - 1;
        let Some(w) = per_entry(p, x, last).filter(|_| p.flag()) else {
            let c = Call::new(format!("{{0}}.rms_norm(None, {EPS:?})"), &[x], |t| t[0].rms_norm(None, EPS));
            return Some(c.reference(|a| normalized(&a[0], true, EPS)));
        };
        let c = Call::new(format!("{{0}}.rms_norm(Some(&{{1}}), {EPS:?})"), &[x, w], |t| t[0].rms_norm(Some(&t[1]), EPS));
        Some(c.reference(|a| normalized(&a[0], true, EPS).zip(&a[1], |x, w| x * w)))
    });
    l.add("group_norm", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 1 && v.array.shape[1] > 0)?;
        let shape = p.shape(x);
        let divisors: Vec<usize> = (1..=shape[1]).filter(|g| shape[1] % g == 0).collect();
        let groups = divisors[p.below(divisors.len())];
        let width = shape[1..].iter().product::<usize>() / groups;
        let w = per_entry(p, x, 1).filter(|_| p.flag());
        let reference = move |a: &[Array]| {
            let y = normalized(&a[0].reshape(&[shape[0] * groups, width]), false, EPS).reshape(&shape);
            match a.get(1) {
                Some(w) => y.index_map(|i, v| v * w.data[i[1]]),
                None => y,
            }
        };
        Some(
            match w {
                Some(w) => Call::new(format!("{{0}}.group_norm({groups}, Some(&{{1}}), None, {EPS:?})"), &[x, w], move |t| {
                    t[0].group_norm(groups, Some(&t[1]), None, EPS)
                }),
                None => Call::new(format!("{{0}}.group_norm({groups}, None, None, {EPS:?})"), &[x], move |t| {
                    t[0].group_norm(groups, None, None, EPS)
                }),
            }
            .reference(reference),
        )
    });
    l.add("batch_norm", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 1 && !v.array.data.is_empty())?;
        let dims: Vec<usize> = (0..p.of(x).rank()).filter(|&d| d != 1).collect();
        let w = per_entry(p, x, 1);
        let own = move |a: &Array| {
            let (m, v) = (reduced(a, &dims, true, mean), reduced(a, &dims, true, |r| variance(r, 0.0)));
            a.zip(&m, |x, m| x - m).zip(&v, |x, v| x / (v + EPS).sqrt())
        };
        let Some(w) = w else {
            let c = Call::new(format!("{{0}}.batch_norm(None, None, None, {EPS:?})"), &[x], |t| t[0].batch_norm(None, None, None, EPS));
            return Some(c.reference(move |a| own(&a[0])));
        };
        if p.flag() {
            let c = Call::new(format!("{{0}}.batch_norm(None, Some(&{{1}}), Some(&{{1}}), {EPS:?})"), &[x, w], |t| {
                t[0].batch_norm(None, Some(&t[1]), Some(&t[1]), EPS)
            });
            return Some(c.reference(move |a| own(&a[0]).index_map(|i, v| v * a[1].data[i[1]] + a[1].data[i[1]])));
        }
        let text = format!("{{0}}.batch_norm(Some((&{{1}}, &{{1}}.square()?)), None, None, {EPS:?})");
        let c = Call::new(text, &[x, w], |t| t[0].batch_norm(Some((&t[1], &t[1].square()?)), None, None, EPS));
        Some(c.reference(|a| a[0].index_map(|i, v| (v - a[1].data[i[1]]) / (a[1].data[i[1]].powi(2) + EPS).sqrt())))
    });
}

/// Rows divided by their lengths.
fn lengths(l: &mut List) {
    l.add("normalize", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let d = p.dim(x)?;
        let long = reduced(&p.of(x).array, &[d], false, |r| r.iter().map(|v| v * v).sum::<f64>().sqrt());
        let c = Call::new(format!("{{0}}.normalize(2.0, {d}, 1e-6)"), &[x], move |t| t[0].normalize(2.0, d as isize, 1e-6));
        long.data.iter().all(|v| *v > 0.1).then(|| {
            c.reference(move |a| {
                along(&a[0], d, |r| {
                    let n = r.iter().map(|v| v * v).sum::<f64>().sqrt();
                    r.iter().map(|v| v / n).collect()
                })
            })
        })
    });
    l.add("cosine_similarity", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let y = p.partner(x)?;
        let full = broadcast(&p.shape(x), &p.shape(y))?;
        let d = p.below(full.len());
        let wide = |i: usize| Array { shape: full.clone(), data: vec![0.0; full.iter().product()] }.zip(&p.of(i).array, |_, v| v);
        let long = |a: &Array| reduced(a, &[d], true, |r| r.iter().map(|v| v * v).sum::<f64>().sqrt());
        let fits = [x, y].iter().all(|&i| long(&wide(i)).data.iter().all(|v| *v > 0.1));
        let c = Call::new(format!("{{0}}.cosine_similarity(&{{1}}, {d}, 1e-6)"), &[x, y], move |t| {
            t[0].cosine_similarity(&t[1], d as isize, 1e-6)
        });
        fits.then(|| {
            c.reference(move |a| {
                let full = a[0].zip(&a[1], |_, _| 0.0);
                let [x, y] = [0, 1].map(|i| full.zip(&a[i], |_, v| v));
                let dot = reduced(&x.zip(&y, |x, y| x * y), &[d], false, |r| r.iter().sum());
                let [lx, ly] = [x, y].map(|v| reduced(&v, &[d], false, |r| r.iter().map(|v| v * v).sum::<f64>().sqrt()));
                dot.zip(&lx, |a, b| a / b).zip(&ly, |a, b| a / b)
            })
        })
    });
}

const REDUCTIONS: [Reduction; 4] = [Reduction::None, Reduction::Mean, Reduction::Sum, Reduction::BatchMean];

fn total(a: Array, how: Reduction) -> Array {
    let (n, first, sum) = (a.data.len(), a.shape.first().copied().unwrap_or(1), a.data.iter().sum::<f64>());
    let one = |v| Array { shape: vec![], data: vec![v] };
    match how {
        Reduction::None => a,
        Reduction::Mean => one(sum / n as f64),
        Reduction::Sum => one(sum),
        Reduction::BatchMean => one(sum / first as f64),
    }
}

/// A loss of values in an interval against targets in another.
fn loss(
    l: &mut List,
    name: &'static str,
    ranges: [(f64, f64); 2],
    call: fn(&Tensor, &Tensor, Reduction) -> TensorResult<Tensor>,
    f: fn(f64, f64) -> f64,
    clear: fn(f64, f64) -> f64,
) {
    l.add(name, move |p| {
        let x = p.value(|v| is_float(v) && !v.array.data.is_empty())?;
        let shape = p.shape(x);
        let y = p.value(|v| is_float(v) && v.array.shape == shape)?;
        let how = REDUCTIONS[p.below(4)];
        let guards = [bounds(p.of(x), ranges[0].0, ranges[0].1), bounds(p.of(y), ranges[1].0, ranges[1].1)];
        let fixed = move |a: &Array, k: usize| guards[k].map_or(a.clone(), |(h, m)| a.map(|v| v.tanh() * h + m));
        let margin = 4.0 * (p.of(x).margin() + p.of(y).margin());
        if fixed(&p.of(x).array, 0).zip(&fixed(&p.of(y).array, 1), clear).data.iter().any(|v| v.abs() < margin) {
            return None;
        }
        let apply = move |t: &Tensor, k: usize| guards[k].map_or_else(|| Ok(t.clone()), |(h, m)| t.tanh()?.mul(h)?.add(m));
        let text = format!("{}.{name}(&{} /* … */, Reduction::{how:?})", bounded_text(0, guards[0]), bounded_text(1, guards[1]));
        let c = Call::new(text, &[x, y], move |t| call(&apply(&t[0], 0)?, &apply(&t[1], 1)?, how));
        Some(c.reference(move |a| total(fixed(&a[0], 0).zip(&fixed(&a[1], 1), f), how)))
    });
}

fn losses(l: &mut List) {
    const ANY: (f64, f64) = (-1e9, 1e9);
    const SHARE: (f64, f64) = (0.05, 0.95);
    let smooth = |_: f64, _: f64| f64::INFINITY;
    loss(l, "mse_loss", [ANY, ANY], |x, y, r| x.mse_loss(y, r), |x, y| (x - y) * (x - y), smooth);
    l.add("loss::mse_loss", |p| {
        let x = p.value(|v| is_float(v) && !v.array.data.is_empty())?;
        let y = p.partner(x)?;
        let c = Call::new("mse_loss(&{0}, &{1})", &[x, y], |t| tensorlogic::ops::loss::mse_loss(&t[0], &t[1]));
        let square = |a: &[Array]| a[0].zip(&a[1], |x, y| (x - y) * (x - y)).data;
        (!p.of(y).array.data.is_empty()).then(|| c.reference(move |a| Array { shape: vec![], data: vec![mean(&square(a))] }))
    });
    loss(l, "l1_loss", [ANY, ANY], |x, y, r| x.l1_loss(y, r), |x, y| (x - y).abs(), |x, y| x - y);
    let bend = |x: f64, y: f64| ((x - y).abs() - 0.5).abs().min((x - y).abs());
    let huber = |x: f64, y: f64| {
        let d = (x - y).abs();
        if d <= 0.5 { 0.5 * d * d } else { 0.5 * (d - 0.25) }
    };
    loss(l, "huber_loss", [ANY, ANY], |x, y, r| x.huber_loss(y, 0.5, r), huber, bend);
    let l1 = |x: f64, y: f64| {
        let d = (x - y).abs();
        if d < 0.5 { d * d } else { d - 0.25 }
    };
    loss(l, "smooth_l1_loss", [ANY, ANY], |x, y, r| x.smooth_l1_loss(y, 0.5, r), l1, bend);
    let entropy = |x: f64, t: f64| -(t * x.ln() + (1.0 - t) * (-x).ln_1p());
    loss(l, "binary_cross_entropy", [SHARE, SHARE], |x, y, r| x.binary_cross_entropy(y, None, r), entropy, smooth);
    let logits = |x: f64, t: f64| x.max(0.0) - x * t + (-x.abs()).exp().ln_1p();
    loss(
        l,
        "binary_cross_entropy_with_logits",
        [(-8.0, 8.0), SHARE],
        |x, y, r| x.binary_cross_entropy_with_logits(y, None, None, r),
        logits,
        |x, _| x,
    );
    loss(l, "kl_div", [ANY, SHARE], |x, y, r| x.kl_div(y, false, r), |x, t| t * (t.ln() - x), smooth);
    loss(l, "kl_div", [ANY, (-3.0, 1.0)], |x, y, r| x.kl_div(y, true, r), |x, t| t.exp() * (t - x), smooth);
}

/// Losses of classes: which target each row has; one is left out now and then.
fn classes(l: &mut List) {
    let class = |l: &mut List, name: &'static str, log: bool, call: fn(&Tensor, &Tensor, &NllOptions) -> TensorResult<Tensor>| {
        l.add(name, move |p| {
            let x = p.value(|v| is_float(v) && v.rank() > 0 && !v.array.data.is_empty())?;
            let mut shape = p.shape(x);
            let class = usize::from(shape.len() > 1);
            let n = shape.remove(class);
            let count: usize = shape.iter().product();
            let targets: Vec<i32> = (0..count).map(|_| if count > 1 && p.below(7) == 6 { -100 } else { p.below(n) as i32 }).collect();
            if targets.iter().all(|&t| t < 0) {
                return None;
            }
            let reduction = REDUCTIONS[p.below(4)];
            let (own, asked) = (Array { shape: shape.clone(), data: targets.iter().map(|&t| f64::from(t)).collect() }, shape.clone());
            let text = format!("{{0}}.{name}(&index(&{targets:?}).reshape(&{shape:?})?, &NllOptions {{ reduction: Reduction::{reduction:?}, ..Default::default() }})");
            let c = Call::new(text, &[x], move |t| {
                call(&t[0], &Tensor::from_vec(targets.clone(), &asked, t[0].device())?, &NllOptions { reduction, ..Default::default() })
            });
            Some(c.reference(move |a| {
                let rows = if log { along(&a[0], class, |r| { let s = logsumexp(r); r.iter().map(|v| v - s).collect() }) } else { a[0].clone() };
                let losses = own.index_map(|i, t| {
                    let mut at = i.to_vec();
                    at.insert(class, t.max(0.0) as usize);
                    if t < 0.0 { 0.0 } else { -rows.at(&at) }
                });
                let kept = own.data.iter().filter(|t| **t >= 0.0).count();
                match reduction {
                    Reduction::Mean => Array { shape: vec![], data: vec![losses.data.iter().sum::<f64>() / kept as f64] },
                    how => total(losses, how),
                }
            }))
        });
    };
    class(l, "nll_loss", false, |x, t, o| x.nll_loss(t, o));
    class(l, "cross_entropy", true, |x, t, o| x.cross_entropy(t, o));
    class(l, "cross_entropy_wide", true, |x, t, o| x.cross_entropy_wide(t, o));
}
