//! The JSON of safetensors, read strictly: every key once, every field of its type, nothing kept that is not used.

use super::{TYPES, bad};
use crate::error::TensorResult;
use crate::io::info::{StoredType, TensorInfo, clip, sorted_unique};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// What a header says. The ranges are relative to the data.
pub(super) struct Header {
    pub metadata: Vec<(String, String)>,
    pub tensors: Vec<TensorInfo>,
}

/// The most dimensions that are read; far above what any op takes.
const MAX_DIMS: usize = 64;
/// The most strings in `__metadata__`.
const MAX_METADATA: usize = 1 << 16;
/// The shortest tensor entry is `"":{"dtype":"F4","shape":[],"data_offsets":[0,0]}`.
const MIN_TENSOR: usize = 50;

pub(super) fn parse(text: &[u8]) -> TensorResult<Header> {
    if text.first() != Some(&b'{') {
        return Err(bad("the header does not start with `{`"));
    }
    // One reservation, as growing step by step would take thrice the space for a moment.
    let room = (text.len() / MIN_TENSOR).min(1 << 20);
    json(text, "header", |d| d.deserialize_map(HeaderVisitor { room }))
}

/// What an index says: its files, and which of them holds each tensor.
pub(super) struct Index<'a> {
    pub shards: Vec<String>,
    pub weights: Vec<(Cow<'a, str>, u32)>,
}

pub(super) fn parse_index(text: &[u8]) -> TensorResult<Index<'_>> {
    let index = json(text, "index", |d| d.deserialize_map(IndexVisitor))?;
    if index.weights.is_empty() {
        return Err(bad("an index without tensors"));
    }
    Ok(index)
}

/// A plain file name: nothing that leads to another folder, host or device.
fn is_shard_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && name.len() <= 255 && !name.contains(['/', '\\', ':', '\0'])
}

/// Parses all of `text`, which must be UTF-8.
fn json<'a, T>(
    text: &'a [u8],
    what: &str,
    read: impl FnOnce(&mut serde_json::Deserializer<serde_json::de::StrRead<'a>>) -> serde_json::Result<T>,
) -> TensorResult<T> {
    let text = std::str::from_utf8(text).map_err(|e| bad(format!("the {what} is not UTF-8: {e}")))?;
    let mut de = serde_json::Deserializer::from_str(text);
    let parsed = read(&mut de).and_then(|value| de.end().map(|()| value));
    // A message may quote a whole string of the file.
    parsed.map_err(|e| bad(format!("the {what}: {}", e.to_string().chars().take(200).collect::<String>())))
}

/// A string that points into the text where it has no escapes.
struct Text<'a>(Cow<'a, str>);
impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, s: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(s)))
            }
            fn visit_str<E>(self, s: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(s.into())))
            }
        }
        d.deserialize_str(V)
    }
}

struct HeaderVisitor {
    room: usize,
}
impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut metadata = None;
        let mut tensors = Vec::with_capacity(self.room);
        while let Some(Text(name)) = map.next_key()? {
            if name == "__metadata__" {
                if metadata.replace(map.next_value::<Strings>()?.0).is_some() {
                    return Err(A::Error::duplicate_field("__metadata__"));
                }
                continue;
            }
            let HeaderEntry { stored, shape, range } = map.next_value()?;
            tensors.push(TensorInfo { name: name.into(), shape, range, stored, file: 0 });
        }
        Ok(Header { metadata: metadata.unwrap_or_default(), tensors })
    }
}

struct HeaderEntry {
    stored: &'static StoredType,
    shape: SmallVec<[usize; 4]>,
    range: Range<usize>,
}
impl<'de> Deserialize<'de> for HeaderEntry {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = HeaderEntry;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of dtype, shape and data_offsets")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderEntry, A::Error> {
                let (mut stored, mut shape, mut offsets) = (None, None, None);
                while let Some(Text(key)) = map.next_key()? {
                    let again = match &*key {
                        "dtype" => stored.replace(map.next_value::<Stored>()?.0).is_some(),
                        "shape" => shape.replace(map.next_value::<HeaderSizes<MAX_DIMS>>()?.0).is_some(),
                        "data_offsets" => offsets.replace(map.next_value::<HeaderSizes<2>>()?.0).is_some(),
                        _ => map.next_value::<IgnoredAny>().map(|_| false)?,
                    };
                    if again {
                        return Err(A::Error::custom(format!("duplicate field `{key}`")));
                    }
                }
                let range = match offsets.as_deref() {
                    Some(&[from, to]) => from..to,
                    Some(_) => return Err(A::Error::custom("data_offsets must be two numbers")),
                    None => return Err(A::Error::missing_field("data_offsets")),
                };
                let stored = stored.ok_or_else(|| A::Error::missing_field("dtype"))?;
                let shape = shape.ok_or_else(|| A::Error::missing_field("shape"))?;
                Ok(HeaderEntry { stored, shape, range })
            }
        }
        d.deserialize_map(V)
    }
}

/// The name of one of the format's types.
struct Stored(&'static StoredType);
impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Text(name) = Text::deserialize(d)?;
        let stored = TYPES.iter().find(|t| t.name == name);
        stored.map(Stored).ok_or_else(|| D::Error::custom(format!("unknown dtype `{}`", clip(&name))))
    }
}

/// At most `MOST` non-negative integers.
struct HeaderSizes<const MOST: usize>(SmallVec<[usize; 4]>);
impl<'de, const MOST: usize> Deserialize<'de> for HeaderSizes<MOST> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<const MOST: usize>;
        impl<'de, const MOST: usize> Visitor<'de> for V<MOST> {
            type Value = HeaderSizes<MOST>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an array of at most {MOST} sizes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<HeaderSizes<MOST>, A::Error> {
                let mut sizes = SmallVec::new();
                while let Some(size) = seq.next_element::<usize>()? {
                    if sizes.len() == MOST {
                        return Err(A::Error::invalid_length(MOST + 1, &self));
                    }
                    sizes.push(size);
                }
                Ok(HeaderSizes(sizes))
            }
        }
        d.deserialize_seq(V::<MOST>)
    }
}

/// An object of strings, each key once.
struct Strings(Vec<(String, String)>);
impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an object of at most {MAX_METADATA} strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut strings: Vec<(String, String)> = Vec::new();
                while let Some((Text(key), Text(value))) = map.next_entry()? {
                    if strings.len() == MAX_METADATA {
                        return Err(A::Error::invalid_length(MAX_METADATA + 1, &self));
                    }
                    strings.push((key.into(), value.into()));
                }
                match sorted_unique(strings.len(), |i| strings[i].0.as_bytes()) {
                    Ok(_) => Ok(Strings(strings)),
                    Err(i) => Err(A::Error::custom(format!("duplicate key `{}`", clip(&strings[i].0)))),
                }
            }
        }
        d.deserialize_map(V)
    }
}

/// An index's `weight_map`.
struct WeightMap<'a>(Index<'a>);
impl<'de> Deserialize<'de> for WeightMap<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = WeightMap<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of file names")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap<'de>, A::Error> {
                let mut numbers: HashMap<String, u32> = HashMap::new();
                let mut index = Index { shards: Vec::new(), weights: Vec::new() };
                while let Some((Text(tensor), Text(file))) = map.next_entry()? {
                    let number = match numbers.get(&*file) {
                        Some(&number) => number,
                        None if is_shard_name(&file) => {
                            let number = index.shards.len() as u32;
                            index.shards.push(file.to_string());
                            numbers.insert(file.into(), number);
                            number
                        }
                        None => {
                            let message = format!("`{}` is not the name of a .safetensors file in the same folder", clip(&file));
                            return Err(A::Error::custom(message));
                        }
                    };
                    index.weights.push((tensor, number));
                }
                match sorted_unique(index.weights.len(), |i| index.weights[i].0.as_bytes()) {
                    Ok(_) => Ok(WeightMap(index)),
                    Err(i) => Err(A::Error::custom(format!("duplicate tensor `{}`", clip(&index.weights[i].0)))),
                }
            }
        }
        d.deserialize_map(V)
    }
}

struct IndexVisitor;
impl<'de> Visitor<'de> for IndexVisitor {
    type Value = Index<'de>;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut weights = None;
        while let Some(Text(key)) = map.next_key()? {
            if key != "weight_map" {
                map.next_value::<IgnoredAny>()?;
            } else if weights.replace(map.next_value::<WeightMap>()?.0).is_some() {
                return Err(A::Error::duplicate_field("weight_map"));
            }
        }
        weights.ok_or_else(|| A::Error::missing_field("weight_map"))
    }
}
