//! The hasher of tables whose keys are hashes already.

/// Hashes what plans are found by: keys that are hashes already, and addresses.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdentityHasher(u64);

impl std::hash::BuildHasher for IdentityHasher {
    type Hasher = IdentityHasher;
    fn build_hasher(&self) -> IdentityHasher {
        *self
    }
}

impl std::hash::Hasher for IdentityHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b as u64));
    }
    fn write_u64(&mut self, x: u64) {
        // Addresses differ in their middle bits, and a table looks at the lowest and the highest.
        let wide = (self.0 ^ x) as u128 * 0x9E37_79B9_7F4A_7C15;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
