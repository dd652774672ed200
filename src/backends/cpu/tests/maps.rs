//! Maps: primitives, casts, layouts and stores against evaluation in f64.

use super::*;
use crate::scalar::definition::{self, unary};

fn binary(b: Binary, x: f64, y: f64, width: u32, signed: bool) -> f64 {
    let (i, j) = (x as i64, y as i64);
    let integer = width > 0;
    match b {
        Binary::Mul if integer => i.wrapping_mul(j) as f64,
        Binary::Div if integer => i.checked_div(j).unwrap_or(0) as f64,
        Binary::Pow if width == 64 => (0..j.max(0)).fold(1u64, |a, _| a.wrapping_mul(i as u64)) as f64,
        Binary::Pow if integer => (0..j.max(0)).fold(1i64, |a, _| a.wrapping_mul(i) & 0xFFFF_FFFF) as u32 as i32 as f64,
        Binary::Fmod if integer => i.checked_rem(j).unwrap_or(0) as f64,
        Binary::Remainder if integer && j == 0 => 0.0,
        Binary::And => (i & j) as f64,
        Binary::Or => (i | j) as f64,
        Binary::Xor => (i ^ j) as f64,
        Binary::Shl if (0..width as i64).contains(&j) => (i << j) as f64,
        Binary::Shl => 0.0,
        Binary::Shr if (0..width as i64).contains(&j) => (i >> j) as f64,
        Binary::Shr => (if signed && i < 0 { -1 } else { 0 }) as f64,
        _ => definition::binary(b, x, y),
    }
}

const FLOATS: [DType; 4] = [F32, F16, BF16, F64];
const INTEGERS: [DType; 7] = [I32, U32, I8, U8, I16, U16, U64];

#[test]
fn unary_primitives_match_f64() {
    let mut noise = Noise(1);
    for &u in Unary::ALL {
        let (low, high) = match u {
            Unary::Acosh => (1.0, 30.0),
            Unary::Asin | Unary::Acos | Unary::Atanh => (-1.0, 1.0),
            Unary::Log | Unary::Log2 | Unary::Log10 | Unary::Sqrt | Unary::Rsqrt => (1e-3, 40.0),
            Unary::Log1p => (-0.99, 5.0),
            _ => (-9.0, 9.0),
        };
        for dtype in FLOATS.into_iter().filter(|_| u.takes_float()) {
            for dims in [[1, 1], [3, 5], [33, 67], [2, 4111]] {
                let x = operand(dtype, &dims, "contiguous", &mut noise, low, high);
                let out = u.result(dtype);
                let got = map(program(Prim::Unary(u), 1, dtype, out), &[&x], out, &[]);
                let want: Vec<f64> = x.values.iter().map(|&v| round(out, unary(u, v))).collect();
                // f32 arithmetic, then half a unit of the result's dtype.
                let rtol = if dtype == F64 { 4e-15 } else { 3.5e-7 + if dtype == F32 { 0.0 } else { 2.0 * epsilon(dtype) } };
                check(&format!("{} {dtype} {dims:?}", u.name()), &got, &want, rtol, tiny(dtype) + 1e-37);
            }
        }
        for dtype in INTEGERS.into_iter().filter(|_| u.takes_int()) {
            let x =
                operand(dtype, &[7, 11], "contiguous", &mut noise, if matches!(dtype, U64 | U32 | U16 | U8) { 0.0 } else { -128.0 }, 127.0);
            let out = u.result(dtype);
            let got = map(program(Prim::Unary(u), 1, dtype, out), &[&x], out, &[]);
            let want: Vec<f64> = x.values.iter().map(|&v| round(out, unary(u, v))).collect();
            check(&format!("{} {dtype}", u.name()), &got, &want, 0.0, 0.0);
        }
    }
}

#[test]
fn binary_primitives_match_f64() {
    let mut noise = Noise(2);
    for &b in Binary::ALL {
        for dtype in FLOATS.into_iter().filter(|_| !b.bits()) {
            let low = if b == Binary::Pow { 0.01 } else { -4.0 };
            let x = operand(dtype, &[13, 131], "contiguous", &mut noise, low, 4.0);
            let y = operand(dtype, &[13, 131], "contiguous", &mut noise, -4.0, 4.0);
            let out = b.result(dtype);
            let got = map(program(Prim::Binary(b), 2, dtype, out), &[&x, &y], out, &[]);
            let want: Vec<f64> = x.values.iter().zip(&y.values).map(|(&x, &y)| round(out, binary(b, x, y, 0, true))).collect();
            // A remainder near a multiple may land on either side of it.
            let atol = if matches!(b, Binary::Remainder | Binary::Fmod) { 1e-6 } else { 0.0 };
            let rtol = if dtype == F64 { 2e-14 } else { 2e-7 + if dtype == F32 { 0.0 } else { 2.0 * epsilon(dtype) } };
            check(&format!("{} {dtype}", b.name()), &got, &want, rtol, tiny(dtype) + atol);
        }
        for dtype in INTEGERS.into_iter().filter(|_| !b.float_only()) {
            let (width, signed) = (dtype.block_bytes() as u32 * 8, matches!(dtype, I32 | I16 | I8));
            let low = if signed { -128.0 } else { 0.0 };
            let x = operand(dtype, &[17, 23], "contiguous", &mut noise, low, 127.0);
            // Exponents and shift counts stay where the expectation is easy to state.
            let y = match b {
                Binary::Pow => operand(dtype, &[17, 23], "contiguous", &mut noise, 0.0, 9.0),
                Binary::Shl | Binary::Shr => operand(dtype, &[17, 23], "contiguous", &mut noise, if signed { -3.0 } else { 0.0 }, 40.0),
                _ => operand(dtype, &[17, 23], "contiguous", &mut noise, low, 127.0),
            };
            let out = b.result(dtype);
            let got = map(program(Prim::Binary(b), 2, dtype, out), &[&x, &y], out, &[]);
            let want: Vec<f64> = x.values.iter().zip(&y.values).map(|(&x, &y)| round(out, binary(b, x, y, width, signed))).collect();
            check(&format!("{} {dtype}", b.name()), &got, &want, 0.0, 0.0);
        }
    }
}

#[test]
fn casts_round_and_saturate() {
    let all = [F32, F16, BF16, F64, I32, U32, I8, U8, Bool, I64, I16, U16, U64];
    let mut noise = Noise(3);
    for from in all {
        let x = operand(
            from,
            &[9, 119],
            "contiguous",
            &mut noise,
            if matches!(from, U64 | U32 | U16 | U8 | Bool) { 0.0 } else { -300.0 },
            300.0,
        );
        for to in all {
            let got = map(program(Prim::Cast, 1, from, to), &[&x], to, &[]);
            let cast = |v: f64| match to {
                I32 if from.is_float() => v as i32 as f64,
                U32 if from.is_float() => v as u32 as f64,
                I8 if from.is_float() => v as i8 as f64,
                U8 if from.is_float() => v as u8 as f64,
                I16 if from.is_float() => v as i16 as f64,
                U16 if from.is_float() => v as u16 as f64,
                U64 if from.is_float() => v as u64 as f64,
                _ => round(to, v),
            };
            let want: Vec<f64> = x.values.iter().map(|&v| cast(v)).collect();
            check(&format!("{from} to {to}"), &got, &want, 0.0, 0.0);
        }
    }
}

#[test]
fn special_values_survive() {
    let inf = f64::INFINITY;
    let bits = [0.0, -0.0, 1.0, -1.0, inf, -inf, f64::NAN, 1e-45, 3e38, 88.8, -104.5, 0.5, 65504.0, 65520.0, 1e30, -2.5, 3.0];
    let x = Operand {
        dtype: F32,
        bytes: encode(F32, &bits),
        layout: Layout::contiguous(Shape::of(&[17])),
        shape: Shape::of(&[1, 17]),
        values: decode(F32, &encode(F32, &bits)),
    };
    for &u in Unary::ALL.iter().filter(|u| u.takes_float()) {
        let out = u.result(F32);
        let got = map(program(Prim::Unary(u), 1, F32, out), &[&x], out, &[]);
        let want: Vec<f64> = x.values.iter().map(|&v| round(out, unary(u, v))).collect();
        check(u.name(), &got, &want, 3e-7, 2e-45);
        for (i, (g, w)) in got.iter().zip(&want).enumerate().filter(|(_, (_, w))| **w == 0.0 && !matches!(u, Unary::Sign | Unary::Exp)) {
            assert_eq!(g.is_sign_negative(), w.is_sign_negative(), "{}: sign of zero {i}", u.name());
        }
    }
    for dtype in [F16, BF16] {
        let got = map(Program::identity(F32), &[&x], dtype, &[]);
        let want: Vec<f64> = x.values.iter().map(|&v| round(dtype, v)).collect();
        check(dtype.name(), &got, &want, 0.0, 0.0);
    }
    // Powers at every pair of special values.
    let n = bits.len();
    let pairs = |f: &dyn Fn(usize) -> usize| {
        let v: Vec<f64> = (0..n * n).map(|i| bits[f(i)]).collect();
        Operand {
            dtype: F32,
            bytes: encode(F32, &v),
            layout: Layout::contiguous(Shape::of(&[n * n])),
            shape: Shape::of(&[n, n]),
            values: decode(F32, &encode(F32, &v)),
        }
    };
    let (a, b) = (pairs(&|i| i / n), pairs(&|i| i % n));
    let got = map(program(Prim::Binary(Binary::Pow), 2, F32, F32), &[&a, &b], F32, &[]);
    let want: Vec<f64> = a.values.iter().zip(&b.values).map(|(x, y)| round(F32, x.powf(*y))).collect();
    check("pow", &got, &want, 3e-7, 2e-45);
}

/// (x · 2 + y) clipped below by a parameter, where y > 0, else x.
fn long_program(dtype: DType) -> Program {
    let mut p = Program::default();
    let mut push = |op, args, dtype| p.push(Inst { op, args, dtype });
    let x = push(Prim::Source(0), [0; 3], dtype);
    let y = push(Prim::Source(1), [0; 3], dtype);
    let two = push(Prim::Lit(2f64.to_bits()), [0; 3], dtype);
    let low = push(Prim::Param(1), [0; 3], dtype);
    let zero = push(Prim::Lit(0), [0; 3], dtype);
    let a = push(Prim::Binary(Binary::Mul), [x, two, 0], dtype);
    let b = push(Prim::Binary(Binary::Add), [a, y, 0], dtype);
    let c = push(Prim::Binary(Binary::Max), [b, low, 0], dtype);
    let positive = push(Prim::Binary(Binary::Gt), [y, zero, 0], Bool);
    push(Prim::Where, [positive, c, x], dtype);
    p
}

/// A random program of instructions whose result f32 rounds once, over two sources, two numbers and two parameters, and its values.
fn random_program(noise: &mut Noise, x: &[f64], y: &[f64], params: &[f64]) -> (Program, Vec<f64>) {
    let mut p = Program::default();
    let mut values: Vec<Vec<f64>> = Vec::new();
    let mut push = |inst: Inst, v: Vec<f64>, values: &mut Vec<Vec<f64>>| {
        if p.push(inst) as usize == values.len() {
            values.push(v);
        }
    };
    let n = x.len();
    let plain = |op| Inst { op, args: [0; 3], dtype: F32 };
    push(plain(Prim::Source(0)), x.to_vec(), &mut values);
    push(plain(Prim::Lit(1.5f64.to_bits())), vec![1.5; n], &mut values);
    push(plain(Prim::Lit((-0.0f64).to_bits())), vec![-0.0; n], &mut values);
    (0..2).for_each(|k| push(plain(Prim::Param(k)), vec![params[k as usize]; n], &mut values));
    let binary = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min];
    let unary = [Unary::Neg, Unary::Abs, Unary::Sqrt, Unary::Recip, Unary::Floor, Unary::Sign];
    for turn in 0..14 {
        if turn == 5 {
            // A read between instructions, as programs that were fused have it.
            push(plain(Prim::Source(1)), y.to_vec(), &mut values);
        }
        // Often the result before, else any.
        let mut pick = || if noise.next() < 0.6 { values.len() - 1 } else { (noise.next() * values.len() as f64) as usize };
        let (a, b) = (pick(), pick());
        let kind = noise.next() * 9.0;
        let (op, v): (Prim, Vec<f64>) = if kind < 6.0 {
            let op = binary[kind as usize];
            let f = |(&x, &y): (&f64, &f64)| round(F32, definition::binary(op, x, y));
            (Prim::Binary(op), values[a].iter().zip(&values[b]).map(f).collect())
        } else {
            let op = unary[(noise.next() * 6.0) as usize];
            (Prim::Unary(op), values[a].iter().map(|&x| round(F32, definition::unary(op, x))).collect())
        };
        let args = if matches!(op, Prim::Unary(_)) { [a as u16, 0, 0] } else { [a as u16, b as u16, 0] };
        push(Inst { op, args, dtype: F32 }, v, &mut values);
    }
    let last = values.pop().unwrap();
    (p, last)
}

#[test]
fn runs_of_instructions_are_exact() {
    let mut noise = Noise(12);
    for turn in 0..300 {
        // Parts of vectors and of tiles, whole ones, several blocks, and more than is computed without fetching ahead.
        let n = [1, 15, 16, 33, 127, 128, 129, 1000, 2085, 20_011][turn % 10];
        let mut inputs: Vec<Operand> =
            [F32, if turn % 3 == 0 { F16 } else { F32 }].map(|d| operand(d, &[1, n], "contiguous", &mut noise, -4.0, 4.0)).into();
        for (i, special) in [f64::NAN, f64::INFINITY, -0.0, f64::NEG_INFINITY, 0.0].into_iter().enumerate() {
            let (x, at) = (&mut inputs[i % 2], (i * 37 + turn) % n);
            x.values[at] = special;
            x.bytes = encode(x.dtype, &x.values);
        }
        let params = [0.75, -3.0];
        let (x, y) = (&inputs[0], &inputs[1]);
        // Two results of one step, the second of which may read what the first one computes.
        let made = [0, 1].map(|_| random_program(&mut noise, &x.values, &y.values, &params));
        let of_both = |program: &Program| {
            let mut program = program.clone();
            program.insts.iter_mut().filter(|i| i.op == Prim::Source(1)).for_each(|i| i.dtype = y.dtype);
            program
        };
        let stores = made.iter().enumerate().map(|(k, (program, _))| Store {
            shape: x.shape,
            program: of_both(program),
            sources: vec![x.source(0), y.source(1)],
            target: target(k as u16, F32, x.shape),
        });
        let got = run(step("map", Work::Map, vec![], stores.collect(), vec![]), &[x, y], &[(F32, n), (F32, n)], &params);
        for ((program, want), got) in made.iter().zip(&got) {
            check(&format!("turn {turn}, {n} elements: {program}"), got, want, 0.0, 0.0);
        }
    }
}

#[test]
fn maps_read_and_write_any_layout() {
    let mut noise = Noise(4);
    for dtype in [F32, F16, F64, I32, U8, I64, I16, U16, U64] {
        let low = if matches!(dtype, U8 | U16 | U64) { 0.0 } else { -20.0 };
        for dims in [vec![1, 1], vec![5, 3], vec![37, 29], vec![3, 2000], vec![2, 3, 7, 5]] {
            for layout in LAYOUTS {
                for other in ["contiguous", "transposed", "rows repeated"] {
                    let x = operand(dtype, &dims, layout, &mut noise, low, 20.0);
                    let y = operand(dtype, &dims, other, &mut noise, low, 20.0);
                    let want: Vec<f64> = x
                        .values
                        .iter()
                        .zip(&y.values)
                        .map(|(&x, &y)| round(dtype, if y > 0.0 { (x * 2.0 + y).max(3.0) } else { x }))
                        .collect();
                    let case = format!("{dtype} {dims:?} {layout} {other}");
                    let got = map(long_program(dtype), &[&x, &y], dtype, &[9.0, 3.0]);
                    check(&case, &got, &want, 0.0, 0.0);
                    // Into a window of a larger buffer, transposed, at an offset given at run time.
                    let n = x.shape.count();
                    let window = operand(dtype, &dims, "transposed", &mut noise, 0.0, 1.0).layout;
                    let to = Source { buf: Buf::Output(0), dtype, layout: window, offset: Some(0), aligned: false };
                    let sources = vec![x.source(0), y.source(1)];
                    let store = Store { shape: x.shape, program: long_program(dtype), sources, target: to };
                    let got = run(step("map", Work::Map, vec![], vec![store], vec![]), &[&x, &y], &[(dtype, n + 9)], &[9.0, 3.0]).remove(0);
                    let got: Vec<f64> = (0..n).map(|i| got[window.at(i) + 9]).collect();
                    check(&case, &got, &want, 0.0, 0.0);
                }
            }
        }
    }
}

#[test]
fn copies_keep_every_bit() {
    let mut noise = Noise(5);
    for dtype in [F32, F16, BF16, F64, I32, U32, I8, U8, Bool, I64, I16, U16, U64] {
        for layout in LAYOUTS {
            let x = operand(dtype, &[41, 53], layout, &mut noise, 0.0, 100.0);
            check(&format!("{dtype} {layout}"), &map(Program::identity(dtype), &[&x], dtype, &[]), &x.values, 0.0, 0.0);
        }
    }
}

#[test]
fn results_larger_than_the_caches_are_written_whole() {
    let n = 6_400_003;
    let values: Vec<f64> = (0..n + 1).map(|i| (i % 8191) as f64).collect();
    // From the first element on, and from the next, so that no vector is aligned.
    for offset in [0, 1] {
        let layout = Layout { offset, ..Layout::contiguous(Shape::of(&[n])) };
        let x = Operand {
            dtype: F32,
            bytes: encode(F32, &values),
            layout,
            shape: Shape::of(&[n]),
            values: values[offset..offset + n].to_vec(),
        };
        let to = Source { buf: Buf::Output(0), dtype: F32, layout, offset: None, aligned: false };
        let store =
            Store { shape: x.shape, program: program(Prim::Unary(Unary::Neg), 1, F32, F32), sources: vec![x.source(0)], target: to };
        let got = run(step("map", Work::Map, vec![], vec![store], vec![]), &[&x], &[(F32, n + 1)], &[]).remove(0);
        check("negated", &got[offset..offset + n], &x.values.iter().map(|v| -v).collect::<Vec<_>>(), 0.0, 0.0);
    }
}

#[test]
fn sibling_stores_see_the_old_values() {
    // p ← p + m and m ← 2 m in place, with p's program after m's: both read what was there before.
    let backend = &BACKENDS[1];
    let n = 70_001;
    let shape = Shape::of(&[n]);
    let values: Vec<f64> = (0..n).map(|i| (i % 1000) as f64).collect();
    let source = |b| Source { buf: Buf::Input(b), dtype: F32, layout: Layout::contiguous(shape), offset: None, aligned: true };
    let store = |op, sources: Vec<Source>, target| Store { shape, program: program(Prim::Binary(op), 2, F32, F32), sources, target };
    let plan = Arc::new(Plan {
        steps: vec![step(
            "map",
            Work::Map,
            vec![],
            vec![store(Binary::Add, vec![source(0), source(0)], source(0)), store(Binary::Add, vec![source(1), source(0)], source(1))],
            vec![],
        )],
        inputs: vec![Input { dtype: F32, written: true }; 2],
        outputs: vec![],
        slots: vec![],
        params: 0,
        memory: Default::default(),
    });
    let m = backend.upload(Bytes::Owned(Arc::new(encode(F32, &values)))).unwrap();
    let p = backend.upload(Bytes::Owned(Arc::new(encode(F32, &vec![1.0; n])))).unwrap();
    backend.run(&plan, &[m.clone(), p.clone()], &[], &[]).unwrap();
    let mut bytes = vec![0; 4 * n];
    backend.read(&p, 0, &mut bytes).unwrap();
    check("p", &decode(F32, &bytes), &values.iter().map(|v| v + 1.0).collect::<Vec<_>>(), 0.0, 0.0);
    backend.read(&m, 0, &mut bytes).unwrap();
    check("m", &decode(F32, &bytes), &values.iter().map(|v| v * 2.0).collect::<Vec<_>>(), 0.0, 0.0);
}
