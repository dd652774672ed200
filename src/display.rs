//! Printing tensors as PyTorch does: nested brackets, aligned columns, the middle of long dimensions left out.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::tensor::Tensor;
use std::fmt;

/// Tensors of more elements are shortened.
const THRESHOLD: usize = 1000;
/// Entries shown at each end of a shortened dimension.
const EDGE_ENTRIES: usize = 3;
/// Columns of a line.
const LINE_WIDTH: usize = 80;

impl fmt::Display for Tensor {
    /// The values, then shape, dtype and device where they are not the usual ones. Evaluates; a failure is printed in place of the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match render(self) {
            Ok(text) => f.write_str(&text),
            Err(e) => write!(f, "tensor({e})"),
        }
    }
}

impl fmt::Debug for Tensor {
    /// Shape, dtype and device; evaluates nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{}, {})", self.dtype(), self.shape(), self.device().name())
    }
}

fn render(t: &Tensor) -> TensorResult<String> {
    let short = t.numel() > THRESHOLD;
    // Only what is shown is brought to the host.
    let mut shown = t.clone();
    for d in 0..t.rank() {
        let size = t.dims()[d];
        if short && size > 2 * EDGE_ENTRIES {
            let (a, b) = (shown.narrow(d, 0, EDGE_ENTRIES)?, shown.narrow(d, size - EDGE_ENTRIES, EDGE_ENTRIES)?);
            shown = Tensor::cat(&[&a, &b], d)?;
        }
    }
    let values: Vec<f64> = match t.dtype() {
        DType::F64 => shown.to_vec_of::<f64>()?,
        DType::I64 => shown.to_vec_of::<i64>()?.into_iter().map(|v| v as f64).collect(),
        DType::U64 => shown.to_vec_of::<u64>()?.into_iter().map(|v| v as f64).collect(),
        DType::I32 => shown.to_vec_of::<i32>()?.into_iter().map(|v| v as f64).collect(),
        DType::U32 => shown.to_vec_of::<u32>()?.into_iter().map(|v| v as f64).collect(),
        _ => shown.to_vec()?.into_iter().map(|v| v as f64).collect(),
    };
    let words = words(&values, t.dtype());
    let width = words.iter().map(|w| w.len()).max().unwrap_or(0);
    let mut out = String::from("tensor(");
    if t.rank() == 0 {
        out += words[0].trim();
    } else {
        let mut next = words.iter().map(|w| format!("{w:>width$}"));
        nest(&mut out, t.dims(), short, &mut next, 8, width);
    }
    let usual = matches!(t.dtype(), DType::F32 | DType::I64 | DType::Bool);
    if t.numel() == 0 && t.rank() > 1 {
        out += &format!(", shape={}", t.shape());
    }
    if !usual {
        out += &format!(", dtype={}", t.dtype());
    }
    if *t.device() != Device::cpu() {
        out += &format!(", device={}", t.device().name());
    }
    out.push(')');
    Ok(out)
}

fn nest(out: &mut String, dims: &[usize], short: bool, words: &mut dyn Iterator<Item = String>, indent: usize, width: usize) {
    let size = dims[0];
    let cut = short && size > 2 * EDGE_ENTRIES;
    let count = if cut { 2 * EDGE_ENTRIES } else { size };
    out.push('[');
    let last = dims.len() == 1;
    let per_line = (LINE_WIDTH.saturating_sub(indent) / (width + 2)).max(1);
    let mut column = 0;
    for i in 0..count {
        if i > 0 {
            out.push(',');
            let wrap = last && column >= per_line;
            if last && !wrap {
                out.push(' ');
            } else {
                // An empty line between blocks of two and more dimensions.
                out.push_str(&"\n".repeat(if last { 1 } else { dims.len() - 1 }));
                out.push_str(&" ".repeat(indent));
                column = 0;
            }
        }
        if cut && i == EDGE_ENTRIES {
            out.push_str("...,");
            match last {
                true => out.push(' '),
                false => {
                    out.push_str(&"\n".repeat(dims.len() - 1));
                    out.push_str(&" ".repeat(indent));
                }
            }
        }
        if last {
            out.push_str(&words.next().unwrap_or_default());
            column += 1;
        } else {
            nest(out, &dims[1..], short, words, indent + 1, width);
        }
    }
    out.push(']');
}

/// The values as PyTorch writes them: floats with four decimals, without where all are whole, in scientific notation where they span
/// too much.
fn words(values: &[f64], dtype: DType) -> Vec<String> {
    if dtype == DType::Bool {
        return values.iter().map(|&v| if v != 0.0 { "True".into() } else { "False".into() }).collect();
    }
    if dtype.is_int() {
        return values.iter().map(|v| format!("{v:.0}")).collect();
    }
    let finite = || values.iter().filter(|v| v.is_finite() && **v != 0.0).map(|v| v.abs());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(0.0, f64::max));
    let special = |v: f64| {
        if v.is_nan() {
            Some("nan".to_string())
        } else if v.is_infinite() {
            Some(if v > 0.0 { "inf" } else { "-inf" }.to_string())
        } else {
            None
        }
    };
    let whole = values.iter().all(|v| !v.is_finite() || v.fract() == 0.0);
    let scientific = high > 0.0 && (high / low > 1000.0 && !whole || high > 1e8 || low < 1e-4);
    let word = |v: f64| match special(v) {
        Some(s) => s,
        None if scientific => exponent(v),
        None if whole => format!("{v:.0}."),
        None => format!("{v:.4}"),
    };
    values.iter().map(|&v| word(v)).collect()
}

/// `1.2346e+05`: Rust's form lacks the sign and the second digit of the exponent.
fn exponent(v: f64) -> String {
    let text = format!("{v:.4e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = power.strip_prefix('-').map_or(('+', power), |d| ('-', d));
    format!("{mantissa}e{sign}{digits:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[track_caller]
    fn check(t: TensorResult<Tensor>, expect: &str) {
        assert_eq!(t.unwrap().to_string(), expect);
    }

    /// Texts printed by PyTorch 2.
    #[test]
    fn prints_as_pytorch() {
        let d = Device::cpu();
        check(Tensor::from_vec(vec![1.0f32, 2.0, 3.0], &[3], &d), "tensor([1., 2., 3.])");
        check(Tensor::from_vec(vec![1.5f32, -2.25], &[2], &d), "tensor([ 1.5000, -2.2500])");
        check(Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2], &d), "tensor([[1., 2.],\n        [3., 4.]])");
        check(Tensor::from_vec(vec![1i32, -20], &[2], &d), "tensor([  1, -20], dtype=i32)");
        check(Tensor::from_vec(vec![7i64], &[], &d), "tensor(7)");
        check(Tensor::from_vec(vec![1e-5f32, 1.0], &[2], &d), "tensor([1.0000e-05, 1.0000e+00])");
        check(Tensor::from_vec(vec![f32::NAN, f32::INFINITY], &[2], &d), "tensor([nan, inf])");
        check(Tensor::from_vec(Vec::<f32>::new(), &[0], &d), "tensor([])");
        check(Tensor::arange(0.0, 2000.0, 1.0, DType::F32, &d), "tensor([   0.,    1.,    2., ..., 1997., 1998., 1999.])");
        check(
            Tensor::arange(0.0, 8.0, 1.0, DType::F32, &d).and_then(|t| t.reshape(&[2, 2, 2])),
            "tensor([[[0., 1.],\n         [2., 3.]],\n\n        [[4., 5.],\n         [6., 7.]]])",
        );
    }
}
