//! Products, attention and rotations.

use super::graph::{Call, Pick};
use super::ops::{List, away, is_float};
use super::reference::{Attention, einsum};
use crate::conformance_support::Array;
use tensorlogic::ops::Activation;
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::{DType, Tensor};

pub fn list(l: &mut List) {
    matrices(l);
    vectors(l);
    sums(l);
    attention(l);
    rotation(l);
}

/// Whether the shapes of two factors fit.
fn fits(a: &[usize], b: &[usize]) -> bool {
    let (inner, batches) = match (a.len(), b.len()) {
        (0, _) | (_, 0) => return false,
        (_, 1) => (b[0], &b[..0]),
        (_, n) => (b[n - 2], &b[..n - 2]),
    };
    a[a.len() - 1] == inner && super::graph::broadcast(&a[..a.len().saturating_sub(2)], batches).is_some()
}

/// Two floats that can be multiplied; the second is the first one's transpose if nothing else fits.
fn factors(p: &mut Pick) -> Option<(usize, usize, bool)> {
    let x = p.value(|v| is_float(v) && v.rank() > 0)?;
    let shape = p.shape(x);
    let other = p.value(|v| is_float(v) && fits(&shape, &v.array.shape));
    match other {
        Some(y) => Some((x, y, false)),
        None => (shape.len() > 1).then_some((x, x, true)),
    }
}

fn transposed(a: &Array) -> Array {
    let mut order: Vec<usize> = (0..a.shape.len()).collect();
    let n = order.len();
    order.swap(n - 1, n - 2);
    a.permute(&order)
}

/// Some of the activations.
fn activated(kind: Activation) -> impl Fn(f64) -> f64 + Copy {
    move |v| match kind {
        Activation::Tanh => v.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-v).exp()),
        Activation::SiLU => v / (1.0 + (-v).exp()),
        _ => v,
    }
}

fn matrices(l: &mut List) {
    l.add("matmul", |p| {
        let (x, y, t) = factors(p)?;
        let text = if t { "{0}.matmul(&{1}.t()?)" } else { "{0}.matmul(&{1})" };
        let c = Call::new(text, &[x, y], move |v| if t { v[0].matmul(&v[1].t()?) } else { v[0].matmul(&v[1]) });
        Some(c.reference(move |a| if t { a[0].matmul(&transposed(&a[1])) } else { a[0].matmul(&a[1]) }))
    });
    // The second one's batch is the first one's, or the same again.
    l.add("bmm", |p| {
        let x = p.value(|v| is_float(v) && v.rank() == 3)?;
        let shape = p.shape(x);
        let other = p.value(|v| is_float(v) && v.rank() == 3 && v.array.shape[..2] == [shape[0], shape[2]]);
        let text = if other.is_some() { "{0}.bmm(&{1})" } else { "{0}.bmm(&{1}.t()?)" };
        let own = other.is_none();
        let c = Call::new(text, &[x, other.unwrap_or(x)], move |v| if own { v[0].bmm(&v[1].t()?) } else { v[0].bmm(&v[1]) });
        Some(c.reference(move |a| if own { a[0].matmul(&transposed(&a[1])) } else { a[0].matmul(&a[1]) }))
    });
    // Experts are three matrices out of another value's elements.
    l.add("expert_matmul", |p| {
        let x = p.value(|v| is_float(v) && v.rank() == 2 && !v.array.data.is_empty())?;
        let &[t, k] = &p.shape(x)[..] else { return None };
        let w = p.value(|v| is_float(v) && v.array.data.len() >= 3 * k)?;
        let n = p.of(w).array.data.len() / (3 * k);
        let ids: Vec<i32> = (0..2 * t).map(|_| p.below(3) as i32).collect();
        let weights = format!("{{1}}.flatten(0, -1)?.narrow(0, 0, {})?.reshape(&[3, {n}, {k}])?", 3 * n * k);
        let text = format!("{{0}}.expert_matmul(&{weights}, &index(&{ids:?}))");
        let own = ids.clone();
        let c = Call::new(text, &[x, w], move |v| {
            let weights = v[1].flatten(0, -1)?.narrow(0, 0, 3 * n * k)?.reshape(&[3, n as isize, k as isize])?;
            v[0].expert_matmul(&weights, &Tensor::from_vec(ids.clone(), &[t, 2], v[0].device())?)
        });
        Some(c.reference(move |a| {
            let row = |p: usize, r: usize| (0..k).map(|c| a[0].data[p / 2 * k + c] * a[1].data[(own[p] as usize * n + r) * k + c]).sum();
            Array { shape: vec![t, 2, n], data: (0..2 * t).flat_map(|p| (0..n).map(move |r| (p, r))).map(|(p, r)| row(p, r)).collect() }
        }))
    });
    // As layers use it: several rows by a weight out of another value's elements.
    l.add("matmul", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 1 && *v.array.shape.last().expect("a rank above 1") > 0)?;
        let k = *p.shape(x).last()?;
        let y = p.value(|v| is_float(v) && v.array.data.len() >= k)?;
        let n = p.of(y).array.data.len() / k;
        let text = format!("{{0}}.matmul(&{{1}}.flatten(0, -1)?.narrow(0, 0, {})?.reshape(&[{k}, {n}])?)", k * n);
        let c =
            Call::new(text, &[x, y], move |t| t[0].matmul(&t[1].flatten(0, -1)?.narrow(0, 0, k * n)?.reshape(&[k as isize, n as isize])?));
        Some(c.reference(move |a| a[0].matmul(&Array { shape: vec![k, n], data: a[1].data[..k * n].to_vec() })))
    });
    l.add("matmul_with_activation", |p| {
        let (x, y, t) = factors(p)?;
        let kind = [Activation::None, Activation::Tanh, Activation::Sigmoid, Activation::SiLU][p.below(4)];
        let f = activated(kind);
        let text = format!("{{0}}.matmul_with_activation(&{{1}}{}, Activation::{kind:?})", if t { ".t()?" } else { "" });
        let c = Call::new(text, &[x, y], move |v| {
            if t { v[0].matmul_with_activation(&v[1].t()?, kind) } else { v[0].matmul_with_activation(&v[1], kind) }
        });
        Some(c.reference(move |a| if t { a[0].matmul(&transposed(&a[1])) } else { a[0].matmul(&a[1]) }.map(f)))
    });
    l.add("Activation::apply", |p| {
        let x = p.float()?;
        let kind = [Activation::None, Activation::Tanh, Activation::Sigmoid, Activation::SiLU][p.below(4)];
        let c = Call::new(format!("Activation::{kind:?}.apply(&{{0}})"), &[x], move |t| kind.apply(&t[0]));
        Some(c.reference(move |a| a[0].map(activated(kind))))
    });
    l.add("linear", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let inner = *p.shape(x).last()?;
        let w = p.value(|v| is_float(v) && v.rank() == 2 && v.array.shape[1] == inner)?;
        let out = p.shape(w)[0];
        let b = p.value(|v| is_float(v) && v.array.shape == [out]);
        Some(match b {
            Some(b) => Call::new("{0}.linear(&{1}, Some(&{2}))", &[x, w, b], |t| t[0].linear(&t[1], Some(&t[2])))
                .reference(|a| a[0].matmul(&transposed(&a[1])).zip(&a[2], |x, y| x + y)),
            None => {
                Call::new("{0}.linear(&{1}, None)", &[x, w], |t| t[0].linear(&t[1], None)).reference(|a| a[0].matmul(&transposed(&a[1])))
            }
        })
    });
    l.add("addmm", |p| {
        let (x, y, t) = factors(p)?;
        let one = |i: usize| Array { shape: p.shape(i), data: p.of(i).array.data.clone() };
        let product = if t { one(x).matmul(&transposed(&one(y))) } else { one(x).matmul(&one(y)) }.shape;
        let z = p.value(|v| is_float(v) && super::graph::broadcast(&v.array.shape, &product).as_ref() == Some(&product))?;
        let (beta, alpha) = (p.number(-1.0, 1.0), p.number(-1.0, 1.0));
        let text = format!("{{2}}.addmm(&{{0}}, &{{1}}{}, {beta:?}, {alpha:?})", if t { ".t()?" } else { "" });
        let c =
            Call::new(
                text,
                &[x, y, z],
                move |v| if t { v[2].addmm(&v[0], &v[1].t()?, beta, alpha) } else { v[2].addmm(&v[0], &v[1], beta, alpha) },
            );
        Some(c.reference(move |a| {
            let product = if t { a[0].matmul(&transposed(&a[1])) } else { a[0].matmul(&a[1]) };
            product.zip(&a[2], |x, z| beta * z + alpha * x)
        }))
    });
}

fn vectors(l: &mut List) {
    l.add("dot", |p| {
        let x = p.value(|v| is_float(v) && v.rank() == 1)?;
        let shape = p.shape(x);
        let y = p.value(|v| is_float(v) && v.array.shape == shape)?;
        let c = Call::new("{0}.dot(&{1})", &[x, y], |t| t[0].dot(&t[1]));
        Some(c.reference(|a| Array { shape: vec![], data: vec![a[0].data.iter().zip(&a[1].data).map(|(x, y)| x * y).sum()] }))
    });
    l.add("outer", |p| {
        let x = p.value(|v| is_float(v) && v.rank() == 1)?;
        let y = p.value(|v| is_float(v) && v.rank() == 1)?;
        let c = Call::new("{0}.outer(&{1})", &[x, y], |t| t[0].outer(&t[1]));
        Some(c.reference(|a| Array::from_fn(&[a[0].data.len(), a[1].data.len()], |i| a[0].data[i[0]] * a[1].data[i[1]])))
    });
}

/// Equations of one and two operands.
const EQUATIONS: [&str; 12] = [
    "ij->ji",
    "ij->",
    "ij->j",
    "ijk->kij",
    "i,i->",
    "i,j->ij",
    "ij,jk->ik",
    "ij,ij->i",
    "ij,kj->ki",
    "bij,bjk->bik",
    "ijk,k->ji",
    "bij,ij->b",
];

fn sums(l: &mut List) {
    l.add("einsum", |p| {
        let equation = EQUATIONS[p.below(EQUATIONS.len())];
        let parts: Vec<&str> = equation.split("->").next()?.split(',').collect();
        let x = p.value(|v| is_float(v) && v.rank() == parts[0].len())?;
        let mut inputs = vec![x];
        if let Some(part) = parts.get(1) {
            let shape = p.shape(x);
            let size = |c: char| parts[0].chars().position(|a| a == c).map(|d| shape[d]);
            let agrees = |s: &[usize]| s.len() == part.len() && part.chars().zip(s).all(|(c, n)| size(c).is_none_or(|m| m == *n));
            inputs.push(p.value(|v| is_float(v) && agrees(&v.array.shape))?);
        }
        let names = (0..inputs.len()).map(|k| format!("&{{{k}}}")).collect::<Vec<_>>().join(", ");
        let c = Call::new(format!("Tensor::einsum({equation:?}, &[{names}])"), &inputs, move |t| Tensor::einsum(equation, t));
        Some(c.reference(move |a| einsum(equation, a)))
    });
}

/// As many elements of a value as a shape has, over and over.
fn filled(a: &Array, shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    Array { shape: shape.to_vec(), data: a.data.iter().copied().cycle().take(n).collect() }
}

/// The same by the library: repeated, cut and shaped.
fn filled_tensor(t: &Tensor, shape: &[usize]) -> tensorlogic::TensorResult<Tensor> {
    let n: usize = shape.iter().product();
    let sizes: Vec<isize> = shape.iter().map(|&d| d as isize).collect();
    t.reshape(&[t.numel() as isize])?.tile(&[n.div_ceil(t.numel())])?.narrow(0, 0, n)?.reshape(&sizes)
}

fn filled_text(k: usize, shape: &[usize]) -> String {
    let n: usize = shape.iter().product();
    format!("{{{k}}}.reshape(&[-1])?.tile(&[{n}])?.narrow(0, 0, {n})?.reshape(&{shape:?})?")
}

fn attention(l: &mut List) {
    l.add("attention", |p| {
        let full = |p: &mut Pick| p.value(|v| is_float(v) && !v.array.data.is_empty());
        let (x, y, z) = (full(p)?, full(p)?, full(p)?);
        let (b, groups, sharing) = (1 + p.below(2), 1 + p.below(2), 1 + p.below(2));
        let (t, s, d, dv) = (1 + p.below(5), 1 + p.below(7), 1 + p.below(6), 1 + p.below(6));
        let shapes = [[b, groups * sharing, t, d], [b, groups, s, d], [b, groups, s, dv]];
        let causal = s >= t && p.flag();
        let valid = if causal { t + p.below(s - t + 1) } else { 1 + p.below(s) };
        let window = if causal && p.flag() { 1 + p.below(3) } else { 0 };
        let mask = (p.below(3) == 2).then_some([t, s]);
        let softcap = (p.below(4) == 3).then_some(1.5);
        let kept = AttentionOptions {
            causal,
            scale: Some(0.5),
            kv_len: Some(valid),
            window: (window > 0).then_some(window),
            softcap,
            dropout: None,
        };
        let own = Attention { scale: 0.5, causal, valid, window, softcap };
        let masked = if mask.is_some() { format!("Some(&{})", filled_text(0, &[t, s])) } else { "None".into() };
        let [q, k, v] = [0, 1, 2].map(|i| filled_text(i, &shapes[i]));
        let text = format!("{q}.attention(&{k}, &{v}, {masked}, &{kept:?})");
        let c = Call::new(text, &[x, y, z], move |a| {
            let [q, k, v] = [0, 1, 2].map(|i| filled_tensor(&a[i], &shapes[i]));
            let m = mask.map(|m| filled_tensor(&a[0], &m)).transpose()?;
            q?.attention(&k?, &v?, m.as_ref(), &kept)
        });
        Some(c.reference(move |a| {
            let [q, k, v] = [0, 1, 2].map(|i| filled(&a[i], &shapes[i]));
            own.run(&q, &k, &v, mask.map(|m| filled(&a[0], &m)).as_ref())
        }))
    });
}

fn rotation(l: &mut List) {
    l.add("rope", |p| {
        let even = |n: &usize| *n > 0 && n % 2 == 0;
        let x = p.value(|v| is_float(v) && v.array.shape.last().is_some_and(even))?;
        let d = *p.shape(x).last()?;
        let pairs = if p.flag() { RopePairs::Adjacent } else { RopePairs::Halves };
        let pair = move |e: usize| match pairs {
            RopePairs::Adjacent => (e ^ 1, e / 2, e % 2 == 0),
            RopePairs::Halves => ((e + d / 2) % d, e % (d / 2), e < d / 2),
        };
        // One angle for each pair, of all rows.
        let angle = |n: usize| (0.5 * (n + 1) as f64).sin_cos();
        let sin: Vec<f32> = (0..d).map(|e| (angle(pair(e).1).0 * if pair(e).2 { -1.0 } else { 1.0 }) as f32).collect();
        let cos: Vec<f32> = (0..d).map(|e| angle(pair(e).1).1 as f32).collect();
        let (own_sin, own_cos) = (sin.clone(), cos.clone());
        let c = Call::new(format!("{{0}}.rope(&floats(&{cos:?}), &floats(&{sin:?}), RopePairs::{pairs:?})"), &[x], move |t| {
            let table = |v: &[f32]| {
                Tensor::from_vec(v.to_vec(), &[d], t[0].device())?.cast(if t[0].dtype() == DType::F64 { DType::F64 } else { DType::F32 })
            };
            t[0].rope(&table(&cos)?, &table(&sin)?, pairs)
        });
        let c = c.reference(move |a| {
            a[0].index_map(|i, v| {
                let e = i[i.len() - 1];
                let mut other = i.to_vec();
                other[i.len() - 1] = pair(e).0;
                v * f64::from(own_cos[e]) + a[0].at(&other) * f64::from(own_sin[e])
            })
        });
        away(p.of(x), &[]).then_some(c)
    });
}
