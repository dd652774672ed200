//! Kernels whose parts in Metal's language the compiler refused: their WGSL forms take their place, and the refusal is kept to be shown.

use super::lock::lock;
use crate::events;
use std::sync::Mutex;

/// Characters of a compiler's message that are kept.
const MESSAGE_CHARS: usize = 400;

/// The kernels, each with the compiler's message.
#[derive(Default)]
pub(super) struct RefusedBodies(Mutex<Vec<String>>);

impl RefusedBodies {
    /// What `compile` makes of an op's source; where that is refused and `plain` gives one without parts in Metal's language, what it makes of this one.
    ///
    /// # Errors
    /// Those of `compile` where the source without such parts is refused too, or there is none.
    pub fn or_plain<K>(
        &self,
        [name, source]: [&str; 2],
        plain: impl Fn(&str) -> Option<String>,
        compile: impl Fn(&str) -> Result<K, String>,
    ) -> Result<K, String> {
        compile(source).or_else(|e| {
            let Some(plain) = plain(source) else { return Err(e) };
            let compiled = compile(&plain)?;
            events::kernel_failed(name, &e);
            lock(&self.0).push(format!("{name}: {}", e.chars().take(MESSAGE_CHARS).collect::<String>()));
            Ok(compiled)
        })
    }

    /// All so far.
    pub fn list(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH_A_BODY: &str = "fn twice /* metal: 2.0 * x */";

    fn plain(source: &str) -> Option<String> {
        source.split_once(" /*").map(|(plain, _)| plain.into())
    }

    /// A compiler that refuses this word.
    fn refusing(word: &'static str) -> impl Fn(&str) -> Result<usize, String> {
        move |source| if source.contains(word) { Err(format!("unknown {word}")) } else { Ok(source.len()) }
    }

    #[test]
    fn a_refused_body_gives_way_and_is_named() {
        let refused = RefusedBodies::default();
        assert_eq!(refused.or_plain(["a", WITH_A_BODY], plain, refusing("nothing")), Ok(WITH_A_BODY.len()));
        assert_eq!(refused.list(), Vec::<String>::new());
        assert_eq!(refused.or_plain(["b", WITH_A_BODY], plain, refusing("2.0 * x")), Ok("fn twice".len()));
        assert_eq!(refused.list(), ["b: unknown 2.0 * x"]);
        // What is wrong in both forms is an error, and no body's fault.
        assert_eq!(refused.or_plain(["c", WITH_A_BODY], plain, refusing("fn twice")), Err("unknown fn twice".into()));
        assert_eq!(refused.or_plain(["d", "fn f() {}"], plain, refusing("fn f")), Err("unknown fn f".into()));
        assert_eq!(refused.list().len(), 1);
    }
}
