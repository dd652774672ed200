//! The tensor types of GGUF by code: the supported ones and, so that a file that has them can be listed, the others.

use crate::dtype::DType;
use crate::io::info::StoredType;
use std::sync::LazyLock;

/// Code, type. Codes that are absent were removed from GGUF or never given.
static TYPES: LazyLock<Vec<(u32, StoredType)>> = LazyLock::new(|| {
    let blocks = DType::BLOCKS.into_iter().filter_map(|d| d.format()?.gguf.map(|g| ours(g.number, g.name, d)));
    blocks.chain(OTHERS).collect()
});

/// The plain types, and those that are only listed.
const OTHERS: [(u32, StoredType); 10] = [
    ours(0, "F32", DType::F32),
    ours(1, "F16", DType::F16),
    other(9, "Q8_1", 32, 36),
    other(15, "Q8_K", 256, 292),
    ours(24, "I8", DType::I8),
    ours(25, "I16", DType::I16),
    ours(26, "I32", DType::I32),
    ours(27, "I64", DType::I64),
    ours(28, "F64", DType::F64),
    ours(30, "BF16", DType::BF16),
];

const fn ours(code: u32, name: &'static str, dtype: DType) -> (u32, StoredType) {
    (code, StoredType { name, dtype: Some(dtype), block: dtype.block(), bytes: dtype.block_bytes() })
}
const fn other(code: u32, name: &'static str, block: usize, bytes: usize) -> (u32, StoredType) {
    (code, StoredType { name, dtype: None, block, bytes })
}

/// The type of this code.
pub(super) fn from_code(code: u32) -> Option<&'static StoredType> {
    TYPES.iter().find(|(c, _)| *c == code).map(|(_, t)| t)
}

/// The code and type of a dtype; `None` for those that GGUF lacks (u16, u32, u64, u8, bool).
pub(super) fn of_dtype(dtype: DType) -> Option<(u32, &'static StoredType)> {
    TYPES.iter().find(|(_, t)| t.dtype == Some(dtype)).map(|(c, t)| (*c, t))
}
