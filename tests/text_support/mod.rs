//! Shared by the tests of text: packed vectors, and the metadata of a GGUF file read the plainest way.
#![allow(dead_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;

use tensorlogic::text::TokenizerMetadata;

/// The unpacked bytes of `tests/vectors/<name>.gz`.
pub fn vector(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(format!("{name}.gz"));
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

#[derive(Debug, Clone)]
pub enum Value {
    Unsigned(u64),
    Bool(bool),
    Str(String),
    Strings(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Other,
}

/// The key-value pairs of a GGUF file. Trusts the file: it is one of ours.
#[derive(Default, Clone)]
pub struct Metadata(pub HashMap<String, Value>);

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_at(N);
        self.0 = tail;
        head.try_into().unwrap()
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn string(&mut self) -> String {
        let len = self.u64() as usize;
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        String::from_utf8(head.to_vec()).unwrap()
    }
    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => Value::Unsigned(self.take::<1>()[0] as u64),
            1 => {
                self.take::<1>();
                Value::Other
            }
            2 => Value::Unsigned(u16::from_le_bytes(self.take()) as u64),
            3 => {
                self.take::<2>();
                Value::Other
            }
            4 => Value::Unsigned(self.u32() as u64),
            5 | 6 => {
                self.take::<4>();
                Value::Other
            }
            7 => Value::Bool(self.take::<1>()[0] != 0),
            8 => Value::Str(self.string()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                match kind {
                    5 => Value::I32s((0..count).map(|_| i32::from_le_bytes(self.take())).collect()),
                    6 => Value::F32s((0..count).map(|_| f32::from_le_bytes(self.take())).collect()),
                    8 => Value::Strings((0..count).map(|_| self.string()).collect()),
                    _ => {
                        (0..count).for_each(|_| drop(self.value(kind)));
                        Value::Other
                    }
                }
            }
            10 => Value::Unsigned(self.u64()),
            _ => {
                self.take::<8>();
                Value::Other
            }
        }
    }
}

impl Metadata {
    pub fn read(bytes: &[u8]) -> Self {
        let mut cursor = Cursor(bytes);
        assert_eq!(&cursor.take::<4>(), b"GGUF");
        let (_version, _tensors, pairs) = (cursor.u32(), cursor.u64(), cursor.u64());
        let mut map = HashMap::new();
        for _ in 0..pairs {
            let key = cursor.string();
            let kind = cursor.u32();
            map.insert(key, cursor.value(kind));
        }
        Metadata(map)
    }

    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.0.insert(key.to_string(), value);
        self
    }
}

impl TokenizerMetadata for Metadata {
    fn str(&self, key: &str) -> Option<&str> {
        match self.0.get(key)? {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }
    fn u64(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            Value::Unsigned(n) => Some(*n),
            _ => None,
        }
    }
    fn bool(&self, key: &str) -> Option<bool> {
        match self.0.get(key)? {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }
    fn strings(&self, key: &str) -> Option<Vec<Cow<'_, str>>> {
        match self.0.get(key)? {
            Value::Strings(s) => Some(s.iter().map(|s| Cow::Borrowed(s.as_str())).collect()),
            _ => None,
        }
    }
    fn i32s(&self, key: &str) -> Option<Cow<'_, [i32]>> {
        match self.0.get(key)? {
            Value::I32s(v) => Some(Cow::Borrowed(v)),
            _ => None,
        }
    }
    fn f32s(&self, key: &str) -> Option<Cow<'_, [f32]>> {
        match self.0.get(key)? {
            Value::F32s(v) => Some(Cow::Borrowed(v)),
            _ => None,
        }
    }
}
