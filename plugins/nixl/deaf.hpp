/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that take no signal of the process, as the engine's own. An application that blocks a signal in its threads
 * and reads it from a signalfd relies on all others blocking it, too. Faults stay open: the kernel delivers them to the
 * thread that causes them.
 */
#ifndef UCCL_P2P_DEAF_H
#define UCCL_P2P_DEAF_H

#include <signal.h>

/* While it lives, threads that this one starts are so. */
struct Deaf {
    sigset_t before;
    Deaf()
    {
        const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
        sigset_t blocked;
        sigfillset(&blocked);
        for (int fault : faults)
            sigdelset(&blocked, fault);
        pthread_sigmask(SIG_BLOCK, &blocked, &before);
    }
    ~Deaf()
    {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
};

#endif
