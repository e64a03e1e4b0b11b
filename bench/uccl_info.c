/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uccl_info: what this machine and this build offer. Version, devices, GPUs, parameters with the values
 * in force and where they came from, counters; as a screen for people or one JSON object for
 * programs. It also writes docs/parameters.md, so that the page cannot differ from the library.
 *
 * Only what needs devices opens an engine: parameters can be listed where no device works.
 */
#include <argp.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "info_verbs.h"
#include "output.h"
#include "uccl/engine.h"

enum { VALUE_MAX = 512, SOURCE_MAX = 4096 };

struct options {
    bool params;
    bool devices;
    bool topology;
    bool counters;
    bool json;
    bool markdown;
};

/* One parameter and its value in force. */
struct param {
    struct uccl_param_info info;
    bool allowed; /* false: the value found is not allowed, and value and source are empty */
    char value[VALUE_MAX];
    char source[SOURCE_MAX];
};

/* ---- command line ---------------------------------------------------------------------------- */

enum { KEY_MARKDOWN = 256 };

static const struct argp_option option_rows[] = {
    {"devices", 'd', NULL, 0, "Show the devices", 0},
    {"topology", 't', NULL, 0, "Show the GPUs and the distance from each GPU to each device", 0},
    {"params", 'p', NULL, 0, "Show every parameter, its value and the value's origin", 0},
    {"counters", 'c', NULL, 0, "Show the names and meanings of the counters", 0},
    {"json", 'j', NULL, 0, "Write everything as one JSON object", 0},
    {"params-markdown", KEY_MARKDOWN, NULL, OPTION_HIDDEN, "Write docs/parameters.md", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'd':
        options->devices = true;
        return 0;
    case 't':
        options->topology = true;
        return 0;
    case 'p':
        options->params = true;
        return 0;
    case 'c':
        options->counters = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case KEY_MARKDOWN:
        options->markdown = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "uccl_info %s (%s)\n", uccl_version(), uccl_build_info());
}

/* ---- log ------------------------------------------------------------------------------------- */

/* To stderr. A mistake in the configuration is found again for every parameter: say it once. */
static void print_log(void *user, enum uccl_log_level level, const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char last[1024];
    (void)user;
    pthread_mutex_lock(&lock);
    if (strcmp(text, last) != 0) {
        snprintf(last, sizeof last, "%s", text);
        fprintf(stderr, "uccl_info: %s%s\n", level == UCCL_LOG_WARN ? "warning: " : "", text);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* False past the last parameter. */
static bool get_param(unsigned index, struct param *out)
{
    if (uccl_param_info(index, &out->info) != UCCL_OK)
        return false;
    out->value[0] = out->source[0] = '\0';
    out->allowed =
        uccl_param_value(NULL, index, out->value, sizeof out->value, out->source, sizeof out->source) == UCCL_OK;
    return true;
}

static const char *or_dash(const char *text)
{
    return *text ? text : "-";
}

/* No value is known at all, rather than some that are not allowed: stderr tells what the file has. */
static bool file_unreadable(void)
{
    struct param param;
    for (unsigned i = 0; get_param(i, &param); i++)
        if (param.allowed)
            return false;
    return true;
}

/* Every function that prints returns false when it met something wrong, already told on stderr. */
static bool print_params(void)
{
    struct param param;
    bool all_allowed = true;
    const char *bad = file_unreadable() ? "unknown" : "NOT ALLOWED";
    printf("%-23s %-12s %-12s %-12s %s\n", "PARAMETER", "VALUE", "FROM", "DEFAULT", "ALLOWED");
    for (unsigned i = 0; get_param(i, &param); i++) {
        const char *value = param.allowed ? or_dash(param.value) : bad;
        printf("%-23s %-12s %-12s %-12s %s%s%s\n    %s\n", param.info.name, value, or_dash(param.source),
               or_dash(param.info.default_), param.info.range, *param.info.unit ? " " : "", param.info.unit,
               param.info.doc);
        all_allowed = all_allowed && param.allowed;
    }
    return all_allowed;
}

static bool print_changed_params(void)
{
    struct param param;
    bool all_allowed = true;
    unsigned changed = 0;
    printf("\nParameters that differ from their defaults:\n");
    if (file_unreadable()) {
        printf("  unknown: the configuration file cannot be read, or has a line that is no setting\n");
        return false;
    }
    for (unsigned i = 0; get_param(i, &param); i++) {
        if (!param.allowed)
            printf("  %s: value not allowed\n", param.info.name);
        else if (strcmp(param.value, param.info.default_) != 0)
            printf("  %s = %s  (from %s; default %s)\n", param.info.name, or_dash(param.value), param.source,
                   or_dash(param.info.default_));
        else
            continue;
        all_allowed = all_allowed && param.allowed;
        changed++;
    }
    if (changed == 0)
        printf("  none\n");
    printf("All parameters: uccl_info --params. Counters: uccl_info --counters.\n");
    return all_allowed;
}

/* ---- docs/parameters.md ---------------------------------------------------------------------- */

static const char markdown_intro[] =
    "# Parameters\n"
    "\n"
    "<!-- Written by `uccl_info --params-markdown` from engine/defs/params.def: edit there. -->\n"
    "\n"
    "Every parameter has a default that works. The engine takes each value from the first of these that sets it:\n"
    "\n"
    "1. `uccl_config_set()` on the set of settings that `uccl_open()` gets,\n"
    "2. the environment variable of the parameter's name,\n"
    "3. the configuration file,\n"
    "4. the default.\n"
    "\n"
    "An engine reads its parameters when it is opened. Later changes have no effect on that engine.\n"
    "`uccl_info --params` shows the values in force and the origin of each.\n"
    "\n"
    "## The configuration file\n"
    "\n"
    "The library reads one file, the first of these:\n"
    "\n"
    "1. the file that the environment variable `UCCL_CONF_FILE` names; if the library cannot read that file, no\n"
    "   engine opens (`/dev/null` is a file without settings),\n"
    "2. `~/.uccl.conf`,\n"
    "3. `/etc/uccl.conf`.\n"
    "\n"
    "Each line has one `NAME=VALUE`, with or without `UCCL_` before the name. Blanks around names and values do not\n"
    "count. A `#` at the beginning of a line or after a blank starts a comment. If two lines set one parameter, the\n"
    "later line counts. A line has at most 1023 bytes, a value at most 255.\n"
    "\n"
    "    # not over the management network\n"
    "    SOCKET_IFNAME = ^eno1\n"
    "    UCCL_CC=timely\n"
    "\n"
    "## Values\n"
    "\n"
    "Numbers are decimal digits alone: no sign, no unit, no `0x`. Words are in lower case. If a value is not allowed,\n"
    "`uccl_open()` fails with `UCCL_EINVAL`, and the log tells the value, its origin and what is allowed. Unknown\n"
    "names have no effect: in the environment those with `UCCL_`, in the file any. The log warns once of each.\n"
    "\n"
    "Some parameters have stand-ins: environment variables that count if neither the setter, the environment nor the\n"
    "file sets the parameter itself. The list below names them. A number of -1, which means \"choose\", counts as not\n"
    "set. Stand-ins that begin with `NCCL_` are meant for NCCL first. If such a value makes no sense here (empty,\n"
    "hexadecimal, out of range), it has no effect, and the log warns once. `uccl_info` names the variable that a\n"
    "value came from.\n"
    "\n"
    "Parameters limit each other:\n"
    "\n"
    "- `UCCL_MSG_WINDOW`, `UCCL_CHUNK_WINDOW` and `UCCL_RING_ENTRIES` are powers of two;\n"
    "- `UCCL_RTO_MIN_US` is at most `UCCL_RTO_MAX_US`;\n"
    "- `UCCL_EAGER_KB` is at most half of `UCCL_EAGER_WINDOW_KB`.\n"
    "\n"
    "## All parameters\n"
    "\n";

/* Words of a list item, in lines of at most 120 columns. */
static void print_wrapped(const char *text)
{
    enum { COLUMNS = 120 };
    size_t column = COLUMNS;
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column + 1 + length > COLUMNS)
            column = (size_t)printf("\n  %.*s", (int)length, text) - 1;
        else
            column += (size_t)printf(" %.*s", (int)length, text);
        text += length + strspn(text + length, " ");
    }
    printf("\n");
}

static void print_markdown(void)
{
    struct uccl_param_info info;
    fputs(markdown_intro, stdout);
    for (unsigned i = 0; uccl_param_info(i, &info) == UCCL_OK; i++) {
        const char *quote = *info.default_ ? "`" : "";
        printf("- **`%s`** (default %s%s%s; %s%s%s)", info.name, quote, *info.default_ ? info.default_ : "empty", quote,
               info.range, *info.unit ? " " : "", info.unit);
        print_wrapped(info.doc);
    }
}

/* ---- devices -------------------------------------------------------------------------------- */

static uccl_engine *open_engine(int *error)
{
    uccl_engine *engine = NULL;
    *error = uccl_open(NULL, &engine);
    if (*error == UCCL_OK)
        return engine;
    fprintf(stderr, "uccl_info: cannot open an engine: %s\n", uccl_strerror(*error));
    return NULL;
}

static void print_device(int index, const struct uccl_device *device)
{
    printf("  %d: %s (%s), %s, MTU %" PRIu32, index, device->name, device->backend, device->address, device->mtu);
    if (device->speed_mbps >= 1000)
        printf(", %g Gbit/s", (double)device->speed_mbps / 1000);
    else if (device->speed_mbps > 0)
        printf(", %" PRIu64 " Mbit/s", device->speed_mbps);
    else
        printf(", speed unknown");
    printf(", %" PRIu32 " engine thread%s", device->engines, device->engines == 1 ? "" : "s");
    if (device->numa_node >= 0)
        printf(", NUMA node %d", device->numa_node);
    printf("%s\n", device->is_loopback ? ", loopback" : "");
    if (*device->description)
        printf("     %s\n", device->description);
}

/* Lists the devices of an engine that is opened for it, or why there is none; then the verbs ports. */
static uccl_engine *list_devices(bool *ok)
{
    int error;
    struct uccl_device device;
    uccl_engine *engine = open_engine(&error);
    printf("Devices:\n");
    if (!engine)
        printf("  unknown: %s\n", uccl_strerror(error));
    for (int i = 0; engine && i < uccl_device_count(engine); i++)
        if (uccl_device_get(engine, i, &device) == UCCL_OK)
            print_device(i, &device);
    *ok = verbs_print() && engine; /* without an engine: why none of them will do */
    return engine;
}

static bool print_devices(void)
{
    bool ok;
    uccl_engine *engine = list_devices(&ok);
    if (engine)
        uccl_close(engine);
    return ok;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    enum uccl_mem kind;
} runtimes[] = {{"cuda", UCCL_MEM_CUDA}, {"hip", UCCL_MEM_HIP}};

enum { RUNTIMES = sizeof runtimes / sizeof runtimes[0], STATUS_MAX = 256 };

static const char *or_unknown(const char *text)
{
    return *text ? text : "unknown";
}

static void print_gpu_list(uccl_engine *engine)
{
    struct uccl_gpu gpu;
    int count = uccl_gpu_count(engine);
    printf("\nGPUs:%s\n", count > 0 ? "" : " none");
    for (int i = 0; i < count; i++)
        if (uccl_gpu_get(engine, i, &gpu) == UCCL_OK)
            printf("  %s: %s, PCI %s, %s\n", gpu.name, or_unknown(gpu.model), or_unknown(gpu.pci), gpu.reached);
    for (unsigned i = 0; i < RUNTIMES; i++) {
        char text[STATUS_MAX];
        uccl_mem_status(runtimes[i].kind, text, sizeof text);
        printf("  %s: %s\n", runtimes[i].name, text);
    }
}

/* A row per GPU, a column per device. */
static void print_matrix(uccl_engine *engine, int gpus)
{
    enum { NODE_WIDTH = 4 };
    struct uccl_device device;
    int devices = uccl_device_count(engine), width = 8;
    printf("\n%-10s %*s", "", NODE_WIDTH, "NUMA");
    for (int d = 0; d < devices; d++)
        if (uccl_device_get(engine, d, &device) == UCCL_OK)
            printf("  %*s", width, device.name); /* a longer name widens its column */
    printf("  nearest\n");
    for (int g = 0; g < gpus; g++) {
        struct uccl_gpu gpu;
        if (uccl_gpu_get(engine, g, &gpu) != UCCL_OK)
            continue;
        printf("%-10s ", gpu.name);
        if (gpu.numa_node >= 0)
            printf("%*d", NODE_WIDTH, gpu.numa_node);
        else
            printf("%*s", NODE_WIDTH, "?");
        for (int d = 0; d < devices; d++) {
            int known = uccl_device_get(engine, d, &device) == UCCL_OK ? (int)strlen(device.name) : 0;
            printf("  %*s", known > width ? known : width, uccl_distance_name(uccl_gpu_distance(engine, g, d)));
        }
        bool near = uccl_device_get(engine, gpu.nearest_device, &device) == UCCL_OK;
        printf("  %s\n", near ? device.name : "unknown");
    }
    printf("\nPIX: through one PCIe switch; PXB: through several; PHB: through a PCIe host bridge;\n"
           "NODE: between host bridges of one NUMA node; SYS: between NUMA nodes;\n"
           "unknown: this machine does not show it, or the device is not on PCIe.\n");
}

/* Where a connection begins that is near a GPU. */
static void print_uses(uccl_engine *engine, int gpus)
{
    printf("\nA connection near a GPU begins at:\n");
    for (int g = 0; g < gpus; g++) {
        struct uccl_gpu gpu;
        struct uccl_device device;
        if (uccl_gpu_get(engine, g, &gpu) != UCCL_OK)
            continue;
        if (uccl_device_get(engine, gpu.used_device, &device) == UCCL_OK)
            printf("  %s -> %s (%s)\n", gpu.name, device.name,
                   uccl_distance_name(uccl_gpu_distance(engine, g, gpu.used_device)));
        else
            printf("  %s -> the interface that the kernel's route to the peer has\n", gpu.name);
    }
}

static bool print_topology(void)
{
    bool ok;
    uccl_engine *engine = list_devices(&ok);
    if (!engine)
        return false;
    print_gpu_list(engine);
    int gpus = uccl_gpu_count(engine);
    if (gpus > 0)
        print_matrix(engine, gpus);
    if (gpus > 0)
        print_uses(engine, gpus);
    uccl_close(engine);
    return ok;
}

/* ---- counters -------------------------------------------------------------------------------- */

static bool print_counters(void)
{
    const char *name, *doc;
    printf("%-18s %s\n", "COUNTER", "WHAT IT COUNTS");
    for (unsigned i = 0; uccl_counter_info(i, &name, &doc) == UCCL_OK; i++)
        printf("%-18s %s\n", name, doc);
    return true;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* JSON is UTF-8, environment values and file names need not be: bytes beyond ASCII become '?'. */
static json_t *json_text(const char *text)
{
    json_t *json = json_string(text);
    if (json)
        return json;
    char ascii[SOURCE_MAX];
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *c = ascii; *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    return json_string(ascii);
}

static bool add_params(json_t *root)
{
    struct param param;
    bool all_allowed = true;
    json_t *array = json_array();
    for (unsigned i = 0; get_param(i, &param); i++) {
        json_t *row = json_object();
        json_object_set_new(row, "name", json_text(param.info.name));
        json_object_set_new(row, "value", param.allowed ? json_text(param.value) : json_null());
        json_object_set_new(row, "source", param.allowed ? json_text(param.source) : json_null());
        json_object_set_new(row, "default", json_text(param.info.default_));
        json_object_set_new(row, "allowed", json_text(param.info.range));
        json_object_set_new(row, "unit", json_text(param.info.unit));
        json_object_set_new(row, "doc", json_text(param.info.doc));
        json_array_append_new(array, row);
        all_allowed = all_allowed && param.allowed;
    }
    json_object_set_new(root, "params", array);
    return all_allowed;
}

static void add_counters(json_t *root)
{
    const char *name, *doc;
    json_t *array = json_array();
    for (unsigned i = 0; uccl_counter_info(i, &name, &doc) == UCCL_OK; i++) {
        json_t *row = json_object();
        json_object_set_new(row, "name", json_text(name));
        json_object_set_new(row, "doc", json_text(doc));
        json_array_append_new(array, row);
    }
    json_object_set_new(root, "counters", array);
}

static json_t *device_json(const struct uccl_device *device)
{
    json_t *row = json_object();
    json_object_set_new(row, "name", json_text(device->name));
    json_object_set_new(row, "backend", json_text(device->backend));
    json_object_set_new(row, "address", json_text(device->address));
    json_object_set_new(row, "description", json_text(device->description));
    json_object_set_new(row, "speed_mbps", json_integer((json_int_t)device->speed_mbps));
    json_object_set_new(row, "mtu", json_integer(device->mtu));
    json_object_set_new(row, "engines", json_integer(device->engines));
    json_object_set_new(row, "numa_node", json_integer(device->numa_node));
    json_object_set_new(row, "loopback", json_boolean(device->is_loopback));
    return row;
}

static json_t *gpu_json(uccl_engine *engine, int index, const struct uccl_gpu *gpu)
{
    struct uccl_device device;
    json_t *row = json_object(), *distances = json_object();
    int devices = uccl_device_count(engine);
    bool near = uccl_device_get(engine, gpu->nearest_device, &device) == UCCL_OK;
    json_object_set_new(row, "name", json_text(gpu->name));
    json_object_set_new(row, "model", json_text(gpu->model));
    json_object_set_new(row, "pci", json_text(gpu->pci));
    json_object_set_new(row, "numa_node", json_integer(gpu->numa_node));
    json_object_set_new(row, "reached", json_text(gpu->reached));
    json_object_set_new(row, "nearest", near ? json_text(device.name) : json_null());
    bool uses = uccl_device_get(engine, gpu->used_device, &device) == UCCL_OK;
    json_object_set_new(row, "uses", uses ? json_text(device.name) : json_null());
    for (int d = 0; d < devices; d++)
        if (uccl_device_get(engine, d, &device) == UCCL_OK)
            json_object_set_new(distances, device.name,
                                json_text(uccl_distance_name(uccl_gpu_distance(engine, index, d))));
    json_object_set_new(row, "distances", distances);
    return row;
}

static json_t *gpus_json(uccl_engine *engine)
{
    struct uccl_gpu gpu;
    json_t *array = json_array();
    int count = uccl_gpu_count(engine);
    for (int i = 0; i < count; i++)
        if (uccl_gpu_get(engine, i, &gpu) == UCCL_OK)
            json_array_append_new(array, gpu_json(engine, i, &gpu));
    return array;
}

static void add_runtimes(json_t *root)
{
    json_t *object = json_object();
    for (unsigned i = 0; i < RUNTIMES; i++) {
        char text[STATUS_MAX];
        json_t *row = json_object();
        int error = uccl_mem_status(runtimes[i].kind, text, sizeof text);
        json_object_set_new(row, "usable", json_boolean(error == UCCL_OK));
        json_object_set_new(row, "status", json_text(text));
        json_object_set_new(object, runtimes[i].name, row);
    }
    json_object_set_new(root, "gpu_runtimes", object);
}

/* Where no engine opens, "devices" and "gpus" are empty and "error" says why. */
static bool add_devices(json_t *root)
{
    int error;
    json_t *array = json_array(), *gpus = NULL;
    uccl_engine *engine = open_engine(&error);
    if (engine) {
        gpus = gpus_json(engine);
        struct uccl_device device;
        int count = uccl_device_count(engine);
        for (int i = 0; i < count; i++)
            if (uccl_device_get(engine, i, &device) == UCCL_OK)
                json_array_append_new(array, device_json(&device));
        uccl_close(engine);
    }
    json_object_set_new(root, "devices", array);
    json_object_set_new(root, "gpus", gpus ? gpus : json_array());
    json_object_set_new(root, "error", engine ? json_null() : json_text(uccl_strerror(error)));
    return engine != NULL;
}

static bool print_json(void)
{
    json_t *root = json_object();
    json_object_set_new(root, "version", json_text(uccl_version()));
    json_object_set_new(root, "build", json_text(uccl_build_info()));
    json_object_set_new(root, "cores", json_integer(uccl_cores()));
    bool ok = add_devices(root);
    ok = verbs_add_json(root) && ok;
    add_runtimes(root);
    ok = add_params(root) && ok;
    add_counters(root);
    if (json_dumpf(root, stdout, JSON_INDENT(2)) != 0) {
        fprintf(stderr, "uccl_info: cannot write JSON\n");
        ok = false;
    }
    putchar('\n');
    json_decref(root);
    return ok;
}

/* ---------------------------------------------------------------------------------------------- */

static bool print_overview(void)
{
    printf("uccl-engine %s, built with %s\n", uccl_version(), uccl_build_info());
    printf("processors that this process can keep busy: %u\n\n", uccl_cores());
    bool ok = print_topology();
    return print_changed_params() && ok;
}

static bool print_chosen(const struct options *options)
{
    if (options->markdown) {
        print_markdown();
        return true;
    }
    if (options->json)
        return print_json();
    if (!options->devices && !options->topology && !options->params && !options->counters)
        return print_overview();

    bool ok = true;
    if (options->topology)
        ok = print_topology() && ok;
    else if (options->devices)
        ok = print_devices() && ok;
    if (options->params)
        ok = print_params() && ok;
    if (options->counters)
        ok = print_counters() && ok;
    return ok;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_rows,
        .parser = parse_option,
        .doc = "Shows what libuccl-engine finds on this machine: devices, parameters, counters."
               "\vWithout options: prints a summary. Exit status 1 if no engine can be opened or a "
               "parameter's value is not allowed.",
    };
    struct options options = {0};
    output_begin("uccl_info");
    argp_program_version_hook = print_version;
    argp_parse(&argp, argc, argv, 0, NULL, &options);

    uccl_set_log(print_log, NULL);
    return print_chosen(&options) ? EXIT_SUCCESS : EXIT_FAILURE;
}
