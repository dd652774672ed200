//! One check of an operation's gradients: every layout, f64 against finite differences, f32 on every device against f64.

use crate::common::devices;
use std::cell::RefCell;
use std::collections::BTreeSet;
use tensorlogic::backends::Bytes;
use tensorlogic::eval::eval_all;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

type Function<'a> = dyn Fn(&[Tensor]) -> TensorResult<Tensor> + 'a;

/// How an operation sees its inputs: as a tensor of its own, a transpose, a part of something larger, or one element in many places.
const LAYOUTS: [&str; 4] = ["contiguous", "transposed", "sliced", "broadcast"];
/// Elements of an input whose differences are taken.
const SAMPLES: usize = 12;

thread_local! {
    static NAMES: RefCell<Option<BTreeSet<String>>> = const { RefCell::new(None) };
}

/// The operations that `f` checks, which it does not run then: the first words of the cases' names.
pub fn names(f: impl FnOnce()) -> BTreeSet<String> {
    NAMES.set(Some(BTreeSet::new()));
    f();
    NAMES.take().unwrap_or_default()
}

/// The Rust files below `folder`, but for tests.
fn rust_files(folder: &std::path::Path, out: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if !path.ends_with("tests") => rust_files(&path, out),
            false if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") => out.push(path),
            _ => {}
        }
    }
}

/// Every operation of the library: the public functions of `src/ops` that give tensors, and the layers over windows.
pub fn operations() -> Vec<String> {
    let root = std::path::Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut found = BTreeSet::new();
    let mut sources = Vec::new();
    rust_files(&root.join("ops"), &mut sources);
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("    pub fn ") {
            let head = &text[at + 11..at + text[at..].find(['{', ';']).unwrap()];
            let name: String = head.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if head.contains("TensorResult<Tensor>") || head.contains("TensorResult<Vec<Tensor>>") {
                found.insert(name);
            }
        }
        // A table: `"doc" name name Kind, …;`.
        if let Some(start) = text.find("\nreductions! {\n") {
            let table = "reductions! {\n";
            let body = &text[start + table.len()..];
            let body = &body[..body.find("\n}").unwrap()];
            for line in body.lines().map(|l| l.trim()).filter(|l| l.ends_with(';') && !l.starts_with("///")) {
                // Behind a comma comes the example of the method's documentation.
                let names = line.rsplit('"').next().unwrap().split([',', ';']).next().unwrap();
                let words = names.split_whitespace().filter(|w| *w != "=").collect::<Vec<_>>();
                found.extend(words[..words.len() - 1].iter().map(|w| w.to_string()));
                assert_eq!(words.len(), 3, "{line}");
            }
        }
    }
    // The tables of scalar primitives: `Kind = name {`.
    for table in ["unary", "binary"] {
        let primitives = std::fs::read_to_string(root.join(format!("scalar/{table}.rs"))).unwrap();
        let rows = primitives.lines().filter_map(|l| l.strip_prefix("            ")?.strip_suffix(" {")?.split_once(" = "));
        let before = found.len();
        found.extend(rows.map(|(_, name)| name.to_string()));
        assert!(found.len() > before + 15, "the table of {table} primitives was not read");
    }
    let windows = std::fs::read_to_string(root.join("nn/conv.rs")).unwrap();
    found.extend(
        windows.match_indices("impl Module for ").map(|(at, m)| windows[at + m.len()..].split_whitespace().next().unwrap().to_string()),
    );
    found.into_iter().filter(|n| !n.is_empty()).collect()
}

/// The shape of the tensor that is stored so that a tensor of this shape can be seen through a layout.
fn stored(shape: &[usize], layout: usize) -> Vec<usize> {
    let mut s = shape.to_vec();
    let n = s.len();
    match layout {
        1 if n >= 2 => s.swap(n - 2, n - 1),
        2 if n >= 1 => {
            s[n - 1] += 3;
            if n >= 2 {
                s[0] += 1;
            }
        }
        3 if n >= 1 => s[spread(shape)] = 1,
        _ => {}
    }
    s
}

/// The dimension along which elements are repeated: the first that has several.
fn spread(shape: &[usize]) -> usize {
    shape.iter().position(|&d| d > 1).unwrap_or(0)
}

/// A tensor of this shape, seen through the layout.
fn seen(leaf: &Tensor, shape: &[usize], layout: usize) -> TensorResult<Tensor> {
    let n = shape.len();
    match layout {
        1 if n >= 2 => leaf.transpose(-1, -2),
        1 if n == 1 => leaf.flip(0),
        2 if n >= 2 => leaf.narrow(-1, 1, shape[n - 1])?.narrow(0, 1, shape[0]),
        2 if n == 1 => leaf.narrow(0, 1, shape[0]),
        3 if n >= 1 => leaf.broadcast_to(shape),
        _ => Ok(leaf.clone()),
    }
}

/// Weights that make a scalar of a result, so that every element's gradient differs.
fn scalar(y: &Tensor) -> TensorResult<Tensor> {
    let n = y.numel();
    let weights = Tensor::arange(0.0, n as f64, 1.0, DType::F32, y.device())?.mul(0.37)?.sin()?.add(1.5)?;
    let shape: Vec<isize> = y.dims().iter().map(|&d| d as isize).collect();
    y.mul(&weights.cast(y.dtype())?.reshape(&shape)?)?.sum_all()
}

struct Case<'a> {
    shapes: &'a [&'a [usize]],
    layout: usize,
    f: &'a Function<'a>,
}

impl Case<'_> {
    fn make(&self, values: &[Vec<f64>], dtype: DType, device: &Device) -> Vec<Tensor> {
        let one = |v: &Vec<f64>, shape: &[usize]| {
            let shape = stored(shape, self.layout);
            let bytes: Vec<u8> = match dtype {
                DType::F64 => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
            };
            Tensor::from_bytes(Bytes::Owned(std::sync::Arc::new(bytes)), dtype, &shape, device).unwrap()
        };
        values.iter().zip(self.shapes).map(|(v, s)| one(v, s)).collect()
    }

    /// The scalar of the result.
    fn result(&self, leaves: &[Tensor]) -> TensorResult<Tensor> {
        let x = leaves.iter().zip(self.shapes).map(|(t, s)| seen(t, s, self.layout)).collect::<TensorResult<Vec<_>>>()?;
        scalar(&(self.f)(&x)?)
    }

    fn gradients(&self, leaves: &[Tensor]) -> TensorResult<Vec<Vec<f64>>> {
        let leaves: Vec<Tensor> = leaves.iter().map(|t| t.requires_grad()).collect::<TensorResult<_>>()?;
        self.result(&leaves)?.backward()?;
        // All in one plan: one gradient's kernels must leave what another's need.
        let grads: Vec<Tensor> = leaves.iter().filter_map(Tensor::grad).collect();
        eval_all(&grads.iter().collect::<Vec<_>>())?;
        let values = |t: &Tensor| match t.grad() {
            Some(g) => {
                assert_eq!((g.dims(), g.dtype()), (t.dims(), t.dtype()));
                if g.dtype() == DType::F64 { g.to_vec_of::<f64>() } else { Ok(g.to_vec()?.iter().map(|&v| v as f64).collect()) }
            }
            None => Ok(vec![0.0; t.numel()]),
        };
        leaves.iter().map(values).collect()
    }
}

/// Checks the gradients of `f` for inputs of these shapes with values in `range`. The name begins with the operation's.
#[track_caller]
pub fn check(name: &str, shapes: &[&[usize]], range: (f64, f64), f: impl Fn(&[Tensor]) -> TensorResult<Tensor>) {
    let only_name = NAMES.with_borrow_mut(|n| n.as_mut().map(|n| n.insert(name.split([' ', ',']).next().unwrap().to_string())));
    if only_name.is_some() {
        return;
    }
    let cpu = Device::cpu();
    let mut rng = Rng::new(name.len() as u64 * 77 + shapes.len() as u64);
    for layout in 0..LAYOUTS.len() {
        let case = Case { shapes, layout, f: &f };
        let what = format!("{name}, {}", LAYOUTS[layout]);
        let values: Vec<Vec<f64>> = shapes
            .iter()
            .map(|s| {
                let u = rng.uniform(&stored(s, layout), DType::F32, &cpu).unwrap().to_vec().unwrap();
                u.iter().map(|&u| range.0 + (range.1 - range.0) * u as f64).collect()
            })
            .collect();
        let exact = case.gradients(&case.make(&values, DType::F64, &cpu)).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (k, got) in exact.iter().enumerate() {
            // Five-point differences: the error is of the order h⁴.
            let h = 1e-3;
            let step = (got.len() / SAMPLES).max(1);
            for i in (layout % step..got.len()).step_by(step) {
                let at = |by: f64| {
                    let mut moved = values.clone();
                    moved[k][i] += by;
                    case.result(&case.make(&moved, DType::F64, &cpu)).unwrap().item().unwrap()
                };
                let want = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
                let close = (got[i] - want).abs() <= 1e-7 + 1e-6 * want.abs();
                assert!(close, "{what}: gradient {i} of input {k} is {}, not {want}", got[i]);
            }
        }
        for device in devices() {
            let got =
                case.gradients(&case.make(&values, DType::F32, &device)).unwrap_or_else(|e| panic!("{what} on {}: {e}", device.name()));
            for (k, (got, want)) in got.iter().zip(&exact).enumerate() {
                let size = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    let close = (g - w).abs() <= 3e-4 * size;
                    assert!(close, "{what} on {}: gradient {i} of input {k} is {g}, not {w}", device.name());
                }
            }
        }
    }
}

/// Indices on the device of another tensor.
pub fn indices(values: &[i32], shape: &[usize], like: &Tensor) -> Tensor {
    Tensor::from_vec(values.to_vec(), shape, like.device()).unwrap()
}
