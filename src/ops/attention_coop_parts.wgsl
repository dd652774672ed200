// What attention by cooperative matrices and its gradients do in the same way. A kernel has a line `// part NAME: x = …, y = …` where one of
// these sections goes; its `$x` and `$y` are replaced.

// section fetch
// The columns from $first on.
for (var f = 0u; f < ITEMS_K; f++) { next_c1[f] = eight_c1(at_c1, finish, $first, 0u, lid + f * WORKGROUP); }
for (var f = 0u; f < ITEMS_V; f++) { next_c2[f] = eight_c2(at_c2, finish, $first, 0u, lid + f * WORKGROUP); }

// section stage
// What was fetched is put in place, from $at on.
for (var f = 0u; f < $items; f++) {
  let u = lid + f * WORKGROUP;
  if (u < $high * $eights) { put(($at + u / $eights * $pitch + u % $eights * 8u) / UNIT, $next[f]); }
}

// section hold
// Staged rows become matrices.
for (var i = 0u; i < RM; i++) {
  for (var d = 0u; d < $count; d++) {
    let at = ((mine + i * EDGE) * $pitch + d * EDGE) / UNIT; let pitch = $pitch / UNIT;
    $x[i * $deep + $first + d] = coopLoadT<coop_mat8x8<f16, A>>(&tile[at], pitch);
  }
}

// section scores
// Rows times the columns that are staged from $at on, into the strip from line $line on.
{
  var s: array<coop_mat8x8<f32, C>, RM * CN>;
  for (var e = 0u; e < RM * CN; e++) { s[e] = coop_mat8x8<f32, C>(); }
  for (var d = 0u; d < $deep; d++) {
    for (var j = 0u; j < CN; j++) {
      let at = ($at + (across * CN + j) * EDGE * $pitch + d * EDGE) / UNIT; let pitch = $pitch / UNIT;
      let c = coopLoad<coop_mat8x8<f16, B>>(&tile[at], pitch);
      for (var i = 0u; i < RM; i++) { s[i * CN + j] = coopMultiplyAdd($x[i * $deep + d], c, s[i * CN + j]); }
    }
  }
  for (var i = 0u; i < RM; i++) {
    for (var j = 0u; j < CN; j++) {
      let value = s[i * CN + j];
      let at = (($line + mine + i * EDGE) * PITCH_S + (across * CN + j) * EDGE) / UNIT; let pitch = PITCH_S / UNIT;
      coopStoreT(value, &strip[at], pitch);
    }
  }
}

// section add
// Step j of the parts from line $line on, times the columns that are staged from $at on, is added to $y.
{
  var p: array<coop_mat8x8<f16, A>, RM>;
  for (var i = 0u; i < RM; i++) {
    let at = (($line + mine + i * EDGE) * PITCH_P + j * EDGE) / UNIT; let pitch = PITCH_P / UNIT;
    p[i] = coopLoadT<coop_mat8x8<f16, A>>(&parts[at], pitch);
  }
  for (var d = 0u; d < $count; d++) {
    let at = ($at + j * EDGE * $pitch + (across * $count + d) * EDGE) / UNIT; let pitch = $pitch / UNIT;
    let c = coopLoadT<coop_mat8x8<f16, B>>(&tile[at], pitch);
    for (var i = 0u; i < RM; i++) { $y[i * $wide + $first + d] = coopMultiplyAdd(p[i], c, $y[i * $wide + $first + d]); }
  }
}

// section leave
// Group g of the results goes into the strip.
for (var i = 0u; i < RM; i++) {
  for (var d = 0u; d < PER; d++) {
    let value = $y[i * $wide + g * PER + d];
    let at = ((mine + i * EDGE) * PITCH_S + (across * PER + d) * EDGE) / UNIT; let pitch = PITCH_S / UNIT;
    coopStoreT(value, &strip[at], pitch);
  }
}
