// A block of queries: their head, the first key of the head that they see, the block's first query and the thread's.
  let head = block / p.head_blocks;
  let h = head % heads; let b = head / heads;
  let kv = (b * heads_kv + h / (heads / heads_kv)) * keys;
  let t0 = block % p.head_blocks * ROWS;
  let own = t0 + lid / 4u * THREAD_ROWS;
