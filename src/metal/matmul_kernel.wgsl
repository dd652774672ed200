// Load 0 [M, K] times load 1 [K, N], in tiles of WIDTH columns by HEIGHT rows: one element a thread of a two-dimensional workgroup.

// A step along K is as long as the tile is wide. a: HEIGHT rows of WIDTH; b: WIDTH rows of WIDTH.
var<workgroup> tile_a: array<f32, HEIGHT * WIDTH>;
var<workgroup> tile_b: array<f32, WIDTH * WIDTH>;

@compute @workgroup_size(WIDTH, HEIGHT)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
  let m = p.m; let n = p.n; let k = p.k;
  let tile = group.y * groups.x + group.x;
  let row = tile / p.tiles_n * HEIGHT + local.y;
  let column = tile % p.tiles_n * WIDTH + local.x;
  var sum = 0.0;
  for (var start = 0u; start < k; start += WIDTH) {
    let inner = start + local.x;
    var a = 0.0;
    if (row < m && inner < k) { a = load_0(row * k + inner); }
    tile_a[local.y * WIDTH + local.x] = a;
    for (var r = local.y; r < WIDTH; r += HEIGHT) {
      var b = 0.0;
      if (start + r < k && column < n) { b = load_1((start + r) * n + column); }
      tile_b[r * WIDTH + local.x] = b;
    }
    workgroupBarrier();
    for (var i = 0u; i < WIDTH; i++) { sum += tile_a[local.y * WIDTH + i] * tile_b[i * WIDTH + local.x]; }
    workgroupBarrier();
  }
  if (row < m && column < n) { store_0(row * n + column, sum); }
}
