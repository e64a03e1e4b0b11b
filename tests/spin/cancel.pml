/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lives of a request, and cancels that come late: uccl_cancel(), collect() and request_put() against still_pending() in
 * engine/thread/loop.c. One application posts, waits, collects, and posts again in the same memory; another has the handle
 * of any life and cancels, at any time. Commands go through the ring, in order. The owner ends what is submitted at
 * any moment.
 *
 * Checked: a cancel ends the life that it was meant for or none, and never one that is not submitted yet.
 *
 * Broken on purpose, each must fail:
 *   GENERATION_LATE   a cancel carries the generation that the request has when it is posted, not when it was found
 *   NO_GENERATION     the owner does not compare generations
 *   GENERATION_FIRST  it looks at the generation, then at the state
 *   NO_STATE          it does not look at the state
 */
#ifndef LIVES
#define LIVES 3
#endif
#define CANCELS 2
#define FREE 0
#define PENDING 1
#define ENDED 2
#define SUBMIT 0
#define CANCEL 1

byte state = FREE, generation = 1;
byte handle;       /* of the life that was posted last; 0: none */
byte in_core;      /* the life that the owner's core has; 0: none */
chan ring = [LIVES + CANCELS] of { byte, byte, byte }; /* command, generation, and the life that it was meant for */

active proctype application()
{
    byte i;
    for (i : 1 .. LIVES) {
        state = PENDING;
        ring!SUBMIT, 0, generation;
        handle = generation; /* nobody else has it before */
        state == ENDED;
        generation++; /* request_put() */
        state = FREE
    }
}

active proctype canceller()
{
    byte i, found, mine;
    for (i : 1 .. CANCELS) {
        handle != 0;
        mine = handle;
        found = generation;
        if
        :: found == mine && state != FREE ->
#ifdef GENERATION_LATE
            found = generation;
#endif
            ring!CANCEL, found, mine
        :: else
        fi;
        d_step { found = 0; mine = 0 }
    }
}

active proctype owner()
{
    byte command, life, meant, saw_state, saw_generation;
end:
    do
    :: atomic { in_core != 0 -> in_core = 0; state = ENDED } /* it has all its bytes */
    :: ring?command, life, meant ->
        if
        :: command == SUBMIT -> in_core = meant
        :: else ->
#ifdef GENERATION_FIRST
            saw_generation = generation;
            saw_state = state;
#else
            saw_state = state;
            saw_generation = generation;
#endif
            if
#ifdef NO_GENERATION
            :: saw_state == PENDING ->
#else
#ifdef NO_STATE
            :: saw_generation == life ->
#else
            :: saw_state == PENDING && saw_generation == life ->
#endif
#endif
                assert(in_core == meant);
                atomic { in_core = 0; state = ENDED }
            :: else
            fi
        fi;
        d_step { command = 0; life = 0; meant = 0; saw_state = 0; saw_generation = 0 }
    od
}
