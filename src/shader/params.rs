//! A kernel's run-time numbers as a Rust struct, from which WGSL reads them by name.

use crate::plan::Word;

/// The type of a field as WGSL sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// An unsigned integer.
    U32,
    /// A float.
    F32,
}

/// A field of a parameter struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in Rust and in WGSL.
    pub name: &'static str,
    /// Its type.
    pub ty: FieldType,
}

impl Field {
    /// The WGSL expression that reads this field, where it is number `index` of its struct.
    pub fn read(&self, index: usize) -> String {
        match self.ty {
            FieldType::U32 => format!("word({index}u)"),
            FieldType::F32 => format!("bitcast<f32>(word({index}u))"),
        }
    }
}

/// The value of a `u32` field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct U32(Option<Word>);

impl U32 {
    /// A field that the chosen variant does not read. It takes no word where only such fields follow.
    pub const ABSENT: U32 = U32(None);

    /// A size; `None` where it does not fit 32 bits.
    pub fn size(n: usize) -> Option<U32> {
        u32::try_from(n).ok().map(U32::from)
    }
    /// The plan's parameter `n`, given when the plan is run.
    pub fn param(n: u16) -> U32 {
        U32(Some(Word::ParamU32(n)))
    }
}

impl From<u32> for U32 {
    fn from(n: u32) -> U32 {
        U32(Some(Word::U32(n)))
    }
}

impl From<Word> for U32 {
    fn from(w: Word) -> U32 {
        U32(Some(w))
    }
}

/// The value of an `f32` field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct F32(Option<Word>);

impl F32 {
    /// As [`U32::ABSENT`].
    pub const ABSENT: F32 = F32(None);

    /// The plan's parameter `n`, given when the plan is run.
    pub fn param(n: u16) -> F32 {
        F32(Some(Word::ParamF32(n)))
    }
}

impl From<f32> for F32 {
    fn from(v: f32) -> F32 {
        F32(Some(Word::F32(v)))
    }
}

/// What a struct's fields may be.
pub trait FieldValue {
    /// The type as WGSL sees it.
    const TYPE: FieldType;
    /// The word, if there is one.
    fn word(self) -> Option<Word>;
}

impl FieldValue for U32 {
    const TYPE: FieldType = FieldType::U32;
    fn word(self) -> Option<Word> {
        self.0
    }
}

impl FieldValue for F32 {
    const TYPE: FieldType = FieldType::F32;
    fn word(self) -> Option<Word> {
        self.0
    }
}

/// Fields' words in order: absent ones at the end are left out, others are zero.
pub fn words(fields: &[Option<Word>]) -> Vec<Word> {
    let used = fields.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    fields[..used].iter().map(|w| w.unwrap_or(Word::U32(0))).collect()
}

/// The WGSL struct of these fields.
pub fn wgsl_struct(name: &str, fields: &[Field]) -> String {
    let line = |f: &Field| format!("  {}: {},\n", f.name, if f.ty == FieldType::U32 { "u32" } else { "f32" });
    format!("struct {name} {{\n{}}}\n", fields.iter().map(line).collect::<String>())
}

/// Declares a parameter struct. Fields are `u32` or `f32` in the declaration, as in WGSL; in Rust they are [`U32`] and [`F32`], which may also
/// be parameters of the plan.
///
/// It has `FIELDS`, for [`Template::params`](super::Template::params), and `words()`, for [`Wgsl::words`](crate::plan::Wgsl).
macro_rules! params {
    (@type u32) => { $crate::shader::params::U32 };
    (@type f32) => { $crate::shader::params::F32 };
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $name {
            $($(#[$field_doc])* $vis $field: $crate::shader::params::params!(@type $ty),)+
        }
        #[allow(dead_code)] // Not every kernel asks for each.
        impl $name {
            /// The fields, in the order of their words.
            $vis const FIELDS: &'static [$crate::shader::params::Field] = &[$($crate::shader::params::Field {
                name: stringify!($field),
                ty: <$crate::shader::params::params!(@type $ty) as $crate::shader::params::FieldValue>::TYPE,
            }),+];
            /// The words that the plan gives the kernel.
            $vis fn words(self) -> Vec<$crate::plan::Word> {
                $crate::shader::params::words(&[$($crate::shader::params::FieldValue::word(self.$field)),+])
            }
        }
    };
}
pub(crate) use params;

#[cfg(test)]
mod tests {
    use super::*;

    params! {
        /// Sizes and a factor.
        struct Sample {
            /// Rows.
            rows: u32,
            /// Added to a variance.
            eps: f32,
            /// Valid keys.
            valid: u32,
            /// Of the first element.
            start: u32,
        }
    }

    #[test]
    fn fields_are_words_in_order() {
        let all = Sample { rows: U32::size(7).unwrap(), eps: 0.5.into(), valid: U32::param(2), start: 9.into() };
        assert_eq!(all.words(), [Word::U32(7), Word::F32(0.5), Word::ParamU32(2), Word::U32(9)]);
        let reads: Vec<String> = Sample::FIELDS.iter().enumerate().map(|(n, f)| f.read(n)).collect();
        assert_eq!(reads, ["word(0u)", "bitcast<f32>(word(1u))", "word(2u)", "word(3u)"]);
        assert_eq!(wgsl_struct("Params", &Sample::FIELDS[..2]), "struct Params {\n  rows: u32,\n  eps: f32,\n}\n");
    }

    #[test]
    fn absent_fields_take_words_only_before_others() {
        let last = Sample { rows: 1.into(), eps: F32::param(3), valid: U32::ABSENT, start: U32::ABSENT };
        assert_eq!(last.words(), [Word::U32(1), Word::ParamF32(3)]);
        let between = Sample { rows: 1.into(), eps: F32::ABSENT, valid: U32::ABSENT, start: 4.into() };
        assert_eq!(between.words(), [Word::U32(1), Word::U32(0), Word::U32(0), Word::U32(4)]);
    }

    #[test]
    fn sizes_beyond_32_bits_are_refused() {
        assert_eq!(U32::size(u32::MAX as usize), Some(u32::MAX.into()));
        assert_eq!(U32::size(u32::MAX as usize + 1), None);
    }
}
