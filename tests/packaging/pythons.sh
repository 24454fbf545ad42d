#!/usr/bin/env bash
# Run the tests under the Pythons of other releases of Debian: pythons.sh CACHE RELEASE ...
#
# CACHE keeps a base system of each release. The tests' requirements are installed into a temporary
# directory each time. Tests of Spark do not run; a test is skipped if it starts a server that the
# base system lacks. Prints pytest's closing line for each Python; exits with 1 if a test failed.
set -euo pipefail
cache="$1"
shift
tree="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
pip_cache="${PIP_CACHE_DIR:-${HOME:-/root}/.cache/pip}"
if [ "$(id -u)" -ne 0 ]; then
  echo "Another release of Debian is entered by chroot, which needs root: run this as root." >&2
  exit 1
fi
mkdir -p "$cache" "$pip_cache"

base_system() { # RELEASE: whole under its name, or not there
  echo "Fetching Debian's $1 into $cache, 150 MB ..."
  local made
  made="$(mktemp -d "$cache/fetching-XXXXXX")"
  if ! debootstrap --variant=minbase --include=ca-certificates,python3-venv,redis-server \
    "$1" "$made/root" >"$made/log" 2>&1; then
    tail -n 20 "$made/log" >&2
    rm -rf "$made"
    return 1
  fi
  rm -rf "$made/root"/var/{cache/apt,lib/apt/lists} "$made/root"/usr/share/{doc,locale,man}
  mv -T "$made/root" "$cache/$1" 2>/dev/null || [ -d "$cache/$1" ]
  rm -rf "$made"
}

# Runs in a mount namespace of its own: its mounts end with it. ROOT SCRATCH TREE PIP_CACHE
inside='
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  mount --bind /etc/ssl/certs "$1/etc/ssl/certs"
  for file in /etc/hosts /etc/resolv.conf; do touch "$1$file"; mount --bind "$file" "$1$file"; done
  mount -t tmpfs -o mode=755 tmpfs "$1/mnt"
  mkdir "$1/mnt/scratch" "$1/mnt/tree" "$1/mnt/pip"
  mount --bind "$2" "$1/mnt/scratch"
  mount --bind "$3" "$1/mnt/tree"
  mount --bind "$4" "$1/mnt/pip"
  export PATH=/mnt/scratch/programs:/usr/sbin:/usr/bin:/sbin:/bin PIP_CACHE_DIR=/mnt/pip
  export TMPDIR=/mnt/scratch PYTHONPYCACHEPREFIX=/mnt/scratch/compiled RIFL_TEST_LACKS_SERVERS=yes
  exec chroot "$1" bash -euo pipefail -c "$5"
'
tests='
  cd /mnt/tree
  echo "Installing the tests for $(python3 --version), 800 MB, removed afterwards ..."
  python3 -m venv /mnt/scratch/venv
  /mnt/scratch/venv/bin/python -m pip install -qq -e ".[test]"
  # Without PySpark some modules cannot be imported; there is no make.
  /mnt/scratch/venv/bin/python -m pytest -q -n ${TEST_WORKERS:-4} --no-loadscope-reorder \
    -p no:cacheprovider -rfE --ignore=tests/spark --ignore=tests/libraries \
    --ignore=tests/benchmarks/test_nexmark.py --ignore=tests/test_docs.py \
    --ignore=tests/test_makefile.py \
    --deselect="tests/test_layout.py::test_public_modules_say_what_is_public[examples]" \
    --deselect="tests/test_layout.py::test_public_modules_say_what_is_public[benchmarks]" \
    --deselect="tests/benchmarks/test_house.py::test_the_reference_is_that_of_the_code" \
    ${PYTEST_FLAGS:-}
'
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
failed=0 results=()
for release in "$@"; do
  [ -d "$cache/$release" ] || base_system "$release"
  rm -rf "$scratch"/*
  chmod 755 "$scratch"
  mkdir "$scratch/programs"
  for program in etcd etcdctl etcdutl toxiproxy-server; do # static ones, that make built
    found="$(PATH="$PATH:$tree/.venv/bin:$tree/.venv/etcd" command -v "$program")" \
      && cp -L "$found" "$scratch/programs/$program"
  done
  unshare --mount bash -euo pipefail -c "$inside" inside \
    "$cache/$release" "$scratch" "$tree" "$pip_cache" "$tests" | tee "$scratch/log" || failed=1
  results+=("$release: $(chroot "$cache/$release" python3 --version): $(tail -n 1 "$scratch/log")")
done
printf '%s\n' "${results[@]}"
exit "$failed"
