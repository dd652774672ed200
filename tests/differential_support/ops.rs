//! The list of operations from which graphs are made.

use super::graph::{Call, Kind, Pick, Value};
use std::sync::LazyLock;

/// Reads a call from numbers.
type Decode = Box<dyn Fn(&mut Pick) -> Option<Call> + Send + Sync>;

/// An operation: how a call of it is read from numbers and the values that there are; `None` where it does not apply.
pub struct Operation {
    pub name: &'static str,
    pub decode: Decode,
}

/// Operations under construction.
pub struct List(pub Vec<Operation>);

impl List {
    pub fn add(&mut self, name: &'static str, decode: impl Fn(&mut Pick) -> Option<Call> + Send + Sync + 'static) {
        self.0.push(Operation { name, decode: Box::new(decode) });
    }
}

pub static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let mut list = List(Vec::new());
    super::elementwise::list(&mut list);
    super::views::list(&mut list);
    super::rows::list(&mut list);
    super::products::list(&mut list);
    super::windows::list(&mut list);
    super::transforms::list(&mut list);
    super::quantized::list(&mut list);
    list.0
});

/// Whether no element comes near one of these points.
pub fn away(v: &Value, points: &[f64]) -> bool {
    v.array.data.iter().all(|x| points.iter().all(|p| (x - p).abs() > v.margin()))
}

/// Whether no element comes near a whole number, or with `by` 2 near a half.
pub fn away_from_wholes(v: &Value, by: f64) -> bool {
    v.array.data.iter().all(|x| (x * by - (x * by).round()).abs() > by * v.margin())
}

/// Whether the elements of no row come near each other.
pub fn distinct_rows(v: &Value, dims: &[usize]) -> bool {
    let margin = 2.0 * v.margin();
    let list: Vec<isize> = dims.iter().map(|&d| d as isize).collect();
    let apart = |row: &[f64]| {
        let mut row = row.to_vec();
        row.sort_by(f64::total_cmp);
        vec![f64::from(row.windows(2).all(|w| w[1] - w[0] > margin))]
    };
    v.array.data.is_empty() || v.array.rows(&list, apart, false).data.iter().all(|&x| x == 1.0)
}

/// A float value, and what brings it into an interval where it is outside.
pub fn bounded(p: &mut Pick, low: f64, high: f64) -> Option<(usize, Option<(f64, f64)>)> {
    let x = p.float()?;
    Some((x, bounds(p.of(x), low, high)))
}

/// What [`bounded`] does to one value: half the interval and its middle, if need be.
pub fn bounds(v: &Value, low: f64, high: f64) -> Option<(f64, f64)> {
    let outside = v.array.data.iter().any(|x| *x - v.margin() < low || *x + v.margin() > high);
    outside.then_some((0.9 * (high - low) / 2.0, (high + low) / 2.0))
}

/// The text of a value brought into an interval.
pub fn bounded_text(k: usize, guard: Option<(f64, f64)>) -> String {
    match guard {
        Some((half, middle)) => format!("{{{k}}}.tanh()?.mul({half:?})?.add({middle:?})?"),
        None => format!("{{{k}}}"),
    }
}

pub fn signed(dims: &[usize]) -> Vec<isize> {
    dims.iter().map(|&d| d as isize).collect()
}

pub fn is_float(v: &Value) -> bool {
    v.kind == Kind::Float
}
