/* SPDX-License-Identifier: Apache-2.0 */
#undef _FORTIFY_SOURCE /* its longjmp() refuses another stack */
#include "machine.h"

#include "seam.h"
#include "uccl/engine.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 256 * 1024, STACKS_KEPT = 64, WAKE_NS_MAX = 3000, SPURIOUS_ONE_IN = 50 };

/* Where a fiber, or the scheduler, goes on. */
struct place {
    ucontext_t context; /* ASan's; else where it begins */
    jmp_buf jump;
    bool begun;
};

struct fiber {
    struct fiber *next; /* of the process */
    struct fiber *next_all;
    struct process *process;
    void (*run)(void *);
    void *argument;
    struct place place;
    void *stack;
    const void *waits_on; /* NULL: not parked, or woken */
    bool woken;
    bool over;
    uint64_t epoch;   /* a resume event of an older one is stale */
    void *fake_stack; /* ASan's */
};

/* Before each piece of memory of a process. */
struct allocation {
    struct allocation *next, *prev;
    struct process *process;
    size_t bytes;
    uint64_t mapped; /* by mmap: freed otherwise */
    uint8_t pad[24]; /* to 64 bytes, the strictest alignment asked for */
};

struct machine machine;

static struct place scheduler = {.begun = true};
#ifdef HAVE_ASAN
static void *scheduler_fake_stack;
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;
#endif
static void *stacks[STACKS_KEPT];
static unsigned stack_count;

/* ---- running, failing ------------------------------------------------------------------------ */

_Noreturn void machine_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    trace_print_recent(&machine.trace);
    printf("# at %.6f ms: ", (double)machine.now_ns / 1e6);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    machine.on_fail();
    printf("# trace hash %016llx\n", (unsigned long long)machine.trace.hash);
    fflush(stdout);
    _exit(1);
}

void machine_note(const char *what, uint64_t a, uint64_t b, uint64_t c)
{
    trace_note(&machine.trace, machine.now_ns, what, a, b, c);
}

void machine_begin(uint64_t seed, bool print_trace)
{
    machine = (struct machine){.limit_ns = UINT64_MAX, .tick_ns = 200, .steps_left = 1};
    machine.rng.state = seed;
    trace_init(&machine.trace, print_trace);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool before(const struct machine_event *a, const struct machine_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void machine_at(uint64_t at_ns, machine_event_fn run, void *what, uint64_t extra)
{
    struct machine *m = &machine;
    if (m->heap_count == m->heap_room) {
        m->heap_room = m->heap_room ? 2 * m->heap_room : 1024;
        m->heap = realloc(m->heap, m->heap_room * sizeof *m->heap);
        if (!m->heap)
            abort();
    }
    struct machine_event event = {at_ns, m->next_order++, run, what, extra};
    size_t i = m->heap_count++;
    for (; i > 0 && before(&event, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = event;
}

bool machine_step(void)
{
    struct machine *m = &machine;
    if (m->heap_count == 0)
        return false;
    struct machine_event top = m->heap[0], last = m->heap[--m->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < m->heap_count) {
        if (child + 1 < m->heap_count && before(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!before(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    m->now_ns = top.at_ns;
    if (m->now_ns > m->limit_ns)
        machine_fail("not all is over in time");
    top.run(top.what, top.extra);
    return true;
}

/* ---- fibers ---------------------------------------------------------------------------------- */

static void *take_stack(void)
{
    if (stack_count)
        return stacks[--stack_count];
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE))
        abort();
    return stack;
}

static void put_stack(struct fiber *fiber)
{
    if (!fiber->stack)
        return;
    if (stack_count < STACKS_KEPT)
        stacks[stack_count++] = fiber->stack;
    else
        munmap(fiber->stack, STACK_BYTES);
    fiber->stack = NULL;
}

/* swapcontext() makes two system calls, which are half of what a switch costs. ASan knows stacks by it. */
static void switch_places(struct place *from, struct place *to)
{
#ifdef HAVE_ASAN
    swapcontext(&from->context, &to->context);
#else
    if (_setjmp(from->jump))
        return;
    if (to->begun)
        _longjmp(to->jump, 1);
    to->begun = true;
    setcontext(&to->context);
#endif
}

static void to_scheduler(struct fiber *fiber)
{
    machine.current = NULL;
#ifdef HAVE_ASAN
    __sanitizer_start_switch_fiber(fiber->over ? NULL : &fiber->fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
    switch_places(&fiber->place, &scheduler);
#ifdef HAVE_ASAN
    __sanitizer_finish_switch_fiber(fiber->fake_stack, NULL, NULL);
#endif
}

static void fiber_main(unsigned high, unsigned low)
{
    struct fiber *fiber = (struct fiber *)((uintptr_t)high << 32 | low);
#ifdef HAVE_ASAN
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_stack_bytes);
#endif
    fiber->run(fiber->argument);
    fiber->over = true;
    machine_wake(fiber->process, fiber, UINT32_MAX);
    to_scheduler(fiber);
    abort();
}

static void resume(void *what, uint64_t epoch)
{
    struct fiber *fiber = what;
    if (fiber->over || fiber->epoch != epoch)
        return;
    if (fiber->process->stopped_until_ns > machine.now_ns) {
        machine_at(fiber->process->stopped_until_ns, resume, fiber, epoch);
        return;
    }
    machine.current = fiber;
    machine.switches++;
#ifdef HAVE_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber->stack, STACK_BYTES);
#endif
    switch_places(&scheduler, &fiber->place);
#ifdef HAVE_ASAN
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, NULL, NULL);
#endif
    if (fiber->over)
        put_stack(fiber);
}

struct fiber *machine_spawn(struct process *process, void (*run)(void *), void *argument)
{
    struct fiber *fiber = calloc(1, sizeof *fiber);
    if (!fiber)
        abort();
    *fiber = (struct fiber){.process = process, .run = run, .argument = argument, .stack = take_stack()};
    fiber->next_all = machine.all;
    machine.all = fiber;
    struct fiber **link = &process->fibers;
    while (*link) /* oldest first: who waited first is woken first */
        link = &(*link)->next;
    *link = fiber;
    ucontext_t *context = &fiber->place.context;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = STACK_BYTES;
    uintptr_t address = (uintptr_t)fiber;
    makecontext(context, (void (*)(void))fiber_main, 2, (unsigned)(address >> 32), (unsigned)address);
    machine_at(machine.now_ns + machine_random(WAKE_NS_MAX), resume, fiber, fiber->epoch);
    return fiber;
}

static void release(struct allocation *allocation);

void machine_kill(struct process *process)
{
    assert(!machine.current || machine.current->process != process);
    process->killed = true;
    for (struct fiber *fiber = process->fibers; fiber; fiber = fiber->next) {
        fiber->over = true;
        fiber->waits_on = NULL;
        put_stack(fiber);
    }
    while (process->allocations)
        release(process->allocations);
}

void machine_stop(struct process *process, uint64_t until_ns)
{
    assert(!machine.current);
    process->stopped_until_ns = until_ns;
}

void machine_end(void)
{
    while (machine.all) {
        struct fiber *fiber = machine.all;
        machine.all = fiber->next_all;
        put_stack(fiber);
        free(fiber);
    }
    free(machine.heap);
    machine.heap = NULL;
    machine.heap_count = machine.heap_room = 0;
}

struct process *machine_process(void)
{
    return machine.current ? machine.current->process : NULL;
}

static void pause_until(uint64_t at_ns)
{
    struct fiber *fiber = machine.current;
    machine_at(at_ns, resume, fiber, ++fiber->epoch);
    to_scheduler(fiber);
}

void machine_sleep(uint64_t duration_ns)
{
    pause_until(machine.now_ns + duration_ns);
}

void machine_spend(uint32_t duration_ns)
{
    uint64_t at_ns = machine.now_ns + duration_ns;
    if (machine.heap_count == 0 || machine.heap[0].at_ns > at_ns) {
        machine.now_ns = at_ns;
        if (at_ns > machine.limit_ns)
            machine_fail("not all is over in time");
    } else {
        pause_until(at_ns);
    }
}

bool machine_park(const void *on, uint64_t until_ns)
{
    struct fiber *fiber = machine.current;
    fiber->waits_on = on;
    fiber->woken = false;
    fiber->epoch++;
    if (until_ns != UINT64_MAX)
        machine_at(until_ns, resume, fiber, fiber->epoch);
    to_scheduler(fiber);
    fiber->waits_on = NULL;
    return fiber->woken;
}

unsigned machine_wake(struct process *process, const void *on, unsigned count)
{
    unsigned woken = 0;
    for (struct fiber *fiber = process->fibers; fiber && woken < count; fiber = fiber->next) {
        if (fiber->waits_on != on || fiber->over)
            continue;
        fiber->waits_on = NULL;
        fiber->woken = true;
        machine_at(machine.now_ns + machine_random(WAKE_NS_MAX), resume, fiber, ++fiber->epoch);
        woken++;
    }
    return woken;
}

/* ---- what engine code calls: time and threads (seam.h) --------------------------------------- */

/* A process's clock, at a true time. */
static uint64_t clock_of(const struct process *process, uint64_t true_ns)
{
    int64_t drift_ns = (int64_t)(true_ns / 1000000) * process->clock_drift_ppm +
                       (int64_t)(true_ns % 1000000) * process->clock_drift_ppm / 1000000;
    return process->clock_offset_ns + true_ns + (uint64_t)drift_ns;
}

uint64_t machine_deadline(uint64_t duration_ns)
{
    if (duration_ns > UINT64_MAX / 4)
        return UINT64_MAX;
    /* a clock that runs fast is there earlier */
    int64_t drift_ns = (int64_t)(duration_ns / 1000000) * machine.current->process->clock_drift_ppm;
    return machine.now_ns + duration_ns - (uint64_t)drift_ns;
}

void sim_step(void)
{
    if (!machine.current || --machine.steps_left)
        return;
    const struct process *process = machine.current->process;
    machine.steps_left = 1 + machine_random(process->preempt_every ? 2 * process->preempt_every : 1u << 20);
    if (process->preempt_every)
        machine_sleep(machine_random(process->preempt_ns));
}

void machine_system_call(uint32_t duration_ns)
{
    const struct process *process = machine.current->process;
    machine_spend(duration_ns);
    if (process->preempt_every && machine_random(CALLS_PER_PREEMPTION) == 0)
        machine_sleep(machine_random(process->preempt_ns));
}

int sim_clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    machine_spend(machine.tick_ns);
    uint64_t ns = clock_of(machine.current->process, machine.now_ns);
    *out = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    return 0;
}

int sim_nanosleep(const struct timespec *duration, struct timespec *rest)
{
    (void)rest;
    machine_sleep((uint64_t)duration->tv_sec * 1000000000u + (uint64_t)duration->tv_nsec);
    return 0;
}

int sim_sched_yield(void)
{
    machine_sleep(machine_random(2000)); /* as long as a yield takes with and without others */
    return 0;
}

long sim_syscall(long call, ...)
{
    if (call != SYS_futex) {
        errno = ENOSYS;
        return -1;
    }
    va_list arguments;
    va_start(arguments, call);
    _Atomic uint32_t *word = va_arg(arguments, void *);
    int operation = va_arg(arguments, int);
    uint32_t value = va_arg(arguments, uint32_t);
    const struct timespec *timeout = va_arg(arguments, const struct timespec *);
    va_end(arguments);
    sim_step();
    if (operation == FUTEX_WAKE_PRIVATE)
        return machine_wake(machine.current->process, (const void *)word, value);
    if (*word != value)
        return -1;
    uint64_t until_ns = UINT64_MAX;
    if (timeout)
        until_ns = machine_deadline((uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec);
    if (machine_random(SPURIOUS_ONE_IN) == 0) { /* as futex(2) warns */
        uint64_t early_ns = machine.now_ns + machine_random(100000);
        until_ns = early_ns < until_ns ? early_ns : until_ns;
    }
    return machine_park((const void *)word, until_ns) ? 0 : -1;
}

struct thread_start_call {
    void *(*run)(void *);
    void *argument;
};

static void run_thread(void *argument)
{
    struct thread_start_call call = *(struct thread_start_call *)argument;
    sim_free(argument);
    call.run(call.argument);
}

int sim_thread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    (void)attributes;
    struct thread_start_call *call = sim_malloc(sizeof *call);
    *call = (struct thread_start_call){run, argument};
    *out = (pthread_t)(uintptr_t)machine_spawn(machine.current->process, run_thread, call);
    return 0;
}

bool machine_engine_thread(void)
{
    return machine.current && machine.current->run == run_thread;
}

int sim_thread_join(pthread_t thread, void **result)
{
    struct fiber *fiber = (struct fiber *)(uintptr_t)thread;
    (void)result;
    while (!fiber->over)
        machine_park(fiber, UINT64_MAX);
    return 0;
}

/* A mutex is its first word. */
int sim_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    memset(mutex, 0, sizeof *mutex);
    return 0;
}

int sim_mutex_destroy(pthread_mutex_t *mutex)
{
    return *(int *)mutex ? EBUSY : 0;
}

int sim_mutex_trylock(pthread_mutex_t *mutex)
{
    sim_step();
    if (*(int *)mutex)
        return EBUSY;
    *(int *)mutex = 1;
    return 0;
}

int sim_mutex_lock(pthread_mutex_t *mutex)
{
    while (sim_mutex_trylock(mutex)) {
        if (*(int *)mutex) /* sim_step() may have let it go */
            machine_park(mutex, UINT64_MAX);
    }
    return 0;
}

int sim_mutex_unlock(pthread_mutex_t *mutex)
{
    *(int *)mutex = 0;
    machine_wake(machine.current->process, mutex, 1);
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *account(struct allocation *allocation, size_t bytes, bool mapped)
{
    struct process *process = machine.current->process;
    *allocation =
        (struct allocation){.next = process->allocations, .process = process, .bytes = bytes, .mapped = mapped};
    if (allocation->next)
        allocation->next->prev = allocation;
    process->allocations = allocation;
    process->allocation_count++;
    return allocation + 1;
}

static void release(struct allocation *allocation)
{
    struct process *process = allocation->process;
    *(allocation->prev ? &allocation->prev->next : &process->allocations) = allocation->next;
    if (allocation->next)
        allocation->next->prev = allocation->prev;
    process->allocation_count--;
    if (allocation->mapped)
        munmap(allocation, allocation->bytes);
    else
        free(allocation);
}

void *sim_aligned_alloc(size_t alignment, size_t bytes)
{
    _Static_assert(sizeof(struct allocation) == 64, "alignment");
    assert(alignment <= 64);
    struct allocation *memory = aligned_alloc(64, (sizeof *memory + bytes + 63) & ~(size_t)63);
    if (!memory)
        abort();
    memset((void *)memory, 0xa7, sizeof *memory + bytes); /* the same in every run */
    return account(memory, bytes, false);
}

void *sim_malloc(size_t bytes)
{
    return sim_aligned_alloc(64, bytes);
}

void *sim_calloc(size_t count, size_t bytes)
{
    return memset(sim_malloc(count * bytes), 0, count * bytes);
}

void sim_free(void *memory)
{
    if (memory)
        release((struct allocation *)memory - 1);
}

void *sim_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    struct allocation *memory = mmap(address, bytes + sizeof *memory, protection, flags, fd, offset);
    if (memory == MAP_FAILED)
        abort();
    return account(memory, bytes + sizeof *memory, true);
}

int sim_munmap(void *memory, size_t bytes)
{
    struct allocation *allocation = (struct allocation *)memory - 1;
    if (allocation->bytes != bytes + sizeof *allocation)
        machine_fail("munmap() of %zu bytes of %zu", bytes, allocation->bytes - sizeof *allocation);
    release(allocation);
    return 0;
}

ssize_t sim_getrandom(void *out, size_t bytes, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)out)[i] = (uint8_t)machine_random(256);
    return (ssize_t)bytes;
}
