// A row's top is found in the first tile that it sees: that at ${FIRST}, unless windows differ.
#if WINDOWED
{
  if (top == LOWEST) { top = highest(row, turn, base, sees, scale); }
}
#else
{
  if (base == ${FIRST} && !again) { top = highest(row, turn, base, sees, scale); }
}
#endif
