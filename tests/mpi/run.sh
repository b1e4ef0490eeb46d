#!/bin/sh
# run.sh MPIRUN RANKS test_mpi CASE: every rank must say that all was well. What mpirun is told to survive it has no exit code for.
mpirun=$1 ranks=$2
shift 2
out=$("$mpirun" --allow-run-as-root --oversubscribe --bind-to none --enable-recovery -np "$ranks" "$@" 2>&1)
printf '%s\n' "$out"
[ "$(printf '%s\n' "$out" | grep -c '^ok$')" -eq "$ranks" ]
