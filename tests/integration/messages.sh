#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Receives of another size than their sends, receives posted late, and closing with requests pending.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 32

# both SERVER_STEPS CLIENT_STEPS: both ends do as told
both() {
    local server client result=0 pid
    read -ra server <<<"$1"
    read -ra client <<<"$2"
    next_port
    draw_settings
    start server env "${SETTINGS[@]}" "$ENDPOINT" listen "$PORT" "${server[@]}"
    pid=$PID
    wait_listening "$pid" "$PORT" || return 1
    draw_settings
    start client env "${SETTINGS[@]}" "$ENDPOINT" connect 127.0.0.1 "$PORT" "${client[@]}"
    ended "$PID" 30 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && result=1; }
    ended "$pid" 30 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && result=1; }
    return "$result"
}

for size in 0 1 100 8192 8193 100000 5000000; do
    check "receive larger than the send of $size B" \
        both "recv:$((size + 1000)) wait recv:10 wait" "send:$size wait send:10 wait"
    check "receive posted late, send of $size B" \
        both "pause:200 recv:$size wait recv:10 wait" "send:$size wait send:10 wait"
done
for size in 1 100 8192 8193 100000 5000000; do
    check "receive smaller than the send of $size B: both end truncated, the connection lives" \
        both "recv:$((size / 2)) wait=UCCL_ETRUNCATED recv:10 wait" \
        "send:$size wait=UCCL_ETRUNCATED send:10 wait"
    check "smaller receive posted late, send of $size B" \
        both "pause:200 recv:$((size / 2)) wait=UCCL_ETRUNCATED recv:10 wait" \
        "send:$size wait=UCCL_ETRUNCATED send:10 wait"
done
check "both directions at once" \
    both "send:300000 recv:400000 wait wait" "send:400000 recv:300000 wait wait"
many() { for ((i = 0; i < 30; i++)); do printf '%s:%d ' "$1" $((i * 3000)); done; }
waits() { for ((i = 0; i < 30; i++)); do printf 'wait '; done; }
check "30 sends of growing size, in order" both "$(many recv)$(waits)" "$(many send)$(waits)"
check "30 sends before any receive" \
    both "pause:300 $(many recv)$(waits)" "$(many send)$(waits)"
check "the peer closes: a pending receive ends closed" \
    both "recv:100 wait=UCCL_ECLOSED" "pause:300 close"
check "what was sent before a close arrives" both "pause:300 recv:100000 wait" "send:100000 close"
check "small sends before a close arrive" \
    both "pause:300 recv:100 recv:100 wait wait" "send:100 send:100 close"
finish
