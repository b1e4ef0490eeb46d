#!/usr/bin/env bash
# Builds the packages inferd and, where there is a CUDA module, inferd-cuda, with Debian's own tools (debhelper, dpkg-dev).
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$top/build-deb module='' version='' cuda=auto

usage() {
    cat <<TEXT
Usage: systemd/debian/build.sh [options] OUT

Puts inferd_*.deb, and inferd-cuda_*.deb if the CUDA module was built, into the folder OUT.

  --build FOLDER        where to build (default build-deb)
  --version VERSION     of the packages (default: the project's, revision 1)
  --no-cuda             build no CUDA module
  --cuda-module FILE    pack this inferd-cuda.so, built elsewhere from the same sources
  --help                this text

DEBFULLNAME and DEBEMAIL name who made the packages.
TEXT
}

out=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$(realpath -m "$2") && shift ;;
    --version) version=$2 && shift ;;
    --no-cuda) cuda=disabled ;;
    --cuda-module) module=$(realpath "$2") cuda=disabled && shift ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        usage >&2
        exit 2
        ;;
    *) out=$1 ;;
    esac
    shift
done
if [ -z "$out" ]; then
    usage >&2
    exit 2
fi
mkdir -p "$out"
out=$(realpath "$out")

# --- build and install -------------------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

again=()
[ ! -e "$build/build.ninja" ] || again=(--reconfigure)
meson setup "${again[@]}" "$build" "$top" --prefix=/usr --sysconfdir=/etc --buildtype=release -Db_ndebug=true -Dtests=false \
    "-Dcuda=$cuda" -Dmpi=disabled >"$work/meson.log" 2>&1 || {
    cat "$work/meson.log" >&2
    exit 1
}
ninja -C "$build" --quiet
DESTDIR=$work/stage meson install -C "$build" --no-rebuild --quiet

multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
if [ -n "$module" ]; then
    install -D -m 644 "$module" "$work/stage/usr/lib/$multiarch/inferd/inferd-cuda.so"
fi
module=$work/stage/usr/lib/$multiarch/inferd/inferd-cuda.so
for unit in inferd inferd@; do
    install -D -m 644 "$top/systemd/cuda.conf" "$work/stage/usr/lib/systemd/system/$unit.service.d/cuda.conf"
done

# --- pack --------------------------------------------------------------------------------------------------------

: "${version:=$("$build/inferd" --version | sed 's/^inferd //')-1}"
maintainer="${DEBFULLNAME:-The inferd project} <${DEBEMAIL:-inferd@inferd.invalid}>"
cublas='' options=''
if [ -e "$module" ]; then
    major=$(readelf -d "$module" | sed -n 's/.*\[libcublasLt\.so\.\([0-9]*\)\].*/\1/p')
    cublas="libcublas-$major-0 | libcublas-$major-1 | libcublas-$major-2 | libcublaslt$major"
else
    options=-Ninferd-cuda
fi

mkdir "$work/source"
cp -r "$top/systemd/debian" "$work/source/debian"
rm "$work/source/debian/build.sh" "$work/source/debian/control.in"
sed -e "s/@MAINTAINER@/$maintainer/" -e "s/@CUBLAS@/${cublas:-libcublas}/" "$top/systemd/debian/control.in" >"$work/source/debian/control"
cat >"$work/source/debian/changelog" <<TEXT
inferd ($version) unstable; urgency=medium

  * Built from the sources of inferd.

 -- $maintainer  $(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}")
TEXT
cp "$top/README.md" "$top/ARCHITECTURE.md" "$work/stage/usr/share/doc/inferd/"

cd "$work/source"
if ! INFERD_STAGE=$work/stage INFERD_CUDA_LIBRARIES=/usr/local/cuda/lib64 DH_OPTIONS=$options \
    dpkg-buildpackage --build=binary --no-sign --no-check-builddeps >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
cp "$work"/*.deb "$out/"
(cd "$work" && printf '%s\n' *.deb)
