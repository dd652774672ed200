// Which keys a query of attention sees, for all its kernels: of ${VALID} that are there.

// The keys that a query sees: `first..last`. It stands at `last - 1` when causal.
fn keys_of(t: u32) -> vec2<u32> {
  let valid = min(${VALID}, p.keys); let window = p.window;
  var last = valid + t + 1u; // as if T more keys had come before: no negative numbers
  last = select(0u, last - p.queries, last > p.queries);
  var first = 0u;
  if (window > 0u && last > window) { first = last - window; }
  if (CAUSAL == 0u || last > valid) { last = valid; }
  return vec2<u32>(min(first, last), last);
}
