//! GGUF: the file format of llama.cpp. A reader of versions 2 and 3 over mapped bytes, and a writer of version 3.
//!
//! Layout, all little-endian:
//! ```text
//! "GGUF"  version u32  tensor count u64  key count u64
//! key count    × { key string, value type u32, value }                 string = length u64, bytes
//! tensor count × { name string, dims u32, dims × u64 innermost first, type u32, offset u64 }
//! zeros up to a multiple of general.alignment (32 where not given), then the tensors' bytes at their offsets
//! ```

mod split;
mod types;
mod value;
mod writer;

pub use value::{Array, Value, ValueType};
pub use writer::{GgufWriter, ToValue};

use crate::error::{TensorError, TensorResult};
use crate::io::info::{TensorInfo, TensorTable, clip, did_you_mean, sorted_unique};
use crate::io::mapped::MappedFile;
use smallvec::SmallVec;
use std::path::Path;
use std::sync::Arc;

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// The key that sets the alignment of tensor data.
const ALIGNMENT: &str = "general.alignment";
/// The longest key that the format allows.
const MAX_KEY: usize = 65535;
/// The most dimensions of a tensor in GGML.
const MAX_DIMS: u32 = 4;
/// The shortest possible entries; they bound what a count may promise.
const MIN_KEY_VALUE: u64 = 8 + 1 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 1 + 4 + 4 + 8;

pub(super) fn bad(message: impl Into<String>) -> TensorError {
    TensorError::format("gguf", message)
}

/// A GGUF file: metadata by key, tensors by name, bytes without copying.
///
/// ```
/// use tensorlogic::io::{Gguf, gguf::Value};
/// let file = Gguf::open("models/tiny/tiny.gguf")?;
/// assert_eq!(file.u64("gpt2.block_count")?, 6);
/// let theta = file.opt("gpt2.rope.freq_base", Value::f64)?; // a key that need not be there
/// assert_eq!(theta.unwrap_or(10000.0), 10000.0);
/// let info = file.tensor("token_embd.weight")?;
/// let (dtype, bytes) = (info.dtype()?, file.bytes_of(info));
/// # assert_eq!(bytes.len(), info.shape.iter().product::<usize>() / dtype.block() * dtype.block_bytes());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
#[derive(Debug)]
pub struct Gguf {
    data: Arc<MappedFile>,
    /// The other files of a model in several.
    more: Vec<Arc<MappedFile>>,
    version: u32,
    entries: Vec<TensorEntry>,
    by_key: Vec<u32>,
    table: TensorTable,
}

/// Where a key and its value lie in the file.
#[derive(Debug)]
struct TensorEntry {
    key: usize,
    key_len: u32,
    kind: ValueType,
    value: usize,
    value_len: usize,
}

impl Gguf {
    /// Maps and reads a file's header, and those of the model's other files where it is one of several (`NAME-00001-of-00003.gguf`); tensors are
    /// read when their bytes are.
    ///
    /// # Errors
    /// Those of [`MappedFile::open`] and [`Gguf::from_bytes`]; [`TensorError::Format`] where the files of a model do not belong together.
    ///
    /// ```
    /// use tensorlogic::io::Gguf;
    /// let file = Gguf::open("models/tiny/tiny.gguf")?;
    /// assert_eq!((file.version(), file.files(), file.tensors().len()), (3, 1, 76));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> TensorResult<Gguf> {
        split::joined(Gguf::single(path.as_ref())?, path.as_ref())
    }

    /// Reads one file.
    fn single(path: &Path) -> TensorResult<Gguf> {
        Gguf::from_data(MappedFile::open(path)?).map_err(|e| e.in_file(path))
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the header is truncated or not valid, has two keys or tensors of one name, an invalid alignment, or
    /// tensors that overlap or lie outside the file; [`TensorError::Unsupported`] for a big-endian file or a version other than 2 and 3.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let bytes = GgufWriter::new().to_bytes()?; // a file without keys and tensors
    /// assert!(Gguf::from_bytes(bytes[..10].to_vec()).is_err()); // it ends inside the header
    /// let file = Gguf::from_bytes(bytes)?;
    /// assert_eq!((file.version(), file.metadata().len(), file.tensors().len()), (3, 0, 0));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_bytes(bytes: Vec<u8>) -> TensorResult<Gguf> {
        Gguf::from_data(bytes.into())
    }

    fn from_data(data: MappedFile) -> TensorResult<Gguf> {
        let mut at = Cursor { bytes: &data, at: 0 };
        if at.take(4, "the magic number")? != MAGIC {
            return Err(bad("does not start with `GGUF`"));
        }
        let version = at.u32("the version")?;
        match version {
            2 | 3 => {}
            v if v.swap_bytes() <= 3 => return Err(TensorError::Unsupported("a big-endian GGUF file".into())),
            v => return Err(TensorError::Unsupported(format!("GGUF version {v} (supported: 2 and 3)"))),
        }
        let tensor_count = at.count("tensors", MIN_TENSOR)?;
        let key_count = at.count("metadata keys", MIN_KEY_VALUE)?;

        let mut entries = Vec::with_capacity(key_count);
        for _ in 0..key_count {
            entries.push(at.entry()?);
        }
        let key_of = |i: usize| key_bytes(&data, &entries[i]);
        let by_key = sorted_unique(entries.len(), key_of)
            .map_err(|i| bad(format!("two metadata keys are `{}`", clip(entry_key(&data, &entries[i])))))?;

        // The alignment is needed to place tensors, so it is looked up before `Gguf` exists.
        let alignment = match by_key.binary_search_by(|&i| key_of(i as usize).cmp(ALIGNMENT.as_bytes())) {
            Ok(at) => alignment(entry_value(&data, &entries[by_key[at] as usize]))?,
            Err(_) => DEFAULT_ALIGNMENT,
        };

        // Asked again now that less is left, so that reserving for both counts stays within a multiple of the file's size.
        at.checked_count(tensor_count as u64, "tensors", MIN_TENSOR)?;
        let mut tensors = Vec::with_capacity(tensor_count);
        for _ in 0..tensor_count {
            tensors.push(at.tensor(alignment)?);
        }
        let start = at.at.checked_next_multiple_of(alignment).ok_or_else(|| bad("the alignment is larger than memory"))?;
        place(&mut tensors, start, data.len())?;
        let table = TensorTable::new("gguf", tensors)?;
        Ok(Gguf { more: Vec::new(), version, entries, by_key, table, data: Arc::new(data) })
    }

    /// The file's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The file of a tensor, to be shared with buffers that point into it at the tensor's range.
    pub fn data_of(&self, info: &TensorInfo) -> Option<&Arc<MappedFile>> {
        if info.file == 0 { Some(&self.data) } else { self.more.get(info.file as usize - 1) }
    }

    /// How many files the model has.
    pub fn files(&self) -> usize {
        1 + self.more.len()
    }

    /// The bytes of the file that has the metadata, to be shared with buffers that point into them.
    pub fn data(&self) -> &Arc<MappedFile> {
        &self.data
    }

    /// Every key with its value, in file order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|e| (entry_key(&self.data, e), entry_value(&self.data, e)))
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let at = self.by_key.binary_search_by(|&i| key_bytes(&self.data, &self.entries[i as usize]).cmp(key.as_bytes())).ok()?;
        Some(entry_value(&self.data, &self.entries[self.by_key[at] as usize]))
    }

    /// The value of `key` read by one of [`Value`]'s methods, as in `opt("llama.rope.freq_base", Value::f64)`; an error where it has
    /// another type.
    ///
    /// # Errors
    /// Those of `read`; a `TensorError::Format` then names the key.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, gguf::Value};
    /// let file = Gguf::open("models/tiny/tiny.gguf")?;
    /// assert_eq!(file.opt("gpt2.block_count", Value::u64)?, Some(6));
    /// assert_eq!(file.opt("gpt2.rope.freq_base", Value::f64)?, None);
    /// assert!(file.opt("general.architecture", Value::u64).is_err()); // it is a string
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn opt<'a, T>(&'a self, key: &str, read: impl FnOnce(Value<'a>) -> TensorResult<T>) -> TensorResult<Option<T>> {
        let in_key = |e| match e {
            TensorError::Format { format, message, path } => {
                TensorError::Format { format, message: format!("`{}` {message}", clip(key)), path }
            }
            e => e,
        };
        self.get(key).map(|v| read(v).map_err(in_key)).transpose()
    }

    /// Like [`Gguf::opt`], but a missing key is an error.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing; those of `read`.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, gguf::Value};
    /// let file = Gguf::open("models/tiny/tiny.gguf")?;
    /// assert_eq!(file.need("gpt2.block_count", Value::i64)?, 6);
    /// let error = file.need("gpt2.block_cuont", Value::i64).unwrap_err();
    /// assert!(error.to_string().ends_with("did you mean `gpt2.block_count`?"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn need<'a, T>(&'a self, key: &str, read: impl FnOnce(Value<'a>) -> TensorResult<T>) -> TensorResult<T> {
        self.opt(key, read)?.ok_or_else(|| {
            let hint = did_you_mean(key, self.metadata().map(|(k, _)| k));
            bad(format!("no metadata key `{}`{hint}", clip(key)))
        })
    }

    /// A string.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not a string.
    ///
    /// ```
    /// let file = tensorlogic::io::Gguf::open("models/tiny/tiny.gguf")?;
    /// assert_eq!(file.str("general.architecture")?, "gpt2");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn str(&self, key: &str) -> TensorResult<&str> {
        self.need(key, Value::str)
    }
    /// A non-negative integer of any width.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not a non-negative integer.
    ///
    /// ```
    /// let file = tensorlogic::io::Gguf::open("models/tiny/tiny.gguf")?;
    /// assert_eq!(file.u64("gpt2.embedding_length")?, 384);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn u64(&self, key: &str) -> TensorResult<u64> {
        self.need(key, Value::u64)
    }
    /// A number.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not a number.
    ///
    /// ```
    /// let file = tensorlogic::io::Gguf::open("models/tiny/tiny.gguf")?;
    /// assert_eq!(file.f64("gpt2.attention.layer_norm_epsilon")?, f64::from(1e-5f32)); // it is stored as f32
    /// assert_eq!(file.f64("gpt2.embedding_length")?, 384.0);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn f64(&self, key: &str) -> TensorResult<f64> {
        self.need(key, Value::f64)
    }
    /// A truth value.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not a bool.
    ///
    /// ```
    /// let file = tensorlogic::io::Gguf::open("models/tiny/tiny.gguf")?;
    /// assert!(!file.bool("tokenizer.ggml.add_bos_token")?); // texts begin without a special token
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn bool(&self, key: &str) -> TensorResult<bool> {
        self.need(key, Value::bool)
    }
    /// An array of strings, each pointing into the file.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not an array of strings.
    ///
    /// ```
    /// let file = tensorlogic::io::Gguf::open("models/tiny/tiny.gguf")?;
    /// let tokens = file.strs("tokenizer.ggml.tokens")?;
    /// assert_eq!((tokens.len(), tokens[2]), (65, "!"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn strs(&self, key: &str) -> TensorResult<Vec<&str>> {
        self.need(key, Value::strs)
    }
    /// An array of integers that fit `i32`.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not an array of integers that fit `i32`.
    ///
    /// ```
    /// let file = tensorlogic::io::Gguf::open("models/tiny/tiny.gguf")?;
    /// let types = file.i32s("tokenizer.ggml.token_type")?;
    /// assert_eq!((types.len(), types[0]), (65, 1)); // 1 is a normal token
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn i32s(&self, key: &str) -> TensorResult<Vec<i32>> {
        self.need(key, Value::i32s)
    }
    /// An array of floats.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the key is missing, or its value is not an array of floats.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("rope.scaling.factors", vec![1.0f32, 0.5]);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.f32s("rope.scaling.factors")?, [1.0, 0.5]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn f32s(&self, key: &str) -> TensorResult<Vec<f32>> {
        self.need(key, Value::f32s)
    }

    /// Every tensor, in file order; also those of a type that is not supported.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.table.tensors
    }

    /// The tensor of this name; an error if it is missing or its type is not supported.
    ///
    /// # Errors
    /// [`TensorError::Format`] where there is no such tensor, [`TensorError::Unsupported`] where its type is not supported.
    ///
    /// ```
    /// use tensorlogic::{DType, io::Gguf};
    /// let file = Gguf::open("models/tiny/tiny.gguf")?;
    /// let info = file.tensor("output_norm.weight")?;
    /// assert_eq!((info.dtype()?, &info.shape[..]), (DType::F32, &[384][..]));
    /// assert_eq!(file.bytes_of(info).len(), 4 * 384);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn tensor(&self, name: &str) -> TensorResult<&TensorInfo> {
        self.table.find("gguf", name)
    }

    /// The bytes of one of this file's tensors; empty for a range outside the file.
    pub fn bytes_of(&self, info: &TensorInfo) -> &[u8] {
        self.data_of(info).and_then(|f| f.get(info.range.clone())).unwrap_or_default()
    }
}

/// Keys were found to be UTF-8 when they were read.
fn entry_key<'a>(data: &'a [u8], e: &TensorEntry) -> &'a str {
    std::str::from_utf8(key_bytes(data, e)).unwrap_or_default()
}
fn key_bytes<'a>(data: &'a [u8], e: &TensorEntry) -> &'a [u8] {
    data.get(e.key..e.key + e.key_len as usize).unwrap_or_default()
}

fn entry_value<'a>(data: &'a [u8], e: &TensorEntry) -> Value<'a> {
    Value::new(e.kind, data.get(e.value..e.value + e.value_len).unwrap_or_default())
}

/// The alignment that `general.alignment` sets.
fn alignment(value: Value<'_>) -> TensorResult<usize> {
    match value.kind() {
        ValueType::U32 => value.u64().ok().and_then(|n| usize::try_from(n).ok()).filter(|n| n.is_power_of_two()),
        _ => None,
    }
    .ok_or_else(|| bad(format!("`{ALIGNMENT}` is {value}; it must be a u32 and a power of two")))
}

/// Turns ranges relative to `start` into ranges of the file, and refuses those that leave it or overlap.
fn place(tensors: &mut [TensorInfo], start: usize, len: usize) -> TensorResult<()> {
    for t in tensors.iter_mut() {
        match (t.range.start.checked_add(start), t.range.end.checked_add(start)) {
            (Some(from), Some(to)) if to <= len => t.range = from..to,
            _ => {
                let missing = format!("{} bytes at offset {} of {}", t.range.len(), t.range.start, len.saturating_sub(start));
                return Err(bad(format!("tensor `{}` ends after the file: {missing} bytes of tensor data", clip(&t.name))));
            }
        }
    }
    let filled = |i: &u32| !tensors[*i as usize].range.is_empty();
    let mut order: Vec<u32> = (0..tensors.len() as u32).filter(filled).collect();
    order.sort_unstable_by_key(|&i| tensors[i as usize].range.start);
    let overlap = order.windows(2).map(|w| (&tensors[w[0] as usize], &tensors[w[1] as usize])).find(|(a, b)| a.range.end > b.range.start);
    match overlap {
        Some((a, b)) => Err(bad(format!("tensors `{}` and `{}` overlap", clip(&a.name), clip(&b.name)))),
        None => Ok(()),
    }
}

/// A place in the file's header. Every read is checked against the bytes that are left.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, len: u64, what: &str) -> TensorResult<&'a [u8]> {
        let left = self.left();
        if len > left {
            return Err(bad(format!("the file ends inside {what}: {len} bytes wanted at byte {}, {left} left", self.at)));
        }
        // `len` is at most `left`, which is a `usize`.
        let bytes = &self.bytes[self.at..self.at + len as usize];
        self.at += bytes.len();
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> TensorResult<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }
    fn u32(&mut self, what: &str) -> TensorResult<u32> {
        self.array(what).map(u32::from_le_bytes)
    }
    fn u64(&mut self, what: &str) -> TensorResult<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of entries that take at least `min` bytes each.
    fn count(&mut self, what: &str, min: u64) -> TensorResult<usize> {
        let count = self.u64(what)?;
        self.checked_count(count, what, min)
    }

    fn checked_count(&self, count: u64, what: &str, min: u64) -> TensorResult<usize> {
        let most = (self.left() / min).min(u64::from(u32::MAX));
        if count > most {
            return Err(bad(format!("{count} {what}, but the file is large enough for at most {most}")));
        }
        Ok(count as usize)
    }

    /// A name that is not empty: where it starts, and its text.
    fn name(&mut self, what: &str) -> TensorResult<(usize, &'a str)> {
        let len = self.u64(what)?;
        let start = self.at;
        let text = std::str::from_utf8(self.take(len, what)?).map_err(|e| bad(format!("{what} at byte {start} is not UTF-8: {e}")))?;
        if text.is_empty() {
            return Err(bad(format!("{what} at byte {start} is empty")));
        }
        Ok((start, text))
    }

    fn entry(&mut self) -> TensorResult<TensorEntry> {
        let (key, text) = self.name("a metadata key")?;
        if text.len() > MAX_KEY {
            return Err(bad(format!("metadata key `{}` has {} bytes; at most {MAX_KEY} are allowed", clip(text), text.len())));
        }
        let in_key = |e| match e {
            TensorError::Format { format, message, path } => {
                TensorError::Format { format, message: format!("`{}`: {message}", clip(text)), path }
            }
            e => e,
        };
        let code = self.u32("a value type")?;
        let kind = ValueType::from_code(code).ok_or_else(|| bad(format!("`{}` has the unknown value type {code}", clip(text))))?;
        let value = self.at;
        let value_len = value::encoded_len(kind, &self.bytes[value..]).map_err(in_key)?;
        self.at += value_len;
        if kind == ValueType::Bool && self.bytes[value] > 1 {
            return Err(bad(format!("`{}` is a bool of value {}", clip(text), self.bytes[value])));
        }
        Ok(TensorEntry { key, key_len: text.len() as u32, kind, value, value_len })
    }

    /// A tensor whose range is still relative to the start of the tensor data.
    fn tensor(&mut self, alignment: usize) -> TensorResult<TensorInfo> {
        let (_, name) = self.name("a tensor name")?;
        let wrong = |message: String| bad(format!("tensor `{}`: {message}", clip(name)));
        let dims = self.u32("a tensor's dimension count")?;
        if dims > MAX_DIMS {
            return Err(wrong(format!("{dims} dimensions; at most {MAX_DIMS} are allowed")));
        }
        let mut shape = SmallVec::<[usize; 4]>::new();
        for _ in 0..dims {
            let size = self.u64("a tensor's dimensions")?;
            shape.push(usize::try_from(size).map_err(|_| wrong(format!("a dimension of {size}")))?);
        }
        let code = self.u32("a tensor's type")?;
        let stored = types::from_code(code).ok_or_else(|| wrong(format!("unknown type {code}")))?;
        let row = shape.first().copied().unwrap_or(1);
        if !row.is_multiple_of(stored.block) {
            return Err(wrong(format!("rows of {row} values, which {} cannot hold: its blocks have {}", stored.name, stored.block)));
        }
        shape.reverse();
        let (_, bytes) = stored.layout(&shape).ok_or_else(|| wrong(format!("{shape:?} has too many elements")))?;
        let offset = self.u64("a tensor's offset")?;
        let start = usize::try_from(offset).ok().filter(|o| o.is_multiple_of(alignment));
        let start = start.ok_or_else(|| wrong(format!("offset {offset} is not a multiple of the alignment {alignment}")))?;
        let end = start.checked_add(bytes).ok_or_else(|| wrong(format!("offset {offset} is past the end of the file")))?;
        Ok(TensorInfo { name: name.into(), shape, range: start..end, stored, file: 0 })
    }
}
