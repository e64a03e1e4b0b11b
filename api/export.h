/* SPDX-License-Identifier: Apache-2.0 */
/* Marks the definitions of public calls: everything else is built with hidden visibility. */
#ifndef UCCL_EXPORT_H
#define UCCL_EXPORT_H

#define UCCL_API __attribute__((visibility("default")))

#endif
