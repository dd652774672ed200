// `${NAME}(cell)` joins the first ${SETS} sets of sums, all of whose reads are under way at once.
fn ${NAME}(cell: u32) -> Partial {
  let r = cell / QUADS;
#for N in 0..SETS
  let t${N} = tops[${N}u * ROWS + r]; let x${N} = sums[${N}u * CELLS + cell];
#endfor
  var top = t0.x;
#for N in 0..SETS
  top = max(top, t${N}.x);
#endfor
#for N in 0..SETS
  let e${N} = exp2(t${N}.x - top);
#endfor
  return Partial(vec2<f32>(top, t0.y * e0
#for N in 1..SETS
    + t${N}.y * e${N}
#endfor
    ), x0 * e0
#for N in 1..SETS
    + x${N} * e${N}
#endfor
    );
}
