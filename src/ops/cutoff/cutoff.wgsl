// The least logit that top-k, top-p and min-p leave, by one workgroup: logits become unsigned keys in the same order, and the key at which
// a count or a sum of weights is reached is found BITS bits at a time, from sums over the keys that share the bits found so far. Weights are
// whole numbers in two words, so that every run gives the same bits.
// ROWS: a workgroup a row; load 1 has five settings of each, as the parameters are otherwise.

const BINS: u32 = 1u << BITS;
const THREAD_BINS: u32 = BINS / WORKGROUP;
var<private> thread: u32;
var<workgroup> low: array<atomic<u32>, BINS>;
var<workgroup> high: array<atomic<u32>, BINS>;
var<workgroup> sums: array<vec2<u32>, WORKGROUP>;
var<workgroup> found: vec3<u32>;
#if ROWS
struct Settings { inverse_temperature: f32, top_k: u32, top_p: f32, min_p_shift: f32 }
var<workgroup> row_settings: Settings;
var<private> first: u32;
fn logit(i: u32) -> f32 { return load_0(first + i); }
fn share() -> f32 { return row_settings.top_p; }
fn inverse_temperature() -> f32 { return row_settings.inverse_temperature; }
#else
fn logit(i: u32) -> f32 { return load_0(i); }
fn share() -> f32 { return p.top_p; }
fn inverse_temperature() -> f32 { return p.inverse_temperature; }
#endif

fn key(x: f32) -> u32 {
  var k = bitcast<u32>(x);
  if (k == 0x80000000u) { k = 0u; } // -0 equals 0
  let nan = (k & 0x7fffffffu) > 0x7f800000u;
  return select(select(k | 0x80000000u, ~k, (k & 0x80000000u) != 0u), 0xffffffffu, nan);
}
fn value(k: u32) -> f32 { return bitcast<f32>(select(~k, k ^ 0x80000000u, (k & 0x80000000u) != 0u)); }

// Numbers of 64 bits, the low word first.
fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { let l = a.x + b.x; return vec2<u32>(l, a.y + b.y + u32(l < a.x)); }
fn minus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x)); }
fn less(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn bin(n: u32) -> vec2<u32> { return vec2<u32>(atomicLoad(&low[n]), atomicLoad(&high[n])); }

// The largest key from which on the keys have together `count`, or, if that is 0, at least p of the weight of those from `least` on.
fn reached(count: u32, least: u32, top: f32) -> u32 {
  let n = p.count;
  var goal = vec2<u32>(count, 0u);
  var keys = 0u; // the bits found so far
  for (var end = 32u; end > 0u; end -= min(BITS, end)) {
    let shift = end - min(BITS, end);
    for (var i = thread; i < BINS; i += WORKGROUP) { atomicStore(&low[i], 0u); atomicStore(&high[i], 0u); }
    workgroupBarrier();
    for (var i = thread; i < n; i += WORKGROUP) {
      let x = logit(i);
      let k = key(x);
      if (k >= least && (end == 32u || k >> (end % 32u) == keys >> (end % 32u))) {
        var w = 1u;
        if (count == 0u) { w = u32(select(exp((x - top) * inverse_temperature()), 1.0, x == top) * 2147483648.0); }
        let at = (k >> shift) % BINS;
        if (w > 0u) {
          let old = atomicAdd(&low[at], w);
          if (old + w < old) { atomicAdd(&high[at], 1u); }
        }
      }
    }
    workgroupBarrier();
    // Thread t has THREAD_BINS bins, the largest keys first; sums[t] becomes the sum of its bins and those before.
    var own = vec2<u32>(0u);
    for (var u = 0u; u < THREAD_BINS; u++) { own = plus(own, bin(BINS - 1u - thread * THREAD_BINS - u)); }
    var all = own;
    sums[thread] = all;
    workgroupBarrier();
    for (var o = 1u; o < WORKGROUP; o *= 2u) {
      var before = vec2<u32>(0u);
      if (thread >= o) { before = sums[thread - o]; }
      workgroupBarrier();
      all = plus(all, before);
      sums[thread] = all;
      workgroupBarrier();
    }
    let total = sums[WORKGROUP - 1u];
    if (count == 0u && end == 32u) {
      let part = (f32(total.y) * 4294967296.0 + f32(total.x)) * share();
      goal.y = u32(part / 4294967296.0);
      goal.x = u32(part - f32(goal.y) * 4294967296.0);
    }
    if (less(total, goal)) { goal = total; }
    if (goal.x == 0u && goal.y == 0u) { goal.x = 1u; }
    var before = minus(all, own);
    if (less(before, goal) && !less(all, goal)) {
      for (var u = 0u; u < THREAD_BINS; u++) {
        let at = BINS - 1u - thread * THREAD_BINS - u;
        let next = plus(before, bin(at));
        if (less(before, goal) && !less(next, goal)) { found = vec3<u32>(at, minus(goal, before)); }
        before = next;
      }
    }
    let here = workgroupUniformLoad(&found);
    keys |= here.x << shift;
    goal = here.yz;
  }
  return keys;
}

@compute @workgroup_size(WORKGROUP)
#if ROWS
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let row = wid.x;
  let at = 5u * row;
  first = row * p.count;
  if (lid == 0u) { row_settings = Settings(load_1(at), u32(load_1(at + 1u)), load_1(at + 2u), load_1(at + 3u)); }
  let settings = workgroupUniformLoad(&row_settings);
  let top_k = settings.top_k; let top_p = settings.top_p; let min_p_shift = settings.min_p_shift;
#else
fn main(@builtin(local_invocation_index) lid: u32) {
  let row = 0u; let top_k = p.top_k; let top_p = p.top_p; let min_p_shift = p.min_p_shift;
#endif
  thread = lid;
  let n = p.count;
  var most = 0u;
  for (var i = lid; i < n; i += WORKGROUP) { most = max(most, key(logit(i))); }
  let top = value(workgroup_max(most));
  var least = 0u;
  if (top_k > 0u) { least = reached(top_k, 0u, top); }
  if (top_p < 1.0) { least = max(least, reached(0u, least, top)); }
  var cut = -3.0e38;
  if (least > 0u) { cut = value(least); }
  if (lid == 0u) { store_0(row, max(cut, top + min_p_shift)); }
}

${WORKGROUP_MAX}
