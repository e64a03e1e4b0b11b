/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clear-to-send, eager credit and early ends of one direction of a connection: engine/core/conn_send.c and
 * conn_recv.c, function by function, over chunks that are lost, repeated and reordered. MESSAGES sends meet as
 * many receives, of all kinds: eager or large, into a buffer that announces itself by a CTS when it is posted
 * (LOUD), one that does so when an RTS asks (QUIET), or one that is too small (TINY: quiet, SHORT: loud).
 * CANCELS of them are cancelled, at any moment.
 *
 * A chunk is repeated until it is acked and acted on once (sack.c), so that losing it is to delay it, and
 * the model lets each arrive at any time and in any order. In each direction two are on their way at most: a
 * record is free again when its chunk and all before it were acted on. A chunk that the state of its reader does
 * not allow is refused, and stays on its way. It holds one frame, which is the worst case: frames that share
 * one arrive together. A message is one chunk of data.
 *
 * Checked: no deadlock, which here means too that nothing waits for a frame that nobody will send, since
 * every step brings the end nearer; a send ends well only if its receive did; the receiver never refuses
 * what an honest sender sends; eager messages keep to the ring, and at the end all of it is back.
 *
 * Broken on purpose, each must fail:
 *   NO_REPAIR       what is lost is not repeated
 *   CREDIT_LATE     CTS and END go though credit is due, and may fill the chunk window with what is refused
 *   PASS_WITHDRAWN  a number passes before the sender has agreed that its receive ended early
 *   NO_END_ANSWER   a sender does not answer END
 *   NO_LATE_CHARGE  eager bytes of a message that is over do not give their place in the ring back
 *   NO_UNBLOCK      credit does not wake a connection that waited for it
 *   NO_RTS          a large send does not announce itself
 *   FORGET_RTS      an RTS before its receive is forgotten
 *   IGNORE_CREDIT   eager messages go whether the ring has room or not
 *
 * Left out: stripes, several chunks to a message, the end of a send by its last ack, FIN, a dead peer.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef WINDOW
#define WINDOW 2 /* message numbers */
#endif
#define RING 1   /* eager messages that the ring takes */

/* size of a send, capacity of a receive */
#define EAGER 1
#define LARGE 2
#define TINY 1
#define SHORT 2
#define QUIET 3
#define LOUD 4
#define TOO_SMALL(capacity) (capacity == TINY || capacity == SHORT)

/* where a request is */
#define UNPOSTED 0
#define BACKLOG 1
#define WAITING 2
#define QUEUED 3
#define SENT 4
#define ENDED 5

/* how it ended */
#define GOOD 1
#define EARLY 2

typedef send_state {
    byte state, size, ended, granted, ring_at;
    bool cancelled, uncharged, first, end_status, rts_due, end_due
};
typedef recv_state {
    byte state, capacity, ended, ring_at;
    bool cancelled, end_status, known, cleared, in_ring, withdrawn, over, charged, cts_due, end_due
};
send_state sends[MESSAGES];
recv_state recvs[MESSAGES];

byte send_next, send_admitted, delivered, ring_used, ring_limit = RING;
byte recv_next, recv_admitted, recv_base, ring_freed;
bool listed, blocked, credit_due; /* listed: the flow of the sender looks at this connection */
byte cancels = CANCELS;

/* What is on its way; [0] was sent first. */
#define RTS 1
#define DATA 2
#define END 3
#define CTS 4
#define CREDIT 5
#define ARRIVED 6 /* but [0] has not */
typedef chunk { byte kind, number, delivered, ring_limit, beyond };
typedef direction { chunk chunks[2] };
direction to_receiver, to_sender;

/* for the steps, which are atomic, and 0 between them */
byte k, c, head, bulk;
bool ready;
#ifdef NO_REPAIR
bool lost;
#endif

#define BIT(k) (1 << (k))

/* ---- the sender ------------------------------------------------------------------------------ */

inline end_send(k, how)
{
    sends[k].state = ENDED;
    sends[k].ended = how
}

inline end_send_early(k)
{
    sends[k].end_due = true;
    sends[k].rts_due = false;
    end_send(k, EARLY)
}

inline admit_send(k)
{
    sends[k].state = WAITING;
    if
    :: sends[k].end_status || sends[k].cancelled -> end_send_early(k)
    :: else ->
        if
        :: TOO_SMALL(sends[k].granted) -> end_send_early(k)
        :: !TOO_SMALL(sends[k].granted) && (sends[k].granted || sends[k].size == EAGER) ->
            sends[k].state = QUEUED;
            sends[k].uncharged = sends[k].granted > 0;
            listed = true
        :: else ->
#ifndef NO_RTS
            sends[k].rts_due = true
#endif
        fi
    fi
}

inline admit_sends()
{
    do
    :: send_admitted < MESSAGES && send_admitted < delivered + WINDOW && sends[send_admitted].state == BACKLOG ->
        admit_send(send_admitted);
        send_admitted++
    :: else -> break
    od
}

inline on_cts(k)
{
    if
    :: k >= delivered ->
        sends[k].granted = recvs[k].capacity;
        if
        :: sends[k].state == WAITING || (sends[k].state == QUEUED && sends[k].size == EAGER) ->
            if
            :: TOO_SMALL(recvs[k].capacity) -> end_send_early(k)
            :: !TOO_SMALL(recvs[k].capacity) && sends[k].state == WAITING ->
                sends[k].rts_due = false;
                sends[k].state = QUEUED;
                listed = true
            :: else -> /* it overtakes those that wait for credit */
                sends[k].first = !sends[k].uncharged && blocked;
                sends[k].uncharged = sends[k].uncharged || blocked;
                listed = true
            fi
        :: else
        fi
    :: else
    fi
}

inline on_end_of_recv(k)
{
    if
    :: k >= delivered ->
        if
        :: sends[k].state == WAITING || sends[k].state == QUEUED || sends[k].state == SENT ->
            end_send_early(k);
#ifdef NO_END_ANSWER
            sends[k].end_due = false
#endif
        :: sends[k].state < WAITING -> sends[k].end_status = true
        :: else
        fi
    :: else
    fi
}

#define DELIVERABLE(k) (sends[k].state == SENT || sends[k].state == ENDED)

inline mark_delivered(k)
{
    if
    :: sends[k].state == SENT ->
        assert(recvs[k].ended == GOOD);
        end_send(k, GOOD)
    :: else
    fi
}

inline on_credit(what)
{
    if
    :: what.delivered >= delivered ->
        do
        :: delivered < what.delivered ->
            assert(DELIVERABLE(delivered));
            mark_delivered(delivered);
            sends[delivered].rts_due = false;
            sends[delivered].end_due = false;
            delivered++
        :: else -> break
        od;
        c = delivered;
        do
        :: c < MESSAGES ->
            if
            :: what.beyond & BIT(c) && DELIVERABLE(c) -> mark_delivered(c)
            :: else
            fi;
            c++
        :: else -> break
        od;
        c = 0;
        if
        :: what.ring_limit > ring_limit ->
            ring_limit = what.ring_limit;
#ifndef NO_UNBLOCK
            listed = listed || blocked;
#endif
            blocked = false
        :: else
        fi;
        admit_sends()
    :: else /* an older one, overtaken */
    fi
}

/* ---- the receiver ---------------------------------------------------------------------------- */

inline end_recv(k, how)
{
    recvs[k].state = ENDED;
    recvs[k].ended = how
}

inline withdraw(k)
{
    recvs[k].cts_due = false;
    recvs[k].end_due = true;
    end_recv(k, EARLY);
#ifdef PASS_WITHDRAWN
    recv_over(k)
#else
    recvs[k].withdrawn = true
#endif
}

/* Over on both sides; the window moves past what is. Receives enter it in receiver_looks(). */
inline recv_over(k)
{
    recvs[k].over = true;
    credit_due = true
}

inline advance_recv()
{
    do
    :: recv_base < MESSAGES && recvs[recv_base].over ->
        if
        :: recvs[recv_base].charged && recvs[recv_base].ring_at + 1 > ring_freed ->
            ring_freed = recvs[recv_base].ring_at + 1
        :: else
        fi;
        recvs[recv_base].cts_due = false;
        recvs[recv_base].end_due = false;
        recv_base++
    :: recv_admitted < MESSAGES && recv_admitted < recv_base + WINDOW && recvs[recv_admitted].state == BACKLOG ->
        admit_recv(recv_admitted);
        recv_admitted++
    :: else -> break
    od
}

inline deliver(k)
{
    end_recv(k, GOOD);
    recv_over(k)
}

inline admit_recv(k)
{
    recvs[k].state = WAITING;
    if
    :: recvs[k].end_status -> end_recv(k, EARLY); recv_over(k)
    :: !recvs[k].end_status && (recvs[k].cancelled || (recvs[k].known && TOO_SMALL(recvs[k].capacity))) ->
        withdraw(k)
    :: else ->
        if
        :: recvs[k].in_ring -> deliver(k)
        :: !recvs[k].in_ring &&
           (recvs[k].known || recvs[k].capacity == LOUD || recvs[k].capacity == SHORT) ->
            recvs[k].cts_due = true
        :: else
        fi
    fi
}

inline on_rts(k)
{
    if
    :: k >= recv_base && !recvs[k].withdrawn && !recvs[k].over ->
        assert(k < recv_base + WINDOW);
#ifdef FORGET_RTS
        recvs[k].known = recvs[k].state == WAITING;
#else
        recvs[k].known = true;
#endif
        if
        :: recvs[k].state == WAITING && TOO_SMALL(recvs[k].capacity) -> withdraw(k)
        :: recvs[k].state == WAITING && !TOO_SMALL(recvs[k].capacity) && !recvs[k].cleared ->
            recvs[k].cts_due = true
        :: else
        fi
    :: else
    fi
}

/* The receiver's ring has a place for it, if it needs one. */
#define RING_TAKES(k) (sends[k].uncharged || \
                       (sends[k].ring_at >= ring_freed && sends[k].ring_at < ring_freed + RING))

inline on_eager(k)
{
    if
    :: k < recv_base || recvs[k].withdrawn || recvs[k].over ->
#ifndef NO_LATE_CHARGE
        if
        :: sends[k].uncharged || sends[k].ring_at < ring_freed
        :: else ->
            if
            :: k < recv_base -> ring_freed = sends[k].ring_at + 1; credit_due = true
            :: else -> recvs[k].charged = true; recvs[k].ring_at = sends[k].ring_at
            fi
        fi
#endif
    :: else ->
        assert(k < recv_base + WINDOW && RING_TAKES(k));
        assert(!sends[k].uncharged || recvs[k].cleared);
        recvs[k].known = true;
        recvs[k].charged = !sends[k].uncharged;
        recvs[k].ring_at = sends[k].ring_at;
        if
        :: recvs[k].state == WAITING && TOO_SMALL(recvs[k].capacity) -> withdraw(k)
        :: recvs[k].state == WAITING && !TOO_SMALL(recvs[k].capacity) -> deliver(k)
        :: else -> recvs[k].in_ring = true
        fi
    fi
}

inline on_large(k)
{
    if
    :: k < recv_base || recvs[k].withdrawn || recvs[k].over
    :: else ->
        assert(recvs[k].state == WAITING && recvs[k].cleared && !TOO_SMALL(recvs[k].capacity));
        deliver(k)
    fi
}

inline on_end_of_send(k)
{
    if
    :: k < recv_base || recvs[k].over
    :: else ->
        assert(k < recv_base + WINDOW);
        if
        :: recvs[k].withdrawn -> recv_over(k)
        :: !recvs[k].withdrawn && recvs[k].state == WAITING -> end_recv(k, EARLY); recv_over(k)
        :: else -> recvs[k].end_status = true
        fi
    fi
}

/* ---- chunks ---------------------------------------------------------------------------------- */

#define ROOM(way) (way.chunks[0].kind == 0 || way.chunks[1].kind == 0)

inline put(way, kind_, number_)
{
    c = (way.chunks[0].kind == 0 -> 0 : 1);
    way.chunks[c].kind = kind_;
    way.chunks[c].number = number_;
    c = 0
}

/* The control frame of the sender that is due first. */
inline put_forward()
{
    k = 0;
    do
    :: sends[k].rts_due || sends[k].end_due -> break
    :: else -> k++
    od;
    if
    :: sends[k].rts_due -> sends[k].rts_due = false; put(to_receiver, RTS, k)
    :: else -> sends[k].end_due = false; put(to_receiver, END, k)
    fi;
    k = 0
}

inline put_data(k)
{
    if
    :: sends[k].size == EAGER && !sends[k].uncharged -> sends[k].ring_at = ring_used; ring_used++
    :: else
    fi;
    sends[k].first = false;
    sends[k].state = SENT;
    put(to_receiver, DATA, k)
}

inline put_credit()
{
    credit_due = false;
    k = recv_base + 1;
    put(to_sender, CREDIT, 0);
    c = (to_sender.chunks[1].kind == CREDIT -> 1 : 0);
    to_sender.chunks[c].delivered = recv_base;
    to_sender.chunks[c].ring_limit = ring_freed + RING;
    do
    :: k < MESSAGES ->
        if
        :: recvs[k].over -> to_sender.chunks[c].beyond = to_sender.chunks[c].beyond | BIT(k)
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0;
    c = 0
}

/* That of the receiver: never another before credit that is due. */
inline put_backward()
{
    k = 0;
    do
    :: k < MESSAGES && !(recvs[k].cts_due || recvs[k].end_due) -> k++
    :: else -> break
    od;
    if
#ifdef CREDIT_LATE
    :: k == MESSAGES -> put_credit()
#else
    :: credit_due -> put_credit()
#endif
    :: else ->
        if
        :: recvs[k].cts_due -> recvs[k].cts_due = false; recvs[k].cleared = true; put(to_sender, CTS, k)
        :: else -> recvs[k].end_due = false; put(to_sender, END, k)
        fi
    fi;
    k = 0
}

/* A chunk was acted on, and acked. */
inline arrived(way, i)
{
    way.chunks[i].number = 0;
    way.chunks[i].delivered = 0;
    way.chunks[i].ring_limit = 0;
    way.chunks[i].beyond = 0;
    if
    :: i == 1 -> way.chunks[1].kind = ARRIVED
    :: else ->
        way.chunks[0].kind = (way.chunks[1].kind == ARRIVED -> 0 : way.chunks[1].kind);
        way.chunks[0].number = way.chunks[1].number;
        way.chunks[0].delivered = way.chunks[1].delivered;
        way.chunks[0].ring_limit = way.chunks[1].ring_limit;
        way.chunks[0].beyond = way.chunks[1].beyond;
        way.chunks[1].kind = 0;
        way.chunks[1].number = 0;
        way.chunks[1].delivered = 0;
        way.chunks[1].ring_limit = 0;
        way.chunks[1].beyond = 0
    fi
}

#define ON_ITS_WAY(way, i) (way.chunks[i].kind != 0 && way.chunks[i].kind != ARRIVED)

inline act_forward(i)
{
    k = to_receiver.chunks[i].number;
    if
    :: to_receiver.chunks[i].kind == RTS -> on_rts(k)
    :: to_receiver.chunks[i].kind == END -> on_end_of_send(k)
    :: to_receiver.chunks[i].kind == DATA && sends[k].size == EAGER -> on_eager(k)
    :: else -> on_large(k)
    fi;
    k = 0;
    advance_recv();
    arrived(to_receiver, i)
}

/* The sender's window reaches the message that the chunk speaks of. */
#define ALLOWED(i) (to_sender.chunks[i].kind == CREDIT || to_sender.chunks[i].number < delivered + WINDOW)

inline act_backward(i)
{
    k = to_sender.chunks[i].number;
    if
    :: to_sender.chunks[i].kind == CREDIT -> on_credit(to_sender.chunks[i])
    :: to_sender.chunks[i].kind == CTS -> on_cts(k)
    :: else -> on_end_of_recv(k)
    fi;
    k = 0;
    arrived(to_sender, i)
}

/* ---- the steps of the whole ------------------------------------------------------------------ */

#define DUE(k) (sends[k].rts_due || sends[k].end_due)
#define ANSWERS_DUE(k) (recvs[k].cts_due || recvs[k].end_due)
#define ENDS(k) (sends[k].ended && recvs[k].ended)
#if MESSAGES == 2
#define ANY(of) (of(0) || of(1))
#define ALL(of) (of(0) && of(1))
#else
#define ANY(of) (of(0) || of(1) || of(2))
#define ALL(of) (of(0) && of(1) && of(2))
#endif

/* The head of the sender's queue of eager messages, any of those that are `first`; MESSAGES: none. */
inline find_head()
{
    head = 0;
    do
    :: head < MESSAGES && !(sends[head].state == QUEUED && sends[head].first) -> head++
    :: else -> break
    od;
    if
    :: head == MESSAGES ->
        head = 0;
        do
        :: head < MESSAGES && !(sends[head].state == QUEUED && sends[head].size == EAGER) -> head++
        :: else -> break
        od
    :: else
    fi;
    if
    :: head == MESSAGES -> ready = false
    :: else ->
        sends[head].uncharged = sends[head].uncharged || (ring_used >= ring_limit && sends[head].granted);
        ready = sends[head].uncharged || ring_used < ring_limit;
#ifdef IGNORE_CREDIT
        ready = true;
#endif
        blocked = blocked || !ready
    fi
}

/* The first large message that is cleared; MESSAGES: none. */
inline find_bulk()
{
    bulk = 0;
    do
    :: bulk < MESSAGES && !(sends[bulk].state == QUEUED && sends[bulk].size == LARGE) -> bulk++
    :: else -> break
    od
}

/* The connection is looked at: one chunk of data, or it has nothing and is looked at no more. */
inline send_data()
{
    find_head();
    find_bulk();
    if
    :: ready -> put_data(head)
    :: bulk < MESSAGES -> put_data(bulk)
    :: else -> listed = false
    fi;
    head = 0;
    bulk = 0;
    ready = false
}

inline post_send(size_)
{
    sends[send_next].size = size_;
    sends[send_next].state = BACKLOG;
    send_next++;
    admit_sends()
}

inline post_recv(capacity_)
{
    recvs[recv_next].capacity = capacity_;
    recvs[recv_next].state = BACKLOG;
    recv_next++;
    advance_recv()
}

inline cancel_send(i)
{
    cancels--;
    if
    :: sends[i].state == BACKLOG -> sends[i].cancelled = true
    :: else -> end_send_early(i)
    fi
}

inline cancel_recv(i)
{
    cancels--;
    if
    :: recvs[i].state == BACKLOG -> recvs[i].cancelled = true
    :: else -> withdraw(i); advance_recv()
    fi
}

#define MAY_CANCEL(of, i) (cancels && of[i].state > UNPOSTED && of[i].state < ENDED && !of[i].cancelled)
#define QUIET_NET (to_receiver.chunks[0].kind == 0 && to_sender.chunks[0].kind == 0)

active proctype connection()
{
    do
    /* the applications */
    :: d_step { send_next < MESSAGES -> post_send(EAGER); skip }
    :: d_step { send_next < MESSAGES -> post_send(LARGE); skip }
    :: d_step { recv_next < MESSAGES -> post_recv(TINY); skip }
    :: d_step { recv_next < MESSAGES -> post_recv(SHORT); skip }
    :: d_step { recv_next < MESSAGES -> post_recv(QUIET); skip }
    :: d_step { recv_next < MESSAGES -> post_recv(LOUD); skip }
    :: d_step { MAY_CANCEL(sends, 0) -> cancel_send(0); skip }
    :: d_step { MAY_CANCEL(recvs, 0) -> cancel_recv(0); skip }
    :: d_step { MAY_CANCEL(sends, 1) -> cancel_send(1); skip }
    :: d_step { MAY_CANCEL(recvs, 1) -> cancel_recv(1); skip }
#if MESSAGES > 2
    :: d_step { MAY_CANCEL(sends, 2) -> cancel_send(2); skip }
    :: d_step { MAY_CANCEL(recvs, 2) -> cancel_recv(2); skip }
#endif
    /* the engines */
    :: d_step { ROOM(to_receiver) && ANY(DUE) -> put_forward(); skip }
    :: atomic { ROOM(to_receiver) && listed -> send_data(); skip }
    :: d_step { ROOM(to_sender) && (credit_due || ANY(ANSWERS_DUE)) -> put_backward(); skip }
    /* the network */
    :: d_step { ON_ITS_WAY(to_receiver, 0) -> act_forward(0); skip }
    :: d_step { ON_ITS_WAY(to_sender, 0) && ALLOWED(0) -> act_backward(0); skip }
    :: d_step { ON_ITS_WAY(to_receiver, 1) -> act_forward(1); skip }
    :: d_step { ON_ITS_WAY(to_sender, 1) && ALLOWED(1) -> act_backward(1); skip }
#ifdef NO_REPAIR
    :: d_step { ON_ITS_WAY(to_receiver, 0) && !lost -> lost = true; arrived(to_receiver, 0); skip }
    :: d_step { ON_ITS_WAY(to_sender, 0) && !lost -> lost = true; arrived(to_sender, 0); skip }
#endif
    :: ALL(ENDS) && QUIET_NET && !credit_due && !listed && !ANY(DUE) && !ANY(ANSWERS_DUE) -> break
    od;
    assert(delivered == MESSAGES && recv_base == MESSAGES);
    assert(ring_freed == ring_used && ring_limit == ring_used + RING)
}
