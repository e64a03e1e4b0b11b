/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of network an engine uses: UCCL_BACKEND, or the best one that this build and this machine have. */
#ifndef UCCL_BACKEND_H
#define UCCL_BACKEND_H

#include "nic/nic.h"

enum { BACKEND_DEVICE = 0 }; /* the device that an engine uses: the first that its backend lists */

/*
 * Opens the backend. UCCL_ENOTSUP: the one that is asked for is not built in; UCCL_ENODEV: it has no device;
 * UCCL_ENOMEM: no descriptor or memory, and another backend would hide that there is a device. Logged.
 */
int backend_open(const struct params *params, struct nic **out);

#endif
