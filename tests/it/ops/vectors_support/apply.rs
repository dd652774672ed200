//! From the suites' operations, PyTorch's names with explicit settings, to the library's methods.

use super::{Case, Fail, Out, Raw};
use serde_json::Value;
use tensorlogic::backends::Bytes;
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::convolution::{ConvOptions, Divisor, WindowOptions};
use tensorlogic::ops::index_add::Combine;
use tensorlogic::ops::loss::{NllOptions, Reduction};
use tensorlogic::ops::pad::PadMode;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::{DType, Device, Tensor, TensorResult};

type Made<T> = Result<T, Fail>;

/// A case's settings.
struct Settings<'a>(&'a Value);

impl Settings<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|v| !v.is_null())
    }
    fn number(&self, name: &str, default: f64) -> f64 {
        self.0[name].as_f64().unwrap_or(default)
    }
    fn whole(&self, name: &str) -> Made<i64> {
        self.0[name].as_i64().ok_or(Fail::Unsupported)
    }
    fn size(&self, name: &str) -> Made<usize> {
        self.0[name].as_u64().map(|v| v as usize).ok_or(Fail::Unsupported)
    }
    fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or("")
    }
    /// A list of numbers, or the one number; empty where there is none.
    fn list(&self, name: &str) -> Vec<isize> {
        match &self.0[name] {
            Value::Array(v) => v.iter().map(|d| d.as_i64().unwrap() as isize).collect(),
            v => v.as_i64().map(|d| d as isize).into_iter().collect(),
        }
    }
    fn sizes(&self, name: &str) -> Made<Vec<usize>> {
        self.0[name].as_array().ok_or(Fail::Unsupported)?.iter().map(|d| d.as_u64().map(|v| v as usize).ok_or(Fail::Unsupported)).collect()
    }
    /// The windows of a convolution or pool.
    fn windows(&self) -> Made<WindowOptions> {
        let pairs = self.0["padding"].as_array().ok_or(Fail::Unsupported)?;
        let pair = |p: &Value| Some((p[0].as_u64()? as usize, p[1].as_u64()? as usize));
        Ok(WindowOptions {
            stride: self.sizes("stride")?,
            padding: pairs.iter().map(pair).collect::<Option<_>>().ok_or(Fail::Unsupported)?,
            dilation: if self.has("dilation") { self.sizes("dilation")? } else { vec![] },
            ceil: self.flag("ceil_mode"),
        })
    }
    fn combine(&self) -> Made<Combine> {
        Ok(match self.text("reduce") {
            "none" => Combine::Set,
            "add" | "sum" => Combine::Add,
            "mul" | "prod" => Combine::Mul,
            "min" | "amin" => Combine::Min,
            "max" | "amax" => Combine::Max,
            _ => return Err(Fail::Unsupported),
        })
    }
    fn reduction(&self) -> Made<Reduction> {
        Ok(match self.0["reduction"].as_str() {
            None | Some("mean") => Reduction::Mean,
            Some("sum") => Reduction::Sum,
            Some("none") => Reduction::None,
            Some("batchmean") => Reduction::BatchMean,
            _ => return Err(Fail::Unsupported),
        })
    }
}

fn dtype_named(name: &str) -> Made<DType> {
    Raw { dtype: name, shape: vec![], bytes: &[] }.library_dtype().ok_or(Fail::Unsupported)
}

/// The block format of a GGML type's name.
fn block_format(name: &str) -> Made<DType> {
    DType::ALL.into_iter().find(|d| d.is_block() && d.name().eq_ignore_ascii_case(name)).ok_or(Fail::Unsupported)
}

/// The bytes that quantizing gives.
pub fn quantize(case: &Case) -> Made<Vec<Out>> {
    let format = block_format(Settings(case.attrs).text("type"))?;
    let raw = case.inputs[0].as_ref().unwrap();
    let values: Vec<f32> = raw.values().iter().map(|&v| v as f32).collect();
    let bytes = tensorlogic::quant::quantize(format, &values)?;
    if case.tolerance["kind"] == "roundtrip" {
        // Encoders may differ: what is decoded must be as near to the values as what the expected bytes decode to.
        let decode = |bytes: &[u8]| {
            let mut out = vec![0f32; values.len()];
            tensorlogic::quant::dequantize(format, bytes, &mut out).map(|()| out)
        };
        let error = |out: &[f32]| out.iter().zip(&values).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        let (ours, theirs) = (error(&decode(&bytes)?), error(&decode(case.expect[0].bytes)?));
        if ours > theirs * 1.05 + 1e-12 {
            return Err(Fail::Error(format!("squared error {ours:.4e}, the reference's is {theirs:.4e}")));
        }
        return Ok(vec![Out { shape: case.expect[0].shape.clone(), data: case.expect[0].values() }]);
    }
    Ok(vec![Out { shape: case.expect[0].shape.clone(), data: bytes.iter().map(|&b| f64::from(b)).collect() }])
}

/// A case's inputs on a device; none for block formats, which are read with the case.
pub fn inputs(case: &Case, device: &Device) -> Made<Vec<Option<Tensor>>> {
    if case.op == "ggml_dequantize" || case.op == "ggml_matmul" {
        return Ok(Vec::new());
    }
    case.inputs.iter().map(|r| r.as_ref().map(|r| r.tensor(device)).transpose()).collect()
}

/// Runs a case's operation.
pub fn apply(case: &Case, inputs: &[Option<Tensor>], device: &Device) -> Made<Vec<Tensor>> {
    if case.op == "ggml_dequantize" || case.op == "ggml_matmul" {
        return packed(case, device);
    }
    let s = Settings(case.attrs);
    let has = |i: usize| inputs.get(i).is_some_and(|t| t.is_some());
    let get = |i: usize| inputs.get(i).and_then(|t| t.as_ref()).ok_or(Fail::Unsupported);
    let opt = |i: usize| inputs.get(i).and_then(|t| t.as_ref());
    let one = |t: TensorResult<Tensor>| -> Made<Vec<Tensor>> { Ok(vec![t?]) };
    let negative = |i: usize| case.inputs[i].as_ref().is_some_and(|r| r.values().iter().any(|&v| v < 0.0));

    if matches!(case.op, "full" | "eye") {
        let dtype = dtype_named(case.expect[0].dtype)?;
        let dtype = if device.supports(dtype) { dtype } else { DType::F32 };
        return match case.op {
            "full" => one(Tensor::full(s.number("value", 0.0), &s.sizes("shape")?, dtype, device)),
            _ => {
                let count = |n: usize| Tensor::arange(0.0, n as f64, 1.0, DType::I32, device);
                let rows = count(s.size("rows")?)?.add(s.number("k", 0.0) as i64)?.unsqueeze(1)?;
                one(rows.eq(&count(s.size("cols")?)?)?.cast(dtype))
            }
        };
    }
    let x = get(0)?;
    let rank = x.rank();
    let axis = |d: i64| if d < 0 { (d + rank.max(1) as i64) as usize } else { d as usize };

    macro_rules! unary {
        ($($name:ident),*) => { match case.op { $(stringify!($name) => return one(x.$name()),)* _ => {} } };
    }
    unary!(abs, neg, sign, sqrt, rsqrt, reciprocal, exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tan, asin, acos, atan);
    unary!(sinh, cosh, tanh, asinh, acosh, atanh, erf, erfc, sigmoid, floor, ceil, round, trunc, isnan, isinf, isfinite, logical_not);
    unary!(bitwise_not, square, frac, relu, relu6, silu, log_sigmoid, mish, softsign);
    macro_rules! binary {
        ($($name:ident),*) => { match case.op { $(stringify!($name) => return one(x.$name(get(1)?)),)* _ => {} } };
    }
    binary!(add, sub, mul, pow, fmod, remainder, minimum, maximum, atan2, copysign, eq, ne, lt, le, gt, ge, bitwise_and, bitwise_or);
    binary!(bitwise_xor, xlogy, logaddexp, hypot, fmax, fmin, logical_and, logical_or, logical_xor, outer, dot);

    match case.op {
        "identity" => Ok(vec![x.clone()]),
        "shl" => one(x.bitwise_left_shift(get(1)?)),
        "shr" => one(x.bitwise_right_shift(get(1)?)),
        "div" => match s.text("rounding_mode") {
            "" => one(x.div(get(1)?)),
            "trunc" => one(x.div_trunc(get(1)?)),
            "floor" => one(x.div_floor(get(1)?)),
            _ => Err(Fail::Unsupported),
        },
        "clamp" => one(x.clamp_tensors(opt(1), opt(2))),
        "where" => one(x.where_(get(1)?, get(2)?)),
        "masked_fill" => one(x.masked_fill(get(1)?, s.number("value", 0.0))),
        "cast" => one(x.cast(dtype_named(s.text("to"))?)),
        "nan_to_num" => one(x.nan_to_num(s.number("nan", 0.0), case.attrs["posinf"].as_f64(), case.attrs["neginf"].as_f64())),
        "lerp" if has(2) => one(x.lerp(get(1)?, get(2)?)),
        "lerp" => one(x.lerp(get(1)?, s.number("weight", 0.0))),
        "addcmul" => one(x.addcmul(get(1)?, get(2)?, s.number("value", 1.0))),
        "addcdiv" => one(x.addcdiv(get(1)?, get(2)?, s.number("value", 1.0))),
        // Activations
        "gelu" if s.text("approximate") == "tanh" => one(x.gelu_tanh()),
        "gelu" => one(x.gelu()),
        "softplus" if s.number("beta", 1.0) == 1.0 && s.number("threshold", 20.0) == 20.0 => one(x.softplus()),
        "softplus" => one(x.softplus_with(s.number("beta", 1.0), s.number("threshold", 20.0))),
        "leaky_relu" => one(x.leaky_relu(s.number("negative_slope", 0.01))),
        "elu" => one(x.elu(s.number("alpha", 1.0))),
        "celu" => one(x.celu(s.number("alpha", 1.0))),
        "selu" if s.has("alpha") => one(x.elu(s.number("alpha", 0.0))?.mul(s.number("gamma", 0.0))),
        "selu" => one(x.selu()),
        "hardsigmoid" if s.has("alpha") => one(x.mul(s.number("alpha", 0.0))?.add(s.number("beta", 0.0))?.clamp(Some(0.0), Some(1.0))),
        "hardsigmoid" => one(x.hardsigmoid()),
        "hardtanh" => one(x.hardtanh(s.number("min_val", -1.0), s.number("max_val", 1.0))),
        "hardshrink" => one(x.hardshrink(s.number("lambd", 0.5))),
        "softshrink" => one(x.softshrink(s.number("lambd", 0.5))),
        "threshold" => one(x.threshold(s.number("threshold", 0.0), s.number("value", 0.0))),
        "glu" => one(x.glu(s.whole("dim").unwrap_or(-1) as isize)),
        // Reductions
        "sum" => one(x.sum(&s.list("dim"), s.flag("keepdim"))),
        "mean" => one(x.mean(&s.list("dim"), s.flag("keepdim"))),
        "amax" => one(x.max(&s.list("dim"), s.flag("keepdim"))),
        "amin" => one(x.min(&s.list("dim"), s.flag("keepdim"))),
        "prod" => one(x.prod(&s.list("dim"), s.flag("keepdim"))),
        "all" => one(x.all(&s.list("dim"), s.flag("keepdim"))),
        "any" => one(x.any(&s.list("dim"), s.flag("keepdim"))),
        "logsumexp" => one(x.logsumexp(&s.list("dim"), s.flag("keepdim"))),
        "var" | "std" => {
            let correction = s.number("correction", 1.0);
            if correction.fract() != 0.0 {
                return Err(Fail::Unsupported);
            }
            let (dims, keep) = (s.list("dim"), s.flag("keepdim"));
            one(if case.op == "var" { x.var(&dims, correction as isize, keep) } else { x.std(&dims, correction as isize, keep) })
        }
        "norm" => {
            let order = match &case.attrs["ord"] {
                Value::String(t) if t == "inf" => f64::INFINITY,
                Value::String(t) if t == "-inf" => f64::NEG_INFINITY,
                Value::Null => 2.0,
                v => v.as_f64().ok_or(Fail::Unsupported)?,
            };
            one(x.norm(order, &s.list("dim"), s.flag("keepdim")))
        }
        "argmax" | "argmin" => {
            let first = |t: &Tensor, d: isize| if case.op == "argmax" { t.argmax(d) } else { t.argmin(d) };
            // The last of equal ones is the first from behind.
            let pick = |t: &Tensor, d: isize| match s.flag("last") {
                true => first(&t.flip(d)?, d)?.neg()?.add(t.dims()[axis(d as i64)] as i64 - 1),
                false => first(t, d),
            };
            if !s.has("dim") {
                return one(pick(&x.reshape(&[-1])?, 0));
            }
            let d = s.whole("dim")? as isize;
            let t = pick(x, d)?;
            if s.flag("keepdim") && rank > 0 { one(t.unsqueeze(axis(d as i64) as isize)) } else { Ok(vec![t]) }
        }
        "global_avg_pool" => one(x.mean(&(2..rank as isize).collect::<Vec<_>>(), true)),
        "global_max_pool" => one(x.max(&(2..rank as isize).collect::<Vec<_>>(), true)),
        "softmax" => one(x.softmax(s.whole("dim")? as isize)),
        "log_softmax" => one(x.log_softmax(s.whole("dim")? as isize)),
        // Views and shapes
        "reshape" => one(x.reshape(&s.list("shape"))),
        "expand" => one(x.expand(&s.list("shape"))),
        "permute" => one(x.permute(&s.list("dims").iter().map(|&d| axis(d as i64)).collect::<Vec<_>>())),
        "unsqueeze" => {
            let list = s.list("dim");
            let n = (rank + list.len()) as isize;
            let mut dims: Vec<isize> = list.iter().map(|&d| if d < 0 { d + n } else { d }).collect();
            dims.sort_unstable();
            one(dims.iter().try_fold(x.clone(), |t, &d| t.unsqueeze(d)))
        }
        "squeeze" if !s.has("dim") => one(x.squeeze_all()),
        "squeeze" => {
            let mut dims: Vec<usize> = s.list("dim").iter().map(|&d| axis(d as i64)).collect();
            dims.sort_unstable();
            one(dims.iter().rev().try_fold(x.clone(), |t, &d| t.squeeze(d as isize)))
        }
        "cat" | "stack" => {
            let all: Vec<&Tensor> = inputs.iter().flatten().collect();
            let d = s.whole("dim")? as isize;
            one(if case.op == "cat" { Tensor::cat(&all, d) } else { Tensor::stack(&all, d) })
        }
        "split" => Ok(x.split_with_sizes(&s.sizes("sizes")?, s.whole("dim")? as isize)?),
        "narrow" => one(x.narrow(s.whole("dim")? as isize, s.size("start")?, s.size("length")?)),
        "slice" => slice(x, case.attrs),
        "flip" => one(s.list("dims").iter().try_fold(x.clone(), |t, &d| t.flip(d))),
        "roll" => {
            let (shifts, dims) = (s.list("shifts"), s.list("dims"));
            if dims.is_empty() {
                let sizes: Vec<isize> = x.dims().iter().map(|&d| d as isize).collect();
                return one(x.reshape(&[x.numel() as isize])?.roll(shifts[0], 0)?.reshape(&sizes));
            }
            one(shifts.iter().zip(&dims).try_fold(x.clone(), |t, (&by, &d)| t.roll(by, d)))
        }
        "tile" => one(x.tile(&s.sizes("repeats")?)),
        "repeat_interleave" if s.has("dim") => one(x.repeat_interleave(s.size("repeats")?, s.whole("dim")? as isize)),
        "repeat_interleave" => one(x.reshape(&[x.numel() as isize])?.repeat_interleave(s.size("repeats")?, 0)),
        "unfold" => one(x.unfold(s.whole("dim")? as isize, s.size("size")?, s.size("step")?)),
        "pad" => {
            let pads = case.attrs["pads"].as_array().unwrap();
            let margins: Vec<(isize, isize)> =
                pads.iter().map(|p| (p[0].as_i64().unwrap() as isize, p[1].as_i64().unwrap() as isize)).collect();
            let mode = match s.text("mode") {
                "constant" => PadMode::Constant(s.number("value", 0.0)),
                "reflect" => PadMode::Reflect,
                "replicate" | "edge" => PadMode::Replicate,
                "circular" | "wrap" => PadMode::Circular,
                _ => return Err(Fail::Unsupported),
            };
            one(x.pad(&margins, mode))
        }
        "tril" => one(x.tril(s.whole("k")?)),
        "triu" => one(x.triu(s.whole("k")?)),
        // Indices
        "index_select" => {
            let (d, index) = (s.whole("dim")?, get(1)?);
            let index = if negative(1) { index.wrap_negative(x.dims()[axis(d)])? } else { index.clone() };
            let rows = x.index_select(d as isize, &index.reshape(&[-1])?)?;
            if rank == 0 || index.rank() == 1 {
                return Ok(vec![rows]);
            }
            let mut sizes: Vec<isize> = x.dims().iter().map(|&n| n as isize).collect();
            let keep = if case.op == "index_select" && index.rank() == 0 { vec![1] } else { index.dims().to_vec() };
            // Where the suites want it, the index's dimensions take the place of the one that is picked from.
            let keep = if index.rank() == 0 && case.expect[0].shape.len() < rank { vec![] } else { keep };
            sizes.splice(axis(d)..=axis(d), keep.iter().map(|&n| n as isize));
            one(rows.reshape(&sizes))
        }
        "embedding" if s.has("padding_idx") => one(x.embedding_with_padding(get(1)?, s.whole("padding_idx")? as isize)),
        "embedding" => one(x.embedding(get(1)?)),
        "gather" | "take_along" => {
            let d = s.whole("dim")?;
            let index = if negative(1) { get(1)?.wrap_negative(x.dims()[axis(d)])? } else { get(1)?.clone() };
            let (mut from, mut to) = (x.dims().to_vec(), index.dims().to_vec());
            if case.op == "take_along" {
                for i in (0..rank).filter(|&i| i != axis(d)) {
                    (from[i], to[i]) = (from[i].max(to[i]), from[i].max(to[i]));
                }
            }
            one(x.broadcast_to(&from)?.gather(d as isize, &index.broadcast_to(&to)?))
        }
        "scatter" => {
            let d = s.whole("dim")?;
            let index = if negative(1) { get(1)?.wrap_negative(x.dims()[axis(d)])? } else { get(1)?.clone() };
            one(x.scatter(d as isize, &index, get(2)?, s.combine()?))
        }
        "index_copy" => one(x.index_copy(s.whole("dim")? as isize, get(1)?, get(2)?)),
        "index_add" => {
            let rows = get(2)?;
            let alpha = s.number("alpha", 1.0);
            let rows = if rows.dtype().is_float() { rows.mul(alpha)? } else { rows.mul(alpha as i64)? };
            one(x.index_add(s.whole("dim")? as isize, get(1)?, &rows))
        }
        "gather_nd" | "scatter_nd" => {
            // Entries of the leading dimensions as rows, and their numbers.
            let index = get(1)?;
            let (batch, depth) = (s.size("batch_dims").unwrap_or(0), index.dims()[index.rank() - 1]);
            let lead: usize = x.dims()[..batch + depth].iter().product();
            let tail: Vec<isize> = x.dims()[batch + depth..].iter().map(|&n| n as isize).collect();
            let mut place = Tensor::full(0.0, &index.dims()[..index.rank() - 1], index.dtype(), device)?;
            for i in 0..batch + depth {
                let part = if i < batch {
                    let mut sizes = vec![1isize; place.rank()];
                    sizes[i] = x.dims()[i] as isize;
                    Tensor::arange(0.0, x.dims()[i] as f64, 1.0, index.dtype(), device)?.reshape(&sizes)?
                } else {
                    index.select(-1, i - batch)?.wrap_negative(x.dims()[i])?
                };
                place = place.mul(x.dims()[i] as i64)?.add(&part)?;
            }
            let rows = x.reshape(&[&[lead as isize], &tail[..]].concat())?;
            let flat = place.reshape(&[-1])?;
            if case.op == "gather_nd" {
                let sizes: Vec<isize> = place.dims().iter().map(|&n| n as isize).chain(tail).collect();
                return one(rows.index_select(0, &flat)?.reshape(&sizes));
            }
            let updates = get(2)?.reshape(&[&[flat.numel() as isize], &tail[..]].concat())?;
            // An index for each element of the updates.
            let mut wide = flat.clone();
            for _ in 0..tail.len() {
                wide = wide.unsqueeze(-1)?;
            }
            let joined = rows.scatter(0, &wide.broadcast_to(updates.dims())?, &updates, s.combine()?)?;
            one(joined.reshape(&x.dims().iter().map(|&n| n as isize).collect::<Vec<_>>()))
        }
        "one_hot" => {
            let (off, on) = (case.attrs["values"][0].as_f64().unwrap(), case.attrs["values"][1].as_f64().unwrap());
            let index = x.cast(DType::I32)?;
            let hot = index.wrap_negative(s.size("depth")?)?.one_hot(s.size("depth")?)?;
            let d = s.whole("axis")?;
            let d = if d < 0 { d + rank as i64 + 1 } else { d };
            let hot = (d as isize..rank as isize).rev().try_fold(hot, |t, i| t.transpose(i, i + 1))?;
            let dtype = dtype_named(case.expect[0].dtype)?;
            if dtype.is_int() {
                return one(hot.mul(on as i64 - off as i64)?.add(off as i64));
            }
            one(hot.cast(dtype)?.mul(on - off)?.add(off))
        }
        "hardmax" => {
            let d = s.whole("dim")? as isize;
            let hot = x.argmax(d)?.one_hot(x.dims()[axis(d as i64)])?;
            one((axis(d as i64) as isize..rank as isize - 1).rev().try_fold(hot, |t, i| t.transpose(i, i + 1))?.cast(x.dtype()))
        }
        // In order
        "sort" | "topk" => {
            let d = s.whole("dim").unwrap_or(-1) as isize;
            let (values, order) = match case.op {
                "sort" => x.sort(d, s.flag("descending"))?,
                _ => x.topk(s.size("k")?, d, !s.has("largest") || s.flag("largest"))?,
            };
            Ok(vec![values, order])
        }
        "argsort" => one(x.argsort(s.whole("dim").unwrap_or(-1) as isize, s.flag("descending"))),
        "cumsum" | "cumprod" => {
            let d = s.whole("dim")? as isize;
            let turn = |t: &Tensor| if s.flag("reverse") { t.flip(d) } else { Ok(t.clone()) };
            let mut from = turn(x)?;
            if s.flag("exclusive") {
                let mut margins = vec![(0, 0); rank];
                margins[axis(d as i64)] = (1, -1);
                from = from.pad(&margins, PadMode::Constant(if case.op == "cumsum" { 0.0 } else { 1.0 }))?;
            }
            one(turn(&if case.op == "cumsum" { from.cumsum(d) } else { from.cumprod(d) }?))
        }
        // Windows
        "conv" | "conv_transpose" => {
            let output_padding = if s.has("output_padding") { s.sizes("output_padding")? } else { vec![] };
            let options = ConvOptions { windows: s.windows()?, groups: s.size("groups")?, output_padding };
            one(if case.op == "conv" { x.conv(get(1)?, opt(2), &options) } else { x.conv_transpose(get(1)?, opt(2), &options) })
        }
        "max_pool" => one(x.max_pool(&s.sizes("kernel")?, &s.windows()?)),
        "avg_pool" => {
            let divisor = match s.0["divisor_override"].as_f64() {
                Some(by) => Divisor::Fixed(by),
                None if s.flag("count_include_pad") => Divisor::WithMargins,
                None => Divisor::Elements,
            };
            one(x.avg_pool(&s.sizes("kernel")?, divisor, &s.windows()?))
        }
        "lrn" => {
            // The mean of squares over neighbouring channels.
            let (size, d) = (s.size("size")?, 1isize);
            let mut margins = vec![(0, 0); rank];
            margins[1] = (((size - 1) / 2) as isize, (size / 2) as isize);
            let near = x.square()?.pad(&margins, PadMode::Constant(0.0))?.unfold(d, size, 1)?.sum(&[-1], false)?;
            let base = near.mul(s.number("alpha", 1e-4) / size as f64)?.add(s.number("bias", 1.0))?;
            one(x.div(&base.pow(s.number("beta", 0.75))?))
        }
        "depth_to_space" | "space_to_depth" => {
            let (b, [n, c, h, w]) = (s.size("block")? as isize, [0, 1, 2, 3].map(|i| x.dims()[i] as isize));
            one(match (case.op, s.text("mode")) {
                ("space_to_depth", _) => {
                    x.reshape(&[n, c, h / b, b, w / b, b])?.permute(&[0, 3, 5, 1, 2, 4])?.reshape(&[n, c * b * b, h / b, w / b])
                }
                (_, "CRD") => x.reshape(&[n, c / b / b, b, b, h, w])?.permute(&[0, 1, 4, 2, 5, 3])?.reshape(&[n, c / b / b, h * b, w * b]),
                _ => x.reshape(&[n, b, b, c / b / b, h, w])?.permute(&[0, 3, 4, 1, 5, 2])?.reshape(&[n, c / b / b, h * b, w * b]),
            })
        }
        "batch_norm" => one(x.batch_norm(opt(3).zip(opt(4)), opt(1), opt(2), s.number("eps", 1e-5))),
        "einsum" => one(Tensor::einsum(s.text("equation"), &inputs.iter().flatten().collect::<Vec<_>>())),
        // Whole numbers of eight bits
        "quantize" | "dequantize" if s.size("block").unwrap_or(0) == 0 => {
            let (scale, zero) = (get(1)?, opt(2));
            let mut sizes = vec![1isize; rank];
            if scale.rank() > 0 {
                sizes[axis(s.whole("axis")?)] = scale.numel() as isize;
            }
            let along = |t: &Tensor| t.cast(DType::F32)?.reshape(&sizes);
            let zero = zero.map(along).transpose()?;
            if case.op == "dequantize" {
                let x = x.cast(DType::F32)?;
                let x = zero.map_or(Ok(x.clone()), |z| x.sub(&z))?;
                return one(x.mul(&along(scale)?));
            }
            let y = x.div(&along(scale)?)?.round()?;
            let y = zero.map_or(Ok(y.clone()), |z| y.add(&z))?;
            one(y.clamp(Some(s.number("qmin", 0.0)), Some(s.number("qmax", 255.0)))?.cast(dtype_named(case.expect[0].dtype)?))
        }
        "qmatmul" => {
            let whole = |t: &Tensor, zero: Option<&Tensor>, across: bool| -> Made<Tensor> {
                let t = t.cast(DType::F32)?;
                let Some(z) = zero else { return Ok(t) };
                let z = z.cast(DType::F32)?;
                Ok(t.sub(&if across && z.rank() > 0 { z.unsqueeze(-1)? } else { z })?)
            };
            one(whole(x, opt(2), true)?.matmul(&whole(get(1)?, opt(3), false)?)?.cast(DType::I32))
        }
        "dynamic_quantize" => {
            let (low, high) = (x.min_all()?.minimum(0.0)?, x.max_all()?.maximum(0.0)?);
            let scale = high.sub(&low)?.div(255.0)?;
            let zero = low.neg()?.div(&scale)?.round()?.clamp(Some(0.0), Some(255.0))?;
            let y = x.div(&scale)?.round()?.add(&zero)?.clamp(Some(0.0), Some(255.0))?;
            Ok(vec![y.cast(DType::U8)?, scale, zero.cast(DType::U8)?])
        }
        // Products
        "matmul" | "mm" | "mv" => one(x.matmul(get(1)?)),
        "linear" => one(x.linear(get(1)?, opt(2))),
        "addmm" | "addmv" | "baddbmm" => one(x.addmm(get(1)?, get(2)?, s.number("beta", 1.0), s.number("alpha", 1.0))),
        "gemm" => {
            let transposed = |t: &Tensor, name: &str| if s.flag(name) { t.t() } else { Ok(t.clone()) };
            let (a, b) = (transposed(x, "trans_a")?, transposed(get(1)?, "trans_b")?);
            let zero = Tensor::zeros(&[], x.dtype(), device)?;
            one(opt(2).unwrap_or(&zero).addmm(&a, &b, s.number("beta", 1.0), s.number("alpha", 1.0)))
        }
        "cosine_similarity" => one(x.cosine_similarity(get(1)?, s.whole("dim").unwrap_or(1) as isize, s.number("eps", 1e-8))),
        "normalize" => one(x.normalize(s.number("p", 2.0), s.whole("dim").unwrap_or(1) as isize, s.number("eps", 1e-12))),
        // Norms, attention, rope
        "layer_norm" | "rms_norm" => {
            let n = s.size("ndims")?;
            let (from, to) = (rank - n, -1isize);
            let flat = |t: &Tensor| t.reshape(&[t.numel() as isize]);
            let (w, b) = (opt(1).map(flat).transpose()?, opt(2).map(flat).transpose()?);
            let sizes: Vec<isize> = x.dims().iter().map(|&d| d as isize).collect();
            let eps = s.number("eps", f64::NAN);
            let y = x.flatten(from as isize, to)?;
            let y = if case.op == "layer_norm" { y.layer_norm(w.as_ref(), b.as_ref(), eps) } else { y.rms_norm(w.as_ref(), eps) };
            one(y?.reshape(&sizes))
        }
        "group_norm" => one(x.group_norm(s.size("groups")?, opt(1), opt(2), s.number("eps", 1e-5))),
        "instance_norm" => one(x.group_norm(x.dims()[1], opt(1), opt(2), s.number("eps", 1e-5))),
        "sdpa" => attention(inputs, &s),
        "rope" => rope(inputs, &s),
        // Losses
        "mse_loss" => one(x.mse_loss(get(1)?, s.reduction()?)),
        "l1_loss" => one(x.l1_loss(get(1)?, s.reduction()?)),
        "huber_loss" => one(x.huber_loss(get(1)?, s.number("delta", 1.0), s.reduction()?)),
        "smooth_l1_loss" => one(x.smooth_l1_loss(get(1)?, s.number("beta", 1.0), s.reduction()?)),
        "bce" => one(x.binary_cross_entropy(get(1)?, opt(2), s.reduction()?)),
        "bce_with_logits" => one(x.binary_cross_entropy_with_logits(get(1)?, opt(2), opt(3), s.reduction()?)),
        "kl_div" => one(x.kl_div(get(1)?, s.flag("log_target"), s.reduction()?)),
        "nll_loss" | "cross_entropy" => {
            let options = NllOptions {
                weight: opt(2),
                ignore_index: s.whole("ignore_index").unwrap_or(-100),
                reduction: s.reduction()?,
                label_smoothing: s.number("label_smoothing", 0.0),
            };
            one(if case.op == "nll_loss" { x.nll_loss(get(1)?, &options) } else { x.cross_entropy(get(1)?, &options) })
        }
        _ => Err(Fail::Unsupported),
    }
}

/// Python's `x[start:end:step]` along several axes, also backwards.
fn slice(x: &Tensor, attrs: &Value) -> Made<Vec<Tensor>> {
    let mut t = x.clone();
    for (i, d) in attrs["axes"].as_array().unwrap().iter().enumerate() {
        let d = d.as_i64().unwrap() as isize;
        let size = t.dims()[if d < 0 { (d + t.rank() as isize) as usize } else { d as usize }] as i64;
        let step = attrs["steps"][i].as_i64().unwrap_or(1);
        let clip = |v: i64, low: i64, high: i64| if v < 0 { (v + size).max(low) } else { v.min(high) };
        let bound = |name: &str, missing: i64, low: i64, high: i64| attrs[name][i].as_i64().map_or(missing, |v| clip(v, low, high));
        t = if step > 0 {
            let (start, end) = (bound("starts", 0, 0, size), bound("ends", size, 0, size));
            t.slice(d, start as usize, end.max(start) as usize, step as usize)?
        } else {
            // From behind: position p is size − 1 − p of the flipped dimension.
            let (start, end) = (bound("starts", size - 1, -1, size - 1), bound("ends", -1, -1, size - 1));
            let (start, end) = (size - 1 - start, size - 1 - end);
            t.flip(d)?.slice(d, start as usize, end.max(start) as usize, -step as usize)?
        };
    }
    Ok(vec![t])
}

fn attention(inputs: &[Option<Tensor>], s: &Settings) -> Made<Vec<Tensor>> {
    let [Some(q), Some(k), Some(v), rest @ ..] = inputs else { return Err(Fail::Unsupported) };
    let lift = |t: &Tensor| if t.rank() == 3 { t.unsqueeze(0) } else { Ok(t.clone()) };
    let (mut q4, mut k4, mut v4) = (lift(q)?, lift(k)?, lift(v)?);
    if q4.rank() != 4 || rest.len() > 1 {
        return Err(Fail::Unsupported);
    }
    let flat = q.rank() == 3 && k.rank() == 3;
    // PyTorch broadcasts batches; equal batches of heads are grouped by the library itself.
    if q4.dims()[0] != k4.dims()[0] || q.rank() != k.rank() {
        let batch = [q4.dims()[0].max(k4.dims()[0]), q4.dims()[1].max(k4.dims()[1])];
        let wide = |t: &Tensor| t.broadcast_to(&[&batch, &t.dims()[2..]].concat());
        (q4, k4, v4) = (wide(&q4)?, wide(&k4)?, wide(&v4)?);
    }
    let mask = match rest.first().and_then(|m| m.as_ref()) {
        Some(m) if m.dtype() == DType::Bool => Some(m.where_(0.0, f64::NEG_INFINITY)?),
        Some(m) => Some(m.clone()),
        None => None,
    };
    // The suites count causal positions from the start of the keys: query i sees keys up to i.
    let causal = s.flag("is_causal");
    let queries = q4.dims()[2];
    let kv_len = (causal && queries <= k4.dims()[2]).then_some(queries);
    let options = AttentionOptions { scale: s.0["scale"].as_f64(), causal, kv_len, ..Default::default() };
    let y = q4.attention(&k4, &v4, mask.as_ref(), &options)?;
    Ok(vec![if flat { y.squeeze(0)? } else { y }])
}

fn rope(inputs: &[Option<Tensor>], s: &Settings) -> Made<Vec<Tensor>> {
    let [Some(x), Some(cos), Some(sin)] = inputs else { return Err(Fail::Unsupported) };
    if x.rank() != 4 || cos.rank() != 4 {
        return Err(Fail::Unsupported);
    }
    let half = cos.dims()[3];
    let minus = sin.neg()?;
    let (cos, sin, pairs) = if s.flag("interleaved") {
        let sizes = |t: &Tensor| [t.dims()[0] as isize, t.dims()[1] as isize, t.dims()[2] as isize, 2 * half as isize];
        let signed = Tensor::stack(&[&minus, sin], -1)?;
        (cos.repeat_interleave(2, 3)?, signed.reshape(&sizes(sin))?, RopePairs::Adjacent)
    } else {
        (Tensor::cat(&[cos, cos], 3)?, Tensor::cat(&[&minus, sin], 3)?, RopePairs::Halves)
    };
    let rotated = x.narrow(3, 0, 2 * half)?.rope(&cos, &sin, pairs)?;
    let rest = x.dims()[3] - 2 * half;
    Ok(vec![if rest == 0 { rotated } else { Tensor::cat(&[&rotated, &x.narrow(3, 2 * half, rest)?], 3)? }])
}

/// Weights in a block format.
fn packed(case: &Case, device: &Device) -> Made<Vec<Tensor>> {
    let s = Settings(case.attrs);
    let format = block_format(s.text("type"))?;
    let raw = case.inputs[0].as_ref().unwrap();
    let shape = s.sizes(if case.op == "ggml_matmul" { "w_shape" } else { "shape" })?;
    let w = Tensor::from_bytes(Bytes::Owned(std::sync::Arc::new(raw.bytes.to_vec())), format, &shape, device)?;
    Ok(vec![match case.op {
        "ggml_dequantize" => w.cast(DType::F32)?,
        _ => case.inputs[1].as_ref().unwrap().tensor(device)?.matmul(&w.t()?)?,
    }])
}
