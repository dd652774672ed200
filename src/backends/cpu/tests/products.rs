//! Matrix products against evaluation in f64.

use super::*;

#[test]
fn matmul_matches_f64() {
    let mut noise = Noise(8);
    for (da, db) in [(F32, F32), (F16, F16), (F32, BF16), (F64, F64), (I32, I32)] {
        for [batch, m, n, k] in [
            [1, 1, 1, 1],
            [1, 1, 1037, 96],
            [1, 5, 70, 33],
            [3, 1, 45, 64],
            [2, 3, 40, 50],
            [1, 70, 300, 65],
            [3, 33, 17, 40],
            [1, 600, 3, 20],
        ] {
            for (la, lb) in [
                ("contiguous", "contiguous"),
                ("contiguous", "transposed"),
                ("transposed", "contiguous"),
                ("reversed", "sliced"),
                ("rows repeated", "offset"),
            ] {
                let integer = da == I32;
                let a = operand(da, &[batch, m, k], la, &mut noise, -2.0, 2.0);
                let b = operand(db, &[batch, n, k], lb, &mut noise, -2.0, 2.0);
                let out = if integer || da == F64 { da } else { F32 };
                let bias = operand(out, &[batch, m, n], "rows repeated", &mut noise, -2.0, 2.0);
                let product = |i: usize| {
                    let (bt, row, col) = (i / (m * n), i / n % m, i % n);
                    (0..k).map(|x| a.values[(bt * m + row) * k + x] * b.values[(bt * n + col) * k + x]).sum::<f64>()
                };
                let want: Vec<f64> = (0..batch * m * n).map(product).collect();
                let case = format!("{da} {db} [{batch},{m},{n},{k}] {la} {lb}");
                let (rtol, atol) = if integer { (0.0, 0.0) } else { (1e-6, if da == F64 { 1e-12 } else { 2e-6 * k as f64 }) };
                let got = kernel(MatMulKernel, &[&a, &b], 2, plain_store(&[batch, m, n], out), &[]);
                check(&case, &got, &want, rtol, atol);
                let got = kernel(MatMulKernel, &[&a, &b, &bias], 2, adding_store(&bias, 2), &[]);
                let want: Vec<f64> = want.iter().zip(&bias.values).map(|(x, y)| x + y).collect();
                check(&format!("{case} + bias"), &got, &want, rtol, atol);
            }
        }
    }
}

/// Sizes at which operands are read as they lie, packed by each thread, and packed for all; sums of one part and of several.
const BLOCKS: [[usize; 4]; 8] = [
    [1, 70, 300, 64],
    [1, 130, 96, 256],
    [1, 61, 2050, 40],
    [3, 40, 65, 31],
    [1, 256, 64, 512],
    [1, 45, 1024, 700],
    [1, 33, 1024, 1500],
    [1, 14, 64, 1100],
];

#[test]
fn products_of_blocks_match_f64_in_every_stored_type() {
    let mut noise = Noise(31);
    for [batch, m, n, k] in BLOCKS {
        for (da, db, out) in [(F32, F32, F32), (F16, F16, F16), (BF16, BF16, BF16), (BF16, BF16, F32), (F32, F16, F16), (F16, BF16, BF16)] {
            for (la, lb) in
                [("contiguous", "transposed"), ("contiguous", "contiguous"), ("transposed", "transposed"), ("transposed", "offset")]
            {
                let a = operand(da, &[batch, m, k], la, &mut noise, -1.0, 1.0);
                let b = operand(db, &[batch, n, k], lb, &mut noise, -1.0, 1.0);
                let want: Vec<f64> = (0..batch * m * n)
                    .map(|i| {
                        let (x, y) = (i / n * k, (i / (m * n) * n + i % n) * k);
                        a.values[x..x + k].iter().zip(&b.values[y..y + k]).map(|(x, y)| x * y).sum()
                    })
                    .collect();
                let case = format!("{da} {db} to {out} [{batch},{m},{n},{k}] {la} {lb}");
                let got = kernel(MatMulKernel, &[&a, &b], 2, plain_store(&[batch, m, n], out), &[]);
                let rtol = if out == F32 { 1e-6 } else { 1.01 * epsilon(out) };
                check(&case, &got, &want, rtol, 2e-6 * k as f64);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_among_many_rows_and_among_few() {
    let mut noise = Noise(32);
    for (da, db, out) in [(F32, F32, F32), (F16, F16, F16), (BF16, BF16, BF16), (F32, F16, F32)] {
        for (n, k) in [(64, 100), (300, 256), (1024, 512), (96, 1300)] {
            for lb in ["contiguous", "transposed"] {
                let many = operand(da, &[1, 150, k], "contiguous", &mut noise, -1.0, 1.0);
                let b = operand(db, &[1, n, k], lb, &mut noise, -1.0, 1.0);
                let all = kernel(MatMulKernel, &[&many, &b], 2, plain_store(&[1, 150, n], out), &[]);
                for rows in [9, 15, 40] {
                    let shape = Shape::of(&[1, rows, k]);
                    let few = Operand { layout: Layout::contiguous(shape).simplified(), shape, ..many.clone() };
                    let some = kernel(MatMulKernel, &[&few, &b], 2, plain_store(&[1, rows, n], out), &[]);
                    assert!(all[..rows * n] == some, "{da} {db} to {out}, {rows} of 150 rows, {n} columns, {k} terms, {lb}");
                }
            }
        }
    }
}

/// Blocks of Q8_0 with a scale of 1: every value is a small integer.
fn q8_0(rows: usize, cols: usize, noise: &mut Noise) -> Operand {
    let values: Vec<f64> = noise.values(rows * cols, -9.0, 9.0).into_iter().map(f64::trunc).collect();
    let mut bytes = Vec::new();
    for block in values.chunks(32) {
        bytes.extend(f16::from_f32(1.0).to_le_bytes());
        bytes.extend(block.iter().map(|&x| x as i8 as u8));
    }
    let shape = Shape::of(&[1, rows, cols]);
    Operand { dtype: Q8_0, bytes, layout: Layout::contiguous(shape).simplified(), shape, values }
}

#[test]
fn block_formats_are_read_everywhere() {
    let mut noise = Noise(9);
    let w = q8_0(301, 96, &mut noise);
    for m in [1, 4, 40] {
        let a = operand(F32, &[1, m, 96], "contiguous", &mut noise, -2.0, 2.0);
        let want: Vec<f64> =
            (0..m * 301).map(|i| (0..96).map(|k| a.values[i / 301 * 96 + k] * w.values[i % 301 * 96 + k]).sum::<f64>()).collect();
        let got = kernel(MatMulKernel, &[&a, &w], 2, plain_store(&[1, m, 301], F32), &[]);
        check(&format!("q8_0 matmul of {m} rows"), &got, &want, 1e-5, 2e-4);
    }
    let flat = Operand { shape: Shape::of(&[301, 96]), ..w };
    check("q8_0 decode", &map(Program::identity(Q8_0), &[&flat], F32, &[]), &flat.values, 0.0, 0.0);
    // A window that starts and ends within blocks.
    let view = Layout::contiguous(flat.shape).slice(1, 5, 70, 1);
    let want: Vec<f64> = (0..301 * 70).map(|i| flat.values[view.at(i)]).collect();
    let part = Operand { layout: view.simplified(), shape: Shape::of(&[301, 70]), ..flat.clone() };
    check("q8_0 window", &map(Program::identity(Q8_0), &[&part], F32, &[]), &want, 0.0, 0.0);
    let idx = Operand { shape: Shape::of(&[3]), ..operand(I32, &[1, 3], "contiguous", &mut noise, 0.0, 300.0) };
    let want: Vec<f64> = idx.values.iter().flat_map(|&i| flat.values[i as usize * 96..][..96].to_vec()).collect();
    check("q8_0 gather", &kernel(GatherKernel, &[&flat, &idx], 2, plain_store(&[3, 96], F32), &[]), &want, 0.0, 0.0);
}

#[test]
fn products_that_were_fused_for_a_gpu_run_here_too() {
    let (mut noise, m, k, n) = (Noise(21), 3, 40, 19);
    let x = operand(F32, &[1, m, k], "contiguous", &mut noise, -2.0, 2.0);
    let rights: Vec<Operand> = (0..2).map(|_| operand(F16, &[1, n, k], "contiguous", &mut noise, -1.0, 1.0)).collect();
    let [weight, bias] = [0, 1].map(|_| Operand { shape: Shape::of(&[k]), ..operand(F32, &[1, k], "contiguous", &mut noise, -1.0, 1.0) });
    for (rms, has_bias) in [(None, false), (Some(true), false), (Some(false), true)] {
        let norm = rms.map(|rms| Normalization { rms, eps: 1e-5, weight: true, bias: has_bias });
        let mut inputs = vec![&x, &rights[0], &rights[1]];
        inputs.extend(norm.iter().map(|_| &weight).chain(has_bias.then_some(&bias)));
        let loads = inputs.iter().enumerate().map(|(i, o)| o.load(i as u16)).collect();
        // The second product's store adds what the first has written.
        let (shape, first) = (Shape::of(&[1, m, n]), target(0, F32, Shape::of(&[1, m, n])));
        let mut sum = Program::value(F32);
        let s = sum.push(Inst { op: Prim::Source(0), args: [0; 3], dtype: F32 });
        sum.push(Inst { op: Prim::Binary(Binary::Add), args: [0, s, 0], dtype: F32 });
        let stores = vec![
            Store { shape, program: Program::value(F32), sources: vec![], target: first.clone() },
            Store { shape, program: sum, sources: vec![first], target: target(1, F32, shape) },
        ];
        let kernel = FusedGemvKernel(FusedGemv { products: 2, gated: true, vec4_store: false, norm, kind: F16, experts: false });
        let got = run(step("products", Work::Kernel(Arc::new(kernel)), loads, stores, vec![]), &inputs, &[(F32, m * n), (F32, m * n)], &[]);
        let mut left = x.values.clone();
        for row in left.chunks_exact_mut(k).filter(|_| norm.is_some()) {
            let mean = if rms == Some(true) { 0.0 } else { row.iter().sum::<f64>() / k as f64 };
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / k as f64;
            for (i, v) in row.iter_mut().enumerate() {
                *v = (*v - mean) / (variance + 1e-5).sqrt() * weight.values[i] + if has_bias { bias.values[i] } else { 0.0 };
            }
        }
        let product = |p: usize, i: usize| (0..k).map(|j| left[i / n * k + j] * rights[p].values[i % n * k + j]).sum::<f64>();
        let want = |p: usize| (0..m * n).map(|i| product(0, i) + if p == 1 { product(1, i) } else { 0.0 }).collect::<Vec<_>>();
        check(&format!("first product, {rms:?}"), &got[0], &want(0), 1e-5, 1e-4);
        check(&format!("second product, {rms:?}"), &got[1], &want(1), 1e-5, 1e-4);
    }
}
