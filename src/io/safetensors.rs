//! safetensors: the file format of the Hugging Face Hub, one file or several that an index names.
//!
//! Layout: header length u64 little-endian; header, a JSON object `{name: {dtype, shape, data_offsets: [from, to]}}` with an optional
//! `__metadata__` of strings; the tensors' bytes without holes or overlaps up to the end of the file.

mod header;
mod write;

pub use write::write_safetensors;

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::info::{StoredType, TensorInfo, TensorTable, clip};
use crate::io::mapped::MappedFile;
use crate::io::widen::widened;
use crate::tensor::Tensor;
use std::path::Path;
use std::sync::Arc;

/// The format's own limit.
const MAX_HEADER: usize = 100_000_000;
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

pub(super) fn bad(message: impl Into<String>) -> TensorError {
    TensorError::format("safetensors", message)
}

/// The format's types; those without a dtype here can be listed.
static TYPES: [StoredType; 23] = [
    ours("F64", DType::F64),
    ours("F32", DType::F32),
    ours("F16", DType::F16),
    ours("BF16", DType::BF16),
    ours("I64", DType::I64),
    ours("I32", DType::I32),
    ours("U32", DType::U32),
    ours("I8", DType::I8),
    ours("U8", DType::U8),
    ours("BOOL", DType::Bool),
    ours("I16", DType::I16),
    ours("U16", DType::U16),
    ours("U64", DType::U64),
    other("C64", 1, 8),
    other("F8_E4M3", 1, 1),
    other("F8_E4M3FNUZ", 1, 1),
    other("F8_E5M2", 1, 1),
    other("F8_E5M2FNUZ", 1, 1),
    other("F8_E8M0", 1, 1),
    other("F6_E2M3", 4, 3),
    other("F6_E3M2", 4, 3),
    other("F4", 2, 1),
    other("F4_E2M1", 2, 1),
];
const fn ours(name: &'static str, dtype: DType) -> StoredType {
    StoredType { name, dtype: Some(dtype), block: 1, bytes: dtype.block_bytes() }
}
const fn other(name: &'static str, block: usize, bytes: usize) -> StoredType {
    StoredType { name, dtype: None, block, bytes }
}

/// The tensors of one safetensors file, or of all files of a sharded model.
///
/// ```
/// let model = tensorlogic::io::SafeTensors::open("tests/vectors/models/gpt2-odd")?; // a folder, a `.safetensors` file or an index
/// let info = model.tensor("transformer.wte.weight")?;
/// let (dtype, bytes) = (info.dtype()?, model.bytes_of(info));
/// assert_eq!(bytes.len(), dtype.block_bytes() * info.shape.iter().product::<usize>());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
#[derive(Debug)]
pub struct SafeTensors {
    files: Vec<Arc<MappedFile>>,
    metadata: Vec<(String, String)>,
    table: TensorTable,
}

impl SafeTensors {
    /// Opens a `.safetensors` file, the shards that an `….index.json` names, or the model in a folder.
    ///
    /// # Errors
    /// [`TensorError::Io`] where a file is missing or cannot be read; [`TensorError::Format`] where a header or the index is damaged, two
    /// tensors have one name, or a tensor is not in the file that the index says.
    ///
    /// ```
    /// use tensorlogic::io::SafeTensors;
    /// let model = SafeTensors::open("tests/vectors/models/gpt2-odd")?; // has a model.safetensors
    /// assert_eq!(model.metadata(), [("format".to_string(), "pt".to_string())]);
    /// assert_eq!(model.tensor("transformer.h.0.attn.c_attn.weight")?.shape[..], [60, 180]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> TensorResult<SafeTensors> {
        let path = path.as_ref();
        if path.is_dir() {
            return match [SINGLE, INDEX].map(|name| path.join(name)).into_iter().find(|p| p.exists()) {
                Some(file) => SafeTensors::open(file),
                None => Err(TensorError::Io { path: path.into(), message: format!("has neither {SINGLE} nor {INDEX}") }),
            };
        }
        if path.extension().is_some_and(|e| e == "json") { open_sharded(path) } else { join([open_file(path)?]) }
    }

    /// Reads one file that is in memory.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the header is truncated, too long or not valid, or the tensors overlap, leave holes or do not fit the
    /// bytes.
    ///
    /// ```
    /// use tensorlogic::io::SafeTensors;
    /// let header = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    /// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[7, 8, 9]].concat();
    /// assert!(SafeTensors::from_bytes(file[..file.len() - 1].to_vec()).is_err()); // a byte is missing
    /// let file = SafeTensors::from_bytes(file)?;
    /// assert_eq!(file.bytes_of(file.tensor("a")?), [7, 8, 9]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_bytes(bytes: Vec<u8>) -> TensorResult<SafeTensors> {
        join([read(bytes.into())?])
    }

    /// Every tensor, in the order of its place in its file; also those of a type that is not supported.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.table.tensors
    }

    /// The tensor of this name; an error if it is missing or its type is not supported.
    ///
    /// # Errors
    /// [`TensorError::Format`] where there is no such tensor, [`TensorError::Unsupported`] where its type is not supported.
    ///
    /// ```
    /// use tensorlogic::{DType, io::SafeTensors};
    /// let model = SafeTensors::open("tests/vectors/models/gpt2-odd")?;
    /// let info = model.tensor("transformer.h.0.attn.c_attn.bias")?;
    /// assert_eq!((info.dtype()?, info.count()), (DType::F32, 180));
    /// let error = model.tensor("transformer.h.0.attn.c_atn.bias").unwrap_err();
    /// assert!(error.to_string().ends_with("did you mean `transformer.h.0.attn.c_attn.bias`?"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn tensor(&self, name: &str) -> TensorResult<&TensorInfo> {
        self.table.find("safetensors", name)
    }

    /// The tensor of this name, of any type.
    pub(crate) fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.table.get(name)
    }

    /// The bytes of one of these tensors; empty for a range outside its file.
    pub fn bytes_of(&self, info: &TensorInfo) -> &[u8] {
        self.files.get(info.file as usize).and_then(|f| f.get(info.range.clone())).unwrap_or_default()
    }

    /// The file of a tensor, to be shared with buffers that point into it at the tensor's range.
    pub fn data_of(&self, info: &TensorInfo) -> Option<&Arc<MappedFile>> {
        self.files.get(info.file as usize)
    }

    /// Reads the tensor of this name to a device. A GPU reads I16 and U16 as i32, and neither I64 nor U64.
    ///
    /// # Errors
    /// Those of [`SafeTensors::tensor`]; [`TensorError::Io`] where the file was changed since it was opened; those of [`Tensor::from_bytes`].
    ///
    /// ```
    /// use tensorlogic::io::SafeTensors;
    /// use tensorlogic::prelude::*;
    ///
    /// let header = br#"{"a":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}}"#;
    /// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 0, 255, 255]].concat();
    /// let a = SafeTensors::from_bytes(file)?.load("a", &Device::cpu())?;
    /// assert_eq!((a.dtype(), a.to_vec_of::<u16>()?), (DType::U16, vec![1, 65_535]));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load(&self, name: &str, device: &Device) -> TensorResult<Tensor> {
        let info = match self.find(name) {
            Some(info) => info,
            None => self.tensor(name)?,
        };
        let outside = || bad(format!("tensor `{}` is outside its file", clip(name)));
        let data = self.data_of(info).ok_or_else(outside)?;
        data.check()?;
        if let Some((dtype, bytes)) = widened(info, self.bytes_of(info), device) {
            return Tensor::from_bytes(Bytes::Owned(Arc::new(bytes)), dtype, &info.shape, device);
        }
        let shared: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = data.clone();
        let bytes = Bytes::Shared(shared, info.range.start, info.range.len());
        Tensor::from_bytes(bytes, info.dtype()?, &info.shape, device)
    }

    /// The strings of `__metadata__`, file by file.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }
}

/// One file with its header.
type FilePart = (MappedFile, header::Header);

/// Opens a file; errors say which.
fn open_file(path: &Path) -> TensorResult<FilePart> {
    read(MappedFile::open(path)?).map_err(|e| e.in_file(path))
}

/// Reads and checks a file's header.
fn read(data: MappedFile) -> TensorResult<FilePart> {
    let (length, rest) = data.split_first_chunk::<8>().ok_or_else(|| bad(format!("{} bytes are too short for a header", data.len())))?;
    let length = u64::from_le_bytes(*length);
    let text = usize::try_from(length).ok().filter(|&n| n <= MAX_HEADER).and_then(|n| rest.get(..n));
    let text = text
        .ok_or_else(|| bad(format!("a header of {length} bytes; the file has {} more and at most {MAX_HEADER} are allowed", rest.len())))?;
    let start = 8 + text.len();
    let mut header = header::parse(text)?;

    header.tensors.sort_by_key(|t| (t.range.start, t.range.end));
    let mut end = 0;
    for t in &mut header.tensors {
        let wrong = |message: String| bad(format!("tensor `{}`: {message}", clip(&t.name)));
        let (_, bytes) =
            t.stored.layout(&t.shape).ok_or_else(|| wrong(format!("{} cannot hold the shape {:?}", t.stored.name, t.shape)))?;
        if t.range.start != end {
            return Err(wrong(format!(
                "begins at byte {} of the data where {end} is expected; tensors may not overlap or leave holes",
                t.range.start
            )));
        }
        if t.range.end.checked_sub(t.range.start) != Some(bytes) {
            return Err(wrong(format!("bytes {:?} for {bytes} bytes of {} {:?}", t.range, t.stored.name, t.shape)));
        }
        end = t.range.end;
        // `end` may still be past the file, so the sum is checked.
        let place = |at: usize| at.checked_add(start).filter(|&at| at <= data.len());
        match (place(t.range.start), place(t.range.end)) {
            (Some(from), Some(to)) => t.range = from..to,
            _ => return Err(wrong(format!("ends at byte {end} of {} bytes of data", data.len() - start))),
        }
    }
    if start + end != data.len() {
        return Err(bad(format!("{} bytes after the last tensor", data.len() - start - end)));
    }
    Ok((data, header))
}

/// Opens every file that an index names, in the order of first mention.
fn open_sharded(path: &Path) -> TensorResult<SafeTensors> {
    let text = MappedFile::open(path)?;
    if text.len() > MAX_HEADER {
        return Err(bad(format!("an index of {} bytes; at most {MAX_HEADER} are allowed", text.len())).in_file(path));
    }
    let index = header::parse_index(&text).map_err(|e| e.in_file(path))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let parts: Vec<FilePart> = index.shards.iter().map(|name| open_file(&folder.join(name))).collect::<TensorResult<_>>()?;
    let model = join(parts)?;
    for (tensor, file) in &index.weights {
        if model.table.get(tensor).is_none_or(|t| t.file != *file) {
            return Err(bad(format!("tensor `{}` is not in {}", clip(tensor), clip(&index.shards[*file as usize]))).in_file(path));
        }
    }
    Ok(model)
}

/// One model of all files' tensors.
fn join(parts: impl IntoIterator<Item = FilePart>) -> TensorResult<SafeTensors> {
    let (mut files, mut metadata, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
    for (file, (data, mut header)) in parts.into_iter().enumerate() {
        header.tensors.iter_mut().for_each(|t| t.file = file as u32);
        if tensors.is_empty() {
            tensors = header.tensors
        } else {
            tensors.append(&mut header.tensors)
        }
        metadata.append(&mut header.metadata);
        files.push(Arc::new(data));
    }
    Ok(SafeTensors { files, metadata, table: TensorTable::new("safetensors", tensors)? })
}
