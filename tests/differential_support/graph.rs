//! Graphs as data: leaves and steps of numbers, which mean a valid graph whatever the numbers are, so that any of them can be made smaller.

use super::ops::OPERATIONS;
use crate::conformance_support::{Array, noise};
use std::sync::Arc;
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// Elements of a value at most.
const MAX_ELEMENTS: usize = 400;
/// Dimensions of a value at most.
pub const MAX_RANK: usize = 5;
/// Magnitude of a value at most.
const MAX_MAGNITUDE: f64 = 100.0;
/// The share of a value's magnitude that its error may have, beyond which a step is left out.
const MAX_ERROR: f64 = 0.02;

/// What a value's elements are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Of the graph's floating-point type.
    Float,
    /// i32.
    Int,
    Bool,
    /// u8, which is only moved about.
    Byte,
}

impl Kind {
    /// The type of a value of this kind where floats are `float`.
    fn dtype(self, float: DType) -> DType {
        match self {
            Kind::Float => float,
            Kind::Int => DType::I32,
            Kind::Bool => DType::Bool,
            Kind::Byte => DType::U8,
        }
    }
}

/// A tensor that a graph begins with.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub kind: Kind,
    pub shape: Vec<usize>,
    pub seed: u64,
}

/// An operation: which one, and numbers that say of what and how.
#[derive(Clone, Debug)]
pub struct Step {
    pub op: usize,
    pub choices: Vec<u32>,
}

/// A graph as numbers.
#[derive(Clone, Debug)]
pub struct Graph {
    pub dtype: DType,
    /// `None` where shrinking took it away.
    pub leaves: Vec<Option<Leaf>>,
    pub steps: Vec<Option<Step>>,
}

pub type Run = Arc<dyn Fn(&[Tensor]) -> TensorResult<Tensor> + Send + Sync>;
pub type Reference = Arc<dyn Fn(&[Array]) -> Array + Send + Sync>;

/// One call of an operation.
#[derive(Clone)]
pub struct Call {
    /// As Rust, with `{0}`, `{1}`, … for the inputs.
    pub text: String,
    pub inputs: Vec<usize>,
    pub kind: Kind,
    pub run: Run,
    /// The same in f64 by plain loops; without it the engine's f64 on the CPU stands in.
    pub reference: Option<Reference>,
    /// Whether its gradient is meant to differ from its slope.
    pub cuts: bool,
}

impl Call {
    pub fn new(text: impl Into<String>, inputs: &[usize], run: impl Fn(&[Tensor]) -> TensorResult<Tensor> + Send + Sync + 'static) -> Call {
        Call { text: text.into(), inputs: inputs.to_vec(), kind: Kind::Float, run: Arc::new(run), reference: None, cuts: false }
    }
    pub fn reference(mut self, f: impl Fn(&[Array]) -> Array + Send + Sync + 'static) -> Call {
        self.reference = Some(Arc::new(f));
        self
    }
    pub fn kind(self, kind: Kind) -> Call {
        Call { kind, ..self }
    }
    pub fn cuts(self) -> Call {
        Call { cuts: true, ..self }
    }

    /// The result in f64.
    pub fn exact(&self, inputs: &[Array], kinds: &[Kind]) -> TensorResult<Array> {
        if let Some(f) = &self.reference {
            return Ok(f(inputs));
        }
        let cpu = Device::cpu();
        let tensors = inputs.iter().zip(kinds).map(|(a, k)| tensor(a, *k, DType::F64, &cpu)).collect::<TensorResult<Vec<_>>>()?;
        let out = (self.run)(&tensors)?;
        Ok(Array { shape: out.dims().to_vec(), data: crate::conformance_support::read(&out)? })
    }
}

/// A value of a graph: what it is in f64, and how far from that f32 (or the graph's type) may be.
#[derive(Clone)]
pub struct Value {
    pub array: Array,
    pub kind: Kind,
    pub error: f64,
}

impl Value {
    pub fn rank(&self) -> usize {
        self.array.shape.len()
    }
    pub fn scale(&self) -> f64 {
        self.array.data.iter().fold(0.0, |m, v| m.max(v.abs()))
    }
    /// The distance from a point where a function jumps or bends that no perturbation crosses.
    pub fn margin(&self) -> f64 {
        3e-3 + 40.0 * self.error
    }
}

/// A graph's meaning: calls over numbered values, the leaves first.
pub struct Program {
    pub dtype: DType,
    pub leaves: Vec<Option<Leaf>>,
    pub values: Vec<Option<Value>>,
    /// By the number of the value that each gives.
    pub calls: Vec<(usize, Call)>,
}

/// The choices of a step, taken one after the other, and the values that there are.
pub struct Pick<'a> {
    pub values: &'a [Option<Value>],
    choices: &'a [u32],
    taken: usize,
}

impl Pick<'_> {
    pub fn below(&mut self, n: usize) -> usize {
        self.taken += 1;
        self.choices.get(self.taken - 1).map_or(0, |&c| c as usize) % n.max(1)
    }
    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
    /// A number of a range, a multiple of 1/16.
    pub fn number(&mut self, low: f64, high: f64) -> f64 {
        low + self.below(((high - low) * 16.0) as usize + 1) as f64 / 16.0
    }
    /// A value that `fits`, the younger the likelier.
    pub fn value(&mut self, fits: impl Fn(&Value) -> bool) -> Option<usize> {
        let n = self.values.len();
        let first = if self.below(4) > 0 { n - 1 - self.below(3.min(n)) } else { self.below(n) };
        (0..n).map(|i| (first + n - i) % n).find(|&i| self.values[i].as_ref().is_some_and(&fits))
    }
    pub fn float(&mut self) -> Option<usize> {
        self.value(|v| v.kind == Kind::Float)
    }
    pub fn int(&mut self) -> Option<usize> {
        self.value(|v| v.kind == Kind::Int)
    }
    pub fn of(&self, i: usize) -> &Value {
        self.values[i].as_ref().expect("a value that was picked")
    }
    pub fn shape(&self, i: usize) -> Vec<usize> {
        self.of(i).array.shape.clone()
    }
    /// A float whose shape broadcasts with that of value `x`.
    pub fn partner(&mut self, x: usize) -> Option<usize> {
        let (shape, kind) = (self.shape(x), self.of(x).kind);
        self.value(|v| v.kind == kind && broadcast(&shape, &v.array.shape).is_some())
    }
    /// A dimension of a value that has one.
    pub fn dim(&mut self, x: usize) -> Option<usize> {
        let rank = self.of(x).rank();
        (rank > 0).then(|| self.below(rank))
    }
    /// A dimension as a user may write it: from the front, or from the end.
    pub fn signed(&mut self, d: usize, rank: usize) -> isize {
        if self.flag() { d as isize } else { d as isize - rank as isize }
    }
}

/// The shape of two that broadcast.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], d: usize| if d + s.len() >= rank { s[d + s.len() - rank] } else { 1 };
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (m, n) if m == n || n == 1 => Some(m),
            (1, n) => Some(n),
            _ => None,
        })
        .collect()
}

/// A tensor of these values.
pub fn tensor(a: &Array, kind: Kind, float: DType, device: &Device) -> TensorResult<Tensor> {
    let values = |dtype: DType| -> Vec<u8> {
        let each = a.data.iter();
        match dtype {
            DType::F64 => each.flat_map(|v| v.to_le_bytes()).collect(),
            DType::F32 => each.flat_map(|&v| (v as f32).to_le_bytes()).collect(),
            DType::F16 => each.flat_map(|&v| half::f16::from_f64(v).to_le_bytes()).collect(),
            DType::BF16 => each.flat_map(|&v| half::bf16::from_f64(v).to_le_bytes()).collect(),
            DType::I32 => each.flat_map(|&v| (v as i32).to_le_bytes()).collect(),
            _ => each.map(|&v| v as u8).collect(),
        }
    };
    let dtype = kind.dtype(float);
    Tensor::from_bytes(tensorlogic::backends::Bytes::Owned(Arc::new(values(dtype))), dtype, &a.shape, device)
}

impl Leaf {
    /// Its values: floats are odd multiples of 1/128, which every floating-point type holds, away from whole numbers and halves.
    pub fn array(&self) -> Array {
        let value = |v: f64| match self.kind {
            Kind::Float => (2.0 * (v * 240.0 - 120.0).floor() + 1.0) / 128.0,
            Kind::Int => (v * 13.0).floor() - 6.0,
            Kind::Bool => f64::from(v < 0.5),
            Kind::Byte => (v * 256.0).floor(),
        };
        Array { shape: self.shape.clone(), data: noise(self.shape.iter().product(), self.seed).into_iter().map(value).collect() }
    }
}

/// Operations through which leaves are seen.
const VIEWS: [&str; 9] = ["narrow", "slice", "flip", "permute", "t", "expand", "select", "unsqueeze", "reshape"];

/// Choices that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % sides
    }
    /// Sizes are multiples of nothing; 0 and 1 are among them.
    fn size(&mut self) -> usize {
        match self.roll(64) {
            0 => 0,
            1..=6 => 1,
            7..=50 => 2 + self.roll(6),
            51..=59 => 8 + self.roll(10),
            _ => [33, 37, 65, 130][self.roll(4)],
        }
    }
    /// A leaf with some of the sizes, so that many leaves fit each other.
    fn leaf(&mut self, float: bool, sizes: &[usize]) -> Leaf {
        let rank = [0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5][self.roll(14)];
        let first = self.roll(MAX_RANK - rank + 1);
        let mut shape: Vec<usize> = sizes[first..first + rank].to_vec();
        for s in &mut shape {
            if self.roll(8) == 0 {
                *s = 1;
            }
        }
        while shape.iter().product::<usize>() > MAX_ELEMENTS / 2 {
            let largest = shape.iter().max().copied().expect("a product above 1");
            shape.iter_mut().filter(|s| **s == largest).for_each(|s| *s = 2 + largest / 3);
            if largest <= 3 {
                shape[0] = 1;
            }
        }
        let kind = if float {
            Kind::Float
        } else {
            [Kind::Float, Kind::Float, Kind::Float, Kind::Float, Kind::Int, Kind::Bool, Kind::Byte][self.roll(7)]
        };
        Leaf { kind, shape, seed: self.roll(1 << 20) as u64 }
    }
}

/// What one operation may add to the error, as a share of the magnitude: the rounding of the type, and of a GPU's functions.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 6e-6,
    }
}

impl Graph {
    /// The values of the leaves.
    fn leaf_values(&self) -> Vec<Option<Value>> {
        self.leaves.iter().map(|l| l.as_ref().map(|l| Value { array: l.array(), kind: l.kind, error: 0.0 })).collect()
    }

    /// What a step comes to after these values. One that does not apply, or whose result would be too large or too inexact to compare, does not.
    fn extended(&self, step: &Step, values: &[Option<Value>]) -> TensorResult<Option<(Call, Value)>> {
        let mut pick = Pick { values, choices: &step.choices, taken: 0 };
        let Some(call) = (OPERATIONS[step.op].decode)(&mut pick) else { return Ok(None) };
        Ok(self.value(&call, values)?.map(|v| (call, v)))
    }

    /// The graph's meaning.
    pub fn program(&self) -> TensorResult<Program> {
        let mut values = self.leaf_values();
        let mut calls = Vec::new();
        for step in &self.steps {
            match step.as_ref().map(|s| self.extended(s, &values)).transpose()?.flatten() {
                Some((call, value)) => {
                    calls.push((values.len(), call));
                    values.push(Some(value));
                }
                None => values.push(None),
            }
        }
        Ok(Program { dtype: self.dtype, leaves: self.leaves.clone(), values, calls })
    }

    /// A graph that looks random and is the same for every run of a seed: two to six operations over some leaves and views of them.
    pub fn random(seed: u64) -> TensorResult<Graph> {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66);
        let dtype = [DType::F32, DType::F32, DType::F32, DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16][dice.roll(8)];
        let sizes: Vec<usize> = (0..MAX_RANK).map(|_| dice.size()).collect();
        let count = 2 + dice.roll(3);
        let mut leaves: Vec<Option<Leaf>> = (0..count).map(|i| Some(dice.leaf(i == 0, &sizes))).collect();
        leaves.push(Some(Leaf { kind: [Kind::Bool, Kind::Int, Kind::Byte, Kind::Float][dice.roll(4)], ..dice.leaf(true, &sizes) }));
        let mut graph = Graph { dtype, leaves, steps: Vec::new() };
        let mut values = graph.leaf_values();
        let views: Vec<usize> = (0..OPERATIONS.len()).filter(|&i| VIEWS.contains(&OPERATIONS[i].name)).collect();
        let (first, all) = (dice.roll(3), 2 + dice.roll(5));
        for n in 0..first + all {
            for _ in 0..20 {
                let op = if n < first { views[dice.roll(views.len())] } else { dice.roll(OPERATIONS.len()) };
                let step = Step { op, choices: (0..24).map(|_| dice.roll(1 << 20) as u32).collect() };
                if let Some((_, value)) = graph.extended(&step, &values)? {
                    graph.steps.push(Some(step));
                    values.push(Some(value));
                    break;
                }
            }
        }
        Ok(graph)
    }

    /// What a call gives, with its error: that of its inputs as the call amplifies it, and its own.
    fn value(&self, call: &Call, values: &[Option<Value>]) -> TensorResult<Option<Value>> {
        let of = |&i: &usize| values[i].as_ref().expect("an input is there");
        let inputs: Vec<&Value> = call.inputs.iter().map(of).collect();
        let kinds: Vec<Kind> = inputs.iter().map(|v| v.kind).collect();
        let arrays: Vec<Array> = inputs.iter().map(|v| v.array.clone()).collect();
        let array = call.exact(&arrays, &kinds)?;
        let scale = array.data.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let fits = array.data.len() <= MAX_ELEMENTS && array.shape.len() <= MAX_RANK && array.data.iter().all(|v| v.is_finite());
        if !fits || scale > MAX_MAGNITUDE && call.kind == Kind::Float {
            return Ok(None);
        }
        let mut error = 0.0f64;
        if inputs.iter().any(|v| v.error > 0.0) {
            for sample in 0..3u64 {
                let moved: Vec<Array> = inputs.iter().map(|v| shaken(v, sample)).collect();
                let other = call.exact(&moved, &kinds)?;
                error = array.data.iter().zip(&other.data).fold(error, |m, (a, b)| m.max((a - b).abs()));
            }
        }
        if call.kind != Kind::Float {
            // What is discrete is exact, or cannot be compared.
            return Ok((error == 0.0).then_some(Value { array, kind: call.kind, error: 0.0 }));
        }
        let inside = inputs.iter().filter(|v| v.kind == Kind::Float).fold(scale, |m, v| m.max(v.scale()));
        error += unit(self.dtype) * inside;
        Ok((error.is_finite() && error <= MAX_ERROR.max(4.0 * unit(self.dtype)) * scale.max(0.1)).then_some(Value {
            array,
            kind: call.kind,
            error,
        }))
    }
}

/// A value moved by its error, one way or both ways.
fn shaken(v: &Value, sample: u64) -> Array {
    let signs = noise(v.array.data.len(), 991 + sample);
    let mut out = v.array.clone();
    for (x, s) in out.data.iter_mut().zip(signs) {
        *x += v.error * if sample == 0 || s < 0.5 { 1.0 } else { -1.0 };
    }
    out
}

impl Program {
    /// Values that no call reads: what a run is asked for.
    pub fn roots(&self) -> Vec<usize> {
        let read: Vec<usize> = self.calls.iter().flat_map(|(_, c)| c.inputs.iter().copied()).collect();
        let made: Vec<usize> = self.calls.iter().map(|c| c.0).collect();
        made.into_iter().filter(|i| !read.contains(i)).collect()
    }

    /// The leaves of floats that a call reads.
    pub fn float_leaves(&self) -> Vec<usize> {
        let read = |i: &usize| self.calls.iter().any(|(_, c)| c.inputs.contains(i));
        let float = |i: &usize| self.leaves[*i].as_ref().is_some_and(|l| l.kind == Kind::Float);
        (0..self.leaves.len()).filter(float).filter(read).collect()
    }

    /// Every value in f64, from these leaves.
    pub fn exact(&self, leaves: &[Option<Array>]) -> TensorResult<Vec<Option<Array>>> {
        let mut all: Vec<Option<Array>> = leaves.to_vec();
        all.resize(self.values.len(), None);
        for (i, call) in &self.calls {
            let inputs: Vec<Array> = call.inputs.iter().map(|&k| all[k].clone().expect("made before")).collect();
            let kinds: Vec<Kind> = call.inputs.iter().map(|&k| self.values[k].as_ref().expect("made before").kind).collect();
            all[*i] = Some(call.exact(&inputs, &kinds)?);
        }
        Ok(all)
    }

    /// As a short program in Rust.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (i, l) in self.leaves.iter().enumerate() {
            let Some(l) = l else { continue };
            if !self.calls.iter().any(|(_, c)| c.inputs.contains(&i)) {
                continue;
            }
            let a = l.array();
            let more = if a.data.len() > 24 { ", …" } else { "" };
            let values = a.data.iter().take(24).map(|v| v.to_string()).collect::<Vec<_>>().join(", ");
            out += &format!(
                "let v{i} = Tensor::from_vec(vec![{values}{more}], &{:?}, &device)?; // {:?}\n",
                l.shape,
                l.kind.dtype(self.dtype)
            );
        }
        for (i, c) in &self.calls {
            let mut text = c.text.clone();
            for (k, input) in c.inputs.iter().enumerate() {
                text = text.replace(&format!("{{{k}}}"), &format!("v{input}"));
            }
            let shape = &self.values[*i].as_ref().expect("a call gives a value").array.shape;
            out += &format!("let v{i} = {text}?; // {shape:?}\n");
        }
        out + &format!("// compared: {}\n", self.roots().iter().map(|i| format!("v{i}")).collect::<Vec<_>>().join(", "))
    }
}
