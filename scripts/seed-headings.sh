#!/bin/sh
# The headings of documents in Markdown, as tests/seeds/headings.txt has them: scripts/seed-headings.sh FILE… > tests/seeds/headings.txt
# A document is a line `= FILE HEADINGS BLOCKS`, then for each heading a line `BLOCKS HEADING`: the code blocks under it, and its text.
set -eu
for file in "$@"; do
  awk -v name="$(basename "$file")" '
    /^[ \t]*```/ {
      inside = !inside
      if (inside && n) { blocks[n]++; total++ }
      next
    }
    /^#/ && !inside {
      sub(/^#+[ \t]*/, ""); sub(/[ \t\r]+$/, "")
      heading[++n] = $0
    }
    END {
      print "= " name " " n " " total + 0
      for (i = 1; i <= n; i++) print blocks[i] + 0 " " heading[i]
    }' "$file"
done
