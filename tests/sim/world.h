/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world in virtual time: real cores, the engine rounds that drive them, and a network between them
 * that loses, delays, repeats, reorders, damages and swallows datagrams. One seed, one history.
 * world.c moves datagrams and time; app.c is the application and the checker of what it is told.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "core/core.h"
#include "core/path.h"
#include "core/rng.h"
#include "core/units.h"
#include "trace.h"

#include <stdarg.h>

enum { ENDS_MAX = 12, PAIRS_MAX = 12, PPM = 1000000, GUARD_BYTES = 64, STOPS_MAX = 8, RAILS_MAX = 4, CUTS_MAX = 48 };

/* What one direction between two ends does to datagrams. */
struct net {
    uint64_t rate_mbps;   /* 0: without limit */
    uint64_t queue_bytes; /* what waits for the rate before the tail is dropped; 0: without limit */
    uint64_t delay_ns, jitter_ns;
    uint64_t reorder_ns; /* extra delay of a datagram that is overtaken */
    uint64_t burst_ns;   /* longest time that a burst of losses lasts */
    uint32_t loss_ppm, burst_ppm;
    uint32_t reorder_ppm, duplicate_ppm, corrupt_ppm, truncate_ppm, ce_ppm;
    uint32_t stray_ppm;                     /* datagrams after which one of an earlier incarnation of the peer comes */
    uint32_t dead_paths;                    /* bit i: path i swallows everything */
    bool firewall;                          /* in front of the receiver (firewall.h) */
    uint64_t black_from_ns, black_until_ns; /* swallows everything in between */
    uint8_t lost_probes; /* bits PROBE_ASK, PROBE_ECHO: swallows these alone, between the times that follow */
    uint64_t probes_from_ns, probes_until_ns;
    uint32_t hole_bytes; /* larger datagrams vanish, from hole_from_ns to hole_until_ns; 0: none do */
    uint64_t hole_from_ns, hole_until_ns;
};

/* A rail carries nothing for a while. */
enum cut_kind {
    CUT_DEVICE,  /* the NIC of one side is gone, which its device reports */
    CUT_BLACK,   /* both directions swallow everything */
    CUT_ONE_WAY, /* what `side` sends is swallowed */
};
struct cut {
    uint8_t rail, kind, side;
    uint64_t begin_ns, end_ns; /* UINT64_MAX: for good */
};

/* What a scenario asks for. */
struct options {
    struct params params;
    bool unequal;              /* each end draws parameters of its own (unequal.h) */
    bool same_rate;            /* but for those that the least rate depends on */
    uint64_t eager_kb_of_last; /* UCCL_EAGER_KB of the ends but the first; UINT64_MAX: the same */
    unsigned ends;             /* 1: a flow to itself; n: the first with each of the others */
    unsigned conns;            /* per pair */
    struct net net[2];         /* away from the first end, and towards it */
    bool paths_in_order;

    /* several rails for each pair (rails.c) */
    unsigned rails; /* 0: one */
    struct {
        struct net net[2];
        uint32_t datagram_bytes;
    } more_rails[RAILS_MAX - 1]; /* behind the first one */
    unsigned rails_of_last;      /* of the second side, if these are fewer; 0: as many */
    struct cut cuts[CUTS_MAX];
    unsigned cut_count;
    uint32_t share_permille; /* most that a rail's part of the bytes is off its part of the rates; 0: any */
    uint64_t message_ns;     /* longest time from a message's posts to its arrival; 0: any */
    bool rails_return;       /* every rail that was lost is back at the end */
    uint64_t rails_whole_ns; /* a rail that no cut has touched for so long is used at the end; 0: perhaps */
    unsigned rails_lost_min;
    bool each_rail_carries; /* some bulk of each side at least */

    /* NICs that place payload (placing.c) */
    bool places, placed;            /* placed: something must have been */
    bool paths_reliable;            /* they repeat what is lost, or fail */
    bool paths_reorder;             /* their queue pairs do, and so the core may not place */
    uint32_t unregistered_permille; /* buffers that the NIC does not reach */
    uint32_t path_loss_ppm;
    uint32_t path_breaks_ppm;    /* losses in a large write after which the way swallows everything */
    uint32_t path_stall_ppm;     /* packets that wait for so long, and all behind them */
    uint32_t path_fail_ppm;      /* descriptors after which the NIC reports a failure */
    uint32_t path_open_fail_ppm; /* queue pairs that cannot be made or connected */
    uint64_t path_stall_ns;
    uint64_t path_dies_ns, path_lives_ns; /* net.dead_paths swallow everything in between */
    uint64_t nic_work_ns;                 /* longest time until a work request is executed */
    uint64_t nic_drain_ns;                /* until a queue pair is drained */
    uint64_t nic_answer_ns;               /* until one is made or connected */

    uint64_t pipe_bytes;                     /* paths are connections of this capacity (pipes.h); 0: no */
    uint32_t pipe_break_ppm, pipe_stall_ppm; /* records */
    uint64_t pipe_stall_ns, pipe_heal_ns;    /* longest */
    uint64_t pipe_heal_min_ns;               /* more than that, unless side 0 wants them before */
    uint64_t pipe_late_ns;                   /* until a side learns of a break, at most */
    uint32_t pipe_lossy_ppm;                 /* records after which the NIC says that a rail's pipes lose much */
    bool pipes_beside;                       /* those of the later half of the rails are, which join the others, */
    bool pipes_wanted;                       /* and come up only once side 0 wants them */

    bool wrap;                                     /* every number that the wire truncates soon wraps */
    uint32_t datagram_bytes, datagram_bytes_later; /* later: from change_datagram_ns on */
    uint64_t change_datagram_ns;
    uint32_t chunk_window, msg_window, eager_window_kb;
    uint64_t window_bytes;             /* socket buffer of each end per peer */
    uint32_t tx_fail_ppm;              /* the NIC refuses a descriptor */
    uint64_t stall_every_ns, stall_ns; /* engine threads do not run for a while */
    uint64_t halt_ns;                  /* the last end dies; UINT64_MAX: never */
    unsigned halts;                    /* so many ends die, the last ones; 0: one */
    uint64_t halt_gap_ns;              /* between two of them */
    unsigned stops;                    /* times that each end stops and continues (stops.c), STOPS_MAX at most */
    uint64_t stop_min_ns, stop_ns, stop_gap_ns; /* shortest, longest; shortest time between two */
    bool stops_together;                        /* all begin at the same times */
    uint32_t drift_ppm;                         /* of the ends' clocks, at most */

    /* the application */
    unsigned messages; /* per connection and direction */
    bool one_way;      /* only the first end of a pair sends */
    uint64_t size_max;
    bool one_size;                     /* all messages are that large */
    unsigned outstanding;              /* requests at once per connection, kind and end */
    uint64_t send_gap_ns, recv_gap_ns; /* longest pause before a post; 0: none */
    uint64_t recv_late_ns;             /* receives of half of the connections begin up to so much later */
    unsigned truncate_permille, cancel_permille;
    bool close_early;        /* somebody closes before all is done */
    bool expect_dead;        /* UCCL_EPEERDEAD is no surprise */
    uint64_t close_after_ns; /* longest idle time before a connection is closed */
    uint64_t linger_ns;
    uint64_t limit_ns; /* all must be over by then */

    /* bounds (judge.c); 0: none */
    uint32_t needless_permille;   /* datagrams repeated, of all sent, beyond those that were lost */
    uint64_t retransmissions_max; /* datagrams repeated */
    bool no_hole;                 /* nobody takes large datagrams for those that vanish */
    uint32_t dead_permille;       /* datagrams that went into net.dead_paths, of all sent */
    uint32_t refused_permille;    /* the same of firewalls */
    uint32_t refused_chunks;      /* most that they refuse of a path while another one works; 0 is a bound, too */
    uint64_t living_ns;           /* requests between ends that live have ended by then */
};

struct world;
struct conn_sim;
struct nic;

enum event_kind {
    EVENT_ARRIVAL,
    EVENT_POST,
    EVENT_CANCEL,
    EVENT_CLOSE,
    EVENT_RUN,
    EVENT_NIC,
    EVENT_STOP,
    EVENT_GO_ON,
    EVENT_RAIL,
    EVENT_PIPE
};

struct event {
    uint64_t at_ns, order;
    uint8_t kind;
    uint8_t end;
    void *what; /* datagram, side of a connection, or request */
    uint32_t extra;
};

struct datagram {
    struct datagram *next;
    size_t length;
    bool ce;
    uint8_t bytes[];
};

/* A time in which an end did not run. */
struct stop {
    uint64_t begin_ns, end_ns;
};

/* An engine thread with its core. */
struct end {
    struct params params;
    struct counters counters;
    struct core *core;
    struct datagram *inbox, **inbox_tail;
    uint64_t inbox_charge, inbox_limit; /* kernel bytes */
    uint64_t stalled_until_ns, next_stall_ns, blocked_until_ns;
    uint64_t run_at_ns; /* an EVENT_RUN is queued for then; UINT64_MAX: none */
    bool dirty, halted;
    int32_t drift_ppm;
    struct stop stops[STOPS_MAX]; /* that have begun */
    unsigned stop_count;
};

struct link {
    struct net net;
    uint64_t free_ns; /* when the last datagram has left */
    uint64_t last_ns; /* arrival of the newest, for order */
    uint64_t burst_until_ns;
};

/* Over which path a chunk went last. */
enum { LAST_MAX = 1024 };
struct transmission {
    uint64_t seq;
    uint32_t path_seq;
    uint16_t path;
    bool known, on_path;
};

/* Two ends with a flow between them; sides 0 and 1. */
struct pair {
    uint8_t end[2];
    struct flow_setup setup[2];
    struct flow *flow[2];
    void *flow_memory[2];
    struct link link[2][RAILS_MAX];      /* by sending side */
    uint32_t passed_bytes[2][RAILS_MAX]; /* of the largest datagram that got through */
    bool device_gone[2][RAILS_MAX];      /* as the device of the side has reported */
    bool proven[2], dead[2];             /* CORE_EVENT_FLOW_PROVEN, CORE_EVENT_FLOW_DEAD seen */
    bool rail_lost[2][CORE_RAILS_MAX];   /* CORE_EVENT_RAIL_LOST was the last one */
    /* judge.c */
    bool probe_was_due[2];
    uint64_t paced_until_ns[2][RAILS_MAX]; /* before the descriptor that it looks at; 0: not paced */
    struct transmission last[2][LAST_MAX]; /* by sequence number */
    struct {
        uint32_t path_seq; /* of the newest */
        uint32_t chunks;
    } refused[2][PATHS_MAX]; /* by path: chunks that firewalls have refused while another path worked */
};

struct world {
    const char *scenario;
    uint64_t seed;
    struct trace trace;
    const struct options *options;
    struct rng rng; /* of the network and the engines */
    struct rng app_rng;
    uint64_t now_ns, start_ns;
    struct event *heap;
    size_t heap_count, heap_room;
    uint64_t next_order;
    struct end ends[ENDS_MAX];
    struct pair pairs[PAIRS_MAX];
    unsigned end_count, pair_count;
    struct nic *nic; /* that places payload; NULL: there is none */
    struct conn_sim *conns;
    unsigned conn_count;
    uint64_t requests_live, requests_ended, bytes_moved, datagrams, faults;
    uint64_t dropped, retransmitted, into_dead, refused; /* datagrams */
    uint64_t rail_bytes[RAILS_MAX];                      /* of bulk datagrams */
    uint8_t rail_sides[RAILS_MAX];                       /* bits: of which sides it has carried bulk */
    uint64_t message_max_ns;                             /* longest time from a message's posts to its arrival */
    unsigned rails_lost, rails_back;                     /* CORE_EVENT_RAIL_LOST, CORE_EVENT_RAIL_BACK */
    uint64_t dead_end_max_ns;                            /* when the last request whose peer is dead ended */
    uint64_t living_end_max_ns;                          /* and the last one between ends that live */
};

/* ---- world.c ---- */
void world_create(struct world *world, const char *scenario, const struct options *options, uint64_t seed, bool trace);
/* Runs until everything is over, checks what must be left, frees all. */
void world_run(struct world *world);
void world_push(struct world *world, uint64_t at_ns, enum event_kind kind, unsigned end, void *what, uint32_t extra);
/* Takes an event into the trace. */
void world_note(struct world *world, const char *what, uint64_t a, uint64_t b, uint64_t c);
_Noreturn void world_fail(const struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *sim_alloc(size_t bytes); /* zeroed, 64-byte aligned */
/* Writes datagram `i` of the descriptor to `out`; returns its length. */
uint32_t world_lay_out(struct world *world, const struct tx_desc *desc, unsigned i, uint8_t *out);
/* What the clock of an end shows. */
uint64_t world_clock_ns(const struct world *world, const struct end *end);
/* Where a number that wraps on the wire begins in such a world: somewhat below 2^32. */
uint64_t world_wrap(struct world *world);
static inline bool world_chance(struct world *world, uint32_t ppm)
{
    return ppm && rng_below(&world->rng, PPM) < ppm;
}

/* ---- app.c ---- */
void app_create(struct world *world);
void app_destroy(struct world *world);
void app_post(struct world *world, struct event *event);
void app_cancel(struct world *world, struct event *event);
void app_close(struct world *world, struct event *event);
/* Connections that nobody uses never learn of a dead peer: they are closed too. */
void app_close_rest(struct world *world);
/* Executes the copies that the core asks for. */
void app_copy(struct world *world, struct end *end);
/* Where payload of a receive belongs. */
uint8_t *app_place(struct world *world, const struct core_msg *msg, uint64_t offset, uint64_t length);
/* The bytes of a send, for the NIC. */
const uint8_t *app_payload(struct world *world, const struct core_msg *msg, uint64_t offset, uint64_t length);
void app_event(struct world *world, struct end *end, const struct core_event *event);
/* The first connection of a pair with a request of `side` that was posted before `at_ns` and has not ended; -1: none.
 */
int app_waits(const struct world *world, const struct pair *pair, unsigned side, uint64_t at_ns);
/* Whether every request and connection of ends that live has ended. */
bool app_over(const struct world *world);
/* All statuses against the rules of engine.h, and credit against what was lent. */
void app_check(struct world *world);
void app_report(const struct world *world);

#endif
