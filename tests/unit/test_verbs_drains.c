/* SPDX-License-Identifier: Apache-2.0 */
/* Data QPs of the verbs backend that a device does not bring to rest: they are destroyed, and when. */
#include "verbs_pair.h"

/*
 * The queue pair hangs, and nobody has looked for a second at what it has received. The sender has its completions, so
 * it repeats nothing.
 */
Test(verbs_drains, hung_one_is_not_destroyed_before_all_it_received_is_taken, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_qp_id id = path_id(1, 0, 1);
    struct tx_desc hangs = {.kind = TX_PLACE,
                            .count = 1,
                            .on_path = true,
                            .generation = 1,
                            .destination = to_first,
                            .bulk_msg = &source.core,
                            .place_bytes = 16,
                            .remote_address = (uintptr_t)target.bytes};
    fake_qp_of(queues[1]->peers[to_first].qps[0]->ibv->qp_num)->silent = true;
    for (uint64_t cookie = 1; cookie <= 40; cookie++)
        cr_assert(send_write(0, 1, 0, 16, cookie));
    deliver();
    cr_assert_eq(finished(), 40);
    cr_assert(verbs_datagram_ops.send(&queues[1]->base, &hangs));
    verbs_datagram_ops.flush(&queues[1]->base);
    verbs_data_qp_ops.drain(&queues[1]->base, &id);
    queues[1]->peers[to_first].qps[0]->since_ms -= VERBS_DRAIN_MAX_MS;
    cr_assert(!next_event(1, &event));
    cr_assert_eq(take_writes(), 40);
    await_drained(1);
    verbs_data_qp_ops.destroy(&queues[1]->base, &id);
}

/* A queue pair that the device does not stop places nothing after the drain either, nor after its flow is closed. */
Test(verbs_drains, that_cannot_be_stopped_is_destroyed, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_qp_id id = path_id(1, 0, 1);
    connect_path(1, 1);
    fake.stop_errno = EIO;
    for (uint64_t cookie = 1; cookie <= 40; cookie++)
        cr_assert(send_write(0, 1, 0, 16, cookie));
    deliver();
    verbs_data_qp_ops.drain(&queues[1]->base, &id);
    usleep(1000 * (VERBS_DRAIN_MS + 1)); /* one that has stopped is drained after that */
    cr_assert(!next_event(1, &event), "what it has received is to be taken");
    cr_assert_eq(take_writes(), 40);
    await_drained(1);
    memset(target.bytes, 0, 16);
    cr_assert(send_write(0, 1, 0, 16, 41));
    deliver();
    cr_assert_eq(target.bytes[1], 0);
    cr_assert_eq(take_writes(), 0);
    verbs_data_qp_ops.destroy(&queues[1]->base, &id);
    verbs_datagram_ops.peer_remove(&queues[1]->base, to_first); /* path 1 is up */
    cr_assert(send_write(1, 1, 0, 16, 42));
    deliver();
    cr_assert_eq(target.bytes[1], 0);
}
