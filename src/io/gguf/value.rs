//! A metadata value: a view of its bytes in the file, decoded when asked.

use super::bad;
use crate::error::TensorResult;
use crate::io::info::clip;
use std::fmt;

/// The types of metadata values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}
use ValueType::*;

impl ValueType {
    const ALL: [ValueType; 13] = [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64];

    pub(super) fn from_code(code: u32) -> Option<ValueType> {
        ValueType::ALL.get(code as usize).copied()
    }
    pub(super) fn code(self) -> u32 {
        self as u32
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"][self as usize]
    }

    /// Bytes of one value; `None` for strings and arrays, whose length is in the file.
    fn size(self) -> Option<usize> {
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Str | Array => None,
        }
    }
}

/// How deep arrays may nest; the format sets no limit and nobody nests them.
const MAX_DEPTH: u32 = 8;

/// Bytes that the value at the start of `bytes` takes, after reading all of it.
pub(super) fn encoded_len(kind: ValueType, bytes: &[u8]) -> TensorResult<usize> {
    walk(kind, bytes, MAX_DEPTH)
}

fn walk(kind: ValueType, bytes: &[u8], depth: u32) -> TensorResult<usize> {
    let ends = |wanted: u64| bad(format!("the file ends inside a {}: {wanted} bytes wanted, {} left", kind.name(), bytes.len()));
    if let Some(size) = kind.size() {
        return if size <= bytes.len() { Ok(size) } else { Err(ends(size as u64)) };
    }
    if kind == Str {
        let len = u64_at(bytes, 0).ok_or_else(|| ends(8))?;
        return if len <= bytes.len() as u64 - 8 { Ok(8 + len as usize) } else { Err(ends(len)) };
    }
    let (item, count) = array_header(bytes).ok_or_else(|| ends(12))?;
    let item = ValueType::from_code(item).ok_or_else(|| bad(format!("an array of the unknown value type {item}")))?;
    let depth = depth.checked_sub(1).ok_or_else(|| bad(format!("arrays nested deeper than {MAX_DEPTH}")))?;
    if let Some(size) = item.size() {
        let len = count.checked_mul(size as u64).filter(|&n| n <= bytes.len() as u64 - ARRAY_HEADER as u64);
        return len
            .map(|n| ARRAY_HEADER + n as usize)
            .ok_or_else(|| bad(format!("the file ends inside an array of {count} {}", item.name())));
    }
    // A wrong count ends this loop soon: every string and array takes at least eight bytes.
    let mut at = ARRAY_HEADER;
    for _ in 0..count {
        at += walk(item, &bytes[at..], depth)?;
    }
    Ok(at)
}

/// Type code and count stand before an array's items.
const ARRAY_HEADER: usize = 12;

fn array_header(bytes: &[u8]) -> Option<(u32, u64)> {
    Some((u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?), u64_at(bytes, 4)?))
}
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// One metadata value, pointing into the file.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    kind: ValueType,
    bytes: &'a [u8],
}

impl<'a> Value<'a> {
    pub(super) fn new(kind: ValueType, bytes: &'a [u8]) -> Value<'a> {
        Value { kind, bytes }
    }
    pub(super) fn encoded(&self) -> &'a [u8] {
        self.bytes
    }

    /// The value's type.
    pub fn kind(self) -> ValueType {
        self.kind
    }

    fn fixed<const N: usize>(self) -> [u8; N] {
        self.bytes.first_chunk::<N>().copied().unwrap_or([0; N])
    }

    /// An integer of any width.
    fn integer(self) -> Option<i128> {
        Some(match self.kind {
            U8 => u8::from_le_bytes(self.fixed()).into(),
            I8 => i8::from_le_bytes(self.fixed()).into(),
            U16 => u16::from_le_bytes(self.fixed()).into(),
            I16 => i16::from_le_bytes(self.fixed()).into(),
            U32 => u32::from_le_bytes(self.fixed()).into(),
            I32 => i32::from_le_bytes(self.fixed()).into(),
            U64 => u64::from_le_bytes(self.fixed()).into(),
            I64 => i64::from_le_bytes(self.fixed()).into(),
            F32 | F64 | Bool | Str | Array => return None,
        })
    }

    fn is_not<T>(self, wanted: &str) -> TensorResult<T> {
        Err(bad(format!("is {self} ({}), not {wanted}", self.kind.name())))
    }

    /// A non-negative integer of any width.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not a non-negative integer that fits `u64`.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("layers", 6u8).set("offset", -1i32);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("layers").expect("was set").u64()?, 6);
    /// assert!(file.get("offset").expect("was set").u64().is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn u64(self) -> TensorResult<u64> {
        self.integer().and_then(|n| n.try_into().ok()).map_or_else(|| self.is_not("a non-negative integer"), Ok)
    }
    /// An integer of any width.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not an integer that fits `i64`.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("offset", -1i8).set("huge", u64::MAX);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("offset").expect("was set").i64()?, -1);
    /// assert!(file.get("huge").expect("was set").i64().is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn i64(self) -> TensorResult<i64> {
        self.integer().and_then(|n| n.try_into().ok()).map_or_else(|| self.is_not("an integer"), Ok)
    }
    /// A number: a float, or an integer as the nearest float.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not a number.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("scale", 0.5f32).set("layers", 6u32);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("scale").expect("was set").f64()?, 0.5);
    /// assert_eq!(file.get("layers").expect("was set").f64()?, 6.0);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn f64(self) -> TensorResult<f64> {
        match self.kind {
            F32 => Ok(f32::from_le_bytes(self.fixed()).into()),
            F64 => Ok(f64::from_le_bytes(self.fixed())),
            _ => self.integer().map_or_else(|| self.is_not("a number"), |n| Ok(n as f64)),
        }
    }
    /// A truth value.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not a bool, or neither 0 nor 1.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("add_bos", true).set("layers", 1u8);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert!(file.get("add_bos").expect("was set").bool()?);
    /// assert!(file.get("layers").expect("was set").bool().is_err()); // an integer is not a bool
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn bool(self) -> TensorResult<bool> {
        match (self.kind, self.bytes) {
            (Bool, [0]) => Ok(false),
            (Bool, [1]) => Ok(true),
            _ => self.is_not("a bool"),
        }
    }
    /// A string.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not a string, or not UTF-8.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("general.name", "Tiny");
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("general.name").expect("was set").str()?, "Tiny");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn str(self) -> TensorResult<&'a str> {
        match (self.kind, self.bytes.get(8..)) {
            (Str, Some(text)) => std::str::from_utf8(text).or_else(|_| self.is_not("UTF-8")),
            _ => self.is_not("a string"),
        }
    }

    /// An array.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not an array.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter, gguf::ValueType};
    /// let mut file = GgufWriter::new();
    /// file.set("sections", vec![8i32, 12, 12]);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// let array = file.get("sections").expect("was set").array()?;
    /// assert_eq!((array.kind(), array.len()), (ValueType::I32, 3));
    /// assert_eq!(array.values().last().expect("has three").u64()?, 12);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn array(self) -> TensorResult<Array<'a>> {
        let header = if self.kind == Array { array_header(self.bytes) } else { None };
        match header.and_then(|(code, count)| Some((ValueType::from_code(code)?, usize::try_from(count).ok()?))) {
            Some((kind, len)) => Ok(Array { kind, len, bytes: self.bytes.get(ARRAY_HEADER..).unwrap_or_default() }),
            None => self.is_not("an array"),
        }
    }
    fn collect<T>(self, read: impl Fn(Value<'a>) -> TensorResult<T>) -> TensorResult<Vec<T>> {
        let array = self.array()?;
        // An array's count was checked against the file, so it is safe to reserve for.
        let mut out = Vec::with_capacity(array.len());
        for value in array.values() {
            out.push(read(value)?);
        }
        Ok(out)
    }
    /// An array of strings.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not an array, or an item is not a UTF-8 string.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("tokens", vec!["a", "b"]);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("tokens").expect("was set").strs()?, ["a", "b"]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn strs(self) -> TensorResult<Vec<&'a str>> {
        self.collect(Value::str)
    }
    /// An array of integers that fit `i32`.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not an array, or an item is not an integer that fits `i32`.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("sections", vec![8u64, 12]).set("huge", vec![u64::MAX]);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("sections").expect("was set").i32s()?, [8, 12]);
    /// assert!(file.get("huge").expect("was set").i32s().is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn i32s(self) -> TensorResult<Vec<i32>> {
        self.collect(|v| v.integer().and_then(|n| n.try_into().ok()).map_or_else(|| v.is_not("a 32-bit integer"), Ok))
    }
    /// An array of floats; f64 is rounded.
    ///
    /// # Errors
    /// `TensorError::Format` where the value is not an array, or an item is not a float.
    ///
    /// ```
    /// use tensorlogic::io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("scores", vec![0.1f64, -2.0]).set("sections", vec![8i32, 12]);
    /// let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.get("scores").expect("was set").f32s()?, [0.1, -2.0]);
    /// assert!(file.get("sections").expect("was set").f32s().is_err()); // integers are no floats here
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn f32s(self) -> TensorResult<Vec<f32>> {
        self.collect(|v| match v.kind {
            F32 => Ok(f32::from_le_bytes(v.fixed())),
            F64 => Ok(f64::from_le_bytes(v.fixed()) as f32),
            _ => v.is_not("a float"),
        })
    }
}

/// The value in short: long strings are cut, arrays give their type, length and first items.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            F32 => write!(f, "{}", f32::from_le_bytes(self.fixed())),
            F64 => write!(f, "{}", f64::from_le_bytes(self.fixed())),
            Bool => write!(f, "{}", self.bytes != [0]),
            Str => write!(f, "\"{}\"", clip(&String::from_utf8_lossy(self.bytes.get(8..400.min(self.bytes.len())).unwrap_or_default()))),
            Array => {
                let Ok(array) = self.array() else { return f.write_str("[]") };
                write!(f, "{}[{}] [", array.kind.name(), array.len)?;
                for (i, v) in array.values().take(4).enumerate() {
                    write!(f, "{}{v}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(if array.len > 4 { ", …]" } else { "]" })
            }
            _ => write!(f, "{}", self.integer().unwrap_or_default()),
        }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.kind.name())
    }
}

/// The items of an array value.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    kind: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The items' type.
    pub fn kind(&self) -> ValueType {
        self.kind
    }
    /// The number of items.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The items in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut rest) = (self.kind, self.bytes);
        (0..self.len).map_while(move |_| {
            let (item, after) = rest.split_at_checked(encoded_len(kind, rest).ok()?)?;
            rest = after;
            Some(Value { kind, bytes: item })
        })
    }
}
