/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event descriptor: uccl_event_arm() in api/engine.c, thread_tell_waiters() in engine/thread/post.c, and an application
 * that arms, tests and polls without a time limit, for REQUESTS requests one after the other. Two engine threads end
 * them, in turn, and may still be about to tell of the last when the next one ends.
 *
 * Checked: no event is lost, so nobody polls for ever.
 *
 * Broken on purpose, each must fail:
 *   ARM_FIRST     the descriptor is armed, then cleared of old events
 *   TELL_FIRST    an engine thread looks whether it is armed, then ends the request
 *   DISARM_LATE   it disarms after it has written the event, not in one step with the look
 *   TEST_FIRST    an application tests, then arms (what engine.h forbids)
 */
#ifndef REQUESTS
#define REQUESTS 4
#endif

bool armed, event;
byte posted, ended;

inline exchange_armed()
{
#ifdef DISARM_LATE
    tells = armed
#else
    d_step { tells = armed; armed = false }
#endif
}

proctype engine(byte me)
{
    bool tells;
end:
    do
    :: atomic { posted > ended && ended % 2 == me ->
#ifdef TELL_FIRST
           skip };
       exchange_armed();
       ended++;
#else
           ended++ };
       exchange_armed();
#endif
       if
       :: tells -> event = true;
#ifdef DISARM_LATE
           armed = false;
#endif
           tells = false
       :: else
       fi
    od
}

inline arm()
{
#ifdef ARM_FIRST
    armed = true;
    event = false
#else
    event = false;
    armed = true
#endif
}

active proctype application()
{
    byte i;
    for (i : 1 .. REQUESTS) {
        posted++;
        do
        ::
#ifdef TEST_FIRST
           if
           :: ended == i -> break
           :: else
           fi;
           arm();
#else
           arm();
           if
           :: ended == i -> break
           :: else
           fi;
#endif
           event /* poll() */
        od
    }
}

init {
    atomic {
        run engine(0);
        run engine(1)
    }
}
