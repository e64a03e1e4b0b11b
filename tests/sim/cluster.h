/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole engines: each node is a process with a listener, connectors and application threads over the public
 * API, on the engine's own threads, rings, requests, lending, stripes and handshake (seam.h), on the NIC
 * of nic_sim.c. cluster.c makes, kills, restarts and ends nodes; connecting.c connects them; traffic.c is what their
 * application threads do, and judges what they are told.
 *
 * A relation is a client node that wants a connection to a server node; a session is one life of that
 * connection, with a plan of messages that both ends know. After a crash there is a new session.
 */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "defs/params.h"
#include "device.h"
#include "fabric.h"
#include "nic_sim.h"
#include "payload.h"
#include "sockets.h"
#include "uccl/engine.h"

enum { WORKERS_MAX = 4, ENGINES_MAX = 8, KINDS = 2, CRASHES_MAX = 4, STOPS_MAX = 8 };
enum { SEND, RECV }; /* as enum core_msg_kind */

enum pattern { PATTERN_CHAIN, PATTERN_STAR, PATTERN_ALL, PATTERN_SELF };

struct node;

struct cluster_options {
    struct params params;
    bool mixed;              /* nodes differ: engine threads, lending, spinning */
    bool unequal;            /* and in parameters, datagrams, socket buffers and drivers (unequal.h) */
    unsigned nodes, workers; /* application threads per node */
    uint64_t guarded;        /* bit i: node i is, by a firewall, for datagrams */
    uint8_t pattern;
    unsigned sessions; /* per relation, at the same time */
    struct fabric_options fabric;
    struct nic_sim_options nic;
    struct sim_pipe_options pipes;
    struct sockets_options sockets;
    uint64_t change_datagram_ns; /* 0: never; then to datagram_later_bytes */
    uint32_t datagram_later_bytes;
    uint32_t drift_ppm; /* of clocks, at most */
    uint32_t preempt_every, preempt_ns;

    /* the application */
    unsigned messages; /* per session and direction, at most */
    uint64_t size_max;
    uint64_t size_min; /* of all messages; for the largest */
    unsigned outstanding;
    uint64_t post_gap_ns, recv_gap_ns; /* longest */
    unsigned truncate_permille, cancel_permille;
    unsigned device_permille; /* buffers in memory of a GPU */
    struct device_options device;
    bool close_early;
    bool abort_early; /* and early always means by an abort */
    bool events;      /* workers also wait for the event descriptor */

    unsigned crashes;
    uint64_t crash_ns;             /* between two */
    uint64_t down_ns;              /* longest time until a restart */
    unsigned stops;                /* times that each node stops and continues, STOPS_MAX at most */
    uint64_t stop_ns, stop_gap_ns; /* longest; shortest between two of a node */
    unsigned relistens;            /* times that each node closes its listener and listens again */
    bool several_addresses;        /* handles name other hosts beside the listener's, and addresses of nobody */
    bool expect_dead;              /* the network is out for longer than UCCL_DEAD_PEER_MS */

    unsigned hostile;                   /* node hostile - 1 lies to all others; 0: none */
    uint32_t lies_permille, lie_gap_ns; /* as of nic_sim_options */
    uint8_t habit;
    uint64_t honest_ns; /* sessions of others are over by then; 0: no bound */
    bool meets_once;    /* handshakes are quick and honest: no two engines meet twice */

    /* what each node does, in place of what is planned above; it leaves the node with an engine, and nothing on it */
    void (*script)(struct node *node);
    uint64_t script_ns; /* longest */
};

struct session;
struct side;

/* A request that is outstanding. */
struct pending {
    struct pending *next;
    uccl_request *request;
    struct buffer *buffer;
    uccl_mr *mr; /* or NULL */
    unsigned number;
    uint64_t posted_ns, cancel_ns; /* cancel_ns: UINT64_MAX: not */
    bool waited_for, ended_seen;   /* a worker is in uccl_wait(); it had ended when last watched */
    bool ended_unseen;             /* it ended while its worker was closing a connection */
};

/* The sends or the receives of one side. One worker serves it. */
struct stream {
    struct side *side;
    unsigned kind, worker;
    unsigned posted, ended;
    uint64_t next_post_ns;
    struct pending *live, **live_tail; /* oldest first */
    unsigned live_count;
};

enum side_state { SIDE_ABSENT, SIDE_OPEN, SIDE_CLOSING, SIDE_CLOSED, SIDE_OVER };

struct side {
    struct session *session;
    struct side *next; /* of the node */
    struct node *node;
    unsigned index; /* 0: client */
    uint8_t state;
    bool failed;  /* the connection takes no more messages */
    bool killed;  /* its process was */
    bool muted;   /* its process was when it had been closed: perhaps before the other side was told */
    bool aborted; /* at `aborted_ns`: its requests end soon afterwards */
    uint64_t aborted_ns;
    unsigned calls;    /* under way on the connection, beside close */
    uint64_t close_ns; /* closes early; UINT64_MAX: not */
    uint64_t killed_ns;
    uccl_conn *conn;
    struct stream streams[KINDS];
};

struct session {
    struct session *next;
    unsigned index;
    struct relation *relation;
    unsigned count[2];        /* messages, by sending side */
    int8_t *status[2][KINDS]; /* by sending side and kind: how the request ended */
    bool *cancelled[2][KINDS];
    struct side sides[2];
};

struct relation {
    unsigned client, server;
    struct session *last;
    unsigned attempts;
    uint64_t delay_ns; /* before the next connect */
    bool done;         /* a session came to its planned end */
};

struct node {
    struct process *process; /* of this life */
    unsigned index, life;
    bool up, ended, known;       /* known: it has listened once */
    bool serving;                /* its engine is open */
    bool started;                /* what it does in this life has begun; a script has ended */
    uint64_t heads[ENGINES_MAX]; /* of its rings, when last watched */
    unsigned opening;            /* its share of cluster.opening */
    unsigned helpers;            /* fibers that end_node() waits for */
    struct params params;
    uccl_engine *engine;
    uccl_listener *listener;
    struct uccl_handle handle;
    struct side *sides;
    unsigned workers;
    struct stop {
        uint64_t begin_ns, end_ns;
    } stops[STOPS_MAX]; /* of its lives; planned when the run begins */
    unsigned stop_count;
    uint64_t sends, receives, bytes_sent, bytes_received; /* that ended well, in this life */
};

struct cluster {
    struct cluster_options options;
    uint64_t seed;
    struct rng rng; /* of the application */
    struct node *nodes;
    struct process *processes; /* of all lives */
    struct relation *relations;
    unsigned relation_count;
    struct session *sessions; /* newest first */
    unsigned session_count;
    unsigned opening;     /* starts, connectors and greeters at work */
    unsigned sides_alive; /* open, or to be collected */
    unsigned crashes_left, restarts_due;
    bool finishing;
    uint64_t messages, bytes, crashes, requests_ended;
};

enum { NOT_POSTED = 100, NOT_ENDED = 101 };

extern struct cluster cluster;

/* Fails unless all that was made on the engine is gone. `all`: what is kept for a while, too. */
void cluster_check_budget(const struct node *node, bool all);

struct cluster_result {
    uint64_t hash, sim_ns, messages, bytes, datagrams, faults, switches;
};

/* Plays it to its end, or fails. */
void cluster_run(const struct cluster_options *options, uint64_t seed, bool print_trace, struct cluster_result *result);

/* ---- cluster.c, for traffic.c and connecting.c ---- */
struct session *cluster_session(struct relation *relation);
/* The side is on its node from now on. */
void cluster_attach(struct side *side, struct node *node, uccl_conn *conn);
/* One of its ends lies: so messages may end in any way, but end. */
bool cluster_hostile(const struct session *session);
/* It has been closed and all its requests were collected. */
void cluster_side_over(struct side *side);
static inline uint32_t cluster_random(uint32_t bound)
{
    return bound ? rng_below(&cluster.rng, bound) : 0;
}
static inline bool cluster_chance(unsigned permille)
{
    return permille && rng_below(&cluster.rng, 1000) < permille;
}

/* The node lies; the relation is with such a node. */
bool cluster_hostile_node(unsigned node);
bool cluster_hostile_relation(const struct relation *relation);
/* Something begins, and has ended, before which the run is not over. */
void cluster_opening(struct node *node);
void cluster_opened(struct node *node);

/* ---- connecting.c ---- */
enum {
    LISTEN_PORT = 7000,
    ADDRESS_FIRST = 0x0a000001, /* 10.0.0.1 */
    HELLO_MS = 3000,
    DEAD_ATTEMPTS = 3, /* to connect, where the network may be out for good */
};
/* The client begins to connect after this time, and tries again. */
void connecting_start(struct relation *relation, uint64_t delay_ns);
void connecting_accept(void *argument); /* a fiber; `argument`: struct node */

/* ---- node_stops.c ---- */
/* When which node stops, and for how long. */
void node_stops_plan(uint64_t seed);
/* For how long it was stopped in this time. */
uint64_t node_stopped_ns(const struct node *node, uint64_t from_ns, uint64_t until_ns);
/* One of its nodes has been stopped for so long that the other may have given it up. */
bool node_stops_excuse(const struct session *session);

/* ---- traffic.c ---- */
void traffic_plan(struct session *session);
void traffic_worker(void *argument); /* a fiber; `argument`: struct worker */
struct worker {
    struct node *node;
    unsigned index;
};
void traffic_wake(struct node *node); /* there is something new for its workers */
/* The node's process was killed. */
void traffic_kill(struct side *side);
/* Who waits for requests hears of their ends: looks at those of a side, now and then. */
void traffic_watch(struct side *side);
/* All statuses against the rules of engine.h. */
void traffic_check(const struct session *session);
void traffic_free(struct session *session);

#endif
