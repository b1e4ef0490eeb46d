#!/bin/sh
# compile.sh LOG COMMAND...: run it, keep what it says in LOG, and show it only if it fails. (nvcc's report of registers
# and spills comes on standard error.)
log=$1
shift
if "$@" >"$log" 2>&1; then
    exit 0
fi
cat "$log" >&2
exit 1
