/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails whose paths are connections (TCP). A connection delivers all and in order, or breaks; then what was under way
 * on it is lost, at once and for certain, and goes again over another. So there is no congestion control, no timeout
 * and no loss by time or by the order on a path. Acks stay: the kernel's say that bytes have reached a machine, not
 * that a receive has them, and they tell what is left to send when a connection breaks.
 *
 * What the peer refuses has arrived too: its ack names the packet of the path, but not the chunk (sent_lose_by_path()).
 *
 * Path 0 carries small messages and control, the others bulk. Each stands in where those of its kind are broken.
 *
 * Thread: the flow's.
 */
#include "core/rail.h"

/*
 * ---- congestion control: none ----------------------------------------------------------------
 * But where connections break faster than a window drains, sending all of it again gets nothing through. From the
 * second break without an ack in between less is in flight after each, at last one chunk; acks double it.
 */

enum { CWND_AFTER_BREAKS_BYTES = 65536, BREAKS_MAX = 9 };

static const uint64_t CWND_NONE_BYTES = UINT64_MAX / 2;

static void begin(struct cc *cc)
{
    cc->cwnd_bytes = CWND_NONE_BYTES;
    cc->pace_gap_ns = 0;
    cc->startup = false;
    cc->rto_streak = 0;
}

static void on_ack(struct cc *cc, const struct cc_ack *ack)
{
    if (ack->acked_bytes == 0)
        return;
    cc->rto_streak = 0;
    if (cc->cwnd_bytes < CWND_NONE_BYTES / 4)
        cc->cwnd_bytes = 2 * cc->cwnd_bytes + ack->acked_bytes;
}

static void on_loss(struct cc *cc, uint64_t now_ns, uint64_t srtt_ns)
{
    (void)cc, (void)now_ns, (void)srtt_ns;
}

/* A connection has broken with chunks in flight. */
static void on_rto(struct cc *cc, uint64_t now_ns)
{
    (void)now_ns;
    if (cc->rto_streak < BREAKS_MAX)
        cc->rto_streak++;
    if (cc->rto_streak > 1)
        cc->cwnd_bytes = CWND_AFTER_BREAKS_BYTES >> (2 * (cc->rto_streak - 2));
}

const struct cc_ops cc_none = {.name = "none", .init = begin, .on_ack = on_ack, .on_loss = on_loss, .on_rto = on_rto};

/* ---- paths ----------------------------------------------------------------------------------- */

/*
 * A path keeps its turn for so many records, or until it is full: one that is slow leaves the rest to others. Records
 * in a row leave with one system call (TCP_BATCH_MAX), and where sender and receiver share a cache, one connection
 * moves more than several in turn.
 */
enum { TURN_RECORDS = 64 };
static bool in_turn(const struct path *path)
{
    return (path->next_seq - path->turn_seq) % TURN_RECORDS != 0;
}

/* Whether a path is to be taken rather than another one. */
static bool goes_first(const struct path *path, const struct path *other)
{
    if (in_turn(path) || in_turn(other))
        return !in_turn(other);
    return path->in_flight != other->in_flight ? path->in_flight < other->in_flight
                                               : (int32_t)(path->next_seq - other->next_seq) < 0;
}

/*
 * Of all but path 0, with room: the one whose turn it is, else the one with the fewest chunks in flight; of several
 * such the one that has been chosen least. -1: none; `*up`: some is connected.
 */
static int least_busy(const struct path_set *set, bool *up)
{
    int best = -1;
    *up = false;
    for (uint16_t i = 1; i < set->count; i++) {
        const struct path *path = &set->paths[i];
        *up |= path->channel != CHANNEL_DOWN;
        if (path->channel == CHANNEL_ROOM && (best < 0 || goes_first(path, &set->paths[best])))
            best = i;
    }
    return best;
}

int channel_choose(const struct path_set *set, bool bulk)
{
    bool up, alone = set->count == 1;
    int first = set->paths[0].channel == CHANNEL_ROOM ? 0 : -1;
    if (!bulk && set->paths[0].channel != CHANNEL_DOWN)
        return first;
    if (alone)
        return first;
    int chosen = least_busy(set, &up);
    return bulk && !up ? first : chosen;
}

bool channel_up(const struct path_set *set)
{
    for (unsigned i = 0; i < set->count; i++)
        if (set->paths[i].channel != CHANNEL_DOWN)
            return true;
    return false;
}

void channel_refused(struct rail *rail, uint16_t port)
{
    struct path *path = &rail->paths.paths[port];
    if (rail->reliable && path->channel == CHANNEL_ROOM)
        path->channel = CHANNEL_FULL;
}
