/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol by which an engine sleeps, is woken and is lent: engine/thread/lend.c, function by function,
 * with one engine thread, two application threads that post a message and wait for it, and a network
 * that lets it arrive some time after the post was taken. The first drives the engine while it waits,
 * and may test before; the second only sleeps until it is told (as on the event descriptor), or, with
 * BOTH_BORROW, does as the first.
 *
 * With STRIPED there is a second engine thread, and the message of the first application is a striped receive:
 * one part arrives there (stripe.c). That thread tells the first, the home of the request, by a command
 * in its ring, and either may be the last to finish and so the one that ends the request.
 *
 * ALONE leaves the second application out. With FLOOD it posts for ever, and waits for nothing.
 *
 * Every wait that has a time limit in lend.c may end at any moment here, except where the limit is
 * none. Waits in the NIC and for completions have none: nothing but a wake-up ends them.
 *
 * Checked: nobody but one owner runs a round or takes it from the ring; one thread at most is in the
 * NIC's wait; no deadlock; whoever posts and waits is served (`served`, with weak fairness),
 * and returns though others post for ever (`returns`, with FLOOD).
 *
 * Broken on purpose, each must fail:
 *   NO_RECHECK   who goes to sleep does not look at the ring once more
 *   TWO_IN_NIC   a borrower sleeps in the NIC though the engine thread has not left it
 *   NO_REST_WAKE give_back() does not wake an engine thread that rests without a lease
 *   NO_PART_WAKE who ends the request of another engine thread does not wake the borrower there (STRIPED)
 *   NO_PUSH_WAKE a command from another engine thread does not wake who sleeps in the NIC (STRIPED)
 *   WAKE_FIRST   who posts looks whether the owner sleeps, then posts
 *   SLEEP_BLIND  a waiter goes to sleep without a look at its request once it is counted
 *   COUNT_LATE   a waiter reads what it compares with after that look, right before it sleeps
 *   BORROW_ON    who gives the engine back runs rounds for as long as the ring is not empty (FLOOD)
 *
 * Left out: stop, reclaim (which only shortens a lease), the event descriptor (told like waiters are), and
 * weak memory: the model is sequentially consistent, as are the operations that it stands for.
 */
#ifndef ROUNDS
#define ROUNDS 1
#endif
#define APPS 2

#define RUNS 0
#define SLEEPS 1
#define OWNER_NONE 2
#define BORROWED 3
#define BORROWER_SLEEPS 4

byte owner = RUNS;
byte lend_requests = 0;
bool in_nic = false;          /* the engine thread's */
bool parked = false;
bool borrowed_since = false;  /* `borrows` has changed since the engine thread looked */
bool engine_sleeps = false;   /* on the futex `owner`, without a limit */

bool wake_token = false;      /* the eventfd of nic->wake() */
bool posted[APPS], flying[APPS], arrived[APPS], done[APPS];

bool part_flying = false;     /* STRIPED: the part that the other engine thread receives */
bool notice = false;          /* its command in our ring: the part has arrived */
bool own_here = false, part_here = false; /* what the home's core has of the message */
byte unfinished = 0;          /* of: the message at home, its part */

byte waiters = 0;             /* and the futex `completions`: */
bool changed[APPS];           /* it has since this one looked */
bool asleep[APPS];            /* this one sleeps on it */

byte owners = 1;              /* ghosts: who runs rounds, who is in the NIC's wait */
byte sleepers = 0;

#define RING_BUSY (posted[0] || posted[1] || notice)
#define READABLE (arrived[0] || arrived[1])

inline wake_owner_futex() { engine_sleeps = false }

inline change_completions() { changed[0] = true; changed[1] = true }

inline tell_waiters()
{
    if
    :: waiters > 0 -> d_step { change_completions(); asleep[0] = false; asleep[1] = false }
    :: else
    fi
}

/* The core at home has all of the striped message: one of the two that must finish has. */
inline finish_at_home()
{
    if
    :: own_here && part_here ->
        own_here = false;
        part_here = false;
        some = true;
        unfinished--;
        done[0] = done[0] || unfinished == 0
    :: else
    fi
}

/* loop_round(); each step is the owner's alone, but what it tells others is a step of its own */
inline run_round(busy)
{
    d_step {
        assert(owners == 1);
        busy = RING_BUSY;
        flying[0] = flying[0] || posted[0];
        flying[1] = flying[1] || posted[1];
#ifdef STRIPED
        part_flying = part_flying || posted[0];
        part_here = part_here || notice;
        notice = false;
#endif
        posted[0] = false;
        posted[1] = false
    };
    d_step {
        assert(owners == 1);
        busy = busy || READABLE;
        some = READABLE;
#ifdef STRIPED
        own_here = own_here || arrived[0];
        finish_at_home();
#else
        done[0] = done[0] || arrived[0];
#endif
        done[1] = done[1] || arrived[1];
        arrived[0] = false;
        arrived[1] = false
    };
    if
    :: some -> tell_waiters()
    :: else
    fi;
    some = false
}

/* nic->wait(), as poll and then read of the eventfd, which blocks when another has read it */
inline nic_enter() { d_step { sleepers++; assert(sleepers <= 1) } }

inline nic_sleep()
{
    if
    :: wake_token -> atomic { wake_token -> wake_token = false }
    :: !wake_token && READABLE
    fi;
    sleepers--
}

inline nic_wake() { wake_token = true }

active proctype network()
{
end:
    do
    :: atomic { flying[0] -> flying[0] = false; arrived[0] = true }
#ifndef FLOOD /* else nothing comes of them, or the network would be theirs alone */
    :: atomic { flying[1] -> flying[1] = false; arrived[1] = true }
#endif
    od
}

#ifdef STRIPED
/* The second engine thread, as far as the first one meets it: part_ended(), finish_one(). */
active proctype other_engine()
{
    bool last;
end:
    do
    :: atomic { part_flying -> part_flying = false; notice = true };
#ifndef NO_PUSH_WAKE
       if
       :: owner == SLEEPS || owner == BORROWER_SLEEPS -> nic_wake()
       :: else
       fi;
#endif
       d_step { unfinished--; last = unfinished == 0 };
       if
       :: last ->
           atomic { done[0] = true; last = false };
           tell_waiters();
#ifndef NO_PART_WAKE
           if
           :: owner == BORROWER_SLEEPS -> nic_wake()
           :: else
           fi
#endif
       :: else
       fi
    od
}
#endif

active proctype engine()
{
    bool busy, some, slept_through, used, park, ours;
    byte seen;

look:
    if
    :: lend_requests > 0 ->
        atomic { owners--; owner = OWNER_NONE };
        wake_owner_futex();
        goto lend_out
    :: else
    fi;
round:
    run_round(busy);
    if
    :: busy -> busy = false; goto look
    :: else
    fi;

    /* sleep_in_nic() */
    in_nic = true;
    atomic { owners--; owner = SLEEPS };
#ifdef NO_RECHECK
    if
    :: true ->
#else
    if
    :: !RING_BUSY ->
#endif
        if
        :: lend_requests == 0 ->
            nic_enter();
end_idle:   nic_sleep()
        :: else
        fi
#ifndef NO_RECHECK
    :: else
#endif
    fi;
    in_nic = false;
    atomic {
        ours = owner == SLEEPS;
        if
        :: ours -> owner = RUNS; owners++
        :: else
        fi
    };
    if
    :: ours -> ours = false; goto look
    :: else
    fi;

lend_out:
    slept_through = false;
lease:
    borrowed_since = false;
    seen = owner;
    park = false;
    if
    :: slept_through && seen == BORROWER_SLEEPS ->
        parked = true;
        if
        :: owner == BORROWER_SLEEPS -> park = true
        :: else -> parked = false
        fi
    :: else
    fi;
    if
    :: park ->
        atomic { engine_sleeps = (owner == seen) };
        !engine_sleeps;
        parked = false
    :: else /* the lease has a limit */
    fi;
    d_step {
        slept_through = seen == BORROWER_SLEEPS && !borrowed_since;
        used = seen != OWNER_NONE || borrowed_since || lend_requests > 0
    };
    atomic {
        ours = !used && owner == OWNER_NONE;
        if
        :: ours -> owner = RUNS; owners++
        :: else
        fi;
        seen = 0;
        used = false;
        park = false
    };
    if /* a round at least, however quickly who asks comes and goes */
    :: ours -> d_step { ours = false; slept_through = false } goto round
    :: else -> goto lease
    fi
}

/* A look, then a compare-and-exchange: one step, since to lose between both is to have looked later. */
inline try_borrow(got)
{
    atomic {
        got = (owner == OWNER_NONE || owner == SLEEPS);
        slept = (owner == SLEEPS);
        if
        :: got -> owner = BORROWED; owners++
        :: else
        fi
    };
    if
    :: got -> d_step { borrowed_since = true }
    :: else
    fi;
    if
    :: slept -> atomic { nic_wake(); slept = false }
    :: else
    fi
}

inline give_back()
{
    atomic { owners--; owner = OWNER_NONE };
    do
    :: RING_BUSY ->
        try_borrow(got);
        if
        :: got ->
            run_round(busy);
            busy = false;
            atomic { owners--; owner = OWNER_NONE };
#ifndef BORROW_ON
            break
#endif
        :: else -> break
        fi
    :: else -> break
    od;
#ifndef NO_REST_WAKE
    if
    :: parked -> wake_owner_futex()
    :: else
    fi;
#endif
    if
    :: waiters > 0 ->
        change_completions();
        atomic {
            if
            :: asleep[0] -> asleep[0] = false
            :: asleep[1] -> asleep[1] = false
            :: !asleep[0] && !asleep[1]
            fi
        }
    :: else
    fi
}

inline drive()
{
    do
    :: done[me] -> break
    :: else ->
        run_round(busy);
        if
        :: busy -> busy = false
        :: !busy && done[me]
        :: else ->
            if
#ifndef TWO_IN_NIC
            :: in_nic /* await_empty_nic(), with a limit */
#endif
            :: else ->
                owner = BORROWER_SLEEPS;
#ifdef NO_RECHECK
                if
                :: lend_requests == 0 && !done[me] ->
                    nic_enter();
                    nic_sleep()
#else
                if
                :: !RING_BUSY && lend_requests == 0 && !done[me] ->
                    nic_enter();
                    nic_sleep()
#endif
                :: else
                fi;
                owner = BORROWED
            fi
        fi
    od
}

inline wait_for_completion()
{
    waiters++;
    changed[me] = false;
    if
#ifdef SLEEP_BLIND
    :: owner > OWNER_NONE || !borrows ->
#else
    :: (owner > OWNER_NONE || !borrows) && !done[me] ->
#endif
#ifdef COUNT_LATE
        changed[me] = false;
#endif
        atomic { asleep[me] = !changed[me] };
        !asleep[me]
    :: else
    fi;
    waiters--
}

inline post()
{
#ifdef WAKE_FIRST
    asleep_then = owner == SLEEPS || owner == BORROWER_SLEEPS;
    posted[me] = true;
    if
    :: asleep_then -> nic_wake()
    :: else
    fi
#else
    posted[me] = true;
    if
    :: owner == SLEEPS || owner == BORROWER_SLEEPS -> nic_wake()
    :: else
    fi
#endif
}

inline try_round()
{
    try_borrow(got);
    if
    :: got -> run_round(busy); busy = false; give_back()
    :: else
    fi
}

inline wait()
{
    do
    :: done[me] -> break
    :: !done[me] && !borrows -> wait_for_completion()
    :: !done[me] && borrows ->
        try_borrow(got);
        if
        :: !got && owner == RUNS -> /* ask(), with a limit */
            lend_requests++;
            if
            :: owner != RUNS
            :: true /* or the limit has passed */
            fi;
            try_borrow(got);
            lend_requests--
        :: else
        fi;
        if
        :: got -> drive(); give_back()
        :: !got && owner > OWNER_NONE -> wait_for_completion()
        :: else
        fi
    od
}

bool returned = false;        /* the first application has, from all that it waited for */

#ifdef FLOOD
active proctype flood()
{
    byte me = 1;
end:
    do
    :: !posted[me] -> post()
    od
}
#define ALONE
#endif

proctype application(byte me)
{
    bool got, slept, busy, some;
#ifdef BOTH_BORROW
    bool borrows = true;
#else
    bool borrows = me == 0;
#endif
    byte round;
#ifdef WAKE_FIRST
    bool asleep_then;
#endif

    for (round : 1 .. ROUNDS) {
        done[me] = false;
#ifdef STRIPED
        if
        :: me == 0 -> unfinished = 2
        :: else
        fi;
#endif
        post();
        if
        :: me == 0 -> try_round()
        :: true
        fi;
        wait()
    };
    if
    :: me == 0 -> returned = true
    :: else
    fi
}

init {
    atomic {
        run application(0);
#ifndef ALONE
        run application(1)
#endif
    }
}

#ifdef FLOOD
ltl returns { <> returned }
#else
/* a post is taken and answered */
ltl served { [] (posted[0] -> <> done[0]) && [] (posted[1] -> <> done[1]) }
#endif
