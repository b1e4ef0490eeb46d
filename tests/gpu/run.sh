#!/usr/bin/env bash
# On a machine with a GPU, and after the build in under five minutes: what the emulator takes for granted, every kernel
# beside the reference, whole models beside the CPU, and then how fast it all is. Ends with a table and a JSON file.
#
#   tests/gpu/run.sh [--quick] [--out FILE]   builds build-gpu for this machine's GPU; --quick: 8B alone, fewer batches
#   tests/gpu/run.sh --emulated BUILD         the same steps on the emulator in a build folder, with sizes that it gets through
#
# What it needs: nvcc, meson, python3; compute-sanitizer, torch and transformers where they are found.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

if [ "${1:-}" = --emulated ]; then
    exec python3 "$top/tests/gpu/run.py" --emulated "$@"
fi

PATH=$PATH:/usr/local/cuda/bin
for tool in nvcc meson ninja python3 nvidia-smi; do
    command -v "$tool" >/dev/null || {
        echo "run.sh: $tool is not on the path (nvcc: nor in /usr/local/cuda/bin)" >&2
        exit 1
    }
done
# What it says of a driver that does not answer goes to stdout, too.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 || true)
[[ $capability =~ ^([0-9]+)\.([0-9]+) ]] || {
    echo "run.sh: nvidia-smi finds no GPU: $capability" >&2
    exit 1
}
capability=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
build=$top/build-gpu
options=(--buildtype release -Db_ndebug=true -Dcuda=enabled "-Dgpu_architectures=$capability")
if [ -e "$build/build.ninja" ]; then
    meson configure "$build" "${options[@]:2}" >/dev/null
else
    meson setup "$build" "$top" "${options[@]}" >"$build.log" 2>&1 || {
        tail -n 20 "$build.log" >&2
        exit 1
    }
fi
programs=$(ninja -C "$build" -t targets all | grep -oE '^tests/gpu/gpu_[a-z0-9_]+: [a-zA-Z_]*LINKER' | cut -d: -f1 | tr '\n' ' ')
# shellcheck disable=SC2086 # a word each
ninja -C "$build" --quiet inferd engine/backend/cuda/inferd-cuda.so tests/engine/write_tiny_model $programs
exec python3 "$top/tests/gpu/run.py" "$build" "$@"
