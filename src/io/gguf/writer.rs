//! Writes GGUF version 3.

use super::value::{Value, ValueType};
use super::{ALIGNMENT, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_KEY, alignment, bad, types};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::info::clip;
use crate::io::save::save;
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

/// Collects metadata and tensors, then writes them as one file.
///
/// ```
/// # fn main() -> tensorlogic::TensorResult<()> {
/// use tensorlogic::{DType, io::{Gguf, GgufWriter}};
/// let mut w = GgufWriter::new();
/// w.set("general.architecture", "llama");
/// w.tensor("w", DType::F32, &[1, 2], [1f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
/// let file = Gguf::from_bytes(w.to_bytes()?)?;
/// assert_eq!(file.tensor("w")?.shape[..], [1, 2]);
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct GgufWriter<'a> {
    metadata: Vec<(String, ValueType, Vec<u8>)>,
    tensors: Vec<Tensor<'a>>,
}

struct Tensor<'a> {
    name: String,
    code: u32,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file.
    pub fn new() -> Self {
        GgufWriter::default()
    }

    /// Sets a key: a number, a bool, a string, a slice or vector of these, or a [`Value`] of another file. A later value replaces an earlier one.
    pub fn set(&mut self, key: &str, value: impl ToValue) -> &mut Self {
        let mut bytes = Vec::new();
        let kind = value.put(&mut bytes);
        match self.metadata.iter_mut().find(|(k, ..)| k == key) {
            Some(entry) => (entry.1, entry.2) = (kind, bytes),
            None => self.metadata.push((key.into(), kind, bytes)),
        }
        self
    }

    /// Whether a key is set.
    pub fn has(&self, key: &str) -> bool {
        self.metadata.iter().any(|(k, ..)| k == key)
    }

    /// Adds a tensor; sizes outermost first, bytes owned or borrowed.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] for a dtype that GGUF does not have; [`TensorError::Format`] where the name is empty or already used,
    /// the type cannot hold the shape, or the bytes are not as many as the shape needs.
    ///
    /// ```
    /// use tensorlogic::{DType, io::GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.tensor("bias", DType::F32, &[2], vec![0u8; 8])?;
    /// let error = file.tensor("weight", DType::F32, &[2, 2], vec![0u8; 8]).map(|_| ()).unwrap_err();
    /// assert!(error.to_string().ends_with("8 bytes given for F32 [2, 2]"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: impl Into<Cow<'a, [u8]>>) -> TensorResult<&mut Self> {
        let bytes = bytes.into();
        let wrong = |message: String| bad(format!("tensor `{}`: {message}", clip(name)));
        let (code, stored) = types::of_dtype(dtype).ok_or_else(|| TensorError::Unsupported(format!("{dtype} in a GGUF file")))?;
        if name.is_empty() || self.tensors.iter().any(|t| t.name == name) {
            return Err(wrong("the name is empty or already used".into()));
        }
        if shape.len() > MAX_DIMS as usize || !shape.last().unwrap_or(&1).is_multiple_of(stored.block) {
            return Err(wrong(format!("{} cannot hold the shape {shape:?}", stored.name)));
        }
        match stored.layout(shape) {
            Some((_, len)) if len == bytes.len() => {}
            _ => return Err(wrong(format!("{} bytes given for {} {shape:?}", bytes.len(), stored.name))),
        }
        self.tensors.push(Tensor { name: name.into(), code, shape: shape.into(), bytes });
        Ok(self)
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// [`TensorError::Format`] where a key is empty or longer than 65,535 bytes, or `general.alignment` is not a `u32` and a power of two.
    ///
    /// ```
    /// use tensorlogic::io::GgufWriter;
    /// let mut file = GgufWriter::new();
    /// file.set("general.architecture", "gpt2");
    /// let bytes = file.to_bytes()?;
    /// assert!(bytes.starts_with(b"GGUF\x03\0\0\0")); // version 3
    /// file.set("general.alignment", 48u32); // no power of two
    /// assert!(file.to_bytes().is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn to_bytes(&self) -> TensorResult<Vec<u8>> {
        let mut out = Vec::new();
        let (header, alignment) = self.header()?;
        self.put(&header, alignment, &mut out).map_err(|e| bad(e.to_string()))?;
        Ok(out)
    }

    /// Writes the file atomically: it appears under its name only when complete.
    ///
    /// # Errors
    /// Those of [`GgufWriter::to_bytes`], and [`TensorError::Io`] where the file cannot be written.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let path = std::env::temp_dir().join(format!("tl-doc-write-{}.gguf", std::process::id()));
    /// let mut file = GgufWriter::new();
    /// file.set("general.name", "Tiny").write(&path)?;
    /// assert_eq!(Gguf::open(&path)?.str("general.name")?, "Tiny");
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, path: impl AsRef<Path>) -> TensorResult<()> {
        let (header, alignment) = self.header()?;
        save(path, |out| self.put(&header, alignment, out))
    }

    fn put(&self, header: &[u8], alignment: usize, out: &mut impl Write) -> std::io::Result<()> {
        let pad = |out: &mut dyn Write, written: usize| {
            let zeros = written.next_multiple_of(alignment) - written;
            std::io::copy(&mut std::io::Read::take(std::io::repeat(0), zeros as u64), out).map(|_| ())
        };
        out.write_all(header)?;
        pad(out, header.len())?;
        for t in &self.tensors {
            out.write_all(&t.bytes)?;
            pad(out, t.bytes.len())?;
        }
        Ok(())
    }

    /// Everything before the tensor data, and the alignment.
    fn header(&self) -> TensorResult<(Vec<u8>, usize)> {
        let mut out = MAGIC.to_vec();
        3u32.put(&mut out);
        (self.tensors.len() as u64).put(&mut out);
        (self.metadata.len() as u64).put(&mut out);
        let mut align = DEFAULT_ALIGNMENT;
        for (key, kind, bytes) in &self.metadata {
            if key.is_empty() || key.len() > MAX_KEY {
                return Err(bad(format!("metadata key `{}` has {} bytes; 1 to {MAX_KEY} are allowed", clip(key), key.len())));
            }
            if key == ALIGNMENT {
                align = alignment(Value::new(*kind, bytes))?;
            }
            key.put(&mut out);
            kind.code().put(&mut out);
            out.extend_from_slice(bytes);
        }
        let mut offset = 0usize;
        for t in &self.tensors {
            t.name.put(&mut out);
            (t.shape.len() as u32).put(&mut out);
            for &size in t.shape.iter().rev() {
                (size as u64).put(&mut out);
            }
            t.code.put(&mut out);
            (offset as u64).put(&mut out);
            offset += t.bytes.len().next_multiple_of(align);
        }
        Ok((out, align))
    }
}

/// Types of metadata values.
pub trait ToValue {
    /// Appends the encoded value and returns its type.
    fn put(&self, out: &mut Vec<u8>) -> ValueType;
}

/// A value that can be an array's item: its type is known without a value.
trait Item: ToValue {
    const KIND: ValueType;
}

macro_rules! number {
    ($($t:ty = $kind:ident),*) => { $(
        impl Item for $t { const KIND: ValueType = ValueType::$kind; }
        impl ToValue for $t {
            fn put(&self, out: &mut Vec<u8>) -> ValueType {
                out.extend_from_slice(&self.to_le_bytes());
                ValueType::$kind
            }
        }
    )* };
}
number!(u8 = U8, i8 = I8, u16 = U16, i16 = I16, u32 = U32, i32 = I32, u64 = U64, i64 = I64, f32 = F32, f64 = F64);

impl Item for bool {
    const KIND: ValueType = ValueType::Bool;
}
impl ToValue for bool {
    fn put(&self, out: &mut Vec<u8>) -> ValueType {
        out.push(u8::from(*self));
        ValueType::Bool
    }
}
impl Item for &str {
    const KIND: ValueType = ValueType::Str;
}
impl ToValue for &str {
    fn put(&self, out: &mut Vec<u8>) -> ValueType {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.as_bytes());
        ValueType::Str
    }
}
impl Item for String {
    const KIND: ValueType = ValueType::Str;
}
impl ToValue for String {
    fn put(&self, out: &mut Vec<u8>) -> ValueType {
        self.as_str().put(out)
    }
}
#[allow(private_bounds)]
impl<T: Item> ToValue for &[T] {
    fn put(&self, out: &mut Vec<u8>) -> ValueType {
        T::KIND.code().put(out);
        (self.len() as u64).put(out);
        self.iter().for_each(|item| {
            item.put(out);
        });
        ValueType::Array
    }
}
#[allow(private_bounds)]
impl<T: Item> ToValue for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) -> ValueType {
        self.as_slice().put(out)
    }
}
impl ToValue for Value<'_> {
    fn put(&self, out: &mut Vec<u8>) -> ValueType {
        out.extend_from_slice(self.encoded());
        self.kind()
    }
}
