//! Where patches of bytes begin, by their entropy.

/// How bytes are grouped into patches: one begins at the first byte, and at each byte that one of the rules names. Byte-level models
/// (Pagnoni et al., *Byte Latent Transformer*, 2024) have these two rules for the entropy of a small model's prediction.
///
/// ```
/// use tensorlogic::ops::byte_entropy::PatchRule;
///
/// let entropy = [0.3, 0.3, 0.7, 0.8, 0.4, 0.45];
/// assert_eq!(PatchRule { threshold: Some(0.6), rise: None }.starts(&entropy, None), [0, 2, 3]);
/// assert_eq!(PatchRule { threshold: None, rise: Some(0.2) }.starts(&entropy, None), [0, 2]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PatchRule {
    /// A byte whose entropy is above this begins a patch.
    pub threshold: Option<f32>,
    /// A byte whose entropy is above that of the byte before it by more than this begins a patch.
    pub rise: Option<f32>,
}

impl PatchRule {
    /// The positions in `entropy` at which patches begin. `before` is the entropy of the byte in front of the first, where there is one: of
    /// a long text, parts can be looked at one after the other.
    pub fn starts(&self, entropy: &[f32], before: Option<f32>) -> Vec<usize> {
        let mut before = before;
        let begins = |(i, &h): (usize, &f32)| {
            let last = before;
            before = Some(h);
            let begins = match last {
                None => true,
                Some(b) => self.threshold.is_some_and(|t| h > t) || self.rise.is_some_and(|r| h - b > r),
            };
            begins.then_some(i)
        };
        entropy.iter().enumerate().filter_map(begins).collect()
    }
}
