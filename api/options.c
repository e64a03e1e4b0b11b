/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/log.h"
#include "objects.h"

#include <string.h>

/*
 * Copies the fields that the caller's version of the struct has. A later version may have more: those must be 0, since
 * a wish must not go unnoticed.
 */
static bool copy_known(const struct uccl_conn_options *options, struct uccl_conn_options *out)
{
    const uint8_t *bytes = (const uint8_t *)options;
    memset(out, 0, sizeof *out);
    if (options->size < offsetof(struct uccl_conn_options, thread) + sizeof options->thread)
        return false;
    for (size_t i = sizeof *out; i < options->size; i++) {
        if (bytes[i])
            return false;
    }
    memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    return true;
}

/* NULL, or what is wrong. */
static const char *read_fields(const struct uccl_conn_options *from, unsigned threads, struct conn_wishes *out)
{
    if (from->thread > threads)
        return "thread is none of the engine's threads";
    if (from->parts != UCCL_PARTS_DEFAULT && from->parts != UCCL_PARTS_ON && from->parts != UCCL_PARTS_OFF)
        return "parts is none of enum uccl_parts";
    if (from->private_bytes > UCCL_PRIVATE_MAX)
        return "private_bytes is more than UCCL_PRIVATE_MAX";
    if (from->private_bytes && !from->private_data)
        return "private_bytes without private_data";
    out->thread = from->thread;
    out->parts = (struct stripe_wish){.off = from->parts == UCCL_PARTS_OFF, .from_bytes = from->parts_from_bytes};
    out->private_bytes = (uint16_t)from->private_bytes;
    if (from->private_bytes)
        memcpy(out->private_data, from->private_data, from->private_bytes);
    return NULL;
}

int options_read(const struct uccl_engine *engine, const struct uccl_conn_options *options, struct conn_wishes *out)
{
    struct uccl_conn_options known;
    memset(out, 0, sizeof *out);
    if (!options)
        return UCCL_OK;
    if (!copy_known(options, &known)) {
        LOG_ERR("struct uccl_conn_options: size %zu is that of no version that this library knows, or fields that it "
                "does not know are set",
                options->size);
        return UCCL_EINVAL;
    }
    const char *fault = read_fields(&known, engine->thread_count, out);
    if (!fault)
        return UCCL_OK;
    LOG_ERR("struct uccl_conn_options: %s (thread %u of %u, parts %d, private_bytes %zu)", fault, known.thread,
            engine->thread_count, (int)known.parts, known.private_bytes);
    return UCCL_EINVAL;
}

void options_offer(const struct conn_wishes *wishes, struct boot_offer *offer)
{
    offer->private_bytes = wishes->private_bytes;
    memcpy(offer->private_data, wishes->private_data, wishes->private_bytes);
}
