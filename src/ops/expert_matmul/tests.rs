//! Products with experts' weights on the GPU against plain sums.

use super::ExpertMatMulKernel;
use super::gpu;
use crate::ops::tests::*;

fn plain(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    gpu::expert_matmul(&ExpertMatMulKernel::default(), step, adapter)
}

/// How far from exact products of many rows in f16 with weights of this type may be: matrix units read weights in f16.
fn halves(d: DType) -> f64 {
    if d.is_block() { 5e-4 } else { 2e-5 }
}

#[test]
fn weights_of_every_format_and_rows_of_every_length() {
    for d in DType::WEIGHTS {
        for (t, per, e, n, k) in
            [(1, 2, 5, 7, 256), (3, 4, 6, 33, 512), (4, 1, 2, 3, 36), (2, 3, 4, 5, 7), (70, 2, 3, 9, 64), (11, 3, 4, 6, 512)]
        {
            // Of the others one shape for each form of the kernel.
            let few = !WHOLE_FORMATS.contains(&d);
            if k % d.block() != 0 || few && ![(3, 4, 6, 33, 512), (11, 3, 4, 6, 512)].contains(&(t, per, e, n, k)) {
                continue;
            }
            for own_rows in [false, true] {
                let rows = if own_rows { t * per } else { t };
                let x = Operand::random(if per == 2 { F16 } else { F32 }, &[rows, k], 1);
                let w = Operand::random(d, &[e, n, k], 2);
                let ids: Vec<usize> = (0..t * per).map(|p| (p * 7 + p / 3) % e).collect();
                let mut want = Vec::new();
                for (p, id) in ids.iter().enumerate() {
                    let x = &x.values[p / (t * per / rows) * k..][..k];
                    want.extend((0..n).map(|r| w.values[(id * n + r) * k..][..k].iter().zip(x).map(|(w, x)| w * x).sum::<f64>()));
                }
                let loads = [x, w, Operand::new(DType::I32, &[t * per], ids.iter().map(|&i| i as f64).collect())];
                let name = format!("{d}, {t}x{per} of {e} experts {n}x{k}, own rows {own_rows}");
                check_weights(&name, plain, &loads, (F32, &[t * per, n]), &want, if t == 70 { halves(d) } else { 2e-5 });
            }
        }
    }
    // Weights whose columns are neighbours, as the gradient reads them.
    let (x, w) = (Operand::random(F32, &[6, 48], 1), Operand::transposed(F32, &[3, 20, 48], 2));
    let ids = [2usize, 0, 1, 1, 0, 2];
    let sum = |p: usize, r: usize| (0..48).map(|c| x.values[p * 48 + c] * w.values[(ids[p] * 20 + r) * 48 + c]).sum::<f64>();
    let want: Vec<f64> = (0..6).flat_map(|p| (0..20).map(move |r| (p, r))).map(|(p, r)| sum(p, r)).collect();
    let loads = [x.clone(), w.clone(), Operand::new(DType::I32, &[6], ids.iter().map(|&i| i as f64).collect())];
    check("transposed", plain, &loads, (F32, &[6, 20]), &[], &want, 2e-5);
}

/// Pairs, experts, rows and columns of a case, with ids and operands.
struct Case {
    per: usize,
    n: usize,
    k: usize,
    ids: Vec<usize>,
    x: Operand,
    weights: [Operand; 2],
    biases: [Operand; 2],
    factors: Operand,
}

impl Case {
    /// For `t` rows of x with `per` experts of `e` each.
    fn new(d: DType, [t, per, e, n, k]: [usize; 5], own_rows: bool) -> Case {
        Case {
            per,
            n,
            k,
            ids: (0..t * per).map(|p| (p * 7 + p / 3) % e).collect(),
            x: Operand::random(F16, &[if own_rows { t * per } else { t }, k], 1),
            weights: [2, 3].map(|seed| Operand::random(d, &[e, n, k], seed)),
            biases: [4, 5].map(|seed| Operand::random(F32, &[e, n], seed)),
            factors: Operand::random(F32, &[t * per], 6),
        }
    }

    fn ids(&self) -> Operand {
        Operand::new(DType::I32, &[self.ids.len()], self.ids.iter().map(|&i| i as f64).collect())
    }

    /// Product `of` of every pair, with its bias: `[pairs,n]`.
    fn products(&self, of: usize) -> Vec<f64> {
        let (n, k) = (self.n, self.k);
        let per = self.ids.len() / self.x.shape[0];
        let row = |p: usize, r: usize| {
            let x = &self.x.values[p / per * k..][..k];
            let sum: f64 = self.weights[of].values[(self.ids[p] * n + r) * k..][..k].iter().zip(x).map(|(w, x)| w * x).sum();
            sum + self.biases[of].values[self.ids[p] * n + r]
        };
        (0..self.ids.len()).flat_map(|p| (0..n).map(move |r| (p, r))).map(|(p, r)| row(p, r)).collect()
    }

    /// Those of product 0 times their factors, summed over a row's pairs.
    fn sums(&self) -> Vec<f64> {
        let (all, n) = (self.products(0), self.n);
        let sum = |t: usize, r: usize| (t * self.per..(t + 1) * self.per).map(|p| self.factors.values[p] * all[p * n + r]).sum::<f64>();
        (0..self.ids.len() / self.per).flat_map(|t| (0..n).map(move |r| (t, r))).map(|(t, r)| sum(t, r)).collect()
    }
}

const SHAPES: [[usize; 5]; 4] = [[1, 2, 5, 7, 256], [3, 4, 6, 33, 512], [2, 3, 4, 5, 7], [4, 1, 2, 3, 36]];

#[test]
fn biases_second_products_and_sums() {
    for d in [F32, F16, DType::Q4_0, DType::Q4_K] {
        for shape in SHAPES.into_iter().filter(|s| s[4] % d.block() == 0) {
            let [t, per, _, n, _] = shape;
            let name = |what: &str| format!("{what}, {d}, {shape:?}");
            for own_rows in [false, true] {
                let c = Case::new(d, shape, own_rows);
                let pairs = t * per;
                let loads = [c.x.clone(), c.weights[0].clone(), c.ids(), c.biases[0].clone()];
                let biased = ExpertMatMulKernel { bias: true, ..Default::default() };
                let make = move |s: &Step, a: &AdapterInfo| gpu::expert_matmul(&biased, s, a);
                check(&name("biases"), make, &loads, (F32, &[pairs, n]), &[], &c.products(0), 2e-5);
                // Second products are read directly.
                if d.is_block() || shape[4] % 8 == 0 {
                    let second = ExpertMatMulKernel { second: true, ..biased };
                    let make = move |s: &Step, a: &AdapterInfo| gpu::expert_matmul(&second, s, a);
                    let loads = [loads.to_vec(), vec![c.weights[1].clone(), c.biases[1].clone()]].concat();
                    let want = [c.products(0), c.products(1)];
                    let outs: [(DType, &[usize], &[f64]); 2] = [(F32, &[pairs, n], &want[0]), (F32, &[pairs, n], &want[1])];
                    check_all(&name("two products"), make, &loads, &outs, &[], 2e-5);
                }
                let summed = ExpertMatMulKernel { summed: true, ..biased };
                let make = move |s: &Step, a: &AdapterInfo| gpu::expert_matmul(&summed, s, a);
                let loads = [loads.to_vec(), vec![c.factors.clone()]].concat();
                check(&name("sums"), make, &loads, (F32, &[t, n]), &[], &c.sums(), 2e-5);
            }
        }
    }
    // Of many pairs each.
    let c = Case::new(DType::Q4_0, [40, 2, 3, 9, 64], false);
    let biased = ExpertMatMulKernel { bias: true, ..Default::default() };
    let make = move |s: &Step, a: &AdapterInfo| gpu::expert_matmul(&biased, s, a);
    let loads = [c.x.clone(), c.weights[0].clone(), c.ids(), c.biases[0].clone()];
    check("many", make, &loads, (F32, &[80, 9]), &[], &c.products(0), halves(DType::Q4_0));
}

/// Whether the adapter under test has cooperative matrices.
fn has_matrices() -> bool {
    let Some(m) = backend() else { return false };
    // A real GPU may lack them; Mesa's lavapipe, on which every change is tested, has them.
    assert!(m.info().coop > 0 || !m.is_software() || std::env::var("TL_REQUIRE_GPU").is_err(), "{} has no cooperative matrices", m.name());
    m.info().coop > 0
}

/// A case by cooperative matrices: of these forms, without and with biases, and with biases as Metal loads matrices.
#[track_caller]
fn check_by_matrices(name: &str, c: &Case, forms: &[(bool, bool)]) {
    for &(bias, narrow) in forms {
        let of = ExpertMatMulKernel { bias, ..Default::default() };
        let make = move |s: &Step, a: &AdapterInfo| {
            let as_metal = AdapterInfo { coop_vectors: false, subgroup_sync: SubgroupSync::None, ..a.clone() };
            let w = gpu::expert_matmul(&of, s, if narrow { &as_metal } else { a }).filter(|w| w.source.contains("coopMultiplyAdd"));
            assert!(w.is_some(), "{:?} are not multiplied by matrices", s.loads);
            w
        };
        let mut want = c.products(0);
        let mut loads = vec![c.x.clone(), c.weights[0].clone(), c.ids()];
        if bias {
            loads.push(c.biases[0].clone());
        } else {
            let biases = &c.biases[0].values;
            want.iter_mut().enumerate().for_each(|(at, y)| *y -= biases[c.ids[at / c.n] * c.n + at % c.n]);
        }
        let (out, tolerance) = if narrow { (F16, 1e-3) } else { (F32, halves(c.weights[0].dtype)) };
        check_on(&format!("{name}, bias {bias}, narrow {narrow}"), make, &loads, (out, &[c.ids.len(), c.n]), &[], &want, tolerance);
    }
}

const FORMS: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

/// Low and high tiles, an expert without pairs, rows and columns that are multiples of nothing, more pairs than are looked through at a time.
#[test]
fn many_pairs_by_cooperative_matrices() {
    if !has_matrices() {
        return;
    }
    for d in [F16, DType::Q4_0, DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::MXFP4] {
        for shape in [[13, 3, 5, 33, 256], [47, 2, 4, 71, 96], [40, 2, 3, 136, 512], [31, 2, 5, 12, 36], [20, 3, 4, 10, 7]] {
            let [t, _, e, _, k] = shape;
            if k % d.block() != 0 {
                continue;
            }
            for own_rows in [false, true] {
                let mut c = Case::new(d, shape, own_rows);
                c.ids.iter_mut().filter(|id| **id == e - 1 && t > 13).for_each(|id| *id = 0);
                check_by_matrices(&format!("{d}, {shape:?}, own rows {own_rows}"), &c, if d == F16 { &FORMS } else { &FORMS[1..] });
            }
        }
    }
    // One expert has more pairs than the list holds; another's are the last ones, and one has a single pair.
    let mut c = Case::new(DType::Q8_0, [1001, 2, 4, 5, 32], false);
    c.ids.iter_mut().enumerate().for_each(|(p, id)| *id = if p > 1990 { 3 } else { usize::from(p % 7 == 3) });
    c.ids[1234] = 2;
    check_by_matrices("a full list", &c, &FORMS[..2]);
    // Rows of x that lie apart, and weights whose columns are neighbours.
    let mut c = Case::new(F16, [30, 2, 3, 20, 72], false);
    c.x = Operand::view(F16, &[30, 72], Layout::contiguous(Shape::of(&[30, 96])).slice(1, 16, 72, 1), noise(30 * 96, 1));
    check_by_matrices("a part of wider rows", &c, &FORMS[..1]);
    c.weights[0] = Operand::transposed(F16, &[3, 20, 72], 2);
    check_by_matrices("transposed", &c, &FORMS[..1]);
}

#[test]
fn cooperative_matrices_read_every_format() {
    let formats = DType::WEIGHTS.into_iter().filter(|d| d.is_block() && !WHOLE_FORMATS.contains(d) && has_matrices());
    for d in formats {
        check_by_matrices(d.name(), &Case::new(d, [9, 2, 3, 10, 512], false), &FORMS[..1]);
    }
}

/// With matrix units two pairs of each expert are many: products are stored. A bad expert is an error there as well.
#[test]
fn few_pairs_are_many_for_matrix_units() {
    use crate::device::under_test;
    use crate::tensor::Tensor;
    let Some(device) = under_test::gpu() else { return };
    for (dtype, count) in [(F32, 2), (F16, if device.backend().matrices() { 3 } else { 2 })] {
        let c = Case::new(F32, [6, 2, 4, 16, 64], false);
        let of = |o: &Operand, shape: &[usize]| {
            let values = o.values.iter().map(|&v| v as f32 / 4.0).collect();
            Tensor::from_vec(values, shape, &device).and_then(|t| t.cast(dtype)).unwrap()
        };
        let (x, factors) = (of(&c.x, &[6, 64]), of(&c.factors, &[6, 2]));
        let [gate, up] = [0, 1].map(|p| of(&c.weights[p], &[4, 16, 64]));
        let down = of(&Operand::random(F32, &[4, 5, 16], 7), &[4, 5, 16]);
        let by = |id: i32| {
            let ids = Tensor::from_vec((0..12).map(|p| if p == 7 { id } else { p * 5 % 4 }).collect(), &[6, 2], &device)?;
            let inner = x.expert_linear(&gate, None, &ids)?.silu()?.mul(&x.expert_linear(&up, None, &ids)?)?;
            inner.expert_sum(&down, None, &ids, &factors)
        };
        let y = by(2).unwrap();
        let dispatches = y.explain().unwrap().to_string();
        assert_eq!(dispatches.matches("expert_matmul").count(), count, "{dtype}: {dispatches}");
        assert!(y.to_vec().unwrap().iter().all(|v| v.is_finite()));
        for bad in [4, -1] {
            assert!(by(bad).unwrap().to_vec().is_err(), "{dtype}: expert {bad}");
        }
    }
}

/// The operations on every device: the gate's product and the other one are one dispatch of a GPU where its weights are read directly, and the weighted sum is
/// another.
#[test]
fn gated_experts_by_two_dispatches() {
    use crate::device::under_test;
    use crate::tensor::Tensor;
    for device in under_test::devices() {
        for shape in [[1, 2, 5, 16, 64], [2, 4, 6, 33, 256], [70, 2, 3, 9, 64]] {
            let [t, per, e, n, k] = shape;
            let c = Case::new(F32, shape, false);
            let of = |o: &Operand, shape: &[usize]| Tensor::from_vec(o.values.iter().map(|&v| v as f32).collect(), shape, &device).unwrap();
            let ids = Tensor::from_vec(c.ids.iter().map(|&i| i as i32).collect(), &[t, per], &device).unwrap();
            let x = of(&c.x, &[t, k]);
            let [gate, up] =
                [0, 1].map(|p| x.expert_linear(&of(&c.weights[p], &[e, n, k]), Some(&of(&c.biases[p], &[e, n])), &ids).unwrap());
            let inner = gate.silu().unwrap().mul(&up).unwrap();
            let down = Operand::random(F32, &[e, 5, n], 7);
            let y = inner.expert_sum(&of(&down, &[e, 5, n]), None, &ids, &of(&c.factors, &[t, per])).unwrap();
            let dispatches = y.explain().unwrap().to_string();
            let (got, what) = (y.to_vec().unwrap(), format!("{shape:?} on {}: {dispatches}", device.name()));
            let gated: Vec<f64> = c.products(0).iter().zip(c.products(1)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            for (at, got) in got.iter().enumerate() {
                let (row, r) = (at / 5, at % 5);
                let pair = |p: usize| {
                    let sum: f64 = (0..n).map(|j| down.values[(c.ids[p] * 5 + r) * n + j] * gated[p * n + j]).sum();
                    sum * c.factors.values[p]
                };
                let want: f64 = (row * per..(row + 1) * per).map(pair).sum();
                assert!((f64::from(*got) - want).abs() < 2e-3 * (1.0 + want.abs()), "{at}: {got}, not {want}; {what}");
            }
            if !device.is_cpu() && n % 8 == 0 {
                assert_eq!(dispatches.matches("expert_matmul").count(), 2, "{what}");
            }
        }
    }
}

/// The product of f16 and f32 weights is f32; with a bias or a sum it has the dtype of its rows, so that a layer of experts gives what it was given.
#[test]
fn biased_products_and_sums_have_the_dtype_of_rows() {
    use crate::device::under_test;
    use crate::tensor::Tensor;
    for device in under_test::devices() {
        let zeros = |dtype, shape: &[usize]| Tensor::zeros(shape, dtype, &device).unwrap();
        let (x, w, bias) = (zeros(F16, &[2, 3, 8]), zeros(F32, &[4, 5, 8]), zeros(F32, &[4, 5]));
        let (ids, factors) = (zeros(DType::I32, &[2, 3]), zeros(F32, &[2, 3]));
        assert_eq!(x.expert_matmul(&w, &ids).unwrap().dtype(), F32);
        assert_eq!(x.expert_linear(&w, Some(&bias), &ids).unwrap().dtype(), F16);
        assert_eq!(x.expert_sum(&w, Some(&bias), &ids, &factors).unwrap().dtype(), F16);
        // The sum over no pairs is zero, whatever was in its memory.
        let (rows, none, no_factors) = (zeros(F16, &[2, 8]), zeros(DType::I32, &[2, 0]), zeros(F32, &[2, 0]));
        assert_eq!(rows.expert_sum(&w, Some(&bias), &none, &no_factors).unwrap().to_vec().unwrap(), [0.0; 10]);
    }
}
