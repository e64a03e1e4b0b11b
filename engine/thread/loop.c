/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/loop.h"

#include "base/race_point.h"
#include "gpu/stage.h"
#include "thread/data_qps.h"
#include "thread/onesided.h"
#include "thread/payload.h"
#include "thread/post.h"
#include "thread/stripe.h"

#include <string.h>

enum {
    RX_BATCH = 8,        /* received buffers per round */
    COMMAND_BATCH = 256, /* commands per round */
    TIMERS_PUT_OFF = 64, /* rounds for which a NIC with more to receive puts timers off */
    FLUSH_BATCHES = 8,   /* batches of NIC_TX_BATCH descriptors, at most, in thread_send_acks() */
    BRIEF_BYTES = 4096,  /* a packet that is handled within a moment, */
    BRIEF_COMMANDS = 4,  /* and so many commands */
};

static void do_releases(struct engine_thread *thread)
{
    struct core_release release;
    while (core_next_release(thread->core, &release))
        stage_release(thread->stage, &release);
}

/* The bytes that they announce may come next, and shall find their receive. */
static void take_leaders(struct engine_thread *thread)
{
    struct core_msg *msg;
    while ((msg = core_next_leader(thread->core)))
        loop_request_ended(thread, request_of(msg));
}

/* Whether a command finds its request in the epoch that it was meant for. */
static bool still_pending(const struct ring_entry *entry)
{
    const struct uccl_request *request = entry->object;
    /* The state comes first: that of a later epoch, which is not even submitted here, shows in the generation.
     * Pairs with the release of PENDING by the thread that begins an epoch. */
    bool pending = atomic_load_explicit(&request->state, memory_order_acquire) == REQUEST_PENDING;
    RACE_POINT();
    uint32_t generation = atomic_load_explicit(&request->generation, memory_order_relaxed);
    return generation == (uint32_t)(entry->what >> 32) && pending;
}

/*
 * The same, and no other thread may end the request, so no new epoch begins meanwhile. `home_over` comes first: that
 * of a later epoch shows in the generation.
 */
static bool still_ours(const struct ring_entry *entry)
{
    const struct uccl_request *request = entry->object;
    return !atomic_load_explicit(&request->home_over, memory_order_acquire) && still_pending(entry);
}

static void run_command(struct engine_thread *thread, const struct ring_entry *entry, uint64_t now_ns)
{
    switch ((enum thread_command)(entry->what & COMMAND_MASK)) {
    case COMMAND_SUBMIT: {
        struct uccl_request *request = entry->object;
        stripe_submit(thread, request, now_ns);
        payload_copies(thread->core);
        break;
    }
    case COMMAND_CANCEL: {
        struct uccl_request *request = entry->object;
        RACE_POINT();
        if (still_ours(entry) && request->op)
            onesided_cancel(thread, request->op);
        else if (still_ours(entry))
            stripe_cancel(thread, request, now_ns);
        break;
    }
    case COMMAND_FLUSH:
        flush_submit(&thread->flushes, entry->object);
        break;
    case COMMAND_CLOSE:
        stripe_close(thread, entry->object, (entry->what >> 32) * NS_PER_MS, now_ns);
        break;
    case COMMAND_PART: {
        struct uccl_request *part = entry->object;
        stripe_submit_part(thread, part, now_ns);
        break;
    }
    case COMMAND_END_PART: {
        struct uccl_request *part = entry->object;
        if (still_pending(entry))
            core_end_part(thread->core, &part->msg, now_ns);
        break;
    }
    case COMMAND_LOOK: {
        struct uccl_request *request = entry->object;
        if (still_ours(entry))
            stripe_look(thread, request, now_ns);
        break;
    }
    case COMMAND_FAIL:
        stripe_fail(thread, entry->object, (int32_t)(entry->what >> 32), now_ns);
        break;
    case COMMAND_OP:
        onesided_submit(thread, entry->object);
        break;
    case COMMAND_NOTES:
        onesided_resume(thread, entry->object);
        break;
    case COMMAND_SERVICE: {
        struct uccl_request *request = entry->object;
        request->service(thread, request);
        break;
    }
    case COMMAND_CALL: {
        struct thread_call *call = entry->object;
        call->run(thread, call->argument);
        /* pairs with the acquire in thread_wait(); the caller's frame may vanish right after */
        atomic_store_explicit(&call->done, 1, memory_order_release);
        thread->ended_some = true;
        break;
    }
    }
}

static bool take_commands(struct engine_thread *thread)
{
    struct ring_entry entry;
    unsigned taken = 0;
    thread->now_ns = 0;
    for (; taken < COMMAND_BATCH && ring_pop(&thread->ring, &entry); taken++)
        run_command(thread, &entry, thread_now_ns(thread));
    if (taken > BRIEF_COMMANDS)
        thread->now_ns = 0;
    return taken > 0;
}

/*
 * Messages and parts posted since the round took its commands, up to any other command. A part is posted before the
 * clear-to-send that allows its bytes leaves. These may be here already, and the core refuses them without it.
 */
static void take_messages(struct engine_thread *thread)
{
    struct ring_entry entry;
    for (unsigned taken = 0; taken < COMMAND_BATCH && ring_peek(&thread->ring, &entry); taken++) {
        enum thread_command command = entry.what & COMMAND_MASK;
        if (command != COMMAND_SUBMIT && command != COMMAND_PART)
            return;
        ring_pop(&thread->ring, &entry);
        run_command(thread, &entry, thread_now_ns(thread));
    }
}

/*
 * How many buffers to ask for. After a burst of one, as in a ping-pong, the next one is expected alone as well, and
 * handled before the NIC is asked for a second: with sockets that costs a system call, which finds nothing.
 */
static unsigned rx_batch(const struct engine_thread *thread)
{
    return thread->rx_lone && thread->rx_burst == 0 ? 1 : RX_BATCH;
}

/* True: the queue had something. `*drained`: it has nothing more. */
static bool receive_from(struct engine_thread *thread, struct nic_queue *queue, bool *drained)
{
    struct nic_rx received[RX_BATCH];
    unsigned room = stage_rx_room(thread->stage, rx_batch(thread));
    unsigned count = room ? queue->datagram->poll(queue, received, room) : 0;
    if (count)
        take_messages(thread);
    for (unsigned i = 0; i < count; i++) {
        const struct nic_rx *rx = &received[i];
        uint64_t now_ns = thread->now_ns = clock_now_ns();
        bool brief = count == 1 && rx->length <= BRIEF_BYTES;
        core_waited(thread->core, waited_ns(rx->at_ns, now_ns));
        bool on_path = thread->places && rx->flow;
        if (on_path) {
            data_qps_receive(thread, rx, now_ns);
            payload_copies(thread->core);
            do_releases(thread);
        }
        for (uint32_t at = on_path ? rx->length : 0, index = 0; at < rx->length; at += rx->stride, index++) {
            uint32_t length = rx->length - at < rx->stride ? rx->length - at : rx->stride;
            core_rx_copied(thread->core, rx->data + at, length, nic_rx_payload(rx, index), rx->ce, now_ns);
            payload_copies(thread->core);
            do_releases(thread);
        }
        queue->datagram->release(queue, rx);
        take_leaders(thread);
        if (!brief)
            thread->now_ns = 0;
    }
    *drained = count < room;
    thread->rx_burst += count;
    return count > 0;
}

static bool receive(struct engine_thread *thread, bool *drained)
{
    struct nic_queue *beside = thread->queue->beside;
    thread->now_ns = 0;
    bool some = receive_from(thread, thread->queue, drained), all = true;
    if (beside)
        some |= receive_from(thread, beside, &all);
    *drained &= all;
    if (!some && thread->rx_burst > 0) {
        thread->rx_lone = thread->rx_burst == 1;
        thread->rx_burst = 0;
    }
    return some;
}

void loop_request_ended(void *owner, struct uccl_request *request)
{
    struct engine_thread *thread = owner;
    if (request->service && !request->parts) {
        request->service(thread, request);
        return;
    }
    thread->ended_some = true;
    if (request->parent || request->parts)
        stripe_ended(thread, request);
    else if (request->staged.memory)
        stripe_request_over(request);
    else {
        RACE_POINT();
        /* pairs with the acquire in test and wait */
        atomic_store_explicit(&request->state, REQUEST_ENDED, memory_order_release);
    }
}

static bool take_events(struct engine_thread *thread)
{
    struct core_event event;
    bool some = false;
    while (core_next_event(thread->core, &event)) {
        some = true;
        struct uccl_request *request = event.msg ? request_of(event.msg) : NULL;
        if (event.kind == CORE_EVENT_MSG)
            stripe_note_length(request);
        if (event.kind == CORE_EVENT_RANGE)
            stripe_range(thread, request, event.bytes);
        else if (event.kind == CORE_EVENT_ARRIVED)
            stripe_arrived(thread, request, event.bytes, event.total);
        else if (event.kind == CORE_EVENT_WANTED)
            stage_fetch(thread->stage, request);
        else if (event.kind != CORE_EVENT_MSG) {
            thread->ended_some = true;
            thread->on_event(thread->context, &event);
        } else if (!request->staged.memory || stage_over(thread->stage, request))
            loop_request_ended(thread, request);
        else
            stripe_recall(thread, request);
    }
    if (thread->ones_due)
        onesided_flush(thread, false);
    return some;
}

/* Wakes waiters if requests have ended. */
static void tell_waiters(struct engine_thread *thread)
{
    if (thread->ended_some)
        thread_tell_waiters(thread);
    thread->ended_some = false;
}

/* Whether the CPU can read the payload of these datagrams. That of a direct send is fetched first. */
static bool payload_there(struct engine_thread *thread, const struct tx_desc *desc)
{
    struct tx_piece piece = {0};
    if (desc->kind == TX_BULK)
        piece = (struct tx_piece){.msg = desc->bulk_msg,
                                  .offset_bytes = desc->bulk_offset,
                                  .length = (desc->count - 1u) * desc->bulk_stride + desc->bulk_last};
    else if (desc->kind == TX_FRAMES && desc->fragment && desc->piece_count)
        piece = desc->pieces[0];
    struct uccl_request *request = piece.msg ? request_of(piece.msg) : NULL;
    if (!request || !request->staged.memory || piece.msg->block_bytes)
        return true;
    return stage_bounce(thread->stage, request, piece.offset_bytes, piece.length);
}

bool loop_transmit(struct engine_thread *thread)
{
    struct tx_desc desc;
    unsigned sent = 0;
    bool refused = false, there = true;
    while (sent < NIC_TX_BATCH && there && !refused && core_tx(thread->core, &desc, thread_now_ns(thread))) {
        there = payload_there(thread, &desc);
        struct nic_queue *queue = nic_queue_to(thread->queue, desc.destination);
        refused = there && !queue->datagram->send(queue, &desc);
        if (!there || refused)
            core_tx_failed(thread->core, &desc, clock_now_ns());
        if (refused && queue->channel) /* other paths may have room */
            refused = false;
        do_releases(thread);
        sent++;
        if (sent > 1 || desc.kind != TX_FRAMES || desc.count > 1 || desc.last_bytes > BRIEF_BYTES)
            thread->now_ns = 0;
    }
    if (sent) {
        thread->now_ns = 0;
        thread->queue->datagram->flush(thread->queue);
        if (thread->queue->beside)
            thread->queue->beside->datagram->flush(thread->queue->beside);
        stage_bounces_sent(thread->stage);
    }
    return sent > (refused && thread->room_wakes);
}

void thread_send_acks(struct engine_thread *thread)
{
    core_flush_acks(thread->core);
    for (unsigned i = 0; i < FLUSH_BATCHES && loop_transmit(thread); i++)
        ;
}

/* One of several NICs may have failed, or be back. */
static void follow_ends(struct engine_thread *thread)
{
    struct nic_end_event event;
    while (thread->queue->nic->ends->event(thread->queue, &event))
        core_destination_changed(thread->core, event.destination, event.up, clock_now_ns());
}

/* The NIC may have failed, or learnt the MTU of a route. */
static void follow_nic(struct engine_thread *thread)
{
    uint32_t destination, datagram_bytes;
    int error = nic_failure(thread->queue);
    if (error)
        core_fail(thread->core, error, clock_now_ns());
    while (thread->queue->datagram->follow(thread->queue, &destination, &datagram_bytes))
        core_set_datagram(thread->core, destination, datagram_bytes);
    if (thread->queue->nic->ends)
        follow_ends(thread);
}

/* Connections that are the paths of flows. */
static void follow_channels(struct engine_thread *thread, struct nic_queue *queue)
{
    struct nic_channel_event event;
    while (queue->channel->event(queue, &event)) {
        if (event.broken)
            core_path_broken(thread->core, event.flow, event.rail, event.path, clock_now_ns());
        else if (event.lossy)
            core_path_lossy(thread->core, event.flow, event.rail, clock_now_ns());
        else
            core_path_room(thread->core, event.flow, event.rail, event.path, clock_now_ns());
    }
}

bool loop_round(struct engine_thread *thread)
{
    bool drained;
    if (thread->notices)
        stripe_retry(thread);
    bool busy = take_commands(thread);
    /* what was posted leaves first: looking for what has arrived is a system call that may find nothing */
    if (busy && !thread->places)
        loop_transmit(thread);
    busy |= receive(thread, &drained);
    struct nic_queue *channels = thread->queue->channel ? thread->queue : thread->queue->beside;
    if (channels)
        follow_channels(thread, channels);
    if (thread->places)
        busy |= data_qps_finish(thread);
    if (flush_busy(&thread->flushes))
        busy |= flush_progress(&thread->flushes, &thread->gpu);
    /* a thread that was kept from the CPU must see the acks that wait before it calls chunks lost */
    if (drained || ++thread->timers_put_off > TIMERS_PUT_OFF) {
        thread->timers_put_off = 0;
        core_expire(thread->core, thread_now_ns(thread));
    }
    busy |= take_events(thread);
    if (atomic_load_explicit(&thread->staged, memory_order_relaxed) &&
        atomic_load_explicit(&thread->owner, memory_order_relaxed) == THREAD_RUNS) /* no borrower */
        busy |= stage_progress(thread->stage);
    tell_waiters(thread);
    busy |= loop_transmit(thread);
    if (thread->places)
        busy |= data_qps_act(thread);
    busy |= take_events(thread);
    tell_waiters(thread);
    follow_nic(thread);
    COUNT(thread->counters, rounds, 1);
    return busy;
}
