#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two NICs of each end in one subnet, over UDP, TCP and both: what each carries, as the engine counts it, with what
# docs/nics.md tells to set, with source routing, and with what the kernel has by default; then cuts.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/rails/lib.sh
. "$(dirname "$0")/../rails/lib.sh"
plan 27

IN_SERVER=(ip netns exec "${NS[0]}")
IN_CLIENT=(ip netns exec "${NS[1]}")
FLAGS=(--perftype=basic --msize=1M --nreq=4 --iterations=$((SHORT ? 40 : 100)))
TOLD="net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2" # as docs/nics.md has it
NOTHING= # what the kernel has by default, also of interfaces to come
for setting in arp_ignore arp_announce rp_filter; do
    NOTHING+="net.ipv4.conf.all.$setting=0 net.ipv4.conf.default.$setting=0 "
done
NETWORK=one_subnet KINDS=(down unplug)

# halves LOG WORD: what nic0 and nic1 have "sent" or "received", by that log, is 40% or more each
halves() {
    awk -v "word=$2" '
        / nic[01]: .* GiB sent/ {
            for (i = 1; i < NF; i++)
                if (word == "sent" ? $(i + 2) == "sent," : $(i + 1) ~ /^received/) some[++count] = $i
        }
        END {
            print word, some[1], some[2], "GiB"
            exit !(count == 2 && some[1] >= 0.4 * (some[1] + some[2]) && some[2] >= 0.4 * (some[1] + some[2]))
        }' "$WORK/$1.log"
}

# carried: what the last pair has carried is shared by both NICs, at both ends
carried() { halves client sent && halves server received; }

networks() { "$NETWORK" "$R" "$R" && { [ "$1" = none ] || "$1"; }; }

for backend in udp tcp auto; do
    export UCCL_BACKEND=$backend
    SYSCTLS="$TOLD net.ipv4.conf.all.rp_filter=2"
    networks none
    check "$backend, as documented: verified" pair 10.79.0.1 "${FLAGS[@]}"
    check "$backend, as documented: each NIC carries about half" carried
    SYSCTLS="$TOLD net.ipv4.conf.all.rp_filter=1"
    networks source_routes
    check "$backend, source routing: verified" pair 10.79.0.1 "${FLAGS[@]}"
    check "$backend, source routing: each NIC carries about half" carried
    SYSCTLS=$NOTHING
    networks none
    check "$backend, nothing is set: verified" pair 10.79.0.1 "${FLAGS[@]}"
    check "$backend, nothing is set: the log tells what to set" said client arp_ignore
    networks crossed
    check "$backend, nothing is set, what is meant for one NIC comes by the other: verified" pair 10.79.0.1 "${FLAGS[@]}"
    SYSCTLS="$TOLD net.ipv4.conf.all.rp_filter=2"
    cut_limits
    check "$backend: a NIC is cut twice: nothing is lost, and it carries again within $RETURN_S s" cuts 2
    check "$backend: no message takes longer than $LONGEST_MS_MAX ms" longest_is_short
done
finish
