#!/usr/bin/env bash
# Serves the shipped model on a free port, solves one puzzle over HTTP, shows the answer and the board, stops the server.
# Usage: docs/demo.sh DIRECTORY_OF_COMMANDS
set -euo pipefail
commands=$1
port=$("$commands/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url="http://127.0.0.1:$port"
puzzle='53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79'

log=$(mktemp)
"$commands/hrm-serve" --port "$port" 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT

"$commands/python" - "$url" <<'PYTHON' || { cat "$log" >&2; exit 1; }
import sys, time
import httpx
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        if httpx.get(sys.argv[1] + "/readyz").status_code == 200:
            sys.exit(0)
    except httpx.TransportError:
        pass
    time.sleep(0.1)
sys.exit("the server was not ready within 60 seconds")
PYTHON

echo "\$ curl $url/solve -H 'content-type: application/json' -d '{\"puzzle\": \"$puzzle\"}'"
"$commands/hrm-solve" "$puzzle" --url "$url" --json
"$commands/hrm-solve" "$puzzle" --url "$url"

cat <<STEPS

Next:
  $commands/hrm-serve                       # all models and a page: http://127.0.0.1:8000
  $commands/hrm-solve puzzles.txt --bundle sudoku   # a file of puzzles, without a server
  $commands/hrm --help                      # every command; training needs make test's environment (docs/install.md)
STEPS
