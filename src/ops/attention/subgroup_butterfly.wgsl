// `${NAME}(v)`: v combined with those of the threads whose numbers differ from this one's in bits FROM up to TO: ${COMBINE} of what a thread has
// and what the other one has.
fn ${NAME}(v: ${TYPE}) -> ${TYPE} {
  var r = v;
#for BIT in FROM..TO
  { let o = subgroupShuffleXor(r, ${1 << BIT}u); r = ${COMBINE}; }
#endfor
  return r;
}
