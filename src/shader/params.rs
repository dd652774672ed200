//! A kernel's run-time parameters as a Rust struct, and the same struct in WGSL.

use crate::plan::KernelParam;
use std::fmt;

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
    /// The field that holds the nested struct of this one, or nothing.
    pub group: &'static str,
    /// Its name in Rust, in its own struct.
    pub name: &'static str,
    /// Its type.
    pub ty: FieldType,
}

impl Field {
    /// Whether this is its name in WGSL, where structs are flat: `name`, or `group_name`.
    pub fn is(&self, name: &str) -> bool {
        match self.group {
            "" => name == self.name,
            group => name.strip_prefix(group).and_then(|n| n.strip_prefix('_')) == Some(self.name),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => f.write_str(self.name),
            group => write!(f, "{group}_{}", self.name),
        }
    }
}

/// The fields of a struct, whose own fields are scalars or structs of scalars, by name; a part without a name is what the struct begins with.
pub const fn flat<const N: usize>(parts: &[(&'static str, &'static [Field])]) -> [Field; N] {
    let mut out = [Field { group: "", name: "", ty: FieldType::U32 }; N];
    let (mut n, mut part) = (0, 0);
    while part < parts.len() {
        let (name, fields) = parts[part];
        let mut i = 0;
        while i < fields.len() {
            let field = fields[i];
            out[n] = match (name.is_empty(), field.name.is_empty()) {
                (true, _) => field,
                (false, true) => Field { name, ..field },
                (false, false) => Field { group: name, ..field },
            };
            assert!(name.is_empty() || field.group.is_empty(), "parameter structs nest once");
            (n, i) = (n + 1, i + 1);
        }
        part += 1;
    }
    assert!(n == N);
    out
}

/// The number of fields of all parts.
pub const fn count(parts: &[(&'static str, &'static [Field])]) -> usize {
    let (mut n, mut part) = (0, 0);
    while part < parts.len() {
        (n, part) = (n + parts[part].1.len(), part + 1);
    }
    n
}

/// The value of a `u32` field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct U32(Option<KernelParam>);

impl U32 {
    /// A field that the chosen variant does not read. It takes no space where only such fields follow.
    pub const ABSENT: U32 = U32(None);

    /// A size; `None` where it does not fit 32 bits.
    pub fn size(n: usize) -> Option<U32> {
        u32::try_from(n).ok().map(U32::from)
    }
    /// The plan's parameter `n`, given when the plan is run.
    pub fn param(n: u16) -> U32 {
        U32(Some(KernelParam::ParamU32(n)))
    }
}

impl From<u32> for U32 {
    fn from(n: u32) -> U32 {
        U32(Some(KernelParam::U32(n)))
    }
}

impl From<KernelParam> for U32 {
    fn from(p: KernelParam) -> U32 {
        U32(Some(p))
    }
}

/// The value of an `f32` field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct F32(Option<KernelParam>);

impl F32 {
    /// As [`U32::ABSENT`].
    pub const ABSENT: F32 = F32(None);

    /// The plan's parameter `n`, given when the plan is run.
    pub fn param(n: u16) -> F32 {
        F32(Some(KernelParam::ParamF32(n)))
    }
}

impl From<f32> for F32 {
    fn from(v: f32) -> F32 {
        F32(Some(KernelParam::F32(v)))
    }
}

/// What a struct's fields may be: scalars, and structs of them.
pub trait FieldValue {
    /// The fields in order; a scalar is one without a name.
    const FIELDS: &'static [Field];
    /// What the chosen variant does not read.
    const ABSENT: Self;
    /// Appends the value of each field, if there is one.
    fn append(self, values: &mut Vec<Option<KernelParam>>);
}

impl FieldValue for U32 {
    const FIELDS: &'static [Field] = &[Field { group: "", name: "", ty: FieldType::U32 }];
    const ABSENT: U32 = U32(None);
    fn append(self, values: &mut Vec<Option<KernelParam>>) {
        values.push(self.0);
    }
}

impl FieldValue for F32 {
    const FIELDS: &'static [Field] = &[Field { group: "", name: "", ty: FieldType::F32 }];
    const ABSENT: F32 = F32(None);
    fn append(self, values: &mut Vec<Option<KernelParam>>) {
        values.push(self.0);
    }
}

/// Fields' values in order: absent ones at the end are left out, others are zero.
pub fn values(fields: &[Option<KernelParam>]) -> Vec<KernelParam> {
    let used = fields.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    fields[..used].iter().map(|v| v.unwrap_or(KernelParam::U32(0))).collect()
}

/// The struct `Params` of these fields in WGSL, which the code generator completes and binds as `p`.
pub fn wgsl_struct(fields: &[Field]) -> String {
    let line = |f: &Field| format!("  {f}: {},\n", if f.ty == FieldType::U32 { "u32" } else { "f32" });
    format!("struct Params {{\n{}}}\n", fields.iter().map(line).collect::<String>())
}

/// Declares a parameter struct. Fields are `u32` or `f32` in the declaration, as in WGSL; in Rust they are [`U32`] and [`F32`], which may also
/// be parameters of the plan.
///
/// A field may be such a struct itself, whose fields a template reads as `p.FIELD_NAME`; and `struct NAME: OTHER { … }` begins with the fields
/// of another one, which are its own in a template and stand in `base` in Rust.
///
/// It has `FIELDS`, for [`Template::params`](super::Template::params), and `values()`, for [`Wgsl::params`](crate::plan::Wgsl).
macro_rules! params {
    (@type u32) => { $crate::shader::params::U32 };
    (@type f32) => { $crate::shader::params::F32 };
    (@type $other:ident) => { $other };
    ($(#[$doc:meta])* $vis:vis struct $name:ident $(: $base:ident)? { $($(#[$field_doc:meta])* $field:ident: $ty:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $name {
            $(
                /// What it begins with.
                $vis base: $base,
            )?
            $($(#[$field_doc])* $vis $field: $crate::shader::params::params!(@type $ty),)+
        }
        impl $crate::shader::params::FieldValue for $name {
            const FIELDS: &'static [$crate::shader::params::Field] = {
                const PARTS: &[(&str, &[$crate::shader::params::Field])] = &[
                    $(("", <$base as $crate::shader::params::FieldValue>::FIELDS),)?
                    $((stringify!($field), <$crate::shader::params::params!(@type $ty) as $crate::shader::params::FieldValue>::FIELDS)),+
                ];
                &$crate::shader::params::flat::<{ $crate::shader::params::count(PARTS) }>(PARTS)
            };
            const ABSENT: Self = $name {
                $(base: <$base as $crate::shader::params::FieldValue>::ABSENT,)?
                $($field: <$crate::shader::params::params!(@type $ty) as $crate::shader::params::FieldValue>::ABSENT),+
            };
            fn append(self, values: &mut Vec<Option<$crate::plan::KernelParam>>) {
                $(<$base as $crate::shader::params::FieldValue>::append(self.base, values);)?
                $($crate::shader::params::FieldValue::append(self.$field, values);)+
            }
        }
        #[allow(dead_code)] // Not every kernel asks for each.
        impl $name {
            /// The fields in order.
            $vis const FIELDS: &'static [$crate::shader::params::Field] = <$name as $crate::shader::params::FieldValue>::FIELDS;
            /// A struct none of whose fields the chosen variant reads.
            $vis const ABSENT: $name = <$name as $crate::shader::params::FieldValue>::ABSENT;
            /// The parameters that the plan gives the kernel.
            $vis fn values(self) -> Vec<$crate::plan::KernelParam> {
                let mut all = Vec::new();
                $crate::shader::params::FieldValue::append(self, &mut all);
                $crate::shader::params::values(&all)
            }
        }
    };
}
pub(crate) use params;

params! {
    /// Where an operand begins whose buffer is read: the sum of both, of which the second may be a parameter of the plan.
    pub struct StartParams {
        /// The part that is compiled in, in elements.
        start: u32,
        /// What is added when the plan is run.
        offset: u32,
    }
}

impl From<[KernelParam; 2]> for StartParams {
    fn from(values: [KernelParam; 2]) -> StartParams {
        let [start, offset] = values.map(U32::from);
        StartParams { start, offset }
    }
}

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
    fn fields_are_values_in_order() {
        let all = Sample { rows: U32::size(7).unwrap(), eps: 0.5.into(), valid: U32::param(2), start: 9.into() };
        assert_eq!(all.values(), [KernelParam::U32(7), KernelParam::F32(0.5), KernelParam::ParamU32(2), KernelParam::U32(9)]);
        let members = "struct Params {\n  rows: u32,\n  eps: f32,\n  valid: u32,\n  start: u32,\n}\n";
        assert_eq!(wgsl_struct(Sample::FIELDS), members);
    }

    #[test]
    fn absent_fields_take_space_only_before_others() {
        let last = Sample { rows: 1.into(), eps: F32::param(3), valid: U32::ABSENT, start: U32::ABSENT };
        assert_eq!(last.values(), [KernelParam::U32(1), KernelParam::ParamF32(3)]);
        let between = Sample { rows: 1.into(), eps: F32::ABSENT, valid: U32::ABSENT, start: 4.into() };
        assert_eq!(between.values(), [KernelParam::U32(1), KernelParam::U32(0), KernelParam::U32(0), KernelParam::U32(4)]);
    }

    params! {
        /// Sizes, a start and a line.
        struct Longer: Sample {
            /// Of the operand.
            a: StartParams,
            /// Elements of a line.
            line: u32,
        }
    }

    #[test]
    fn nested_structs_are_flat() {
        let base = Sample { rows: 1.into(), eps: 0.5.into(), valid: U32::ABSENT, start: 2.into() };
        let all = Longer { base, a: [KernelParam::U32(3), KernelParam::ParamU32(4)].into(), line: 5.into() };
        let first = [KernelParam::U32(1), KernelParam::F32(0.5), KernelParam::U32(0), KernelParam::U32(2)];
        assert_eq!(all.values(), [first.as_slice(), &[KernelParam::U32(3), KernelParam::ParamU32(4), KernelParam::U32(5)]].concat());
        let names: Vec<String> = Longer::FIELDS.iter().map(Field::to_string).collect();
        assert_eq!(names, ["rows", "eps", "valid", "start", "a_start", "a_offset", "line"]);
        assert!(names.iter().zip(Longer::FIELDS).all(|(name, f)| f.is(name) && !f.is("offset")));
        assert_eq!(Longer { base, ..Longer::ABSENT }.values(), first);
    }

    #[test]
    fn sizes_beyond_32_bits_are_refused() {
        assert_eq!(U32::size(u32::MAX as usize), Some(u32::MAX.into()));
        assert_eq!(U32::size(u32::MAX as usize + 1), None);
    }
}
