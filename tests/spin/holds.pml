/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a connection that two engine threads share: holds in engine/thread/stripe.c, uccl_conn_close(), its form with a
 * request, and an abort that may come after that (api/close.c). Whoever sees the connection over frees it at once.
 *
 * Checked: nobody touches the connection after that; it is freed.
 *
 * Broken on purpose, each must fail:
 *   NO_COMMAND_HOLD  a close on its way to a thread does not hold the connection
 *   HOLD_BLIND       a hold is taken although the last one has been let go
 *   CLOSING_LATE     the request to end is looked up when the connection is over
 *   HOME_LATE        the home thread is looked up then
 */
byte holds = 2;     /* an end on each thread */
bool over, freed, request, has_request, ended;
bool open[2] = true;
chan to_home = [3] of { bit };
chan to_other = [2] of { bit };

#define TOUCH assert(!freed)

inline let_go()
{
    d_step { TOUCH; holds--; last = holds == 0 };
    if
    :: last ->
#ifdef CLOSING_LATE
        over = true;
        d_step { TOUCH; request = has_request };
#else
        d_step { TOUCH; request = has_request };
        d_step { TOUCH; over = true };
#endif
        if
        :: request -> ended = true
        :: else
        fi
    :: else
    fi;
#ifdef HOME_LATE
    TOUCH;
#endif
    last = false
}

inline hold(held)
{
#ifdef HOLD_BLIND
    d_step { TOUCH; holds++; held = true }
#else
    d_step {
        TOUCH;
        held = holds > 0;
        if
        :: held -> holds++
        :: else
        fi
    }
#endif
}

inline push_close()
{
#ifdef NO_COMMAND_HOLD
    held = true;
#else
    hold(held);
#endif
    if
    :: held -> to_home!1
    :: else
    fi;
    held = false
}

active proctype application()
{
    bool held;
    if
    :: has_request = true; /* uccl_conn_close_async() */
       push_close();
       if
       :: push_close() /* uccl_conn_abort() */
       :: true
       fi;
       ended
    :: push_close(); /* uccl_conn_close() */
       over
    fi;
    assert(holds == 0);
    freed = true
}

active proctype home()
{
    bool last;
end:
    do
    :: to_home?1 ->
        TOUCH;
        if
        :: open[0] -> /* its end is closed: stripe_end_closed() */
            open[0] = false;
#ifndef NO_COMMAND_HOLD
            d_step { TOUCH; holds++ };
#endif
            to_other!1;
            let_go()
        :: else
        fi;
#ifndef NO_COMMAND_HOLD
        let_go()
#else
        skip
#endif
    od
}

active proctype other()
{
    bool last;
end:
    do
    :: to_other?1 ->
        TOUCH;
        if
        :: open[1] -> open[1] = false; let_go()
        :: else
        fi;
#ifndef NO_COMMAND_HOLD
        let_go()
#else
        skip
#endif
    od
}
