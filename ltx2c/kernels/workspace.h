/* A batch's memory: one block, and one spare block kept between calls.
 *
 * Fresh pages come from the system zeroed, one fault at a time: for a small weight that costs as much as its whole
 * fusion (a 32 x 4096 weight of rank 450 ran at a third of its speed whenever malloc had returned its memory after a
 * larger one). So the last block is kept if it is not large. It is taken and put back by an atomic exchange: a second
 * thread, or a forked child, finds none and makes its own.
 */
#ifndef LTX2C_WORKSPACE_H
#define LTX2C_WORKSPACE_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { LTX2C_KEPT_BYTES = 32 << 20, LTX2C_HUGE_PAGE = 2 << 20 };

/* The block begins with this, and what is carved from it follows at the next 64 bytes. */
typedef struct ltx2c_workspace {
    size_t bytes;
} ltx2c_workspace;

static ltx2c_workspace *ltx2c_spare;

static ltx2c_workspace *ltx2c_take_workspace(size_t bytes) {
    ltx2c_workspace *workspace = __atomic_exchange_n(&ltx2c_spare, NULL, __ATOMIC_ACQ_REL);
    if (workspace && workspace->bytes >= bytes) return workspace;
    free(workspace);
    void *memory;
    bytes = (bytes + LTX2C_HUGE_PAGE - 1) / LTX2C_HUGE_PAGE * LTX2C_HUGE_PAGE;
    if (posix_memalign(&memory, LTX2C_HUGE_PAGE, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE); /* only advice: packed panels then cost one TLB entry, not hundreds */
#endif
    workspace = (ltx2c_workspace *)memory;
    workspace->bytes = bytes;
    return workspace;
}

static void ltx2c_return_workspace(ltx2c_workspace *workspace) {
    if (workspace && workspace->bytes <= LTX2C_KEPT_BYTES)
        workspace = __atomic_exchange_n(&ltx2c_spare, workspace, __ATOMIC_ACQ_REL);
    free(workspace);
}

/* The next `bytes` of a block, 64-byte aligned. `at` is an address as a number: it may start from 0 to measure. */
static void *ltx2c_carve(uintptr_t *at, size_t bytes) {
    void *piece = (void *)*at;
    *at += (bytes + 63) / 64 * 64;
    return piece;
}

#endif
