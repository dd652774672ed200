// What those kernels begin with: the sizes, the workgroup's block, and the thread's number of the four that share a row.
  thread = lid;
  let heads = p.heads; let heads_kv = p.heads_kv; let queries = p.queries; let keys = p.keys;
  let size = p.size; let size_v = p.size_v;
  let scale = p.scale;
  let block = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  let lane = lid % 4u;
