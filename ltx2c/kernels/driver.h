/* From jobs to tiles: cuts weights into blocks, packs factors, walks the register tiles. Knows no instruction set.
 *
 * Any number of threads, each as a worker of its own, call ltx2c_run_block() until it says that no block is left. That is
 * the only scheduler: a call takes the next block by ticket, so blocks start in order, and whoever calls starts threads
 * and hands out nothing. A thread that takes no more tickets leaves no gap: what it took, it finished.
 *
 * A is packed once per weight into a ring of buffers, in units that whichever thread needs one first packs. A thread
 * waits only for a unit that another is packing, or for an older weight whose last blocks are running (its buffer is
 * next in the ring). Both kinds of work belong to lower tickets and wait for nothing higher, so there is no deadlock,
 * and no barrier between weights. B is scaled, rounded and packed by the thread that needs it, a block of rows at a
 * time.
 */
#ifndef LTX2C_DRIVER_H
#define LTX2C_DRIVER_H

#include <sched.h>

#include "batch.h"
#include "environment.h"
#include "pack.h"

enum { LTX2C_FREE, LTX2C_PACKING, LTX2C_READY }; /* of a unit */

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* One round of waiting for another thread: spin a little, then let it have the core. */
LTX2C_INLINE void ltx2c_wait(unsigned *rounds) {
    if (++*rounds % 64)
        ltx2c_pause();
    else
        sched_yield();
}

static void ltx2c_await_slab(const ltx2c_slab *slab) {
    const size_t blocks = slab->row_blocks * slab->panel_blocks;
    unsigned rounds = 0;
    while (__atomic_load_n(&slab->done, __ATOMIC_ACQUIRE) < blocks) ltx2c_wait(&rounds);
}

/* Makes the units of panels [first, last) ready in the slab's buffer. */
static void ltx2c_share_a(const ltx2c_kernel *kernel, ltx2c_slab *slab, size_t first, size_t last) {
    if (slab->previous) ltx2c_await_slab(slab->previous);
    for (size_t unit = first / ltx2c_unit(kernel); unit * ltx2c_unit(kernel) < last; unit++) {
        int free = LTX2C_FREE;
        if (!__atomic_compare_exchange_n(&slab->unit_progress[unit], &free, LTX2C_PACKING, 0, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            continue;
        ltx2c_pack_unit(kernel, slab, slab->buffer, ltx2c_room(kernel, slab), 0, unit);
        __atomic_store_n(&slab->unit_progress[unit], LTX2C_READY, __ATOMIC_RELEASE);
    }
    for (size_t unit = first / ltx2c_unit(kernel); unit * ltx2c_unit(kernel) < last; unit++) {
        unsigned rounds = 0;
        while (__atomic_load_n(&slab->unit_progress[unit], __ATOMIC_ACQUIRE) != LTX2C_READY) ltx2c_wait(&rounds);
    }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* One block's place in its weight. */
typedef struct {
    const ltx2c_slab *slab;
    size_t row, rows, first_panel, last_panel;
} ltx2c_place;

/* `rows` rows of one panel with `columns` of its columns, from or to rows of whole panels with zeros behind them. */
static void ltx2c_pad_edge(char *padded, const char *from, ptrdiff_t stride, size_t rows, size_t bytes, size_t width) {
    for (size_t r = 0; r < rows; r++) {
        memcpy(padded + r * width, from + (ptrdiff_t)r * stride, bytes);
        memset(padded + r * width + bytes, 0, width - bytes);
    }
}

/* A strip that is one panel sticking out over the weight's right edge, through buffers of full width. */
static uint64_t ltx2c_run_edge(const ltx2c_kernel *kernel, ltx2c_worker *worker, ltx2c_strip strip, size_t columns) {
    const size_t itemsize = ltx2c_itemsize(strip.dtype), width = kernel->panel * itemsize, bytes = columns * itemsize;
    char *out = strip.out, *padded = worker->edge, *full = padded;
    const ptrdiff_t out_stride = strip.out_stride;
    ltx2c_pad_edge(padded, strip.weight, strip.weight_stride, strip.rows, bytes, width);
    strip.weight = strip.out = padded;
    strip.weight_stride = strip.out_stride = (ptrdiff_t)width;
    for (size_t t = 0; t < strip.term_count; t++) {
        ltx2c_factors *f = &worker->factors[t];
        if (!f->full) continue;
        const size_t size = ltx2c_itemsize(f->full_dtype);
        full += ltx2c_edge_bytes(kernel);
        ltx2c_pad_edge(full, f->full, f->full_stride, strip.rows, columns * size, kernel->panel * size);
        f->full = full;
        f->full_stride = (ptrdiff_t)(kernel->panel * size);
    }
    uint64_t nonfinite = kernel->strip(&strip);
    for (size_t r = 0; r < strip.rows; r++) memcpy(out + (ptrdiff_t)r * out_stride, padded + r * width, bytes);
    if (!nonfinite) return 0;
    for (size_t r = 0; r < strip.rows; r++) /* inf times the zeros beyond the edge is NaN */
        for (size_t c = columns; c < kernel->panel; c++)
            nonfinite -= (ltx2c_bits(ltx2c_load(padded + r * width, c, strip.dtype)) & 0x7f800000) == 0x7f800000;
    return nonfinite;
}

/* Points at a strip's values of a full term, which are made first where they are nowhere. */
static void ltx2c_point_at_full(ltx2c_factors *f, const ltx2c_term *term, float *made, size_t row, size_t rows,
                                size_t column, size_t columns) {
    const ltx2c_matrix *full = &term->full;
    if (term->kronecker.one) {
        ltx2c_make(made, &term->kronecker, row, rows, column, columns);
        f->full = (const char *)made;
        f->full_stride = LTX2C_MADE * sizeof *made;
    } else {
        f->full = (const char *)full->data + (ptrdiff_t)row * full->stride +
                  (ptrdiff_t)(column * ltx2c_itemsize(full->dtype));
        f->full_stride = full->stride;
    }
}

/* The rows of one register tile by panels [first, last) of a block. */
static uint64_t ltx2c_run_strip(const ltx2c_kernel *kernel, ltx2c_worker *worker, const ltx2c_place *place, size_t tile,
                                size_t first, size_t last) {
    const ltx2c_job *job = place->slab->job;
    const size_t local = tile * kernel->rows, row = place->row + local, terms = job->term_count;
    const size_t itemsize = ltx2c_itemsize(job->weight.dtype), column = place->slab->column + first * kernel->panel;
    const size_t rows = ltx2c_min(kernel->rows, place->rows - local);
    const uint32_t *b = worker->b;
    for (size_t t = 0; t < terms; t++) {
        ltx2c_factors *f = &worker->factors[t];
        f->b = b + local * f->b_stride;
        f->b_range = worker->b_range[tile * terms + t];
        if (ltx2c_is_full(&job->terms[t]))
            ltx2c_point_at_full(f, &job->terms[t], worker->made + t * kernel->rows * LTX2C_MADE, row, rows, column,
                                ltx2c_min(last * kernel->panel, place->slab->columns) - first * kernel->panel);
        b += place->slab->block_rows * f->b_stride;
    }
    const size_t at = column * itemsize;
    ltx2c_strip strip = {
        .terms = worker->factors,
        .term_count = terms,
        .rows = rows,
        .first = first,
        .last = ltx2c_min(last, place->slab->columns / kernel->panel),
        .weight = (const char *)job->weight.data + (ptrdiff_t)row * job->weight.stride + at,
        .out = (char *)job->out + (ptrdiff_t)row * job->out_stride + at,
        .weight_stride = job->weight.stride,
        .out_stride = job->out_stride,
        .dtype = job->weight.dtype,
        .arithmetic = job->arithmetic,
    };
    uint64_t nonfinite = first < strip.last ? kernel->strip(&strip) : 0;
    if (strip.last == last) return nonfinite;
    const size_t whole = (strip.last - first) * kernel->panel * itemsize;
    strip.weight += whole;
    strip.out += whole;
    for (size_t t = 0; t < terms; t++)
        if (worker->factors[t].full)
            worker->factors[t].full +=
                (strip.last - first) * kernel->panel * ltx2c_itemsize(worker->factors[t].full_dtype);
    strip.first = strip.last;
    strip.last = last;
    return nonfinite + ltx2c_run_edge(kernel, worker, strip, place->slab->columns % kernel->panel);
}

static uint64_t ltx2c_run_tiles(const ltx2c_kernel *kernel, ltx2c_worker *worker, const ltx2c_place *place) {
    const size_t tiles = ltx2c_ceil(place->rows, kernel->rows);
    uint64_t nonfinite = 0;
#ifdef LTX2C_SABOTAGE
    const ltx2c_slab *slab = place->slab;
    const size_t column = place->first_panel * kernel->panel, last = place->last_panel * kernel->panel;
    if (LTX2C_SABOTAGE == LTX2C_SCALAR_LOOP)
        return ltx2c_scalar_loop(slab->job, place->row, place->rows, slab->column + column,
                                 ltx2c_min(last, slab->columns) - column);
#endif
    const size_t all = place->last_panel - place->first_panel, made = LTX2C_MADE / kernel->panel;
    const size_t step = place->slab->panel_outer ? 1 : ltx2c_makes(place->slab->job) ? made : all;
    for (size_t panel = place->first_panel; panel < place->last_panel; panel += step)
        for (size_t tile = 0; tile < tiles; tile++)
            nonfinite += ltx2c_run_strip(kernel, worker, place, tile, panel, ltx2c_min(panel + step, place->last_panel));
    return nonfinite;
}

/* Points the worker's factors at A, whose panel 0 would lie `origin` panels before `a`. */
static void ltx2c_point_at_a(const ltx2c_kernel *kernel, const ltx2c_slab *slab, ltx2c_worker *worker,
                             const uint32_t *a, size_t panel_count, size_t origin) {
    for (size_t t = 0; t < slab->job->term_count; t++) {
        const ltx2c_term *term = &slab->job->terms[t];
        const size_t depth = ltx2c_depth(kernel, slab->job, term);
        worker->factors[t] = (ltx2c_factors){
            .a = a - origin * depth * kernel->panel,
            .a_range = slab->a_range + t * ltx2c_units(slab),
            .b = NULL,
            .b_stride = ltx2c_b_stride(kernel, slab->job, term),
            .b_range = {0, 0},
            .depth = depth,
            .wide = ltx2c_is_wide(slab->job, term),
            .strength = term->strength,
            .full = NULL,
            .full_stride = 0,
            .full_dtype = term->kronecker.one ? LTX2C_F32 : term->full.dtype,
        };
        a += panel_count * depth * kernel->panel;
    }
}

static void ltx2c_prepare_a(const ltx2c_kernel *kernel, ltx2c_slab *slab, ltx2c_worker *worker,
                            const ltx2c_place *place) {
    if (slab->row_blocks > 1) {
        ltx2c_share_a(kernel, slab, place->first_panel, place->last_panel);
        ltx2c_point_at_a(kernel, slab, worker, slab->buffer, ltx2c_room(kernel, slab), 0);
        return;
    }
    for (size_t unit = place->first_panel / ltx2c_unit(kernel); unit * ltx2c_unit(kernel) < place->last_panel; unit++)
        ltx2c_pack_unit(kernel, slab, worker->a, slab->block_panels, place->first_panel, unit);
    ltx2c_point_at_a(kernel, slab, worker, worker->a, slab->block_panels, place->first_panel);
}

static void ltx2c_run_place(ltx2c_batch *batch, size_t index, size_t block, ltx2c_worker *worker) {
    ltx2c_slab *slab = &batch->slabs[index];
    const size_t row_block = block / slab->panel_blocks, first = block % slab->panel_blocks * slab->block_panels;
    const size_t row = row_block * slab->block_rows;
    const ltx2c_place place = {
        .slab = slab,
        .row = row,
        .rows = ltx2c_min(slab->block_rows, slab->job->rows - row),
        .first_panel = first,
        .last_panel = ltx2c_min(first + slab->block_panels, slab->panels),
    };
    ltx2c_prepare_a(batch->kernel, slab, worker, &place);
    if (worker->slab != index || worker->row_block != row_block) {
        ltx2c_pack_b(batch->kernel, slab, worker, place.row, place.rows);
        worker->slab = index;
        worker->row_block = row_block;
    }
    uint64_t nonfinite = ltx2c_run_tiles(batch->kernel, worker, &place);
    if (nonfinite) __atomic_fetch_add(&slab->job->nonfinite, nonfinite, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slab->done, 1, __ATOMIC_RELEASE);
}

/* The slab that holds a ticket. */
static size_t ltx2c_find_slab(const ltx2c_batch *batch, size_t ticket) {
    size_t low = 0, high = batch->slab_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (batch->slabs[middle].first_ticket <= ticket)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Takes the next block and runs it; 0 where none is left. No two threads may be the same worker at the same time. */
LTX2C_API int ltx2c_run_block(ltx2c_batch *batch, size_t worker) {
    const size_t ticket = __atomic_fetch_add(&batch->next_ticket, 1, __ATOMIC_RELAXED);
    if (ticket >= batch->blocks) return 0;
    const ltx2c_environment saved = ltx2c_enter_environment();
    const size_t index = ltx2c_find_slab(batch, ticket);
    ltx2c_run_place(batch, index, ticket - batch->slabs[index].first_ticket, &batch->workers[worker]);
    ltx2c_leave_environment(saved);
    return 1;
}

#endif
