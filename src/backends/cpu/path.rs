//! Compiles one body for each family of vector instructions and picks among them.

pub use super::dot::Path;
use std::sync::OnceLock;

/// The path of this process; the plain one where `TL_CPU` names none that works here, which opening the device reports.
#[inline]
pub fn current() -> Path {
    static PATH: OnceLock<Path> = OnceLock::new();
    *PATH.get_or_init(|| Path::get().unwrap_or(Path::Plain))
}

/// Whether `mul_add` is an instruction of the compilation target itself.
pub const BASE_FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// `fn name(args) = body` makes `name` run `body::<FMA>(args)`, an `#[inline(always)]` function, compiled for the best path.
macro_rules! versions {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident $(<$g:ident: $bound:path>)? ($($a:ident: $t:ty),* $(,)?) $(-> $r:ty)? = $body:ident;)*) => { $(
        $(#[$doc])*
        #[inline]
        $vis fn $name $(<$g: $bound>)? ($($a: $t),*) $(-> $r)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2 $(<$g: $bound>)? ($($a: $t),*) $(-> $r)? { $body::<$($g,)? true>($($a),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512 $(<$g: $bound>)? ($($a: $t),*) $(-> $r)? { $body::<$($g,)? true>($($a),*) }
                match $crate::backends::cpu::path::current() {
                    // SAFETY: a path is only chosen where the processor has its instructions.
                    $crate::backends::cpu::path::Path::Avx512 => return unsafe { avx512($($a),*) },
                    // SAFETY: as above.
                    $crate::backends::cpu::path::Path::Avx2 => return unsafe { avx2($($a),*) },
                    _ => {}
                }
            }
            $body::<$($g,)? { $crate::backends::cpu::path::BASE_FMA }>($($a),*)
        }
    )* };
}
pub(crate) use versions;
