/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer writes into the messages of annexes: what is read of one is in its bounds, written again it is the same,
 * and no access leaves the export, whatever the piece says.
 */
#include "thread/control.h"

#include "require.h"
#include "uccl/engine.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EXPORT_BYTES = 1000 };
static struct exports exports;
static uint8_t memory[EXPORT_BYTES];
static struct exported *exported[3];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (unsigned i = 0; i < 3; i++) { /* rights 1, 2, 3; the second is revoked */
        exported[i] = export_add(
            &exports, &(struct exported){.base = memory, .length = EXPORT_BYTES, .access = i + 1, .ref.nonce = i});
        require(exported[i]);
    }
    export_revoke(exported[1]);
    return 0;
}

static void try_piece(const struct control_piece *piece, unsigned right)
{
    struct exported *entered = export_enter(&exports, &piece->ref, right, piece->offset, piece->length);
    if (entered) {
        require(entered != exported[1] && (entered->access & right) && piece->ref.index < 3);
        require(piece->ref.nonce == piece->ref.index && piece->ref.generation == 1);
        require(piece->offset <= EXPORT_BYTES && piece->length <= EXPORT_BYTES - piece->offset);
        export_leave(entered);
    }
    for (unsigned i = 0; i < 3; i++)
        require(export_is_idle(exported[i]));
}

static void try_pieces(const uint8_t *data, size_t size, const struct control *control)
{
    static uint8_t again[CONTROL_BYTES_MAX];
    uint8_t *at = control_put_header(again, control);
    uint64_t total = 0;
    require(control->count <= CONTROL_PIECES_MAX);
    for (unsigned i = 0; i < control->count; i++) {
        struct control_piece piece = control_piece(control, i);
        total += piece.length;
        at = control_put_piece(at, &piece);
        try_piece(&piece, control->kind == CONTROL_WRITE ? UCCL_ACCESS_WRITE : UCCL_ACCESS_READ);
    }
    require(total == control->total);
    require(control->payload == data + (at - again));
    require((size_t)(at - again) + (control->flags & CONTROL_INLINE ? total : 0) == size);
    memset(again + 4, 0, 4); /* reserved */
    require(memcmp(again, data, 4) == 0 && memcmp(again + 8, data + 8, (size_t)(at - again) - 8) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct control control;
    bool waits;
    uint64_t id;
    if (note_parse(data, size, &waits, &id))
        require(size >= NOTE_HEADER_BYTES && size <= NOTE_HEADER_BYTES + UCCL_NOTIFY_MAX);
    if (!control_parse(data, size, &control))
        return 0;
    if (control.kind != CONTROL_DONE) {
        try_pieces(data, size, &control);
        return 0;
    }
    for (unsigned i = 0; i < control.count; i++) {
        int32_t status;
        control_done(&control, i, &status);
        require(status == UCCL_OK || status == UCCL_EACCESS || status == UCCL_ECANCELED || status == UCCL_EIO ||
                status == UCCL_EPEERNOMEM);
    }
    return 0;
}
