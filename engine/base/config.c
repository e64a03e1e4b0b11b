/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters: from text that a person wrote to one checked struct. The problem: a value can come
 * from four places, and whoever gets it wrong needs to hear which value, from where, and what would
 * have been right; a misspelt name must not be ignored in silence.
 *
 * Everything comes from params.def: the rows below hold what the parser, the help and the checks
 * need. A place where values come from is a `struct settings` (the setter's and the file's) or the
 * environment; find_value() alone knows which of them wins. Values stay text until the winner is
 * known, and only the winner is parsed, also where it is the default.
 *
 * Threads: any, as long as nobody changes the uccl_config or the environment meanwhile. Nothing is
 * cached: the environment and the file are read at each call. The only state of the process is the
 * list of warnings already given.
 */
#include "base/config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "../api/export.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pin.h"
#include "base/process.h"

#define PREFIX "UCCL_"
#define CONF_FILE_NAME "UCCL_CONF_FILE"
#define CONF_FILE_SYSTEM "/etc/uccl.conf"
#define CONF_FILE_USER ".uccl.conf"

enum {
    PREFIX_LENGTH = sizeof PREFIX - 1,
    CONF_LINE_MAX = 1023, /* bytes of a line of a file */
    NAME_SHOWN_MAX = 64,  /* longer unknown names are cut in messages */
    VALUE_SHOWN_MAX = 80, /* longer values too */
    WARNINGS_MAX = 64,    /* unknown names told per process; a flood of them helps nobody */
    ORIGIN_MAX = PATH_MAX + 16,
};

/* ---- rows ------------------------------------------------------------------------------------ */

enum param_kind { KIND_U64, KIND_BOOL, KIND_ENUM, KIND_STR };

struct param_row {
    const char *name; /* with the prefix */
    enum param_kind kind;
    size_t offset;        /* of the field in struct params */
    const char *default_; /* as a person would write it */
    uint64_t min, max;    /* KIND_U64 */
    const char *range;    /* what is allowed, for people; the choices of KIND_ENUM */
    const char *unit;
    const char *doc;
};

#define STR_RANGE(max) STR_RANGE_(max)
#define STR_RANGE_(max) "text of at most " #max " bytes"
#define STR_MAX 255 /* PARAM_STR_MAX, which as an enum constant cannot be made text */
_Static_assert(STR_MAX == PARAM_STR_MAX, "the range told to people is not the one in force");

static const struct param_row rows[] = {
#define PARAM_U64(field, name, default_, min, max, unit, doc)                                     \
    {PREFIX name, KIND_U64, offsetof(struct params, field), #default_, min, max, #min ".." #max,  \
     unit, doc},
#define PARAM_BOOL(field, name, default_, doc)                                                    \
    {PREFIX name, KIND_BOOL, offsetof(struct params, field), #default_, 0, 1,                     \
     "0|1|false|true|no|yes", "", doc},
#define PARAM_ENUM(field, name, default_, choices, doc)                                           \
    {PREFIX name, KIND_ENUM, offsetof(struct params, field), default_, 0, 0, choices, "", doc},
#define PARAM_STR(field, name, default_, doc)                                                     \
    {PREFIX name, KIND_STR, offsetof(struct params, field), default_, 0, 0, STR_RANGE(STR_MAX),   \
     "", doc},
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
};

/* INDEX_mtu is the row of the field mtu. */
enum param_index {
#define PARAM_U64(field, ...) INDEX_##field,
#define PARAM_BOOL(field, ...) INDEX_##field,
#define PARAM_ENUM(field, ...) INDEX_##field,
#define PARAM_STR(field, ...) INDEX_##field,
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
    PARAM_COUNT
};

/* What holds between parameters. */
static const enum param_index powers_of_two[] = {
    INDEX_chunk_window,
    INDEX_msg_window,
    INDEX_ring_entries,
};

static const struct {
    enum param_index small;
    uint64_t factor; /* small * factor <= large */
    enum param_index large;
} at_most[] = {
    {INDEX_rto_min_us, 1, INDEX_rto_max_us},
    /* Two eager messages always fit: by the ranges today, by this once somebody moves them. */
    {INDEX_eager_kb, 2, INDEX_eager_window_kb},
};

/* A word of another library, and ours for it. */
struct word {
    const char *theirs, *ours;
};

/* The numbers are older than NCCL's words, and it still takes them. */
static const struct word gdr_levels[] = {{"LOC", "loc"},   {"PIX", "pix"}, {"PXB", "pxb"}, {"PHB", "phb"},
                                         {"NODE", "node"}, {"SYS", "sys"}, {"0", "loc"},   {"1", "pix"},
                                         {"2", "pxb"},     {"3", "phb"},   {"4", "sys"},   {"5", "sys"},
                                         {NULL, NULL}};

/* 2, its default: where the machine can. So is our 1. */
static const struct word relaxed_orderings[] = {{"0", "0"}, {"1", "1"}, {"2", "1"}, {NULL, NULL}};

/* Without dma-bufs NCCL registers by address; with them it still does so where they do not work. */
static const struct word dmabuf_switches[] = {{"0", "peermem"}, {"1", "auto"}, {NULL, NULL}};

/* VERSION asks for one line about NCCL and takes no warnings away; what aborts there is a warning here. */
static const struct word debug_levels[] = {{"VERSION", "warn"}, {"WARN", "warn"}, {"INFO", "info"},
                                           {"ABORT", "info"},   {"TRACE", "debug"}, {NULL, NULL}};

/*
 * Environment variables that count where neither the setter, the environment nor the file gives the
 * parameter; of two for one parameter the upper one. `automatic` is the value that means, there, that
 * nothing was chosen; `words`, where values have other names there, ends with a NULL and holds all of them.
 * They are meant for other libraries, so a value that makes no sense here is no reason to fail.
 */
static const struct {
    enum param_index index;
    const char *name;
    const char *automatic;
    const struct word *words;
} stand_ins[] = {
    {INDEX_socket_ifname, "NCCL_SOCKET_IFNAME", NULL, NULL},
    {INDEX_ib_hca, "NCCL_IB_HCA", NULL, NULL},
    {INDEX_ib_gid_index, "UCCL_ROCE_GID_IDX", "-1", NULL},
    {INDEX_ib_gid_index, "NCCL_IB_GID_INDEX", "-1", NULL},
    {INDEX_ib_sl, "NCCL_IB_SL", "-1", NULL},
    {INDEX_ib_tc, "NCCL_IB_TC", "-1", NULL},
    {INDEX_ib_timeout, "NCCL_IB_TIMEOUT", "-1", NULL},
    {INDEX_ib_retry_cnt, "NCCL_IB_RETRY_CNT", "-1", NULL},
    {INDEX_ib_relaxed_ordering, "NCCL_IB_PCI_RELAXED_ORDERING", NULL, relaxed_orderings},
    {INDEX_gdr, "NCCL_DMABUF_ENABLE", NULL, dmabuf_switches},
    {INDEX_gdr_level, "NCCL_NET_GDR_LEVEL", "-1", gdr_levels},
    {INDEX_log_level, "NCCL_DEBUG", NULL, debug_levels},
};

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* ---- where values come from ------------------------------------------------------------------ */

/* Values by row, as text. */
struct settings {
    char text[PARAM_COUNT][PARAM_STR_MAX + 1];
    unsigned line[PARAM_COUNT]; /* 0: not set; else the line of the file, 1 for the setter's */
};

struct uccl_config {
    struct settings set;
};

struct sources {
    const struct uccl_config *config; /* NULL: no setter */
    struct settings file;
    char file_name[PATH_MAX]; /* "" where there is no file */
};

/* A value and its origin; the strings live as long as the sources and the environment do. */
struct found {
    const char *text;
    const char *source;   /* as uccl_param_value() names it */
    const char *stand_in; /* NULL, or the environment variable where it has another name */
    unsigned line;      /* 0: not from a file */
};

/* "environment", "environment, NCCL_IB_HCA" or "/etc/uccl.conf:12", for messages. */
static const char *origin_text(const struct found *found, char out[ORIGIN_MAX])
{
    if (found->line)
        snprintf(out, ORIGIN_MAX, "%s:%u", found->source, found->line);
    else if (found->stand_in)
        snprintf(out, ORIGIN_MAX, "%s, %s", found->source, found->stand_in);
    else
        snprintf(out, ORIGIN_MAX, "%s", found->source);
    return out;
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t *u64_field(struct params *params, enum param_index index)
{
    assert(rows[index].kind == KIND_U64);
    return (uint64_t *)(void *)((char *)params + rows[index].offset);
}

/* Strictly decimal: strtoull alone would take blanks, a sign and whatever follows. */
static bool parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    if (!*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno || value < min || value > max)
        return false;
    *out = value;
    return true;
}

/* The place of `text` in "a|b|c". */
static bool parse_choice(const char *text, const char *choices, unsigned *out)
{
    size_t length = strlen(text);
    for (unsigned index = 0;; index++) {
        size_t n = strcspn(choices, "|");
        if (n == length && memcmp(choices, text, n) == 0) {
            *out = index;
            return true;
        }
        if (!choices[n])
            return false;
        choices += n + 1;
    }
}

/* Parses `text` into the field of the row; false: not allowed, and the field is untouched. */
static bool parse_value(enum param_index index, const char *text, struct params *out)
{
    const struct param_row *row = &rows[index];
    void *field = (char *)out + row->offset;
    unsigned choice = 0;
    if (strlen(text) > PARAM_STR_MAX) /* of any kind: "000...01" is a number but has no room */
        return false;
    switch (row->kind) {
    case KIND_U64:
        return parse_u64(text, row->min, row->max, u64_field(out, index));
    case KIND_BOOL:
        if (!parse_choice(text, row->range, &choice))
            return false;
        *(bool *)field = choice % 2; /* no and yes take turns in the range */
        return true;
    case KIND_ENUM:
        return parse_choice(text, row->range, field);
    case KIND_STR: {
        struct pin_set ignored;
        strcpy(field, text);
        return index != INDEX_cpus || *text == '\0' || pin_parse(text, &ignored);
    }
    }
    return false;
}

static void format_value(const struct param_row *row, const struct params *params, char *out, size_t size)
{
    const void *field = (const char *)params + row->offset;
    const char *choice = row->range;
    switch (row->kind) {
    case KIND_U64:
        snprintf(out, size, "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case KIND_BOOL:
        snprintf(out, size, "%d", *(const bool *)field);
        break;
    case KIND_ENUM:
        for (unsigned i = *(const unsigned *)field; i > 0; i--)
            choice = strchr(choice, '|') + 1;
        snprintf(out, size, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    case KIND_STR:
        snprintf(out, size, "%s", (const char *)field);
        break;
    }
}

void config_format(const struct params *params, size_t offset, char *out, size_t size)
{
    const struct param_row *row = rows;
    while (row->offset != offset)
        row++;
    format_value(row, params, out, size);
}

/* ---- which value counts ----------------------------------------------------------------------- */

static pthread_mutex_t first_time_lock = PTHREAD_MUTEX_INITIALIZER;

static void config_in_child(void)
{
    pthread_mutex_init(&first_time_lock, NULL);
}

static void watch_forks(void)
{
    process_in_child(config_in_child);
}

/* True the first time in this process that it is asked about `key`, while the list has room. */
static bool first_time(const char *key)
{
    static char told[WARNINGS_MAX][NAME_SHOWN_MAX + 1];
    static unsigned count;
    static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;
    bool first = true;
    pthread_once(&forks_watched, watch_forks);
    pthread_mutex_lock(&first_time_lock);
    for (unsigned i = 0; i < count && first; i++)
        first = strncmp(told[i], key, NAME_SHOWN_MAX) != 0;
    first = first && count < WARNINGS_MAX;
    if (first)
        snprintf(told[count++], sizeof told[0], "%s", key);
    pthread_mutex_unlock(&first_time_lock);
    return first;
}

/* A value of a stand-in as we write it; NULL: it is none there either. */
static const char *translate(const struct word *words, const char *text)
{
    if (!words)
        return text;
    for (; words->theirs; words++)
        if (strcasecmp(text, words->theirs) == 0)
            return words->ours;
    return NULL;
}

static void warn_of_stand_in(size_t i, const char *text)
{
    const struct param_row *row = &rows[stand_ins[i].index];
    const char *unit = row->unit;
    char words[VALUE_SHOWN_MAX] = "";
    if (!first_time(stand_ins[i].name))
        return;
    for (const struct word *word = stand_ins[i].words; word && word->theirs; word++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", *words ? "|" : "", word->theirs);
    LOG_WARNING("%s=\"%.*s\" (environment), read for %s, is not understood and has no effect; allowed: %s%s%s",
                stand_ins[i].name, VALUE_SHOWN_MAX, text, row->name, *words ? words : row->range,
                *unit ? " " : "", unit);
}

/* False where no stand-in of the parameter is set to something that makes sense. */
static bool find_stand_in(enum param_index index, struct found *out)
{
    for (size_t i = 0; i < LENGTH(stand_ins); i++) {
        const char *given = stand_ins[i].index == index ? getenv(stand_ins[i].name) : NULL;
        if (!given || (stand_ins[i].automatic && strcmp(given, stand_ins[i].automatic) == 0))
            continue;
        struct params scratch;
        const char *text = translate(stand_ins[i].words, given);
        bool ours = strncmp(stand_ins[i].name, PREFIX, PREFIX_LENGTH) == 0;
        if (!text || (!ours && !parse_value(index, text, &scratch))) {
            warn_of_stand_in(i, given);
            continue;
        }
        *out = (struct found){text, "environment", stand_ins[i].name, 0};
        return true;
    }
    return false;
}

static void find_value(const struct sources *sources, enum param_index index, struct found *out)
{
    const char *text = NULL;
    if (sources->config && sources->config->set.line[index])
        *out = (struct found){sources->config->set.text[index], "setter", NULL, 0};
    else if ((text = getenv(rows[index].name)))
        *out = (struct found){text, "environment", NULL, 0};
    else if (sources->file.line[index])
        *out = (struct found){sources->file.text[index], sources->file_name, NULL,
                              sources->file.line[index]};
    else if (!find_stand_in(index, out))
        *out = (struct found){rows[index].default_, "default", NULL, 0};
}

static int refuse_value(enum param_index index, const struct found *found, const char *allowed)
{
    char origin[ORIGIN_MAX];
    const char *unit = rows[index].unit;
    if (index == INDEX_cpus)
        allowed = "numbers and ranges of them, such as 2-5,8, in ";
    LOG_ERR("parameter %s: value \"%.*s\" (%s) is not allowed; allowed: %s%s%s%s", rows[index].name,
            VALUE_SHOWN_MAX, found->text, origin_text(found, origin), allowed, rows[index].range,
            *unit ? " " : "", unit);
    return UCCL_EINVAL;
}

static int resolve_value(const struct sources *sources, enum param_index index,
                         struct params *params, struct found *found)
{
    find_value(sources, index, found);
    return parse_value(index, found->text, params) ? UCCL_OK : refuse_value(index, found, "");
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The row of "UCCL_CC" or, where `bare` is allowed, "CC"; -1: none. */
static int find_name(const char *name, bool bare)
{
    for (int i = 0; i < PARAM_COUNT; i++)
        if (strcmp(name, rows[i].name) == 0 ||
            (bare && strcmp(name, rows[i].name + PREFIX_LENGTH) == 0))
            return i;
    return -1;
}

/*
 * How many letters to insert, remove or replace to make one name of the other, whatever their case
 * (R. A. Wagner and M. J. Fischer, The String-to-String Correction Problem, JACM 1974). `row[j]` is
 * the distance between the part of `a` seen so far and the first j letters of `b`.
 */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[NAME_SHOWN_MAX + 1];
    size_t length = strlen(b);
    assert(length <= NAME_SHOWN_MAX);
    for (size_t j = 0; j <= length; j++)
        row[j] = (unsigned)j;
    for (; *a; a++) {
        unsigned diagonal = row[0]++;
        for (size_t j = 1; j <= length; j++) {
            bool same = toupper((unsigned char)*a) == toupper((unsigned char)b[j - 1]);
            unsigned best = diagonal + !same;
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[length];
}

/* The parameter that was probably meant (few letters differ, or the end is missing), or NULL. */
static const char *close_name(const char *name)
{
    const char *best = NULL;
    unsigned best_distance = UINT_MAX;
    if (strncasecmp(name, PREFIX, PREFIX_LENGTH) == 0)
        name += PREFIX_LENGTH;
    size_t length = strlen(name);
    for (int i = 0; i < PARAM_COUNT; i++) {
        const char *known = rows[i].name + PREFIX_LENGTH;
        size_t known_length = strlen(known);
        size_t shorter = length < known_length ? length : known_length;
        unsigned distance = edit_distance(name, known);
        unsigned allowed = known_length < 6 ? 1 : known_length < 9 ? 2 : 3;
        if (shorter >= 3 && strncasecmp(name, known, shorter) == 0)
            distance = 1;
        if (distance <= allowed && distance < best_distance) {
            best = rows[i].name;
            best_distance = distance;
        }
    }
    return best;
}

static void warn_unknown(const char *name, const char *origin)
{
    char shown[NAME_SHOWN_MAX + 1];
    snprintf(shown, sizeof shown, "%s", name);
    const char *meant = close_name(shown);
    if (!first_time(shown))
        return;
    LOG_WARNING("%s (%s) is not a parameter and has no effect%s%s%s", shown, origin,
                meant ? "; " : "", meant ? meant : "", meant ? " was probably meant" : "");
}

static bool is_stand_in(const char *name)
{
    for (size_t i = 0; i < LENGTH(stand_ins); i++)
        if (strcmp(name, stand_ins[i].name) == 0)
            return true;
    return false;
}

static void check_environment(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        char name[NAME_SHOWN_MAX + 1];
        if (strncmp(*entry, PREFIX, PREFIX_LENGTH) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (find_name(name, false) < 0 && !is_stand_in(name) && strcmp(name, CONF_FILE_NAME) != 0)
            warn_unknown(name, "environment");
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Without the blanks around it, in place. */
static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

/* A comment starts at a '#' that follows a blank or begins the line: "a#b" is a value. */
static void cut_comment(char *line)
{
    for (char *c = line; *c; c++)
        if (*c == '#' && (c == line || isspace((unsigned char)c[-1]))) {
            *c = '\0';
            return;
        }
}

static int read_line(struct sources *sources, char *line, unsigned number)
{
    cut_comment(line);
    char *name = trim(line);
    if (!*name)
        return UCCL_OK;
    char *value = strchr(name, '=');
    if (!value || value == name) {
        LOG_ERR("%s:%u: expected NAME=VALUE, found \"%.*s\"", sources->file_name, number,
                VALUE_SHOWN_MAX, name);
        return UCCL_EINVAL;
    }
    *value++ = '\0';
    name = trim(name);
    value = trim(value);

    int index = find_name(name, true);
    if (index < 0) {
        char origin[ORIGIN_MAX];
        snprintf(origin, sizeof origin, "%s:%u", sources->file_name, number);
        warn_unknown(name, origin);
        return UCCL_OK;
    }
    if (strlen(value) > PARAM_STR_MAX) {
        LOG_ERR("%s:%u: the value of %s is longer than %d bytes", sources->file_name, number,
                rows[index].name, PARAM_STR_MAX);
        return UCCL_EINVAL;
    }
    strcpy(sources->file.text[index], value);
    sources->file.line[index] = number; /* of two lines for one parameter the later counts */
    return UCCL_OK;
}

/* 0; the positive errno when the file cannot be read; UCCL_EINVAL (logged) for what it holds. */
static int read_file(struct sources *sources, const char *path)
{
    char line[CONF_LINE_MAX + 2]; /* with newline and NUL */
    int result = UCCL_OK;
    if ((size_t)snprintf(sources->file_name, sizeof sources->file_name, "%s", path) >=
        sizeof sources->file_name)
        return ENAMETOOLONG;
    FILE *file = fopen(path, "re");
    if (!file)
        return errno;
    for (unsigned number = 1; result == UCCL_OK && fgets(line, sizeof line, file); number++) {
        /* No newline before the end of the file: too long, or cut short by a NUL byte. */
        if (!strchr(line, '\n') && !feof(file)) {
            LOG_ERR("%s:%u: not a text line of at most %d bytes", path, number, CONF_LINE_MAX);
            result = UCCL_EINVAL;
        } else {
            result = read_line(sources, line, number);
        }
    }
    if (result == UCCL_OK && ferror(file))
        result = errno ? errno : EIO;
    fclose(file);
    return result;
}

/* Whether it may be there, but the process is short of descriptors: settings must not vanish then. */
static bool ran_out(int result)
{
    return result > 0 && fault_error(result) == UCCL_ENOMEM;
}

static int no_descriptor(const char *path, int system_error)
{
    char text[FAULT_TEXT];
    LOG_ERR("configuration file \"%s\" cannot be read: %s", path, fault_text(system_error, text));
    return UCCL_ENOMEM;
}

/* A file that nobody asked for by name: a missing one is no news, an unreadable one one warning. */
static int read_default_file(struct sources *sources, const char *path)
{
    int result = read_file(sources, path);
    if (ran_out(result))
        return no_descriptor(path, result);
    if (result > 0 && result != ENOENT && result != ENOTDIR && first_time(path))
        LOG_WARNING("configuration file %s cannot be read and has no effect: %s", path,
                    strerror(result));
    return result;
}

static int load_file(struct sources *sources)
{
    const char *named = getenv(CONF_FILE_NAME);
    if (named) {
        int result = read_file(sources, named);
        if (ran_out(result))
            return no_descriptor(named, result);
        if (result > 0)
            LOG_ERR("configuration file \"%s\" (environment, " CONF_FILE_NAME
                    ") cannot be read: %s",
                    named, strerror(result));
        return result ? UCCL_EINVAL : UCCL_OK;
    }

    const char *home = getenv("HOME");
    char path[PATH_MAX];
    int result = ENOENT;
    if (home && *home &&
        (size_t)snprintf(path, sizeof path, "%s/" CONF_FILE_USER, home) < sizeof path)
        result = read_default_file(sources, path);
    if (result > 0) {
        memset(&sources->file, 0, sizeof sources->file);
        result = read_default_file(sources, CONF_FILE_SYSTEM);
    }
    if (result > 0) {
        memset(&sources->file, 0, sizeof sources->file);
        sources->file_name[0] = '\0';
        result = UCCL_OK;
    }
    return result;
}

static int load_sources(struct sources *sources, const struct uccl_config *config)
{
    memset(sources, 0, sizeof *sources);
    sources->config = config;
    check_environment();
    return load_file(sources);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int check_powers_of_two(const struct sources *sources, struct params *params)
{
    for (size_t i = 0; i < LENGTH(powers_of_two); i++) {
        uint64_t value = *u64_field(params, powers_of_two[i]);
        if (value == 0 || (value & (value - 1)) != 0) {
            struct found found;
            find_value(sources, powers_of_two[i], &found);
            return refuse_value(powers_of_two[i], &found, "a power of two in ");
        }
    }
    return UCCL_OK;
}

static int check_at_most(const struct sources *sources, struct params *params)
{
    for (size_t i = 0; i < LENGTH(at_most); i++) {
        enum param_index small = at_most[i].small, large = at_most[i].large;
        if (*u64_field(params, small) <= *u64_field(params, large) / at_most[i].factor)
            continue;
        struct found a, b;
        char a_origin[ORIGIN_MAX], b_origin[ORIGIN_MAX];
        char divided[16] = "";
        find_value(sources, small, &a);
        find_value(sources, large, &b);
        if (at_most[i].factor > 1)
            snprintf(divided, sizeof divided, " / %u", (unsigned)at_most[i].factor);
        LOG_ERR("parameters %s=%s (%s) and %s=%s (%s) do not go together; allowed: %s <= %s%s",
                rows[small].name, a.text, origin_text(&a, a_origin), rows[large].name, b.text,
                origin_text(&b, b_origin), rows[small].name, rows[large].name, divided);
        return UCCL_EINVAL;
    }
    return UCCL_OK;
}

int config_resolve(const uccl_config *config, struct params *out)
{
    struct sources sources;
    struct params params = {0};
    int result = load_sources(&sources, config);
    for (int i = 0; i < PARAM_COUNT && result == UCCL_OK; i++) {
        struct found found;
        result = resolve_value(&sources, (enum param_index)i, &params, &found);
    }
    if (result == UCCL_OK)
        result = check_powers_of_two(&sources, &params);
    if (result == UCCL_OK)
        result = check_at_most(&sources, &params);
    if (result == UCCL_OK)
        *out = params;
    return result;
}

/* ---- public calls ---------------------------------------------------------------------------- */

UCCL_API int uccl_config_create(uccl_config **out)
{
    if (!out)
        return UCCL_EINVAL;
    uccl_config *config = calloc(1, sizeof *config);
    if (!config)
        return UCCL_ENOMEM;
    *out = config;
    return UCCL_OK;
}

UCCL_API void uccl_config_destroy(uccl_config *config)
{
    free(config);
}

UCCL_API int uccl_config_set(uccl_config *config, const char *name, const char *value)
{
    if (!config || !name || !value) {
        LOG_ERR("uccl_config_set: %s is NULL", !config ? "config" : !name ? "name" : "value");
        return UCCL_EINVAL;
    }
    int index = find_name(name, true);
    if (index < 0) {
        char shown[NAME_SHOWN_MAX + 1];
        snprintf(shown, sizeof shown, "%s", name);
        const char *meant = close_name(shown);
        LOG_ERR("%s (setter) is not a parameter%s%s%s; uccl_info --params shows all", shown,
                meant ? "; " : "", meant ? meant : "", meant ? " was probably meant" : "");
        return UCCL_EINVAL;
    }
    struct params scratch;
    struct found found = {value, "setter", NULL, 0};
    if (!parse_value((enum param_index)index, value, &scratch))
        return refuse_value((enum param_index)index, &found, "");
    strcpy(config->set.text[index], value);
    config->set.line[index] = 1;
    return UCCL_OK;
}

UCCL_API int uccl_param_info(unsigned index, struct uccl_param_info *out)
{
    if (index >= PARAM_COUNT || !out)
        return UCCL_EINVAL;
    const struct param_row *row = &rows[index];
    *out = (struct uccl_param_info){row->name, row->default_, row->range, row->unit, row->doc};
    return UCCL_OK;
}

UCCL_API int uccl_param_value(const uccl_config *config, unsigned index, char *value,
                              size_t value_size, char *source, size_t source_size)
{
    if (index >= PARAM_COUNT || (!value && value_size > 0) || (!source && source_size > 0))
        return UCCL_EINVAL;
    struct sources sources;
    struct found found;
    struct params params = {0};
    CANCEL_LATER;
    int result = load_sources(&sources, config);
    if (result == UCCL_OK)
        result = resolve_value(&sources, (enum param_index)index, &params, &found);
    if (result == UCCL_OK) {
        format_value(&rows[index], &params, value, value_size);
        snprintf(source, source_size, "%s%s%s", found.source, found.stand_in ? ", " : "",
                 found.stand_in ? found.stand_in : "");
    }
    return result;
}
