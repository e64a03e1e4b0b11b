/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replacing the log callback: engine/base/log.c. Writers take no lock; setters replace the pair of function and `user` one
 * after the other, and free what belonged to the old one as soon as uccl_set_log() returns.
 *
 * Checked: a line meets a function with its own `user`, and nobody uses what has been freed.
 *
 * Broken on purpose, each must fail:
 *   NO_CHECK      a writer does not look whether its slot is still in force once it is counted
 *   COUNT_LATE    it looks, then counts itself
 *   FILL_LATE     a slot is in force before it is filled
 *   NO_WAIT_OLD   a setter does not wait for those inside the old callback
 */
#define WRITERS 2
#define LINES 2
#define SETS 3

byte current;
byte readers[2];
byte function[2], user[2];
bool freed[SETS + 1];

proctype writer()
{
    byte i, slot, f;
    for (i : 1 .. LINES) {
        do
        :: slot = current;
#ifdef COUNT_LATE
           if
           :: current == slot -> readers[slot]++; break
           :: else
           fi
#else
           readers[slot]++;
           if
#ifdef NO_CHECK
           :: true -> break
#else
           :: current == slot -> break
           :: else -> readers[slot]--
#endif
           fi
#endif
        od;
        f = function[slot];
        assert(user[slot] == f);
        assert(!freed[f]); /* the call begins, and ends */
        assert(!freed[f]);
        readers[slot]--;
        d_step { f = 0; slot = 0 }
    }
}

active proctype setter()
{
    byte i, old, slot;
    for (i : 1 .. SETS) {
        old = current;
        slot = 1 - old;
        readers[slot] == 0;
#ifdef FILL_LATE
        current = slot;
#endif
        function[slot] = i;
        user[slot] = i;
#ifndef FILL_LATE
        current = slot;
#endif
#ifndef NO_WAIT_OLD
        readers[old] == 0;
#endif
        freed[i - 1] = true
    }
}

init {
    atomic {
        byte k;
        for (k : 1 .. WRITERS) {
            run writer()
        }
    }
}
