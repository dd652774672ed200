//! Einstein's sums: products of tensors whose dimensions have names.

use crate::error::{At, TensorError, TensorResult};
use crate::tensor::{Mode, Tensor};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::panic::Location;

/// A dimension's name: a letter, or one of those that dots stand for, counted from the last.
type Label = i32;

/// An operand whose dimensions have different names.
struct Named {
    labels: Vec<Label>,
    tensor: Tensor,
}

impl Named {
    fn size(&self, label: Label) -> usize {
        self.labels.iter().position(|&l| l == label).map_or(1, |d| self.tensor.shape()[d])
    }

    /// Without the dimensions that are not `needed`, which are summed.
    fn summed(self, needed: impl Fn(Label) -> bool) -> TensorResult<Named> {
        let gone: Vec<isize> = (0..self.labels.len()).filter(|&d| !needed(self.labels[d])).map(|d| d as isize).collect();
        if gone.is_empty() {
            return Ok(self);
        }
        let tensor = self.tensor.sum(&gone, false)?;
        Ok(Named { labels: self.labels.into_iter().filter(|&l| needed(l)).collect(), tensor })
    }

    /// With its dimensions in this order, where missing ones and those of size 1 are repeated to `sizes`.
    fn ordered(&self, order: &[Label], sizes: &BTreeMap<Label, usize>) -> TensorResult<Tensor> {
        let at: Vec<usize> = order.iter().filter_map(|l| self.labels.iter().position(|m| m == l)).collect();
        let mut t = self.tensor.permute(&at)?;
        for (i, l) in order.iter().enumerate() {
            if !self.labels.contains(l) {
                t = t.unsqueeze(i)?;
            }
        }
        t.broadcast_to(&order.iter().map(|l| sizes[l]).collect::<Vec<_>>())
    }
}

/// The sum of products of two operands, over the names that are not `needed`.
fn product(a: Named, b: Named, needed: impl Fn(Label) -> bool, sizes: &BTreeMap<Label, usize>) -> TensorResult<Named> {
    let (left, right) = (a.labels.clone(), b.labels.clone());
    // What only one of them has, and nobody needs, goes first.
    let a = a.summed(|l| needed(l) || right.contains(&l))?;
    let b = b.summed(|l| needed(l) || left.contains(&l))?;
    let both: Vec<Label> = a.labels.iter().copied().filter(|l| b.labels.contains(l)).collect();
    let (batch, inner): (Vec<Label>, Vec<Label>) = both.iter().copied().partition(|&l| needed(l));
    let rows: Vec<Label> = a.labels.iter().copied().filter(|l| !both.contains(l)).collect();
    let cols: Vec<Label> = b.labels.iter().copied().filter(|l| !both.contains(l)).collect();
    let own: BTreeMap<Label, usize> = sizes.keys().map(|&l| (l, if a.size(l) == 1 { b.size(l) } else { a.size(l) })).collect();
    let count = |labels: &[Label]| labels.iter().map(|l| own[l]).product::<usize>();
    let mut labels = [batch.clone(), rows.clone(), cols.clone()].concat();
    let dims: Vec<usize> = labels.iter().map(|l| own[l]).collect();
    let left = a.ordered(&[batch.clone(), rows.clone(), inner.clone()].concat(), &own)?;
    let right = b.ordered(&[batch.clone(), inner.clone(), cols.clone()].concat(), &own)?;
    let left = left.reshape(&[count(&batch), count(&rows), count(&inner)])?;
    let right = right.reshape(&[count(&batch), count(&inner), count(&cols)])?;
    let tensor = if inner.is_empty() || !left.dtype().is_float() {
        left.unsqueeze(-1)?.mul(&right.unsqueeze(1)?)?.sum(&[2], false)?
    } else {
        left.matmul(&right)?
    };
    Ok(Named { tensor: tensor.reshape(&dims)?, labels: std::mem::take(&mut labels) })
}

/// The names of one operand or of the result; dots stand for `dots` names.
fn names(text: &str, dots: usize) -> Option<Vec<Label>> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            labels.extend((0..dots as Label).map(|i| i - dots as Label));
            rest = after;
        } else if c.is_ascii_alphabetic() {
            labels.push(c as Label);
            rest = &rest[1..];
        } else {
            return None;
        }
    }
    Some(labels)
}

impl Tensor {
    /// Einstein's sum, as PyTorch's: `einsum("bij,bjk->bik", &[&a, &b])` multiplies matrices. Each operand's dimensions have letters; those that
    /// the result lacks are summed. Without `->` the result has the letters that occur once, in alphabetical order. Dots (`...`) stand for
    /// dimensions that broadcast. Operands are joined from left to right.
    /// The result has the sizes of its letters: `[B,I,J]` and `[B,J,K]` → `[B,I,K]` in the example above.
    ///
    /// # Errors
    /// When the text is not such an equation, or sizes of one letter differ.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;
    /// assert_eq!(Tensor::einsum("ij,kj->ik", &[&a, &a])?.to_vec()?, [5.0, 11.0, 11.0, 25.0]);
    /// assert_eq!(Tensor::einsum("ii", &[&a])?.item()?, 5.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn einsum<T: Borrow<Tensor>>(equation: &str, operands: &[T]) -> TensorResult<Tensor> {
        let at = Location::caller();
        Mode { at: Some(at), ..Mode::current() }.run(|| einsum(equation, operands, at))
    }
}

fn einsum<T: Borrow<Tensor>>(equation: &str, operands: &[T], at: At) -> TensorResult<Tensor> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let wrong = |m: String| TensorError::shape("einsum", at, format!("\"{equation}\": {m}"));
    let (left, right) = match text.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (&text[..], None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != operands.len() {
        return Err(wrong(format!("{} operands for {} tensors", parts.len(), operands.len())));
    }
    // How many dimensions the dots of each operand stand for.
    let letters = |t: &str| t.chars().filter(char::is_ascii_alphabetic).count();
    let mut widest = 0;
    let mut named = Vec::new();
    for (part, t) in parts.iter().zip(operands) {
        let t: &Tensor = t.borrow();
        let dots = t.rank().saturating_sub(letters(part));
        let labels = names(part, dots).ok_or_else(|| wrong(format!("\"{part}\" is not letters and dots")))?;
        if labels.len() != t.rank() || part.matches("...").count() > 1 {
            return Err(wrong(format!("\"{part}\" does not fit {}", t.shape())));
        }
        widest = widest.max(if part.contains("...") { dots } else { 0 });
        named.push(Named { labels, tensor: t.clone() });
    }
    let result = match right {
        Some(r) => names(r, widest).ok_or_else(|| wrong(format!("\"{r}\" is not letters and dots")))?,
        None => {
            let all = || named.iter().flat_map(|n| &n.labels);
            let mut once: Vec<Label> = all().copied().filter(|l| *l < 0 || all().filter(|m| *m == l).count() == 1).collect();
            once.sort_unstable();
            once.dedup();
            once
        }
    };
    let mut sizes = BTreeMap::new();
    for n in &named {
        for (d, &l) in n.labels.iter().enumerate() {
            let (size, own) = (sizes.entry(l).or_insert(1), n.tensor.shape()[d]);
            if *size != 1 && own != 1 && *size != own {
                return Err(wrong(format!("sizes {size} and {own} of one dimension")));
            }
            if own != 1 {
                *size = own;
            }
        }
    }
    if result.iter().enumerate().any(|(i, l)| !sizes.contains_key(l) || result[..i].contains(l)) {
        return Err(wrong("the result names a dimension twice, or one that no operand has".into()));
    }
    let mut rest = named.into_iter().map(diagonals).collect::<TensorResult<Vec<_>>>()?.into_iter();
    let Some(mut all) = rest.next() else { return Err(wrong("no tensors".into())) };
    while let Some(next) = rest.next() {
        let later: Vec<Label> = rest.as_slice().iter().flat_map(|n| n.labels.iter().copied()).chain(result.iter().copied()).collect();
        all = product(all, next, |l| later.contains(&l), &sizes)?;
    }
    all.summed(|l| result.contains(&l))?.ordered(&result, &sizes)
}

/// With one dimension for each name: the diagonal of those that share one.
fn diagonals(mut n: Named) -> TensorResult<Named> {
    while let Some((i, j)) = (0..n.labels.len()).find_map(|i| (i + 1..n.labels.len()).find(|&j| n.labels[j] == n.labels[i]).map(|j| (i, j)))
    {
        let (t, rank) = (&n.tensor, n.tensor.rank());
        // Both to the end; then every (n + 1)-th of their n² elements. One of size 1 is repeated.
        let size = if t.shape()[i] == 1 { t.shape()[j] } else { t.shape()[i] };
        let mut order: Vec<usize> = (0..rank).filter(|&d| d != i && d != j).collect();
        order.extend([i, j]);
        let t = t.permute(&order)?;
        let mut sizes = t.dims().to_vec();
        (sizes[rank - 2], sizes[rank - 1]) = (size, size);
        let mut flat: Vec<usize> = sizes[..rank - 2].to_vec();
        flat.push(size * size);
        n.tensor = t.broadcast_to(&sizes)?.reshape(&flat)?.slice(-1, 0, size * size, size + 1)?;
        let label = n.labels[i];
        n.labels = order[..rank - 2].iter().map(|&d| n.labels[d]).chain([label]).collect();
    }
    Ok(n)
}
