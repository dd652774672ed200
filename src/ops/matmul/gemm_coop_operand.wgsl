// One operand of a product by cooperative matrices: its tile, eight elements along a line at a time.
//
// A tile is SIDE_${X} rows by DEEP_${X} of k, in lines of k; an operand that is TURNED, whose rows are neighbours in memory, has lines of rows.
// Nothing here branches on a thread: loads that wait for each other are slow. Beyond the end, rows that are stored in lines of k (HALVES, not
// TURNED) are the last one again, which gemm_coop.wgsl relies on; what others give nobody uses. Of k beyond the end there are zeros, unless
// it is WHOLE tiles.
// HALVES: stored as f16 in lines whose eights are whole, and read 16 bytes at a time. BLOCKS: in a block format. FOLDED: lines are in groups
// that lie apart, and so are the pieces of a line, of 8 << SHIFT elements: heads that were put together again. LOOSE: lines begin anywhere,
// and an eight is cut out of the two that hold it. LATE: `ready` does what there is to do with what was read, when it has arrived.
// Words: FIRST_${X} and 1 the start in elements; in eights: 2 from one outer batch to the next, 3 how many inner ones each has, 4 from one of
// those to the next, 5 from one line to the next. FOLDED: 2 from one group of lines to the next, 3 lines of each, 4 from piece to piece.
// LOOSE: elements instead of eights, and in LAST_${X} the last eight that there is.

const LONG_${X}: u32 = select(DEEP_${X}, SIDE_${X}, TURNED_${X} == 1u); // of a line of the tile
const PITCH_${X}: u32 = LONG_${X} + 8u;
const TILE_${X}: u32 = select(SIDE_${X}, DEEP_${X}, TURNED_${X} == 1u) * PITCH_${X};

// Where a batch begins: in eights, in rows of blocks, or in elements.
fn base_${x}(batch: u32) -> u32 {
#if HALVES
  {
#if FOLDED
    { return (word(FIRST_${X}) + word(FIRST_${X} + 1u)) / 8u; }
#endif
    let inner = word(FIRST_${X} + 3u);
    let at = batch / inner * word(FIRST_${X} + 2u) + batch % inner * word(FIRST_${X} + 4u);
#if LOOSE
    { return word(FIRST_${X}) + word(FIRST_${X} + 1u) + at; }
#else
    { return (word(FIRST_${X}) + word(FIRST_${X} + 1u)) / 8u + at; }
#endif
  }
#elif BLOCKS
  { { return batch * word(ROWS_${X}); } }
#else
  { { return batch * word(ROWS_${X}) * word(SIZE_${X}); } }
#endif
}

#if !HALVES
fn quad_${x}(base: u32, line: u32, first: u32, lines: u32, length: u32) -> vec4<f32> {
  let there = line < lines && first < length;
  var x = vec4<f32>(0.0);
#if BLOCKS
  {
    x = weights4(base + select(0u, line, there), select(0u, first / 4u, there));
  }
#else
  {
    let at = base + select(0u, line * length + first, there);
#if VEC
    {
      x = load4_${LOAD}(at);
    }
#else
    {
      let more = select(vec3<u32>(0u), vec3<u32>(1u, 2u, 3u), vec3<bool>(first + 1u < length, first + 2u < length, first + 3u < length) & vec3<bool>(there));
      x = vec4<f32>(load_${LOAD}(at), load_${LOAD}(at + more.x), load_${LOAD}(at + more.y), load_${LOAD}(at + more.z));
      x = select(vec4<f32>(0.0), x, vec4<bool>(true, more.x > 0u, more.y > 0u, more.z > 0u));
    }
#endif
  }
#endif
  return select(vec4<f32>(0.0), x, there);
}
#endif

// The eight `u` of the tile at row r0 and at k0; rows from `rows` on are the last one again.
fn eight_${x}(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> {
  let line = u / (LONG_${X} / 8u) + select(r0, k0, TURNED_${X} == 1u);
  let first = u % (LONG_${X} / 8u) * 8u + select(k0, r0, TURNED_${X} == 1u);
  let lines = select(rows, word(SIZE_${X}), TURNED_${X} == 1u); let length = select(word(SIZE_${X}), rows, TURNED_${X} == 1u);
#if HALVES
  {
#if LOOSE
    { return raw_${LOAD}[min((base + min(line, lines - 1u) * word(FIRST_${X} + 5u) + first) / 8u, word(LAST_${X}))]; }
#endif
    // What is there anyway is not looked at: of k, so that a thread's place moves on by a number that is known.
    let l = select(min(line, lines - 1u), line, TURNED_${X} == 1u && WHOLE_${X} == 1u);
    let piece = select(min(first, length - 8u), first, TURNED_${X} == 0u && WHOLE_${X} == 1u) / 8u;
    var at = base;
#if FOLDED
    {
      let inner = word(FIRST_${X} + 3u);
      at += l / inner * word(FIRST_${X} + 2u) + l % inner * word(FIRST_${X} + 5u) + (piece >> SHIFT_${X}) * word(FIRST_${X} + 4u) + (piece & ((1u << SHIFT_${X}) - 1u));
    }
#else
    {
      at += l * word(FIRST_${X} + 5u) + piece;
    }
#endif
    let e = raw_${LOAD}[at];
#if LATE
    { return e; }
#endif
#if WHOLE == 2
    if (WHOLE_${X} == 1u) { return e; } else { return select(vec4<u32>(), e, select(first < length, line < lines, TURNED_${X} == 1u)); }
#elif WHOLE
    { return e; }
#else
    { return select(vec4<u32>(), e, select(first < length, line < lines, TURNED_${X} == 1u)); }
#endif
  }
#else
  {
    let lo = quad_${x}(base, line, first, lines, length); let hi = quad_${x}(base, line, first + 4u, lines, length);
    return vec4<u32>(pack2x16float(lo.xy), pack2x16float(lo.zw), pack2x16float(hi.xy), pack2x16float(hi.zw));
  }
#endif
}

#if LATE
#if HALVES
// What lies behind that eight, where it is LOOSE.
fn beyond_${x}(base: u32, rows: u32, r0: u32, k0: u32, u: u32) -> vec4<u32> {
  let line = u / (LONG_${X} / 8u) + select(r0, k0, TURNED_${X} == 1u);
  let first = u % (LONG_${X} / 8u) * 8u + select(k0, r0, TURNED_${X} == 1u);
  let lines = select(rows, word(SIZE_${X}), TURNED_${X} == 1u);
  return raw_${LOAD}[min((base + min(line, lines - 1u) * word(FIRST_${X} + 5u) + first) / 8u + 1u, word(LAST_${X}))];
}
#endif

// The eight, of what was read as it and what lies behind.
fn ready_${x}(base: u32, rows: u32, r0: u32, k0: u32, u: u32, e: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
#if HALVES
  {
    let line = u / (LONG_${X} / 8u) + select(r0, k0, TURNED_${X} == 1u);
    let first = u % (LONG_${X} / 8u) * 8u + select(k0, r0, TURNED_${X} == 1u);
    let lines = select(rows, word(SIZE_${X}), TURNED_${X} == 1u); let length = select(word(SIZE_${X}), rows, TURNED_${X} == 1u);
    var v = e;
#if LOOSE
    {
      let at = base + min(line, lines - 1u) * word(FIRST_${X} + 5u) + first;
      let far = (at & 4u) != 0u; let next = (at & 2u) != 0u; let odd = (at & 1u) != 0u;
      let a = select(e, vec4<u32>(e.zw, more.xy), far); let b = select(more.xy, more.zw, far);
      let c = select(a, vec4<u32>(a.yzw, b.x), next); let d = select(b.x, b.y, next);
      v = select(c, (c >> vec4<u32>(16u)) | (vec4<u32>(c.yzw, d) << vec4<u32>(16u)), odd);
    }
#endif
#if WHOLE
    {
      return v;
    }
#else
    {
#if LOOSE
      {
        // Of k, as many elements as are left.
        let left = select(length - min(first, length), select(0u, 8u, line < lines), TURNED_${X} == 1u);
        let kept = vec4<u32>(left) - min(vec4<u32>(left), vec4<u32>(0u, 2u, 4u, 6u));
        return v & select(select(vec4<u32>(0u), vec4<u32>(0xffffu), kept == vec4<u32>(1u)), vec4<u32>(0xffffffffu), kept > vec4<u32>(1u));
      }
#else
      {
        return select(vec4<u32>(), v, select(first < length, line < lines, TURNED_${X} == 1u));
      }
#endif
    }
#endif
  }
#else
  {
    return e;
  }
#endif
}
#endif
