#!/bin/sh
# The headings of documents in Markdown, as tests/seeds/headings.txt has them: scripts/seed-headings.sh FILE… > tests/seeds/headings.txt
# A document is a line `= FILE HEADINGS BLOCKS CLAIMING`, then for each heading a line `BLOCKS GAINS HEADING`: the code blocks under it, the
# lines that claim a gain in figures, and its text. CLAIMING is the number of headings with such lines.
set -eu
for file in "$@"; do
  awk -v name="$(basename "$file")" '
    /^[ \t]*```/ {
      inside = !inside
      if (inside && n) { blocks[n]++; total++ }
      next
    }
    inside { next }
    /^#/ {
      sub(/^#+[ \t]*/, ""); sub(/[ \t\r]+$/, "")
      heading[++n] = $0
      next
    }
    # A percentage or a factor (not a size such as 64x64, nor a part of a peak), and a word for what became better.
    /[0-9] ?%|[0-9](x|×)($|[^0-9])/ && !/(ピーク|理論値).*%/ &&
    /faster|hroughput|bandwidth|overhead|mprovement|eduction|traffic|gain|Access|Peak|Latency|Power|Ratio|改善|高速|削減|向上|帯域幅|GFLOPS|スループット/ {
      if (!gains[n]++) claiming++
    }
    END {
      print "= " name " " n " " total + 0 " " claiming + 0
      for (i = 1; i <= n; i++) print blocks[i] + 0 " " gains[i] + 0 " " heading[i]
    }' "$file"
done
