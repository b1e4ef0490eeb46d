#!/usr/bin/env bash
# The packages in a booted Debian: made, installed, run under a real systemd with nginx in front, upgraded, removed, purged.
# Needs root and what nspawn needs; skips (exit code 77) with a sentence where that is not to be had.
#
#     tests/systemd/run.sh [PYTEST ARGUMENT...]
#
# INFERD_CACHE          where the Debian root is kept between runs (default ~/.cache/inferd)
# INFERD_PYTHON         a Python with pytest (default: that of the API tests, else python3)
# INFERD_TEST_MODEL     the demo model (without it, the tests of a load that takes a while are skipped)
# INFERD_WRITE_TINY     the program that writes a tiny model (default build/tests/engine/write_tiny_model)
# INFERD_CUDA_MODULE    a built inferd-cuda.so, to be packed too
# INFERD_DEBIAN_MIRROR  default http://deb.debian.org/debian
# INFERD_TEST_LONG=1    as long as an operator would try it: 100 s of silence, 10,000 requests
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${INFERD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inferd}
mirror=${INFERD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
tiny=${INFERD_WRITE_TINY:-$top/build/tests/engine/write_tiny_model}
python=${INFERD_PYTHON:-$cache/venv/bin/python}
[ -x "$python" ] || python=python3

skip() {
    printf 'systemd: skipped: %s\n' "$*"
    exit 77
}
say() { printf 'systemd: %s\n' "$*" >&2; }

[ "$(id -u)" = 0 ] || skip "systemd-nspawn wants root"
for tool in systemd-nspawn debootstrap dpkg-buildpackage dh lintian nsenter; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ -x "$tiny" ] || skip "$tiny was not built"

# --- the root, made once -------------------------------------------------------------------------------------------

# Changed with what is in it. nginx for the tests, the others because the packages depend on them.
packages=systemd,systemd-sysv,procps,nginx,libcjson1,libedit2,libgnutls30,libinih1,libmicrohttpd12,libonig5,libutf8proc2,libuv1
root=$cache/systemd-root-$(printf '%s' "$packages" | cksum | cut -d' ' -f1)
if [ ! -e "$root/.complete" ]; then
    say "making a Debian root (once)"
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    if ! debootstrap --variant=minbase --include="$packages" bookworm "$root" "$mirror" >"$cache/debootstrap.log" 2>&1; then
        skip "debootstrap could not make a root (no network?): $(tail -n 1 "$cache/debootstrap.log")"
    fi
    # what would only cost time at each start
    for unit in nginx.service getty.target console-getty.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
        fstrim.timer dpkg-db-backup.timer systemd-update-utmp.service systemd-update-utmp-runlevel.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    rm -f "$root/etc/systemd/system/nginx.service" "$root"/etc/systemd/system/multi-user.target.wants/nginx.service
    rm -f "$root"/var/cache/apt/archives/*.deb
    touch "$root/.complete"
fi

# --- the packages ----------------------------------------------------------------------------------------------------

work=$(mktemp -d)
chmod 755 "$work" # the service reads models there
nspawn=
# shellcheck disable=SC2317 # called by trap
finish() {
    if [ -n "$nspawn" ]; then
        kill "$nspawn" 2>/dev/null || true # nspawn ends what runs in it
        wait "$nspawn" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
}
trap finish EXIT

say "making the packages"
mkdir "$work/packages" "$work/newer" "$work/models"
options=(--no-cuda)
[ -z "${INFERD_CUDA_MODULE:-}" ] || options+=(--cuda-module "$INFERD_CUDA_MODULE")
"$top/systemd/debian/build.sh" "${options[@]}" "$work/packages" >&2
for package in "$work"/packages/inferd*.deb; do # the same as a later version, to upgrade to
    dpkg-deb -R "$package" "$work/unpacked"
    sed -i -E 's/^Version: .*/Version: 99.0-1/; s/\(= [^)]*-1\)/(= 99.0-1)/g' "$work/unpacked/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$work/unpacked" "$work/newer" >/dev/null
    rm -rf "$work/unpacked"
done
"$tiny" "$work/models/tiny.gguf"
[ ! -e "${INFERD_TEST_MODEL:-}" ] || cp "$INFERD_TEST_MODEL" "$work/models/demo.gguf"

# --- the machine -----------------------------------------------------------------------------------------------------

# A network of its own (only lo), and nothing that is changed reaches the root.
say "booting"
systemd-nspawn --quiet --boot --register=no --keep-unit --private-network --volatile=overlay --console=pipe \
    --machine=inferd-test --directory="$root" --bind-ro="$work:/srv/test" </dev/null >"$work/console" 2>&1 &
nspawn=$!
leader=
for _ in $(seq 300); do
    kill -0 "$nspawn" 2>/dev/null || break
    leader=$(cat "/proc/$nspawn/task/$nspawn/children" 2>/dev/null || true)
    leader=${leader%% *}
    [ -z "$leader" ] || [ ! -S "/proc/$leader/root/run/systemd/private" ] || break
    sleep 0.1
done
if [ -z "$leader" ] || ! kill -0 "$nspawn" 2>/dev/null; then
    nspawn=
    skip "systemd-nspawn cannot run here: $(tail -n 1 "$work/console")"
fi

state=$(nsenter -t "$leader" -m -u -i -n -p -C -- timeout 60 systemctl is-system-running --wait || true)
case $state in
running | degraded) ;;
*) skip "the system in the container did not come up ($state): $(tail -n 1 "$work/console")" ;;
esac

result=0
INFERD_MACHINE=$leader INFERD_PACKAGES=$work nsenter --net="/proc/$leader/ns/net" -- \
    timeout 900 "$python" -m pytest -q -p no:cacheprovider "$top/tests/systemd" "$@" || result=$?
exit "$result"
