//! Models in several GGUF files: `NAME-00001-of-00003.gguf` has the metadata, every file some of the tensors.

use super::{Gguf, Value, bad};
use crate::error::TensorResult;
use crate::io::info::TensorTable;
use std::path::{Path, PathBuf};

/// The most files of a model.
const MAX_FILES: u64 = 4096;

/// The file of number `n`, from 1, of a model's `count`; `None` where the name does not say that it is one of them.
fn sibling(path: &Path, n: u64, count: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (prefix, number) = name.split_at_checked(name.len().checked_sub(6)?)?;
    let digits = number.strip_prefix('-')?;
    (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| path.with_file_name(format!("{prefix}-{n:05}-of-{count:05}.gguf")))
}

/// The whole model that the file at `path` is a part of; the file itself where it is all of it.
///
/// # Errors
/// [`TensorError::Format`](crate::error::TensorError) where the name is not one of a part, a part belongs to another model, tensors are missing, or
/// two have one name; those of opening the parts.
pub(super) fn joined(file: Gguf, path: &Path) -> TensorResult<Gguf> {
    let count = file.opt("split.count", Value::u64)?.unwrap_or(0);
    if count < 2 {
        return Ok(file);
    }
    let part = |n: u64| {
        let path = sibling(path, n, count).ok_or_else(|| {
            bad(format!(
                "`split.count` is {count}: one of that many files of a model; expected a name that ends with `-00001-of-{count:05}.gguf`"
            ))
            .in_file(path)
        })?;
        let part = Gguf::single(&path)?;
        let (no, of) = (part.opt("split.no", Value::u64)?, part.opt("split.count", Value::u64)?);
        match no == Some(n - 1) && of == Some(count) {
            true => Ok(part),
            false => Err(bad(format!("`split.no` and `split.count` are {no:?} and {of:?}; expected {} and {count}", n - 1)).in_file(&path)),
        }
    };
    if count > MAX_FILES {
        return Err(bad(format!("`split.count` is {count}; at most {MAX_FILES} are allowed")).in_file(path));
    }
    let mut first = part(1)?;
    let mut tensors = std::mem::take(&mut first.table.tensors);
    for n in 2..=count {
        let Gguf { data, table, .. } = part(n)?;
        tensors.extend(table.tensors.into_iter().map(|mut t| {
            t.file = n as u32 - 1;
            t
        }));
        first.more.push(data);
    }
    if let Some(want) = first.opt("split.tensors.count", Value::u64)?.filter(|&want| want != tensors.len() as u64) {
        return Err(bad(format!("the files have {} tensors; `split.tensors.count` is {want}", tensors.len())).in_file(path));
    }
    first.table = TensorTable::new("gguf", tensors)?;
    Ok(first)
}
