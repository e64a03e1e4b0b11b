#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What programs read from the tools: JSON and CSV of p2p_bench, JSON of uccl_info.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 10 9

# valid NAME COUNT FLAG...: p2p_bench --json writes one object and nothing else, with COUNT results
valid() {
    local name=$1 count=$2
    shift 2
    timeout 200 "$P2P_BENCH" --local --json "$@" >"$WORK/$name.json" 2>"$WORK/$name.log" || return 1
    python3 - "$WORK/$name.json" "$count" <<'EOF'
import json, sys
results = json.load(open(sys.argv[1]))["results"]
print(len(results), "results")
assert len(results) == int(sys.argv[2])
keys = "size_bytes gbps msgs_per_s lat_us_p50 lat_us_p99 retransmits cpu_s_per_gib verified".split()
last = -1
for r in results:
    print(r)
    for k in keys:
        assert k in r, k
    assert r["verified"] is True
    assert r["size_bytes"] > last
    last = r["size_bytes"]
    assert r["gbps"] > 0 and r["msgs_per_s"] > 0 and r["retransmits"] >= 0
    assert 0 < r["lat_us_p50"] <= r["lat_us_p99"] and r["cpu_s_per_gib"] > 0
    ratio = r["gbps"] * 1e9 / 8 / (r["msgs_per_s"] * r["size_bytes"])
    assert 0.95 < ratio < 1.05, ratio
EOF
}

check "--local --json" valid sweep 3 --sizes=256,64K,1M --seconds=0.2
check "--local --json --bi" valid both 2 --sizes=4K,1M --seconds=0.2 --bi
check "--local --json by count" valid count 2 --sizes=256,10M --iterations=20
check "--local --json --window" valid window 1 --sizes=16K --iterations=200 --window=4
if [ "$SHORT" = 0 ]; then
    check "--local --json, the default sizes" valid default 9 --seconds=0.3
fi

csv() {
    timeout 60 "$P2P_BENCH" --local --csv --sizes=256,64K --seconds=0.2 >"$WORK/out.csv" || return 1
    python3 - "$WORK/out.csv" <<'EOF'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
print(rows)
assert [r["size_bytes"] for r in rows] == ["256", "65536"]
EOF
}
check "--local --csv" csv
text() {
    timeout 60 "$P2P_BENCH" --local --sizes=64K --seconds=0.2 >"$WORK/text.log" 2>&1 || return 1
    said text 'client.*64(\.0)? KB *: *[0-9.]+ Gbps \| *[0-9.]+ GB/s'
}
check "a line for people" text

# the two roles as separate processes
roles() {
    next_port
    start server "$P2P_BENCH" --server --oobport="$PORT"
    local server=$PID
    wait_listening "$server" "$PORT" || return 1
    start client "$P2P_BENCH" --serverip=127.0.0.1 --oobport="$PORT" --sizes=1K,1M --iterations=50 --bi
    ended "$PID" 60 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
    ended "$server" 10 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
}
check "server and client" roles
check "uccl_info --json" eval "'$BUILD/bench/uccl_info' --json | python3 -m json.tool"
check "uccl_info fits a screen" eval "[ \$('$BUILD/bench/uccl_info' | wc -l) -le 80 ]"
finish
