// What threads of reductions over rows begin with: the row, the thread's number of the ROW_THREADS that share it, its first place in the row and
// the distance to the next. COL_MAJOR: neighbouring threads take neighbouring rows. SPLIT: several workgroups share a row, of which this has part
// number `part`.
  thread = lid;
  let rows = p.rows; let cols = p.cols;
  var lane = lid % ROW_THREADS; var row = lid / ROW_THREADS;
  if (COL_MAJOR == 1u) { lane = lid / ROWS; row = lid % ROWS; }
  var block = wid.y * p.groups_x + wid.x;
  var first = lane; var step = ROW_THREADS; var part = 0u;
#if SPLIT
  {
    part = block % p.parts; block /= p.parts;
    first += part * ROW_THREADS; step *= p.parts;
  }
#endif
  row += block * ROWS;
