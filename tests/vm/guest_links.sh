# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Four soft-RoCE devices joined by two veth pairs, in one network namespace (the driver knows no other):
# rxe0 on v0 10.0.0.1, rxe1 on v1 10.0.0.2, rxe2 on v2 10.0.1.1, rxe3 on v3 10.0.1.2. Sourced by the guest's first
# process.
modprobe -a veth sch_netem sch_plug
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.core.netdev_max_backlog=100000
# IP between the two addresses of a pair goes over the pair as well, not over lo
ip rule add pref 100 lookup local
ip rule del pref 0
for pair in 0 1; do
    a=$((2 * pair)) b=$((2 * pair + 1))
    ip link add v$a numtxqueues 1 numrxqueues 1 type veth peer name v$b numtxqueues 1 numrxqueues 1
    ip link set v$a address 02:00:00:00:0$pair:01
    ip link set v$b address 02:00:00:00:0$pair:02
    ip addr add 10.0.$pair.1/24 dev v$a
    ip addr add 10.0.$pair.2/24 dev v$b
    ip rule add pref $((10 + a)) iif lo from 10.0.$pair.1 to 10.0.$pair.2 lookup $((50 + a))
    ip rule add pref $((10 + b)) iif lo from 10.0.$pair.2 to 10.0.$pair.1 lookup $((50 + b))
done
for device in v0 v1 v2 v3; do
    ip link set $device mtu "${VM_MTU:-4200}"
    sysctl -qw net.ipv4.conf.$device.accept_local=1 net.ipv4.conf.$device.rp_filter=0 \
        net.ipv6.conf.$device.disable_ipv6=1
    # what arrives is handled by one processor: two would reorder it
    echo 1 >/sys/class/net/$device/queues/rx-0/rps_cpus
    "$VM_HERE/link.sh" up $device
done
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1
rdma link add rxe2 type rxe netdev v2
rdma link add rxe3 type rxe netdev v3
