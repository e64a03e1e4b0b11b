/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer claims of exported memory: that it may write there, that a word is aligned, that the CPU reaches it. The
 * claims of a remote object are changed here; its own engine believes them, and the exporting one must not. The CPU
 * cannot touch the memory of the device: who tries dies.
 */
#include "stage_pair.h"

#include "../../api/objects.h"

TestSuite(onesided_claims, .timeout = TIMEOUT_S);

enum { BYTES = 65536 };

static struct side memory;
static uccl_remote *remote;
static uccl_export *exported;
static uint8_t local[BYTES];

static void open_export(bool device, unsigned access)
{
    uint8_t ref[UCCL_REF_BYTES];
    mem_set_test_kind(&fake_ops);
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "NUM_ENGINES", "1", "LINGER_MS", "300", NULL);
    pair_connect(&pair);
    memory = side_make(pair.engine[1], device, BYTES);
    memset(shadow, 0, BYTES);
    side_write(&memory, 0, shadow, BYTES);
    IS(uccl_export_mr(memory.mr, memory.memory, BYTES, access, ref, &exported), 0);
    IS(uccl_import(pair.conn[0], ref, &remote), 0);
}

/* Nothing has changed, and the connection goes on. */
static void close_export(unsigned refused)
{
    cr_assert_eq(counter(1, "accesses_refused"), refused);
    side_read(&memory, 0, shadow, BYTES);
    for (unsigned i = 0; i < BYTES; i++)
        cr_assert_eq(shadow[i], 0, "byte %u", i);
    IS(uccl_revoke(exported, SOON_MS), 0);
    side_free(&memory);
    IS(uccl_remote_free(remote), 0);
    pair_close(&pair);
}

static int post_tail(enum uccl_tail_kind kind, uint64_t offset)
{
    struct uccl_tail tail = {.kind = kind, .remote = remote, .offset = offset, .value = 77};
    uccl_request *request;
    IS(uccl_write_async(pair.conn[0], NULL, 0, &tail, &request), 0);
    return uccl_wait(request, SOON_MS, NULL);
}

static int post(bool write, size_t length, size_t count)
{
    struct uccl_piece pieces[4];
    uccl_request *request;
    memset(local, 0x5a, BYTES);
    for (size_t i = 0; i < count; i++)
        pieces[i] = (struct uccl_piece){
            .local = local + i * length, .length = length, .remote = remote, .offset = i * 2 * length};
    IS((write ? uccl_write_async : uccl_read_async)(pair.conn[0], pieces, count, NULL, &request), 0);
    return uccl_wait(request, SOON_MS, NULL);
}

Test(onesided_claims, signals_need_the_right_to_write)
{
    open_export(false, UCCL_ACCESS_READ);
    remote->info.access |= UCCL_ACCESS_WRITE;
    IS(post_tail(UCCL_TAIL_SET, 8), UCCL_EACCESS);
    IS(post_tail(UCCL_TAIL_ADD, 8), UCCL_EACCESS);
    close_export(2);
}

Test(onesided_claims, signals_are_whole_words_within_the_export)
{
    static const uint64_t odd[] = {4, 1, 2, 4100};
    open_export(false, UCCL_ACCESS_WRITE);
    for (unsigned i = 0; i < 4; i++) {
        remote->info.address += 8 - odd[i] % 8; /* the sum is aligned, the address is not */
        IS(post_tail(i % 2 ? UCCL_TAIL_ADD : UCCL_TAIL_SET, odd[i]), UCCL_EACCESS);
        remote->info.address -= 8 - odd[i] % 8;
    }
    IS(post_tail(UCCL_TAIL_SET, BYTES), UCCL_EACCESS);
    IS(post_tail(UCCL_TAIL_ADD, BYTES + 8), UCCL_EACCESS);
    IS(post_tail(UCCL_TAIL_ADD, UINT64_MAX - 7), UCCL_EACCESS);
    close_export(7);
}

Test(onesided_claims, the_cpu_does_not_touch_a_device)
{
    open_export(true, UCCL_ACCESS_READ | UCCL_ACCESS_WRITE);
    cr_assert_not(remote->info.is_host);
    remote->info.is_host = 1;
    IS(post_tail(UCCL_TAIL_SET, 8), UCCL_EACCESS);
    IS(post_tail(UCCL_TAIL_ADD, 8), UCCL_EACCESS);
    IS(post(true, 64, 1), UCCL_EACCESS); /* inside the message */
    IS(post(true, 64, 3), UCCL_EACCESS);
    IS(post(true, 9000, 3), UCCL_EACCESS);
    IS(post(false, 64, 3), UCCL_EACCESS);
    close_export(6);
}
