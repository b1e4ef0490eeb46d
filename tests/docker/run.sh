#!/usr/bin/env bash
# The images built for real, without any registry or container engine, and the CPU's run: tests/README.md says what is shown.
#   sudo tests/docker/run.sh [--cuda] [MODEL.gguf]
# --cuda builds docker/Dockerfile too (as far as a machine without a GPU can see), with the CUDA toolkit of this machine in the base.
# Exit code 77: this machine cannot, and the sentence says why.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${INFERD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inferd}/docker
mirror=${INFERD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
toolkit=${INFERD_CUDA_TOOLKIT:-/usr/local/cuda}

cuda=no
if [ "${1:-}" = --cuda ]; then
    cuda=yes
    shift
fi
model=${1:-${INFERD_TEST_MODEL:-}}

say() { printf 'docker: %s\n' "$*"; }
skip() {
    say "skipped: $*"
    exit 77
}

[ "$(id -u)" = 0 ] || skip "root is needed to build and run images without an engine"
for tool in buildah debootstrap systemd-nspawn nsenter python3; do
    command -v "$tool" >/dev/null || skip "$tool is missing: apt-get install buildah debootstrap systemd-container util-linux python3"
done
unshare --mount --pid --fork true 2>/dev/null || skip "this machine lets nobody make namespaces"
[ -n "$model" ] || model=$("$top/bootstrap" model)

export BUILDAH_ISOLATION=chroot
mkdir -p "$cache/ccache"
image() { buildah --root "$cache/storage" --runroot "$cache/runroot" --storage-driver vfs "$@"; }
has_image() { [ -n "$(image images -q "$1" 2>/dev/null)" ]; }

containers=()
tidy() {
    local c
    for c in "${containers[@]}"; do image rm "$c" >/dev/null 2>&1 || true; done
    image rmi --prune >/dev/null 2>&1 || true # what was built before
}
trap tidy EXIT

# What stands in for debian:bookworm-slim: made once, by Debian's own tool. It has what the Dockerfiles would install already,
# which saves their minutes, and ccache, which meson takes where it is.
packages=ccache,$(sed -n '/apt-get install/,/rm -rf/p' "$top"/docker/Dockerfile* | grep -oE '\b(gcc|g\+\+|meson|ninja-build|pkg-config|[a-z0-9]+-dev)( |$)' |
    tr -d ' ' | sort -u | paste -sd,)
base=localhost/inferd-base:$(printf '%s' "$packages" | cksum | cut -d' ' -f1)
if ! has_image "$base"; then
    say "making a Debian 12 base image"
    root=$cache/root.$$
    if ! debootstrap --variant=minbase --include="$packages" bookworm "$root" "$mirror" >"$cache/debootstrap.log" 2>&1; then
        skip "debootstrap could not make a base image (no network?): $cache/debootstrap.log"
    fi
    ! mountpoint -q "$root/proc" || umount "$root/proc"
    rm -f "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" --numeric-owner -cf "$cache/base.tar" .
    rm -rf --one-file-system "$root"
    c=$(image from scratch)
    image add -q "$c" "$cache/base.tar" / >/dev/null
    image commit -q --format docker "$c" "$base" >/dev/null
    image rm "$c" >/dev/null
    rm -f "$cache/base.tar"
fi

build() { # DOCKERFILE TAG BASE [OPTION...]
    local start=$SECONDS file=$1 tag=$2 from=$3
    shift 3
    say "building docker/$file"
    # no --layers: with vfs each would be a copy of all
    if ! image bud --format docker --pull-never --build-arg BASE="$from" --volume "$cache/ccache:/root/.cache/ccache" \
        "$@" --file "$top/docker/$file" --tag "$tag" "$top" >"$cache/$file.log" 2>&1; then
        tail -n 40 "$cache/$file.log"
        say "docker/$file could not be built (all of it: $cache/$file.log)"
        exit 1
    fi
    say "docker/$file built in $((SECONDS - start)) s"
}

check() { # TAG ARGUMENT...: the image as an engine would mount it, and its configuration
    local tag=$1 c
    shift
    c=$(image from --pull-never "$tag")
    containers+=("$c")
    image inspect --type image "$tag" >"$cache/inspect.json"
    python3 "$top/tests/docker/check_image.py" --inspect "$cache/inspect.json" --root "$(image mount "$c")" --top "$top" "$@"
}

build Dockerfile.cpu localhost/inferd:cpu "$base"
check localhost/inferd:cpu --max-size 150 --model "$model"

if [ $cuda = yes ]; then
    [ -x "$toolkit/bin/nvcc" ] || skip "there is no CUDA toolkit in $toolkit (INFERD_CUDA_TOOLKIT)"
    devel=localhost/inferd-cuda-base:${base##*:}
    if ! has_image "$devel"; then
        say "making a base image with nvcc and cuBLAS of $toolkit"
        mkdir -p "$cache/toolkit"
        # a builder needs no more of it than this
        for part in bin nvvm include lib64/libcudart_static.a lib64/libcudadevrt.a lib64/libcublas.so.13 lib64/libcublasLt.so lib64/libcublasLt.so.13; do
            mkdir -p "$(dirname "$cache/toolkit/$part")"
            cp -rL "$toolkit/$part" "$cache/toolkit/$part"
        done
        c=$(image from --pull-never "$base")
        image add -q "$c" "$cache/toolkit" /usr/local/cuda >/dev/null
        image commit -q --format docker "$c" "$devel" >/dev/null
        image rm "$c" >/dev/null
        rm -rf "$cache/toolkit"
    fi
    build Dockerfile localhost/inferd:cuda "$devel" --build-arg GPU_ARCHITECTURES=80
    check localhost/inferd:cuda --cuda --model "$model"
fi
say passed
