//! API keys: compared by their hashes, in a time that says nothing about them.

use sha2::{Digest, Sha256};

/// The keys that a server takes.
#[derive(Default)]
pub struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub fn add(&mut self, key: &str) {
        self.0.push(Sha256::digest(key.as_bytes()).into());
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A name for the owner of this key, if it is one of them. All keys are looked at, and every byte of them.
    pub fn name(&self, key: &str) -> Option<String> {
        let given: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = None;
        for (n, own) in self.0.iter().enumerate() {
            let differ = own.iter().zip(&given).fold(0u8, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(differ) == 0 {
                found = Some(n);
            }
        }
        found.map(|n| format!("key {n}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Keys;

    #[test]
    fn keys_are_told_apart() {
        let mut keys = Keys::default();
        assert_eq!((keys.is_empty(), keys.name("a")), (true, None));
        keys.add("alpha");
        keys.add("beta");
        assert_eq!(keys.name("alpha").as_deref(), Some("key 0"));
        assert_eq!(keys.name("beta").as_deref(), Some("key 1"));
        assert!(["", "alph", "alphaa", "Alpha", "gamma"].iter().all(|k| keys.name(k).is_none()));
    }
}
