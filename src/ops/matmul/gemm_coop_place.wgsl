// Where eight u of a tile lies: its line, its first element there, the lines that there are and their elements, and whether it is inside of k.
#if TRANSPOSED
  let line = u / (LINE_${X} / 8u) + k0; let first = u % (LINE_${X} / 8u) * 8u + r0;
  let lines = ${K}; let length = rows;
  let inside = line < lines;
#else
  let line = u / (LINE_${X} / 8u) + r0; let first = u % (LINE_${X} / 8u) * 8u + k0;
  let lines = rows; let length = ${K};
  let inside = first < length;
#endif
