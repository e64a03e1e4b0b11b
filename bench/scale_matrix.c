/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text format: a header `Nodes N`, `Connections M`, where there are some also `Triggers T` and
 * `Failures F`, then a line each:
 *
 *     src->dst [id K] start T|trigger K size B [send_done_trigger K] [recv_done_trigger K] [prio P]
 *     trigger id K oneshot|multishot|barrier [count N]
 *     failure switch_type TOR|AGG|CORE switch_id S link_id L
 *
 * T in picoseconds, B in bytes, K above 0; `#` begins a comment line. The priority is read and not
 * used.
 */
#include "scale_matrix.h"

#include "tool.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (UINT64_C(1) << 40)
#define START_MAX_PS (UINT64_C(1) << 55) /* ten hours */
enum { COUNT_MAX = 1 << 24 };

struct reader {
    const char *path;
    unsigned line;
    char *rest; /* of the line */
};

static void *grown(uint32_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        tool_fail("no memory for %" PRIu32 " entries of a connection matrix", count);
    return memory;
}

static _Noreturn void bad(const struct reader *reader, const char *what, const char *word)
{
    tool_fail("%s, line %u: %s%s%s", reader->path, reader->line, what, word ? ": " : "", word ? word : "");
}

/* The next word of the line, or NULL. */
static char *next_word(struct reader *reader)
{
    char *at = reader->rest;
    while (isspace((unsigned char)*at))
        at++;
    if (*at == '\0')
        return NULL;
    char *word = at;
    while (*at && !isspace((unsigned char)*at))
        at++;
    reader->rest = *at ? at + 1 : at;
    *at = '\0';
    return word;
}

static uint64_t number_of(const struct reader *reader, const char *name, const char *text, uint64_t min, uint64_t max)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = text && isdigit((unsigned char)text[0]) ? strtoull(text, &end, 10) : 0;
    if (end && *end == '.') { /* a start time may be written as a fraction */
        double real = strtod(text, &end);
        value = real < (double)max ? (unsigned long long)real : max;
    }
    if (!end || *end || errno || value < min || value > max)
        tool_fail("%s, line %u: %s %s: allowed are numbers from %" PRIu64 " to %" PRIu64, reader->path, reader->line,
                  name, text ? text : "is missing", min, max);
    return value;
}

static uint64_t next_number(struct reader *reader, const char *name, uint64_t min, uint64_t max)
{
    return number_of(reader, name, next_word(reader), min, max);
}

static void read_message(struct reader *reader, char *ends, uint32_t nodes, struct message *message)
{
    bool started = false, sized = false;
    char *arrow = strstr(ends, "->"), *word;
    *arrow = '\0';
    message->src = (uint32_t)number_of(reader, "source", ends, 0, nodes - 1);
    message->dst = (uint32_t)number_of(reader, "destination", arrow + 2, 0, nodes - 1);
    if (message->src == message->dst)
        bad(reader, "a node sends to itself", NULL);
    while ((word = next_word(reader))) {
        if (!strcmp(word, "id")) {
            message->id = (uint32_t)next_number(reader, word, 1, UINT32_MAX);
        } else if (!strcmp(word, "start")) {
            message->start_ps = next_number(reader, word, 0, START_MAX_PS);
            started = true;
        } else if (!strcmp(word, "size")) {
            message->bytes = next_number(reader, word, 1, BYTES_MAX);
            sized = true;
        } else if (!strcmp(word, "trigger")) {
            message->trigger = (uint32_t)next_number(reader, word, 1, UINT32_MAX);
        } else if (!strcmp(word, "send_done_trigger")) {
            message->send_done = (uint32_t)next_number(reader, word, 1, UINT32_MAX);
        } else if (!strcmp(word, "recv_done_trigger")) {
            message->recv_done = (uint32_t)next_number(reader, word, 1, UINT32_MAX);
        } else if (!strcmp(word, "prio")) {
            next_number(reader, word, 0, UINT32_MAX);
        } else {
            bad(reader, "unknown word", word);
        }
    }
    if (!sized)
        bad(reader, "a connection without size", NULL);
    if (started == (message->trigger != 0))
        bad(reader, "a connection needs either a start or a trigger", NULL);
}

static void read_trigger(struct reader *reader, struct trigger *trigger)
{
    static const char *const kinds[] = {NULL, "oneshot", "multishot", "barrier"};
    char *word;
    while ((word = next_word(reader))) {
        if (!strcmp(word, "id")) {
            trigger->id = (uint32_t)next_number(reader, word, 1, UINT32_MAX);
            continue;
        }
        if (!strcmp(word, "count")) {
            trigger->count = (uint32_t)next_number(reader, word, 0, UINT32_MAX);
            continue;
        }
        enum trigger_kind kind = TRIGGER_BARRIER;
        while (kind != TRIGGER_UNKNOWN && strcmp(word, kinds[kind]) != 0)
            kind--;
        if (kind == TRIGGER_UNKNOWN)
            bad(reader, "unknown word", word);
        trigger->kind = kind;
    }
    if (trigger->id == 0 || trigger->kind == TRIGGER_UNKNOWN)
        bad(reader, "a trigger needs an id and one of oneshot, multishot and barrier", NULL);
}

static void read_failure(struct reader *reader, struct failure *failure)
{
    char *word;
    while ((word = next_word(reader))) {
        if (!strcmp(word, "switch_type")) {
            char *tier = next_word(reader);
            if (tier && !strcmp(tier, "TOR"))
                failure->tier = TIER_TOR;
            else if (tier && !strcmp(tier, "AGG"))
                failure->tier = TIER_AGG;
            else if (tier && !strcmp(tier, "CORE"))
                failure->tier = TIER_CORE;
            else
                bad(reader, "switch_type is TOR, AGG or CORE, not", tier);
        } else if (!strcmp(word, "switch_id")) {
            failure->switch_id = (uint32_t)next_number(reader, word, 0, UINT32_MAX);
        } else if (!strcmp(word, "link_id")) {
            failure->link = (uint32_t)next_number(reader, word, 0, UINT32_MAX);
        } else {
            bad(reader, "unknown word", word);
        }
    }
}

/* How many there are of each, as the header says. */
struct promised {
    uint32_t messages, triggers, failures;
};

static bool read_header(struct reader *reader, const char *word, struct matrix *matrix, struct promised *promised)
{
    if (!strcmp(word, "Nodes"))
        matrix->nodes = (uint32_t)next_number(reader, word, 2, MATRIX_NODES_MAX);
    else if (!strcmp(word, "Connections"))
        promised->messages = (uint32_t)next_number(reader, word, 1, COUNT_MAX);
    else if (!strcmp(word, "Triggers"))
        promised->triggers = (uint32_t)next_number(reader, word, 0, COUNT_MAX);
    else if (!strcmp(word, "Failures"))
        promised->failures = (uint32_t)next_number(reader, word, 0, COUNT_MAX);
    else
        return false;
    return true;
}

/* A line of the body. */
static void read_entry(struct reader *reader, char *word, struct matrix *matrix, const struct promised *promised)
{
    if (strstr(word, "->")) {
        if (matrix->message_count == promised->messages)
            bad(reader, "more connections than the header says", NULL);
        read_message(reader, word, matrix->nodes, &matrix->messages[matrix->message_count++]);
    } else if (!strcmp(word, "trigger")) {
        if (matrix->trigger_count == promised->triggers)
            bad(reader, "more triggers than the header says", NULL);
        read_trigger(reader, &matrix->triggers[matrix->trigger_count++]);
    } else if (!strcmp(word, "failure")) {
        if (matrix->failure_count == promised->failures)
            bad(reader, "more failures than the header says", NULL);
        read_failure(reader, &matrix->failures[matrix->failure_count++]);
    } else {
        bad(reader, "unknown word", word);
    }
}

static bool trigger_exists(const struct matrix *matrix, uint32_t id)
{
    for (uint32_t i = 0; i < matrix->trigger_count; i++) {
        if (matrix->triggers[i].id == id)
            return true;
    }
    return id == 0;
}

static void check_matrix(const struct matrix *matrix, const struct promised *promised, const char *path)
{
    if (matrix->message_count == 0)
        tool_fail("%s: no connections (a header of \"Nodes N\" and \"Connections M\" comes first)", path);
    if (matrix->message_count != promised->messages || matrix->trigger_count != promised->triggers ||
        matrix->failure_count != promised->failures)
        tool_fail("%s: %" PRIu32 " connections, %" PRIu32 " triggers and %" PRIu32
                  " failures, and the header says %" PRIu32 ", %" PRIu32 " and %" PRIu32,
                  path, matrix->message_count, matrix->trigger_count, matrix->failure_count, promised->messages,
                  promised->triggers, promised->failures);
    for (uint32_t i = 0; i < matrix->message_count; i++) {
        const struct message *message = &matrix->messages[i];
        if (!trigger_exists(matrix, message->trigger) || !trigger_exists(matrix, message->send_done) ||
            !trigger_exists(matrix, message->recv_done))
            tool_fail("%s: connection %" PRIu32 "->%" PRIu32 " names a trigger that no line describes", path,
                      message->src, message->dst);
    }
}

void matrix_read(struct matrix *matrix, const char *path)
{
    struct reader reader = {.path = path};
    struct promised promised = {0};
    char *line = NULL, *word;
    size_t room = 0;
    bool in_body = false;
    *matrix = (struct matrix){0};
    FILE *file = fopen(path, "r");
    if (!file)
        tool_fail("%s: %s", path, strerror(errno));
    while (getline(&line, &room, file) >= 0) {
        reader.line++;
        reader.rest = line;
        word = next_word(&reader);
        if (!word || word[0] == '#')
            continue;
        if (!in_body && read_header(&reader, word, matrix, &promised))
            continue;
        if (!in_body) {
            if (matrix->nodes == 0)
                bad(&reader, "no \"Nodes N\" before this line", NULL);
            matrix->messages = grown(promised.messages, sizeof *matrix->messages);
            matrix->triggers = grown(promised.triggers, sizeof *matrix->triggers);
            matrix->failures = grown(promised.failures, sizeof *matrix->failures);
            in_body = true;
        }
        read_entry(&reader, word, matrix, &promised);
    }
    if (ferror(file))
        tool_fail("%s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    check_matrix(matrix, &promised, path);
}

/* ---- generators ------------------------------------------------------------------------------ */

static void matrix_init(struct matrix *matrix, uint32_t nodes, uint64_t messages)
{
    if (messages > COUNT_MAX)
        tool_fail("%" PRIu64 " messages are more than %d", messages, COUNT_MAX);
    *matrix = (struct matrix){.nodes = nodes};
    matrix->messages = grown((uint32_t)messages, sizeof *matrix->messages);
}

static void add(struct matrix *matrix, uint32_t src, uint32_t dst, uint64_t bytes)
{
    uint32_t id = ++matrix->message_count;
    matrix->messages[id - 1] = (struct message){.src = src, .dst = dst, .id = id, .bytes = bytes};
}

void matrix_permutation(struct matrix *matrix, uint32_t nodes, uint64_t bytes, struct rng *rng)
{
    matrix_init(matrix, nodes, nodes);
    uint32_t *to = grown(nodes, sizeof *to);
    for (uint32_t i = 0; i < nodes; i++)
        to[i] = i;
    for (uint32_t i = nodes - 1; i > 0; i--) { /* Sattolo's shuffle: nobody stays in place */
        uint32_t other = rng_below(rng, i), kept = to[i];
        to[i] = to[other];
        to[other] = kept;
    }
    for (uint32_t i = 0; i < nodes; i++)
        add(matrix, i, to[i], bytes);
    free(to);
}

void matrix_incast(struct matrix *matrix, uint32_t nodes, uint32_t senders, uint64_t bytes)
{
    matrix_init(matrix, nodes, senders);
    for (uint32_t i = 1; i <= senders; i++)
        add(matrix, i, 0, bytes);
}

void matrix_all_to_all(struct matrix *matrix, uint32_t nodes, uint64_t bytes)
{
    matrix_init(matrix, nodes, (uint64_t)nodes * (nodes - 1));
    for (uint32_t i = 0; i < nodes; i++) {
        for (uint32_t step = 1; step < nodes; step++)
            add(matrix, i, (i + step) % nodes, bytes);
    }
}

void matrix_free(struct matrix *matrix)
{
    free(matrix->messages);
    free(matrix->triggers);
    free(matrix->failures);
    *matrix = (struct matrix){0};
}
