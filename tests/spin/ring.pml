/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of commands, slot by slot: engine/base/ring.c, with two producers that may stop between any two steps, and a
 * consumer that sleeps when it finds nothing (lend.pml has the ring as one step). A producer that is refused tries
 * again when the slot has changed.
 *
 * Checked: every item comes out once, whole, in its producer's order; no slot is filled before it was read; nobody
 * sleeps for ever.
 *
 * Broken on purpose, each must fail:
 *   PUBLISH_FIRST  a slot is published, then filled
 *   FREE_FIRST     a slot is given back, then read
 *   NO_CLAIM       a place is taken without an exchange
 *   WAKE_FIRST     a producer looks whether the consumer sleeps, then publishes
 *   NO_RECHECK     the consumer sleeps without a look at the ring after it has said so
 */
#define ENTRIES 2
#define EACH 3 /* items of a producer */
#define SLOT(position) ((position) % ENTRIES)

byte turn[ENTRIES], item[ENTRIES]; /* item 0: was read */
byte tail, head;
bool sleeps, wake_token;
byte next_of[2];
byte taken;

inline look_whether_it_sleeps()
{
    asleep = sleeps
}

inline fill()
{
    d_step {
        assert(item[SLOT(position)] == 0);
        item[SLOT(position)] = me * 16 + i
    }
}

proctype producer(byte me)
{
    byte i, position, seen;
    bool mine, asleep;
    for (i : 1 .. EACH) {
#ifdef WAKE_FIRST
        look_whether_it_sleeps();
#endif
        position = tail;
        do
        :: seen = turn[SLOT(position)];
           if
           :: seen == position ->
#ifdef NO_CLAIM
               tail = position + 1;
               mine = true;
#else
               atomic {
                   mine = tail == position;
                   if
                   :: mine -> tail++
                   :: else -> position = tail
                   fi
               };
#endif
               if
               :: mine -> break
               :: else
               fi
           :: seen < position -> /* full: refused, and tried again */
               turn[SLOT(position)] != seen;
               position = tail
           :: else -> position = tail
           fi
        od;
#ifdef PUBLISH_FIRST
        turn[SLOT(position)] = position + 1;
        fill();
#else
        fill();
        turn[SLOT(position)] = position + 1;
#endif
#ifndef WAKE_FIRST
        look_whether_it_sleeps();
#endif
        if
        :: asleep -> wake_token = true
        :: else
        fi;
        d_step { asleep = false; mine = false; seen = 0; position = 0 }
    }
}

inline read_slot()
{
    d_step {
        got = item[SLOT(head)];
        assert(got != 0);
        item[SLOT(head)] = 0;
        assert(got % 16 == next_of[got / 16] + 1);
        next_of[got / 16]++;
        taken++;
        got = 0
    }
}

active proctype consumer()
{
    byte got;
    do
    :: taken == 2 * EACH -> break
    :: taken != 2 * EACH && turn[SLOT(head)] == head + 1 ->
#ifdef FREE_FIRST
        turn[SLOT(head)] = head + ENTRIES;
        read_slot();
#else
        read_slot();
        turn[SLOT(head)] = head + ENTRIES;
#endif
        head++
    :: else ->
        sleeps = true;
#ifndef NO_RECHECK
        if
        :: tail == head ->
#endif
            atomic { wake_token -> wake_token = false }
#ifndef NO_RECHECK
        :: else
        fi
#endif
        ;
        sleeps = false
    od
}

init {
    atomic {
        byte k;
        for (k : 0 .. ENTRIES - 1) {
            turn[k] = k
        };
        run producer(0);
        run producer(1)
    }
}
