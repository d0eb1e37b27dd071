#!/bin/sh
# Runs a small pipeline over the documentation of berth: an etcd with a sidecar and a
# coordinator, two workers, and a run whose steps they share. Everything is in a folder
# of its own and is gone at the end.
#
# usage: demo.sh [BERTH]    (the binary; bin/berth of this checkout if left out)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
berth=${1:-$root/bin/berth}
work=$(mktemp -d)
pids=

# The workers go first: they give back what they have.
cleanup() {
  for pid in $pids; do
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT PIPE TERM

# started waits for the first line of a server's output.
started() {
  tries=0
  until [ -s "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || { echo "no answer from berth:" >&2; cat "$1.err" >&2; exit 1; }
    sleep 0.1
  done
}

echo "== berth dev, and two workers"
"$berth" dev --data-dir "$work/data" --listen 127.0.0.1:0 --etcd-listen 127.0.0.1:0 --pool disk=3 -o json > "$work/dev" 2> "$work/dev.err" &
pids="$!"
started "$work/dev"
BERTH_ENDPOINTS=$(tr -d ' \n' < "$work/dev" | sed 's/.*"etcd":"\([^"]*\)".*/\1/')
export BERTH_ENDPOINTS OUT="$work"
for name in one two; do
  "$berth" worker --name "$name" --state-dir "$work/state" --concurrency 3 > "$work/$name" 2> "$work/$name.err" &
  pids="$! $pids"
  started "$work/$name"
  cat "$work/$name"
done

cp "$here/run.yaml" "$work"
ls "$root"/*.md "$root"/docs/how-to/*.md > "$work/files.txt"

echo
echo "== berth submit -f run.yaml --wait"
"$berth" submit -f "$work/run.yaml" --id demo --wait 10m

echo
echo "== berth runs info demo"
"$berth" runs info demo

echo
echo "== berth runs logs demo"
"$berth" runs logs demo

echo
echo "== berth runs events demo (the first ten)"
"$berth" runs events demo | head -n 11
