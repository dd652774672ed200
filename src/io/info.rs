//! The tensors of a model file, and finding one by name.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use smallvec::SmallVec;
use std::ops::Range;

/// One tensor of a file: name, type, sizes and byte range.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The tensor's name in the file.
    pub name: Box<str>,
    /// Sizes, outermost first (row-major).
    pub shape: SmallVec<[usize; 4]>,
    /// Its byte range in the file. It may start at any address: cast only after checking the alignment.
    pub range: Range<usize>,
    pub(crate) stored: &'static StoredType,
    /// The index of its file in a sharded model.
    pub(crate) file: u32,
}

impl TensorInfo {
    /// The element type; an error that names the file's type if this version does not support it.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] where no dtype of this version corresponds to the type in the file.
    ///
    /// ```
    /// use tensorlogic::io::SafeTensors;
    /// let header = br#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    /// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0, 0]].concat();
    /// let file = SafeTensors::from_bytes(file)?;
    /// assert_eq!(file.tensors()[0].type_name(), "F8_E4M3");
    /// assert!(file.tensors()[0].dtype().unwrap_err().to_string().contains("tensor `a` is stored as F8_E4M3"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn dtype(&self) -> TensorResult<DType> {
        self.stored
            .dtype
            .ok_or_else(|| TensorError::Unsupported(format!("tensor `{}` is stored as {}", clip(&self.name), self.stored.name)))
    }
    /// The file format's name of the type, even if [`TensorInfo::dtype`] fails.
    pub fn type_name(&self) -> &'static str {
        self.stored.name
    }
    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A type that a file format knows: `bytes` bytes hold `block` elements.
#[derive(Debug)]
pub(crate) struct StoredType {
    pub name: &'static str,
    pub dtype: Option<DType>,
    pub block: usize,
    pub bytes: usize,
}

impl StoredType {
    /// The elements and bytes of a contiguous tensor; `None` where they overflow, are split inside a block, or could not exist in memory.
    pub fn layout(&self, shape: &[usize]) -> Option<(usize, usize)> {
        // Zero sizes must not hide an overflow of the others.
        shape.iter().filter(|&&d| d > 0).try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= isize::MAX as usize)?;
        let count: usize = shape.iter().product();
        if !count.is_multiple_of(self.block) {
            return None;
        }
        let bytes = (count / self.block).checked_mul(self.bytes).filter(|&n| n <= isize::MAX as usize)?;
        Some((count, bytes))
    }
}

/// Tensors in file order, found by name.
#[derive(Debug)]
pub(crate) struct TensorTable {
    pub tensors: Vec<TensorInfo>,
    by_name: Vec<u32>,
}

impl TensorTable {
    /// Refuses two tensors of one name.
    pub fn new(format: &'static str, tensors: Vec<TensorInfo>) -> TensorResult<TensorTable> {
        let by_name = sorted_unique(tensors.len(), |i| tensors[i].name.as_bytes())
            .map_err(|i| TensorError::format(format, format!("two tensors are named `{}`", clip(&tensors[i].name))))?;
        Ok(TensorTable { tensors, by_name })
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.by_name.binary_search_by(|&i| (*self.tensors[i as usize].name).cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }

    /// The tensor of this name and of a dtype that is supported, or an error with the nearest name.
    pub fn find(&self, format: &'static str, name: &str) -> TensorResult<&TensorInfo> {
        let Some(info) = self.get(name) else {
            let hint = did_you_mean(name, self.tensors.iter().map(|t| &*t.name));
            return Err(TensorError::format(format, format!("no tensor `{}`{hint}", clip(name))));
        };
        info.dtype().map(|_| info)
    }
}

/// The numbers below `count` in the order of their names; one whose name another has too, where there is one.
pub(crate) fn sorted_unique<'a>(count: usize, name: impl Fn(usize) -> &'a [u8]) -> Result<Vec<u32>, usize> {
    let mut order: Vec<u32> = (0..count.min(u32::MAX as usize) as u32).collect();
    order.sort_unstable_by_key(|&i| name(i as usize));
    match order.windows(2).find(|w| name(w[0] as usize) == name(w[1] as usize)) {
        Some(w) => Err(w[0] as usize),
        None => Ok(order),
    }
}

/// A name from a file, short enough for a message.
pub(crate) fn clip(text: &str) -> String {
    let mut out: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        out.push('…');
    }
    out
}

/// `; did you mean …?` with the candidate nearest to `name`, or nothing where none is near.
pub(crate) fn did_you_mean<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    // Bounded, so that a hostile file cannot make an error message slow.
    if name.len() > 128 {
        return String::new();
    }
    let nearest = candidates.take(4096).filter(|c| c.len() <= 128).map(|c| (edits(name, c), c)).min_by_key(|&(d, _)| d);
    match nearest {
        Some((d, c)) if d <= name.len() / 3 + 1 => format!("; did you mean `{c}`?"),
        _ => String::new(),
    }
}

/// The Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
