//! Views, concatenations, margins, writes and indices: operations that move elements.

use super::graph::{Call, Kind, Pick, Value, broadcast};
use super::ops::{List, away, distinct_rows, is_float, signed};
use super::reference::{combined, narrowed, sides};
use crate::conformance_support::Array;
use tensorlogic::ops::index_add::Combine;
use tensorlogic::ops::pad::PadMode;
use tensorlogic::{DType, Tensor, TensorResult};

pub fn list(l: &mut List) {
    orders(l);
    parts(l);
    repeats(l);
    concatenations(l);
    margins(l);
    writes(l);
    picks(l);
    combines(l);
    constants(l);
}

/// A call that moves the elements of value `x`.
fn moved(
    p: &Pick,
    x: usize,
    text: String,
    run: impl Fn(&Tensor) -> TensorResult<Tensor> + Send + Sync + 'static,
    reference: impl Fn(&Array) -> Array + Send + Sync + 'static,
) -> Option<Call> {
    Some(Call::new(text, &[x], move |t| run(&t[0])).kind(p.of(x).kind).reference(move |a| reference(&a[0])))
}

/// Any value that has dimensions, and one of them, as a number and as a user may write it.
fn dimension(p: &mut Pick) -> Option<(usize, usize, isize)> {
    let x = p.value(|v| v.rank() > 0)?;
    let d = p.dim(x)?;
    let s = p.signed(d, p.of(x).rank());
    Some((x, d, s))
}

fn orders(l: &mut List) {
    l.add("permute", |p| {
        let x = p.value(|v| v.rank() > 1)?;
        let mut order: Vec<usize> = (0..p.of(x).rank()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, p.below(i + 1));
        }
        let (own, text) = (order.clone(), format!("{{0}}.permute(&{order:?})"));
        moved(p, x, text, move |t| t.permute(&order), move |a| a.permute(&own))
    });
    l.add("movedim", |p| {
        let (x, from, s) = dimension(p)?;
        let to = p.dim(x)?;
        let mut order: Vec<usize> = (0..p.of(x).rank()).collect();
        let d = order.remove(from);
        order.insert(to, d);
        moved(p, x, format!("{{0}}.movedim({s}, {to})"), move |t| t.movedim(s, to as isize), move |a| a.permute(&order))
    });
    l.add("unflatten", |p| {
        let (x, d, s) = dimension(p)?;
        let mut shape = p.shape(x);
        let n = shape[d];
        let divisors: Vec<usize> = (1..=n).filter(|k| n % k == 0).collect();
        let outer = if n == 0 { 0 } else { divisors[p.below(divisors.len())] };
        let inner = n.checked_div(outer).unwrap_or(1);
        shape.splice(d..=d, [outer, inner]);
        moved(
            p,
            x,
            format!("{{0}}.unflatten({s}, [{outer}, {inner}])"),
            move |t| t.unflatten(s, [outer, inner]),
            move |a| a.reshape(&shape),
        )
    });
    let swapped = |a: &Array, i: usize, j: usize| {
        let mut order: Vec<usize> = (0..a.shape.len()).collect();
        order.swap(i, j);
        a.permute(&order)
    };
    l.add("transpose", move |p| {
        let (x, i, s) = dimension(p)?;
        let j = p.dim(x)?;
        moved(p, x, format!("{{0}}.transpose({s}, {j})"), move |t| t.transpose(s, j as isize), move |a| swapped(a, i, j))
    });
    l.add("t", move |p| {
        let x = p.value(|v| v.rank() > 1)?;
        let r = p.of(x).rank();
        moved(p, x, "{0}.t()".into(), |t| t.t(), move |a| swapped(a, r - 2, r - 1))
    });
    l.add("reshape", |p| {
        let x = p.value(|_| true)?;
        let mut rest = p.of(x).array.data.len();
        let mut sizes = Vec::new();
        for _ in 0..p.below(4) {
            let divisors: Vec<usize> = (1..=rest).filter(|n| rest % n == 0).collect();
            let n = if rest == 0 { p.below(4) } else { divisors[p.below(divisors.len())] };
            sizes.push(n);
            rest = rest.checked_div(n).unwrap_or(1);
        }
        sizes.push(rest);
        let mut asked = signed(&sizes);
        // One size may be left to the library, where the others say it.
        let last = asked.len() - 1;
        if p.flag() && !sizes.contains(&0) {
            asked[last] = -1;
        }
        moved(p, x, format!("{{0}}.reshape(&{asked:?})"), move |t| t.reshape(&asked), move |a| a.reshape(&sizes))
    });
    l.add("flatten", |p| {
        let (x, d, s) = dimension(p)?;
        let to = d + p.below(p.of(x).rank() - d);
        let mut shape = p.shape(x);
        let n = shape[d..=to].iter().product();
        shape.splice(d..=to, [n]);
        moved(p, x, format!("{{0}}.flatten({s}, {to})"), move |t| t.flatten(s, to as isize), move |a| a.reshape(&shape))
    });
    l.add("squeeze", |p| {
        let x = p.value(|v| v.array.shape.contains(&1))?;
        let ones: Vec<usize> = (0..p.of(x).rank()).filter(|&d| p.of(x).array.shape[d] == 1).collect();
        let d = ones[p.below(ones.len())];
        let mut shape = p.shape(x);
        shape.remove(d);
        moved(p, x, format!("{{0}}.squeeze({d})"), move |t| t.squeeze(d as isize), move |a| a.reshape(&shape))
    });
    l.add("squeeze_all", |p| {
        let x = p.value(|_| true)?;
        let shape: Vec<usize> = p.shape(x).into_iter().filter(|&n| n != 1).collect();
        moved(p, x, "{0}.squeeze_all()".into(), |t| t.squeeze_all(), move |a| a.reshape(&shape))
    });
    l.add("unsqueeze", |p| {
        let x = p.value(|_| true)?;
        let (mut shape, d) = (p.shape(x), p.below(p.of(x).rank() + 1));
        shape.insert(d, 1);
        let s = p.signed(d, shape.len());
        moved(p, x, format!("{{0}}.unsqueeze({s})"), move |t| t.unsqueeze(s), move |a| a.reshape(&shape))
    });
}

fn parts(l: &mut List) {
    l.add("narrow", |p| {
        let (x, d, s) = dimension(p)?;
        let start = p.below(p.shape(x)[d] + 1);
        let len = p.below(p.shape(x)[d] - start + 1);
        moved(p, x, format!("{{0}}.narrow({s}, {start}, {len})"), move |t| t.narrow(s, start, len), move |a| narrowed(a, d, start, len))
    });
    l.add("i", |p| {
        let x = p.value(|v| v.rank() > 0)?;
        let n = p.shape(x)[0];
        let start = p.below(n + 1);
        let end = start + p.below(n - start + 1);
        moved(p, x, format!("{{0}}.i({start}..{end})"), move |t| t.i(start..end), move |a| narrowed(a, 0, start, end - start))
    });
    l.add("slice", |p| {
        let (x, d, s) = dimension(p)?;
        let n = p.shape(x)[d];
        let (start, end, step) = (p.below(n.max(1)), n - p.below(n.min(2) + 1), 1 + p.below(3));
        let index: Vec<usize> = (start..end).step_by(step).collect();
        moved(p, x, format!("{{0}}.slice({s}, {start}, {end}, {step})"), move |t| t.slice(s, start, end, step), move |a| a.pick(d, &index))
    });
    l.add("flip", |p| {
        let (x, d, s) = dimension(p)?;
        moved(p, x, format!("{{0}}.flip({s})"), move |t| t.flip(s), move |a| a.pick(d, &(0..a.shape[d]).rev().collect::<Vec<_>>()))
    });
    l.add("select", |p| {
        let (x, d, s) = dimension(p)?;
        let (mut shape, i) = (p.shape(x), p.below(p.shape(x)[d]));
        let n = shape.remove(d);
        if n == 0 {
            return None;
        }
        moved(p, x, format!("{{0}}.select({s}, {i})"), move |t| t.select(s, i), move |a| a.pick(d, &[i]).reshape(&shape))
    });
    // One of the parts that these give.
    l.add("split", |p| {
        let (x, d, s) = dimension(p)?;
        let i = p.below(p.shape(x)[d]);
        let there = p.shape(x)[d] > 0;
        moved(p, x, format!("{{0}}.split({s})?.swap_remove({i})"), move |t| Ok(t.split(s)?.swap_remove(i)), move |a| a.pick(d, &[i]))
            .filter(|_| there)
    });
    l.add("unstack", |p| {
        let (x, d, s) = dimension(p)?;
        let (mut shape, i) = (p.shape(x), p.below(p.shape(x)[d]));
        let n = shape.remove(d);
        let text = format!("{{0}}.unstack({s})?.swap_remove({i})");
        moved(p, x, text, move |t| Ok(t.unstack(s)?.swap_remove(i)), move |a| a.pick(d, &[i]).reshape(&shape)).filter(|_| n > 0)
    });
    l.add("split_with_sizes", |p| {
        let (x, d, s) = dimension(p)?;
        let n = p.shape(x)[d];
        let first = p.below(n + 1);
        let second = p.below(n - first + 1);
        let sizes = vec![first, second, n - first - second];
        let text = format!("{{0}}.split_with_sizes(&{sizes:?}, {s})?.swap_remove(1)");
        moved(p, x, text, move |t| Ok(t.split_with_sizes(&sizes, s)?.swap_remove(1)), move |a| narrowed(a, d, first, second))
    });
    l.add("chunk", |p| {
        let (x, d, s) = dimension(p)?;
        let (n, size) = (1 + p.below(4), p.shape(x)[d]);
        let each = size.div_ceil(n).max(1);
        let text = format!("{{0}}.chunk({n}, {s})?.swap_remove(0)");
        let call = moved(p, x, text, move |t| Ok(t.chunk(n, s)?.swap_remove(0)), move |a| narrowed(a, d, 0, each));
        call.filter(|_| size > 0)
    });
}

fn repeats(l: &mut List) {
    // One of the views that it gives.
    l.add("meshgrid", |p| {
        let x = p.value(|v| is_float(v) && v.rank() < 2)?;
        let (y, which) = (p.value(|v| is_float(v) && v.rank() < 2)?, p.below(2));
        let text = format!("Tensor::meshgrid(&[{{0}}, {{1}}])?.swap_remove({which})");
        let c = Call::new(text, &[x, y], move |t| Ok(Tensor::meshgrid(&[&t[0], &t[1]])?.swap_remove(which)));
        Some(c.reference(move |a| Array::from_fn(&[a[0].data.len(), a[1].data.len()], |i| a[which].data[i[which]])))
    });
    l.add("expand", |p| {
        let x = p.value(|v| v.rank() < 5)?;
        let (mut asked, mut full) = (signed(&p.shape(x)), p.shape(x));
        for d in 0..asked.len() {
            if full[d] == 1 {
                full[d] = p.below(4);
                asked[d] = full[d] as isize;
            } else if p.flag() {
                asked[d] = -1;
            }
        }
        if p.flag() {
            let n = 1 + p.below(3);
            asked.insert(0, n as isize);
            full.insert(0, n);
        }
        let text = format!("{{0}}.expand(&{asked:?})");
        moved(p, x, text, move |t| t.expand(&asked), move |a| widened(a, &full))
    });
    l.add("broadcast_to", |p| {
        let x = p.value(|_| true)?;
        let like = p.value(|_| true)?;
        let full = broadcast(&p.shape(x), &p.shape(like))?;
        let own = full.clone();
        moved(p, x, format!("{{0}}.broadcast_to(&{full:?})"), move |t| t.broadcast_to(&full), move |a| widened(a, &own))
    });
    l.add("tile", |p| {
        let x = p.value(|v| v.rank() <= 4)?;
        let repeats: Vec<usize> = (0..p.of(x).rank()).map(|_| [1, 2, 1, 3, 0][p.below(5)]).collect();
        let own = repeats.clone();
        let reference = move |a: &Array| {
            own.iter().enumerate().fold(a.clone(), |a, (d, &n)| {
                let index: Vec<usize> = (0..n).flat_map(|_| 0..a.shape[d]).collect();
                a.pick(d, &index)
            })
        };
        moved(p, x, format!("{{0}}.tile(&{repeats:?})"), move |t| t.tile(&repeats), reference)
    });
    l.add("repeat_interleave", |p| {
        let (x, d, s) = dimension(p)?;
        let n = p.below(4);
        let reference = move |a: &Array| a.pick(d, &(0..a.shape[d] * n).map(|i| i / n.max(1)).collect::<Vec<_>>());
        moved(p, x, format!("{{0}}.repeat_interleave({n}, {s})"), move |t| t.repeat_interleave(n, s), reference)
    });
    l.add("roll", |p| {
        let (x, d, s) = dimension(p)?;
        let by = p.below(9) as isize - 4;
        let reference = move |a: &Array| {
            let n = a.shape[d] as isize;
            a.pick(d, &(0..n).map(|i| (i - by).rem_euclid(n) as usize).collect::<Vec<_>>())
        };
        moved(p, x, format!("{{0}}.roll({by}, {s})"), move |t| t.roll(by, s), reference)
    });
    l.add("unfold", |p| {
        let (x, d, s) = dimension(p)?;
        let n = p.shape(x)[d];
        let (size, step) = (p.below(n.min(4) + 1), 1 + p.below(3));
        let reference = move |a: &Array| {
            let mut shape = a.shape.clone();
            shape[d] = (n - size) / step + 1;
            shape.push(size);
            Array::from_fn(&shape, |i| {
                let mut own = i[..i.len() - 1].to_vec();
                own[d] = own[d] * step + i[i.len() - 1];
                a.at(&own)
            })
        };
        moved(p, x, format!("{{0}}.unfold({s}, {size}, {step})"), move |t| t.unfold(s, size, step), reference)
    });
}

/// Broadcast to a shape.
fn widened(a: &Array, full: &[usize]) -> Array {
    Array { shape: full.to_vec(), data: vec![0.0; full.iter().product()] }.zip(a, |_, v| v)
}

/// Values of one kind whose shapes differ in dimension `d` at most.
fn beside(p: &mut Pick, x: usize, d: usize) -> Option<usize> {
    let (shape, kind) = (p.shape(x), p.of(x).kind);
    p.value(|v| v.kind == kind && v.rank() == shape.len() && (0..shape.len()).all(|i| i == d || v.array.shape[i] == shape[i]))
}

fn concatenations(l: &mut List) {
    l.add("cat", |p| {
        let (x, d, s) = dimension(p)?;
        let mut all = vec![x];
        for _ in 0..1 + p.below(3) {
            all.push(beside(p, x, d)?);
        }
        let names = (0..all.len()).map(|k| format!("&{{{k}}}")).collect::<Vec<_>>().join(", ");
        let c = Call::new(format!("Tensor::cat(&[{names}], {s})"), &all, move |t| Tensor::cat(t, s)).kind(p.of(x).kind);
        Some(c.reference(move |a| sides(a, d)))
    });
    l.add("stack", |p| {
        let x = p.value(|v| v.rank() < 5)?;
        let (shape, kind, d) = (p.shape(x), p.of(x).kind, p.below(p.of(x).rank() + 1));
        let y = p.value(|v| v.kind == kind && v.array.shape == shape)?;
        let c = Call::new(format!("Tensor::stack(&[&{{0}}, &{{1}}, &{{0}}], {d})"), &[x, y], move |t| {
            Tensor::stack(&[&t[0], &t[1], &t[0]], d as isize)
        });
        Some(c.kind(kind).reference(move |a| {
            let mut shape = shape.clone();
            shape.insert(d, 1);
            sides(&[a[0].reshape(&shape), a[1].reshape(&shape), a[0].reshape(&shape)], d)
        }))
    });
}

fn margins(l: &mut List) {
    l.add("pad", |p| {
        let x = p.value(|v| v.kind != Kind::Bool)?;
        let mode = [PadMode::Constant(2.0), PadMode::Constant(0.0), PadMode::Reflect, PadMode::Replicate, PadMode::Circular][p.below(5)];
        let shape = p.shape(x);
        let mut margins = vec![(0, 0); shape.len()];
        for (d, m) in margins.iter_mut().enumerate() {
            if p.flag() {
                continue;
            }
            let n = shape[d] as isize;
            let most = match mode {
                PadMode::Reflect => n - 1,
                PadMode::Circular => n,
                PadMode::Replicate if n == 0 => 0,
                _ => 5,
            };
            let side = |p: &mut Pick| (p.below(7) as isize - 2).min(most.max(0)).max(-n);
            *m = (side(p), side(p));
            if m.0 + m.1 + n < 0 || (mode != PadMode::Constant(2.0) && m.0.min(m.1) < 0) {
                *m = (0, 0);
            }
        }
        let own = margins.clone();
        let reference = move |a: &Array| {
            let full: Vec<usize> = (0..a.shape.len()).map(|d| (a.shape[d] as isize + own[d].0 + own[d].1) as usize).collect();
            Array::from_fn(&full, |i| {
                let mut index = Vec::new();
                for d in 0..i.len() {
                    let (at, n) = (i[d] as isize - own[d].0, a.shape[d] as isize);
                    index.push(match mode {
                        PadMode::Constant(v) if at < 0 || at >= n => return v,
                        PadMode::Reflect if at < 0 => -at,
                        PadMode::Reflect if at >= n => 2 * (n - 1) - at,
                        PadMode::Circular => at.rem_euclid(n),
                        _ => at.clamp(0, n - 1),
                    } as usize);
                }
                a.at(&index)
            })
        };
        moved(p, x, format!("{{0}}.pad(&{margins:?}, PadMode::{mode:?})"), move |t| t.pad(&margins, mode), reference)
    });
    let triangle = |l: &mut List, name: &'static str, keep: fn(i64, i64) -> bool, call: fn(&Tensor, i64) -> TensorResult<Tensor>| {
        l.add(name, move |p| {
            let x = p.value(|v| v.rank() > 1 && v.kind != Kind::Bool)?;
            let k = p.below(9) as i64 - 4;
            let inside = move |i: &[usize], v| if keep(i[i.len() - 1] as i64 - i[i.len() - 2] as i64, k) { v } else { 0.0 };
            moved(p, x, format!("{{0}}.{name}({k})"), move |t| call(t, k), move |a| a.index_map(inside))
        });
    };
    triangle(l, "tril", |i, k| i <= k, |t, k| t.tril(k));
    triangle(l, "triu", |i, k| i >= k, |t, k| t.triu(k));
}

fn writes(l: &mut List) {
    l.add("write", |p| {
        let (x, d, s) = dimension(p)?;
        let y = beside(p, x, d)?;
        let (size, len) = (p.shape(x)[d], p.shape(y)[d]);
        let start = p.below(size.checked_sub(len)? + 1);
        let c = Call::new(format!("{{0}}.write(&{{1}}, {s}, {start})"), &[x, y], move |t| t[0].write(&t[1], s, start));
        Some(c.kind(p.of(x).kind).reference(move |a| {
            sides(&[narrowed(&a[0], d, 0, start), a[1].clone(), narrowed(&a[0], d, start + len, size - start - len)], d)
        }))
    });
    // Where its old value is not needed, a write goes into the same memory.
    l.add("write", |p| {
        let (x, d, s) = dimension(p)?;
        let size = p.shape(x)[d];
        let (from, len) = (p.below(size.max(1)), p.below(size + 1));
        let len = len.min(size - from.min(size));
        let start = p.below(size - len + 1);
        let run = move |t: &Tensor| {
            let (piece, whole) = (t.narrow(s, from, len)?.contiguous()?, t.flip(s)?.contiguous()?);
            whole.write(&piece, s, start)
        };
        let reference = move |a: &Array| {
            let back: Vec<usize> = (0..size).rev().collect();
            let whole = a.pick(d, &back);
            sides(&[narrowed(&whole, d, 0, start), narrowed(a, d, from, len), narrowed(&whole, d, start + len, size - start - len)], d)
        };
        let text = format!("{{0}}.flip({s})?.contiguous()?.write(&{{0}}.narrow({s}, {from}, {len})?.contiguous()?, {s}, {start})");
        moved(p, x, text, run, reference)
    });
}

/// Indices below `size` that the choices say, and their text.
fn indices(p: &mut Pick, size: usize, count: usize) -> Option<Vec<i32>> {
    (size > 0 || count == 0).then(|| (0..count).map(|_| p.below(size) as i32).collect())
}

fn index(values: &[i32], shape: &[usize], like: &Tensor) -> TensorResult<Tensor> {
    Tensor::from_vec(values.to_vec(), shape, like.device())
}

fn wide(values: &[i32]) -> Vec<usize> {
    values.iter().map(|&v| v as usize).collect()
}

fn picks(l: &mut List) {
    l.add("index_select", |p| {
        let (x, d, s) = dimension(p)?;
        let count = p.below(6);
        let list = indices(p, p.shape(x)[d], count)?;
        let (own, text) = (wide(&list), format!("{{0}}.index_select({s}, &index(&{list:?}))"));
        moved(p, x, text, move |t| t.index_select(s, &index(&list, &[list.len()], t)?), move |a| a.pick(d, &own))
    });
    l.add("wrap_negative", |p| {
        let (x, d, s) = dimension(p)?;
        let (count, size) = (p.below(6), p.shape(x)[d]);
        let list: Vec<i32> = indices(p, 2 * size, count)?.into_iter().map(|i| i - size as i32).collect();
        let own: Vec<usize> = list.iter().map(|&i| if i < 0 { i + size as i32 } else { i } as usize).collect();
        let text = format!("{{0}}.index_select({s}, &index(&{list:?}).wrap_negative({size})?)");
        moved(p, x, text, move |t| t.index_select(s, &index(&list, &[list.len()], t)?.wrap_negative(size)?), move |a| a.pick(d, &own))
    });
    l.add("gather", |p| {
        let (x, d, s) = dimension(p)?;
        let mut shape = p.shape(x);
        shape[d] = p.below(5);
        let other = p.below(shape.len());
        if other != d && p.flag() {
            shape[other] = p.below(shape[other] + 1);
        }
        let list = indices(p, p.shape(x)[d], shape.iter().product())?;
        let (own, asked) = (Array { shape: shape.clone(), data: list.iter().map(|&i| f64::from(i)).collect() }, shape.clone());
        let reference = move |a: &Array| {
            own.index_map(|i, at| {
                let mut place = i.to_vec();
                place[d] = at as usize;
                a.at(&place)
            })
        };
        let text = format!("{{0}}.gather({s}, &index(&{list:?}).reshape(&{shape:?})?)");
        moved(p, x, text, move |t| t.gather(s, &index(&list, &asked, t)?), reference)
    });
    let rows = |p: &mut Pick| {
        let x = p.value(|v| v.rank() == 2)?;
        let shape = vec![1 + p.below(3), p.below(4)];
        let list = indices(p, p.shape(x)[0], shape[0] * shape[1])?;
        let mut full = shape.clone();
        full.push(p.shape(x)[1]);
        Some((x, shape, list, full))
    };
    l.add("embedding", move |p| {
        let (x, shape, list, full) = rows(p)?;
        let own = wide(&list);
        let text = format!("{{0}}.embedding(&index(&{list:?}).reshape(&{shape:?})?)");
        moved(p, x, text, move |t| t.embedding(&index(&list, &shape, t)?), move |a| a.pick(0, &own).reshape(&full))
    });
    l.add("embedding_with_padding", move |p| {
        let (x, shape, list, full) = rows(p)?;
        let size = p.shape(x)[0];
        let (own, padding) = (wide(&list), p.below(size.max(1)) as isize);
        let text = format!("{{0}}.embedding_with_padding(&index(&{list:?}).reshape(&{shape:?})?, {padding})");
        let call = moved(
            p,
            x,
            text,
            move |t| t.embedding_with_padding(&index(&list, &shape, t)?, padding),
            move |a| a.pick(0, &own).reshape(&full),
        );
        call.filter(|_| size > 0).map(Call::cuts)
    });
    l.add("one_hot", |p| {
        let x = p.value(|v| v.kind == Kind::Int && v.rank() < 5)?;
        let classes = p.below(6);
        let mut shape = p.shape(x);
        shape.push(classes);
        let reference = move |a: &Array| Array::from_fn(&shape, |i| f64::from(a.at(&i[..i.len() - 1]) == i[i.len() - 1] as f64));
        moved(p, x, format!("{{0}}.one_hot({classes})"), move |t| t.one_hot(classes), reference)
    });
}

fn combines(l: &mut List) {
    let along = |p: &mut Pick| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let d = p.dim(x)?;
        let y = beside(p, x, d)?;
        let list = indices(p, p.shape(x)[d], p.shape(y)[d])?;
        Some((x, y, d, list))
    };
    l.add("index_add", move |p| {
        let (x, y, d, list) = along(p)?;
        let own = wide(&list);
        let c = Call::new(format!("{{0}}.index_add({d}, &index(&{list:?}), &{{1}})"), &[x, y], move |t| {
            t[0].index_add(d as isize, &index(&list, &[list.len()], &t[0])?, &t[1])
        });
        Some(c.reference(move |a| combined(&a[0], &a[1], Combine::Add, |i| (d, own[i[d]]))))
    });
    l.add("index_copy", move |p| {
        let (x, y, d, list) = along(p)?;
        let own = wide(&list);
        // Of several for one place only the last would have a gradient in finite differences.
        let twice = (1..own.len()).any(|i| own[..i].contains(&own[i]));
        let c = Call::new(format!("{{0}}.index_copy({d}, &index(&{list:?}), &{{1}})"), &[x, y], move |t| {
            t[0].index_copy(d as isize, &index(&list, &[list.len()], &t[0])?, &t[1])
        });
        let c = c.reference(move |a| combined(&a[0], &a[1], Combine::Set, |i| (d, own[i[d]])));
        Some(if twice { c.cuts() } else { c })
    });
    l.add("scatter", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let (d, rank) = (p.dim(x)?, p.of(x).rank());
        let y = p.value(|v| is_float(v) && v.rank() == rank)?;
        let (to, from) = (p.shape(x), p.shape(y));
        let shape: Vec<usize> = (0..rank).map(|i| if i == d { from[i] } else { from[i].min(to[i]) }).collect();
        let list = indices(p, to[d], shape.iter().product())?;
        let how = [Combine::Add, Combine::Set, Combine::Mul, Combine::Min, Combine::Max][p.below(5)];
        let near = |v: &Value| !away(v, &[0.0]);
        let both = Array {
            shape: vec![p.of(x).array.data.len() + p.of(y).array.data.len()],
            data: [&p.of(x).array.data[..], &p.of(y).array.data[..]].concat(),
        };
        let both = Value { array: both, kind: Kind::Float, error: p.of(x).error.max(p.of(y).error) };
        let unclear = match how {
            Combine::Min | Combine::Max => !distinct_rows(&both, &[0]),
            Combine::Mul => near(p.of(x)) || near(p.of(y)),
            _ => false,
        };
        let at = Array { shape: shape.clone(), data: list.iter().map(|&i| f64::from(i)).collect() };
        let part = shape.clone();
        let text = format!("{{0}}.scatter({d}, &index(&{list:?}).reshape(&{shape:?})?, &{{1}}, Combine::{how:?})");
        let c = Call::new(text, &[x, y], move |t| t[0].scatter(d as isize, &index(&list, &shape, &t[0])?, &t[1], how));
        let c = c.reference(move |a| {
            let source = Array::from_fn(&part, |i| a[1].at(i));
            combined(&a[0], &source, how, |i| (d, at.at(i) as usize))
        });
        (!unclear).then(|| if how == Combine::Set { c.cuts() } else { c })
    });
    l.add("scatter_add", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let (d, rank) = (p.dim(x)?, p.of(x).rank());
        let y = p.value(|v| is_float(v) && v.rank() == rank)?;
        let (to, from) = (p.shape(x), p.shape(y));
        let shape: Vec<usize> = (0..rank).map(|i| if i == d { from[i] } else { from[i].min(to[i]) }).collect();
        let list = indices(p, to[d], shape.iter().product())?;
        let at = Array { shape: shape.clone(), data: list.iter().map(|&i| f64::from(i)).collect() };
        let part = shape.clone();
        let text = format!("{{0}}.scatter_add({d}, &index(&{list:?}).reshape(&{shape:?})?, &{{1}})");
        let c = Call::new(text, &[x, y], move |t| t[0].scatter_add(d as isize, &index(&list, &shape, &t[0])?, &t[1]));
        Some(c.reference(move |a| {
            let source = Array::from_fn(&part, |i| a[1].at(i));
            combined(&a[0], &source, Combine::Add, |i| (d, at.at(i) as usize))
        }))
    });
}

/// What needs no other value but for its type and device.
fn constants(l: &mut List) {
    let shape = |p: &mut Pick| (0..p.below(4)).map(|_| p.below(6)).collect::<Vec<usize>>();
    let filled = |shape: &[usize], v: f64| Array { shape: shape.to_vec(), data: vec![v; shape.iter().product()] };
    l.add("zeros", move |p| {
        let (x, s) = (p.float()?, shape(p));
        let own = s.clone();
        Some(
            Call::new(format!("Tensor::zeros(&{s:?}, {{0}}.dtype(), &device)"), &[x], move |t| {
                Tensor::zeros(&s, t[0].dtype(), t[0].device())
            })
            .reference(move |_| filled(&own, 0.0)),
        )
    });
    l.add("ones", move |p| {
        let (x, s) = (p.float()?, shape(p));
        let own = s.clone();
        Some(
            Call::new(format!("Tensor::ones(&{s:?}, {{0}}.dtype(), &device)"), &[x], move |t| {
                Tensor::ones(&s, t[0].dtype(), t[0].device())
            })
            .reference(move |_| filled(&own, 1.0)),
        )
    });
    l.add("full", move |p| {
        let (x, s, v) = (p.float()?, shape(p), p.number(-2.0, 2.0));
        let own = s.clone();
        Some(
            Call::new(format!("Tensor::full({v:?}, &{s:?}, {{0}}.dtype(), &device)"), &[x], move |t| {
                Tensor::full(v, &s, t[0].dtype(), t[0].device())
            })
            .reference(move |_| filled(&own, v)),
        )
    });
    l.add("full_like", |p| {
        let (x, v) = (p.float()?, p.number(-2.0, 2.0));
        Some(Call::new(format!("{{0}}.full_like({v:?})"), &[x], move |t| t[0].full_like(v)).reference(move |a| a[0].map(|_| v)))
    });
    l.add("linspace", |p| {
        let (x, n, start, end) = (p.float()?, p.below(12), p.number(-2.0, 2.0), p.number(-2.0, 2.0));
        let c = Call::new(format!("Tensor::linspace({start:?}, {end:?}, {n}, {{0}}.dtype(), &device)"), &[x], move |t| {
            Tensor::linspace(start, end, n, t[0].dtype(), t[0].device())
        });
        let step = if n > 1 { (end - start) / (n - 1) as f64 } else { 0.0 };
        Some(c.reference(move |_| Array::from_fn(&[n], |i| start + step * i[0] as f64)))
    });
    l.add("arange", |p| {
        let (x, n, step) = (p.float()?, p.below(12), p.number(0.25, 1.5));
        let end = -1.0 + step * n as f64;
        let c = Call::new(format!("Tensor::arange(-1.0, {end:?}, {step:?}, {{0}}.dtype(), &device)"), &[x], move |t| {
            Tensor::arange(-1.0, end, step, t[0].dtype(), t[0].device())
        });
        Some(c.reference(move |_| Array::from_fn(&[n], |i| -1.0 + step * i[0] as f64)))
    });
    l.add("arange", |p| {
        let (x, n, start) = (p.float()?, p.below(12), p.below(9) as f64 - 4.0);
        let c = Call::new(format!("Tensor::arange({start:?}, {:?}, 1.0, DType::I32, &device)", start + n as f64), &[x], move |t| {
            Tensor::arange(start, start + n as f64, 1.0, DType::I32, t[0].device())
        });
        Some(c.kind(Kind::Int).reference(move |_| Array::from_fn(&[n], |i| start + i[0] as f64)))
    });
    l.add("eye", |p| {
        let (x, n) = (p.float()?, p.below(6));
        let c = Call::new(format!("Tensor::eye({n}, {{0}}.dtype(), &device)"), &[x], move |t| Tensor::eye(n, t[0].dtype(), t[0].device()));
        Some(c.reference(move |_| Array::from_fn(&[n, n], |i| f64::from(i[0] == i[1]))))
    });
}
