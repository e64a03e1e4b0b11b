# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Two soft-RoCE devices joined by a veth pair, in one network namespace (the driver knows no other):
# rxe0 on v0 10.0.0.1, rxe1 on v1 10.0.0.2. Sourced by the guest's first process.
modprobe -a veth sch_netem sch_plug
ip link add v0 numtxqueues 1 numrxqueues 1 type veth peer name v1 numtxqueues 1 numrxqueues 1
ip link set v0 address 02:00:00:00:00:01
ip link set v1 address 02:00:00:00:00:02
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.core.netdev_max_backlog=100000
ip addr add 10.0.0.1/24 dev v0
ip addr add 10.0.0.2/24 dev v1
# IP between the two addresses goes over the pair as well, not over lo
ip rule add pref 100 lookup local
ip rule del pref 0
ip rule add pref 10 iif lo from 10.0.0.1 to 10.0.0.2 lookup 51
ip rule add pref 11 iif lo from 10.0.0.2 to 10.0.0.1 lookup 52
for device in v0 v1; do
    ip link set $device mtu "${VM_MTU:-4200}"
    sysctl -qw net.ipv4.conf.$device.accept_local=1 net.ipv4.conf.$device.rp_filter=0 \
        net.ipv6.conf.$device.disable_ipv6=1
    # what arrives is handled by one processor: two would reorder it
    echo 1 >/sys/class/net/$device/queues/rx-0/rps_cpus
    "$VM_HERE/link.sh" up $device
done
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1
