#!/usr/bin/env bash
# Run the tests under the Pythons of other releases of Debian: pythons.sh CACHE RELEASE ...
#
# CACHE keeps one base system for each release; an environment with the tests' requirements is
# made in a temporary directory each time. Tests of Spark, and tests whose server the base system
# lacks, do not run. Prints pytest's closing line of each Python; exits with 1 if a test failed.
set -euo pipefail
cache="$1" flags="${PYTEST_FLAGS:-}"
shift
tree="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
pip_cache="${PIP_CACHE_DIR:-${HOME:-/root}/.cache/pip}"
# Modules that import PySpark.
without_spark=(
  --ignore=tests/spark --ignore=tests/libraries --ignore=tests/benchmarks/test_nexmark.py
  --ignore=tests/test_docs.py
  --deselect='tests/test_layout.py::test_public_modules_say_what_is_public[examples]'
  --deselect='tests/test_layout.py::test_public_modules_say_what_is_public[benchmarks]'
)
if [ "$(id -u)" -ne 0 ]; then
  echo "Only root can enter another release of Debian: run this as root." >&2
  exit 1
fi

base_system() { # RELEASE: make its directory, whole or not at all
  local made
  echo "Fetching Debian's $1 into $cache: 300 MB ..."
  mkdir -p "$cache" && made="$(mktemp -d "$cache/fetching-XXXXXX")"
  if ! debootstrap --variant=minbase --include=ca-certificates,python3-venv,redis-server \
    "$1" "$made/$1" >"$made/log" 2>&1; then
    tail -n 20 "$made/log" >&2
    return 1
  fi
  rm -rf "$made/$1"/var/cache/apt/* "$made/$1"/var/lib/apt/lists/* "$made/$1"/usr/share/{doc,locale,man}
  chmod 755 "$made/$1"
  mv -T "$made/$1" "$cache/$1" || [ -d "$cache/$1" ]
  rm -rf "$made"
}

inside() { # ROOT SCRATCH: in a mount namespace of its own, which takes its mounts along
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$1/mnt"
  mkdir -p "$1/mnt/tree" "$1/mnt/pip" "$1/mnt/scratch"
  mount --bind "$tree" "$1/mnt/tree"
  mount --bind "$pip_cache" "$1/mnt/pip"
  mount --bind "$2" "$1/mnt/scratch"
  mount --bind /etc/ssl/certs "$1/etc/ssl/certs"
  for file in /etc/hosts /etc/resolv.conf; do touch "$1$file" && mount --bind "$file" "$1$file"; done
  exec chroot "$1" env PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_CACHE_DIR=/mnt/pip \
    TMPDIR=/mnt/scratch PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=/mnt/scratch/compiled \
    RIFL_TEST_LACKS_SERVERS=yes bash -euo pipefail -c '
      cd /mnt/tree
      echo "Installing the tests of $(python3 --version): 700 MB, for this run only ..."
      python3 -m venv /mnt/scratch/venv
      /mnt/scratch/venv/bin/python -m pip install -qq -e ".[test]"
      exec /mnt/scratch/venv/bin/python -m pytest "$@"' pytest \
    -q -n "${TEST_WORKERS:-4}" --no-loadscope-reorder -p no:cacheprovider -rfE \
    "${without_spark[@]}" $flags
}

failed=0 results=()
for release in "$@"; do
  [ -d "$cache/$release" ] || base_system "$release"
  mkdir -p "$pip_cache"
  scratch="$(mktemp -d)"
  trap 'rm -rf "$scratch"' EXIT
  chmod 755 "$scratch"
  export -f inside
  export tree pip_cache flags
  (declare -p without_spark; declare -f inside; echo "inside '$cache/$release' '$scratch'") >"$scratch/inside"
  unshare --mount --pid --fork --kill-child bash -euo pipefail "$scratch/inside" | tee "$scratch/log" || failed=1
  results+=("$release, $(chroot "$cache/$release" python3 --version): $(tail -n 1 "$scratch/log")")
  rm -rf "$scratch"
done
printf '%s\n' "${results[@]}"
exit "$failed"
