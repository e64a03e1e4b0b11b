/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of requests: the stack of engine/request/request.c, link by link, with threads that stop between any two steps. Each
 * takes two and puts them back in either order, so that a request comes to the top again while another thread still
 * looks at what was under it.
 *
 * Checked: no request is handed out twice; at the end all are there.
 *
 * Broken on purpose, each must fail:
 *   NO_TAG     the word at the top names the request alone
 *   LINK_LATE  a request is on the top before its link says what lies below
 *   NO_CLAIM   the top is taken without an exchange
 */
#define REQUESTS 3
#define THREADS 2

byte top = 1, tag;              /* request + 1; 0: empty */
byte below[REQUESTS];           /* likewise */
bool held[REQUESTS];

inline pop(out)
{
    do
    :: d_step { seen = top; seen_tag = tag };
       if
       :: seen == 0 -> out = 0; break
       :: else
       fi;
       under = below[seen - 1];
#ifdef NO_CLAIM
       took = true;
       top = under;
#else
       d_step {
#ifdef NO_TAG
           took = top == seen;
#else
           took = top == seen && tag == seen_tag;
#endif
           if
           :: took -> top = under; tag++
           :: else
           fi
       };
#endif
       if
       :: took -> out = seen; break
       :: else
       fi
    od;
    skip;
    d_step {
        if
        :: out -> assert(!held[out - 1]); held[out - 1] = true
        :: else
        fi;
        seen = 0; seen_tag = 0; under = 0; took = false
    }
}

inline push(in)
{
    if
    :: in ->
        held[in - 1] = false;
        do
        :: d_step { seen = top; seen_tag = tag };
#ifndef LINK_LATE
           below[in - 1] = seen;
#endif
           d_step {
               took = top == seen && tag == seen_tag;
               if
               :: took -> top = in; tag++
               :: else
               fi
           };
           if
           :: took -> break
           :: else
           fi
        od;
        skip;
#ifdef LINK_LATE
        below[in - 1] = seen;
#endif
        d_step { seen = 0; seen_tag = 0; took = false; in = 0 }
    :: else
    fi
}

byte over;

proctype thread()
{
    byte first, second, seen, seen_tag, under;
    bool took;
    pop(first);
    pop(second);
    if
    :: true -> push(first); push(second)
    :: true -> push(second); push(first)
    fi;
    over++
}

active proctype at_the_end()
{
    byte count;
    over == THREADS;
    do
    :: top != 0 -> top = below[top - 1]; count++
    :: else -> break
    od;
    assert(count == REQUESTS)
}

init {
    atomic {
        byte k;
        for (k : 0 .. REQUESTS - 2) {
            below[k] = k + 2
        };
        for (k : 1 .. THREADS) {
            run thread()
        }
    }
}
