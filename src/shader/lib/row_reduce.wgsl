// `${NAME}(v)`: every thread of a row group gets the combination of all, ${EXPR} of each two. All threads of the workgroup call it.
//
// The kernel keeps its thread's number in `thread`. A group has SIZE threads. IN_SUBGROUP: shuffles reach all of them. OF_SUBGROUPS: it is several
// sets of threads that shuffles reach. Otherwise a tree in workgroup memory. BUILTIN: what combines such a set, if there is such.
// BARRIER_AFTER: the kernel has no barrier of its own between two calls.
#if SIZE == 1
fn ${NAME}(v: ${TYPE}) -> ${TYPE} { return v; }
#else
fn ${NAME}_of(a: ${TYPE}, b: ${TYPE}) -> ${TYPE} { return ${EXPR}; }
#if !IN_SUBGROUP
var<workgroup> ${NAME}_parts: array<${TYPE}, ${PARTS}>;
#endif
fn ${NAME}(v: ${TYPE}) -> ${TYPE} {
#if IN_SUBGROUP || OF_SUBGROUPS
  var r = v;
#if BUILTIN
  r = ${BUILTIN}(r);
#else
#for STEP in 0..LANE_BITS
  r = ${NAME}_of(r, subgroupShuffleXor(r, ${1 << LANE_BITS - 1 - STEP}u));
#endfor
#endif
#if OF_SUBGROUPS
  if (thread % ${SUBGROUP}u == 0u) { ${NAME}_parts[thread / ${SUBGROUP}u] = r; }
  workgroupBarrier();
#if SUBGROUPS == PARTS
  let first = 0u;
#else
  let first = thread / ${SIZE}u * ${SUBGROUPS}u;
#endif
  r = ${NAME}_parts[first];
  for (var i = 1u; i < ${SUBGROUPS}u; i++) { r = ${NAME}_of(r, ${NAME}_parts[first + i]); }
#endif
#else
  ${NAME}_parts[thread] = v;
  workgroupBarrier();
  for (var o = ${SIZE / 2}u; o > 0u; o >>= 1u) {
#if COL_MAJOR
    if (thread / ${STEP}u < o) { ${NAME}_parts[thread] = ${NAME}_of(${NAME}_parts[thread], ${NAME}_parts[thread + o * ${STEP}u]); }
#else
    if (thread % ${SIZE}u < o) { ${NAME}_parts[thread] = ${NAME}_of(${NAME}_parts[thread], ${NAME}_parts[thread + o * ${STEP}u]); }
#endif
    workgroupBarrier();
  }
#if COL_MAJOR
  let r = ${NAME}_parts[thread % ${STEP}u];
#else
  let r = ${NAME}_parts[thread / ${SIZE}u * ${SIZE}u];
#endif
#endif
#if !IN_SUBGROUP && BARRIER_AFTER
  workgroupBarrier();
#endif
  return r;
}
#endif
