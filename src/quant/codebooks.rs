//! The codebooks of the formats whose numbers are looked up, one behind the other: a buffer that every kernel of a GPU reads them from.

use super::FORMATS;
use std::sync::LazyLock;

/// The words of each codebook once, in the order of the formats.
static WORDS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    FORMATS.iter().filter_map(|f| f.coded()?.book).fold(Vec::new(), |mut all, book| {
        if position(&all, book).is_none() {
            all.extend(book);
        }
        all
    })
});

/// Where a codebook begins in `all`.
fn position(all: &[u32], book: &[u32]) -> Option<usize> {
    all.windows(book.len()).position(|words| words == book)
}

/// Where a codebook begins in [`codebooks`].
pub(crate) fn start(book: &[u32]) -> u32 {
    position(&WORDS, book).unwrap_or_default() as u32
}

/// The words of all codebooks, as kernels read them: what is behind a binding
/// [`KernelBuffer::Codebooks`](crate::backends::gpu::KernelBuffer::Codebooks).
///
/// ```
/// // Of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and IQ1: entries of 16 bits, two to a word.
/// let entries = [256, 512, 1024, 256, 512, 2048];
/// assert_eq!(2 * tensorlogic::quant::codebooks().len(), entries.iter().sum::<usize>());
/// ```
pub fn codebooks() -> &'static [u32] {
    &WORDS
}
