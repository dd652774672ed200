// A row's top is found in the first tile that it sees: that at ${FIRST}, unless windows differ.
#if WINDOWED
{
  // The rows of a subgroup may differ in this, and its threads exchange values together.
  let unset = top == LOWEST;
  if (subgroup_any(unset)) { top = select(top, highest(row, turn, base, sees, scale), unset); }
}
#else
{
  if (base == ${FIRST} && !again) { top = highest(row, turn, base, sees, scale); }
}
#endif
