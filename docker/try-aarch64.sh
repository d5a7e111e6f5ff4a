#!/usr/bin/env bash
# Installs the serving wheels for aarch64 and solves a puzzle with them, emulated on an x86-64 machine.
#   sudo docker/try-aarch64.sh DIRECTORY            (Debian: apt-get install debootstrap qemu-user-static)
# Makes an arm64 Debian in DIRECTORY, which should hold nothing else, and downloads wheels for its Python: no compiler, no
# source. Takes half an hour.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
suite=${SUITE:-bookworm}     # its Python: bookworm 3.11, trixie 3.13; Debian has no 3.10 or 3.12 for arm64
python=${PYTHON:-python3.11} # the same version on this machine, to choose and download the wheels
root=$work/root

if [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    echo ":qemu-aarch64:M::$magic:$mask:/usr/bin/qemu-aarch64-static:F" > /proc/sys/fs/binfmt_misc/register
fi

if [ ! -e "$root/usr/bin/python3" ]; then
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root"
    chroot "$root" /debootstrap/debootstrap --second-stage
fi

into=$root/opt/wheels
mkdir -p "$into"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$into" "$here"
platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do platforms+=(--platform "${tag}_aarch64"); done
"$python" -m pip download --quiet --dest "$into" --constraint "$here/constraints.txt" --only-binary=:all: \
    --implementation cp "${platforms[@]}" "$(echo "$into"/hrm_edge-*.whl)[serve]"

mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -eux <<'INSIDE'
uname -m
python3 --version
python3 -m venv /opt/hrm
/opt/hrm/bin/pip install --quiet --no-index --find-links /opt/wheels "$(echo /opt/wheels/hrm_edge-*.whl)[serve]"
export PATH=/opt/hrm/bin:$PATH
hrm-doctor || test $? = 1           # 1: something to fix, such as too little memory
hrm-doctor --device || test $? = 1  # there is no GPU, and each step says so
hrm-serve sudoku-6x6 sudoku --port 8765 --threads 1 --slots 1 &
server=$!
ready='import urllib.request; urllib.request.urlopen("http://127.0.0.1:8765/readyz")'
until python -c "$ready" 2>/dev/null; do sleep 2; kill -0 $server; done
hrm-solve ..4...5..4..2....5..31.....6.113.2.4 --url http://127.0.0.1:8765 --json
hrm-solve 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79 --url http://127.0.0.1:8765 --json
kill -TERM $server
wait $server
forms='
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
for name in shipped_bundles():
    for precision in Bundle.open(find_bundle(name)).manifest.precisions:
        if precision != "fp16":  # emulated half floats would take hours
            print(name, "--engine", f"cpu:{precision}")
'
python -c "$forms" | while read -r form; do
    hrm-parity $form
done
INSIDE
echo "aarch64: installed, diagnosed, answered, left with status 0, and every model holds parity in FP32 and INT8"
