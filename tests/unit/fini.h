/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks in what runs as .fini, after a test: Criterion 2.4 passes a test although an assertion fails there. So the
 * process dies instead, which its exit status tells.
 */
#ifndef UCCL_TEST_FINI_H
#define UCCL_TEST_FINI_H

#include <stdio.h>
#include <stdlib.h>

static inline void fini_die(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: after the test: not %s\n", file, line, condition);
    abort();
}

#define FINI_ASSERT(condition) ((condition) ? (void)0 : fini_die(__FILE__, __LINE__, #condition))

#endif
