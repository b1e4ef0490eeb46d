#!/bin/sh
# collect.sh ROOT INFERD [MODULE]: the file system of an image, of which inferd and its module are the only programs: they,
# the shared objects that the loader finds for them, what glibc reads, and the licences of all of it. Needs Debian's or Ubuntu's dpkg.
set -eu
root=$1
inferd=$2
module=${3:-}
libraries=/usr/lib/$(uname -m)-linux-gnu

mkdir -p "$root/usr/bin" "$root$libraries" "$root/usr/lib64" "$root/etc" "$root/models" "$root/dev" "$root/proc" "$root/sys" \
    "$root/run" "$root/usr/share/doc/inferd" "$root/usr/share/inferd"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
install -d -m 1777 "$root/tmp" # for a tmpfs, if anybody wants one
install -d -m 700 -o 10001 -g 10001 "$root/cache" # for a volume that becomes cache_folder

install -m 755 "$inferd" "$root/usr/bin/inferd"
if [ -n "$module" ]; then
    install -D -m 644 "$module" "$root/usr/lib/inferd/inferd-cuda.so"
fi

# What the loader finds, and libgcc_s, by which glibc unwinds the stack of a crash report. libcuda comes with the driver.
{
    ldd "$inferd" ${module:+"$module"}
    /sbin/ldconfig -p | grep 'libgcc_s.so.1 .*x86-64' | head -n 1
    if [ -n "$module" ]; then /sbin/ldconfig -p | grep 'libnccl.so.2 .*x86-64' | head -n 1; fi # loaded when several GPUs are used
} >/tmp/needed
if grep 'not found' /tmp/needed; then
    echo "collect.sh: these shared objects are missing" >&2
    exit 1
fi
sed -nE 's/.*=> (\/[^ ]+).*/\1/p; s/^[[:space:]]+(\/[^ ]*ld-linux[^ ]*) .*/\1/p' /tmp/needed | sort -u | while read -r file; do
    case $file in
    *libcuda.so*) continue ;;
    */ld-linux*) target=$root/usr/lib64/${file##*/} ;; # where the programs have its path
    *) target=$root$libraries/${file##*/} ;;
    esac
    install -m 755 "$(realpath "$file")" "$target"
    # whose it is: by the path that dpkg knows, which may lie before or behind the link from /lib to /usr/lib
    real=$(realpath "$file")
    package=$(dpkg -S "$real" 2>/dev/null || dpkg -S "${real#/usr}" 2>/dev/null || dpkg -S "$file" 2>/dev/null || true)
    package=${package%%:*}
    if [ -z "$package" ]; then
        echo "$file (of no package)"
        continue
    fi
    dpkg-query -W -f='${Package} ${Version}\n' "$package" | head -n 1
    if [ -e "/usr/share/doc/$package/copyright" ]; then # NVIDIA's packages may have none
        mkdir -p "$root/usr/share/doc/$package"
        cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"
    fi
done >/tmp/packages
sort -u /tmp/packages >"$root/usr/share/inferd/packages" # what the image is made of, for who looks for known faults
cp LICENSE "$root/usr/share/doc/inferd/copyright"

# etc: who the user is, where names are looked up, and which distribution the objects are of (the NVIDIA container toolkit and
# scanners of images go by these two files)
cp -L /etc/os-release /etc/debian_version "$root/etc/"
printf 'root:x:0:0:root:/:/nologin\ninferd:x:10001:10001:inferd:/:/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\ninferd:x:10001:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"

# nothing was forgotten: the loader of the image itself resolves everything inside of it
for program in /usr/bin/inferd ${module:+/usr/lib/inferd/inferd-cuda.so}; do
    if chroot "$root" "/lib64/ld-linux-x86-64.so.2" --list "$program" | grep 'not found'; then
        exit 1
    fi
done
chroot "$root" /usr/bin/inferd version >/dev/null
