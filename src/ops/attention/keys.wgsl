// Which keys a query of attention sees: what all its kernels share.
//
// Words: 2 T, 3 S, 6 valid keys, 8 window.

// default
const CAUSAL: u32 = 1;
@group(0) @binding(0) var<storage, read> words: array<u32>;
fn word(n: u32) -> u32 { return words[n]; }
// end

// The keys that a query sees: `first..last`. It stands at `last - 1` when causal.
fn keys_of(t: u32) -> vec2<u32> {
  let valid = min(word(6u), word(3u)); let window = word(8u);
  var last = valid + t + 1u; // as if T more keys had come before: no negative numbers
  last = select(0u, last - word(2u), last > word(2u));
  var first = 0u;
  if (window > 0u && last > window) { first = last - window; }
  if (CAUSAL == 0u || last > valid) { last = valid; }
  return vec2<u32>(min(first, last), last);
}
