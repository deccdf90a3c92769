/* From jobs to tiles: cuts weights into blocks, packs factors, walks the register tiles. Knows no instruction set.
 *
 * Any number of threads call ltx2c_run_block() once for each of batch->blocks; every call takes the next block by
 * ticket, so blocks start in order whatever the order in which the caller hands out iterations.
 *
 * A is packed once per weight into a ring of buffers, in units that whichever thread needs one first packs. A thread
 * waits only for a unit that another is packing, or for an older weight whose last blocks are running (its buffer is
 * next in the ring). Both kinds of work belong to lower tickets and wait for nothing higher, so there is no deadlock,
 * and no barrier between weights. B is scaled, rounded and packed by the thread that needs it, a block of rows at a time.
 */
#ifndef LTX2C_DRIVER_H
#define LTX2C_DRIVER_H

#include <sched.h>
#include <stdlib.h>

#include "core.h"
#include "environment.h"
#include "workspace.h"

enum {
    LTX2C_RING = 3,                   /* weights whose packed A may be alive at once */
    LTX2C_SLAB_BYTES = 48 << 20,      /* most packed A of one slab: a larger weight is cut by columns */
    LTX2C_ROWS_BYTES = 256 << 10,     /* packed B of a block stays in half of L2 */
    LTX2C_PANEL_BYTES = 24 << 10,     /* a panel of A up to this size stays in L1 next to B and the weight */
    LTX2C_BLOCK_ROWS = 252,
    LTX2C_STREAM_ROWS = 60,
    LTX2C_BLOCK_COLUMNS = 1024
};

/* A range of columns of one job: the piece whose A is packed together. */
typedef struct ltx2c_slab {
    ltx2c_job *job;
    size_t column, columns, panels;
    size_t block_rows, block_panels; /* of a block; the last ones may be smaller */
    size_t row_blocks, panel_blocks;
    size_t first_ticket;
    int panel_outer;      /* keep a panel of A in L1 and walk the rows, or the other way round */
    size_t a_words;       /* of one panel, all terms together */
    size_t b_words;       /* of one row, all terms together */
    int *unit_states;     /* per unit: free, being packed, ready */
    ltx2c_range *a_range; /* [term][unit] */
    uint32_t *buffer;     /* of the ring, for packed A; none for a slab that is one block high */
    const struct ltx2c_slab *previous; /* the slab that had the buffer before */
    size_t done;                       /* blocks finished */
} ltx2c_slab;

typedef struct {
    size_t slab, row_block; /* whose B `b` holds */
    uint32_t *a;            /* packed A of slabs that are one block high: nobody shares it */
    uint32_t *b;            /* [term][row][b_stride] */
    ltx2c_range *b_range;   /* [tile][term] */
    ltx2c_factors *factors; /* [term] */
    char *stage;            /* a tile of weights at the right edge */
} ltx2c_worker;

typedef struct {
    const ltx2c_kernel *kernel;
    ltx2c_slab *slabs;
    size_t slab_count, blocks, next_ticket;
    ltx2c_worker *workers;
    size_t worker_count;
    ltx2c_workspace *workspace;
} ltx2c_batch;

enum { LTX2C_FREE, LTX2C_PACKING, LTX2C_READY };

LTX2C_INLINE size_t ltx2c_ceil(size_t count, size_t size) { return (count + size - 1) / size; }
LTX2C_INLINE size_t ltx2c_min(size_t a, size_t b) { return a < b ? a : b; }
LTX2C_INLINE size_t ltx2c_max(size_t a, size_t b) { return a > b ? a : b; }

LTX2C_INLINE size_t ltx2c_depth(const ltx2c_kernel *kernel, const ltx2c_term *term) {
    return ltx2c_ceil(term->rank, kernel->pair);
}

LTX2C_INLINE size_t ltx2c_b_stride(const ltx2c_kernel *kernel, const ltx2c_term *term) {
    return ltx2c_ceil(term->rank, 32) * 32 / kernel->pair;
}

/* Panels of a unit, which a thread packs at a time. */
LTX2C_INLINE size_t ltx2c_unit(const ltx2c_kernel *kernel) { return LTX2C_UNIT / kernel->panel; }

LTX2C_INLINE size_t ltx2c_units(const ltx2c_slab *slab) { return ltx2c_ceil(slab->columns, LTX2C_UNIT); }

/* Panels that a slab's packed A has room for: whole units. */
LTX2C_INLINE size_t ltx2c_room(const ltx2c_kernel *kernel, const ltx2c_slab *slab) {
    return ltx2c_units(slab) * ltx2c_unit(kernel);
}

/* ---- Planning ------------------------------------------------------------------------------------------------------- */

static void ltx2c_measure_slab(const ltx2c_kernel *kernel, ltx2c_job *job, ltx2c_slab *slab) {
    slab->job = job;
    slab->a_words = slab->b_words = 0;
    for (size_t t = 0; t < job->term_count; t++) {
        slab->a_words += ltx2c_depth(kernel, &job->terms[t]) * kernel->panel;
        slab->b_words += ltx2c_b_stride(kernel, &job->terms[t]);
    }
}

/* Columns of `job` that are packed together: all of them unless that would take too much memory. */
static size_t ltx2c_slab_columns(const ltx2c_kernel *kernel, const ltx2c_slab *slab) {
    const size_t unit_bytes = slab->a_words * ltx2c_unit(kernel) * sizeof(uint32_t);
    return ltx2c_max(LTX2C_SLAB_BYTES / ltx2c_max(unit_bytes, 1), 1) * LTX2C_UNIT;
}

static void ltx2c_shape_slab(const ltx2c_kernel *kernel, ltx2c_slab *slab, size_t column, size_t columns) {
    slab->column = column;
    slab->columns = columns;
    slab->panels = ltx2c_ceil(columns, kernel->panel);
    slab->panel_outer = slab->a_words * sizeof(uint32_t) > LTX2C_PANEL_BYTES;
    size_t rows = slab->panel_outer ? LTX2C_ROWS_BYTES / (slab->b_words * sizeof(uint32_t)) : LTX2C_STREAM_ROWS;
    rows = ltx2c_max(ltx2c_min(rows, LTX2C_BLOCK_ROWS) / kernel->rows, 1) * kernel->rows;
    slab->row_blocks = ltx2c_ceil(slab->job->rows, rows);
    slab->block_rows = ltx2c_ceil(ltx2c_ceil(slab->job->rows, slab->row_blocks), kernel->rows) * kernel->rows;
    slab->row_blocks = ltx2c_ceil(slab->job->rows, slab->block_rows);
    int narrow = slab->panel_outer || slab->row_blocks < 16;
    slab->block_panels = narrow ? LTX2C_BLOCK_COLUMNS / kernel->panel : ltx2c_room(kernel, slab);
    if (slab->row_blocks == 1) slab->block_panels = ltx2c_unit(kernel);
    slab->panel_blocks = ltx2c_ceil(slab->panels, slab->block_panels);
}

static size_t ltx2c_count_slabs(const ltx2c_kernel *kernel, ltx2c_job *jobs, size_t job_count) {
    size_t count = 0;
    for (size_t j = 0; j < job_count; j++) {
        ltx2c_slab slab;
        ltx2c_measure_slab(kernel, &jobs[j], &slab);
        if (jobs[j].rows) count += ltx2c_ceil(jobs[j].columns, ltx2c_slab_columns(kernel, &slab));
    }
    return count;
}

static void ltx2c_plan_slabs(ltx2c_batch *batch, ltx2c_job *jobs, size_t job_count) {
    ltx2c_slab *slab = batch->slabs;
    for (size_t j = 0; j < job_count; j++) {
        ltx2c_job *job = &jobs[j];
        job->nonfinite = 0;
        for (size_t column = 0; job->rows && column < job->columns; column += slab->columns, slab++) {
            ltx2c_measure_slab(batch->kernel, job, slab);
            size_t columns = ltx2c_min(job->columns - column, ltx2c_slab_columns(batch->kernel, slab));
            ltx2c_shape_slab(batch->kernel, slab, column, columns);
            slab->first_ticket = batch->blocks;
            batch->blocks += slab->row_blocks * slab->panel_blocks;
        }
    }
}

static void ltx2c_close_batch(ltx2c_batch *batch) {
    free(batch->slabs);
    free(batch->workers);
    ltx2c_return_workspace(batch->workspace);
}

/* The bookkeeping of every slab's units, all zero. */
static void ltx2c_carve_units(ltx2c_batch *batch, uintptr_t *at, int measure) {
    for (size_t i = 0; i < batch->slab_count; i++) {
        ltx2c_slab *slab = &batch->slabs[i];
        const size_t units = ltx2c_units(slab);
        slab->unit_states = ltx2c_carve(at, units * sizeof(int));
        slab->a_range = ltx2c_carve(at, units * slab->job->term_count * sizeof(ltx2c_range));
        if (!measure) memset(slab->unit_states, 0, units * sizeof(int));
    }
}

/* The ring's buffers, handed out in turn to the slabs that share their packed A. */
static void ltx2c_carve_ring(ltx2c_batch *batch, uintptr_t *at) {
    const ltx2c_slab *last[LTX2C_RING] = {NULL};
    size_t words = 0, shared = 0;
    for (size_t i = 0; i < batch->slab_count; i++)
        if (batch->slabs[i].row_blocks > 1)
            words = ltx2c_max(words, ltx2c_room(batch->kernel, &batch->slabs[i]) * batch->slabs[i].a_words);
    for (size_t i = 0; i < batch->slab_count; i++) {
        ltx2c_slab *slab = &batch->slabs[i];
        if (slab->row_blocks == 1) continue;
        const size_t turn = shared++ % LTX2C_RING;
        slab->previous = last[turn];
        slab->buffer = last[turn] ? last[turn]->buffer : ltx2c_carve(at, words * sizeof(uint32_t));
        last[turn] = slab;
    }
}

static void ltx2c_carve_workers(ltx2c_batch *batch, uintptr_t *at) {
    size_t a = 0, b = 0, tiles = 0, terms = 0;
    for (size_t i = 0; i < batch->slab_count; i++) {
        const ltx2c_slab *slab = &batch->slabs[i];
        if (slab->row_blocks == 1) a = ltx2c_max(a, slab->block_panels * slab->a_words);
        b = ltx2c_max(b, slab->block_rows * slab->b_words);
        tiles = ltx2c_max(tiles, slab->block_rows / batch->kernel->rows);
        terms = ltx2c_max(terms, slab->job->term_count);
    }
    for (size_t w = 0; w < batch->worker_count; w++) {
        ltx2c_worker *worker = &batch->workers[w];
        worker->slab = (size_t)-1;
        worker->a = ltx2c_carve(at, a * sizeof(uint32_t));
        worker->b = ltx2c_carve(at, b * sizeof(uint32_t));
        worker->b_range = ltx2c_carve(at, tiles * terms * sizeof(ltx2c_range));
        worker->factors = ltx2c_carve(at, terms * sizeof(ltx2c_factors));
        worker->stage = ltx2c_carve(at, batch->kernel->rows * LTX2C_MAX_PANEL * sizeof(float));
    }
}

static uintptr_t ltx2c_carve_batch(ltx2c_batch *batch, uintptr_t at, int measure) {
    ltx2c_carve(&at, sizeof(ltx2c_workspace));
    ltx2c_carve_units(batch, &at, measure);
    ltx2c_carve_ring(batch, &at);
    ltx2c_carve_workers(batch, &at);
    return at;
}

/* Prepares the fusion of `jobs`, which must stay where they are, by up to `workers` threads. 0, or -1: no memory. */
static int ltx2c_open_batch(ltx2c_batch *batch, const ltx2c_kernel *kernel, ltx2c_job *jobs, size_t job_count,
                            size_t workers) {
    memset(batch, 0, sizeof *batch);
    batch->kernel = kernel;
    batch->slab_count = ltx2c_count_slabs(kernel, jobs, job_count);
    batch->slabs = calloc(batch->slab_count + 1, sizeof(ltx2c_slab));
    if (!batch->slabs) return -1;
    ltx2c_plan_slabs(batch, jobs, job_count);
    batch->worker_count = ltx2c_max(ltx2c_min(workers, batch->blocks), 1);
    batch->workers = calloc(batch->worker_count, sizeof(ltx2c_worker));
    if (batch->workers) {
        batch->workspace = ltx2c_take_workspace(ltx2c_carve_batch(batch, 0, 1));
        if (batch->workspace) {
            ltx2c_carve_batch(batch, (uintptr_t)batch->workspace, 0);
            return 0;
        }
    }
    ltx2c_close_batch(batch);
    return -1;
}

/* ---- Packing -------------------------------------------------------------------------------------------------------- */

/* `count` values as bf16, followed by zeros up to `width`. */
static void ltx2c_stage_row(uint16_t *to, const void *from, ltx2c_dtype dtype, size_t count, size_t width) {
    if (dtype == LTX2C_BF16)
        memcpy(to, from, count * sizeof *to);
    else if (dtype == LTX2C_F32)
        for (size_t i = 0; i < count; i++) to[i] = ltx2c_to_bf16(((const float *)from)[i]);
    else
        for (size_t i = 0; i < count; i++) to[i] = ltx2c_to_bf16(ltx2c_from_f16(((const uint16_t *)from)[i]));
    memset(to + count, 0, (width - count) * sizeof *to);
}

/* A row of A as `width` bf16 values: where it lies if it can be used as it is, else staged. */
static const uint16_t *ltx2c_a_row(const ltx2c_term *term, size_t k, size_t column, size_t count, size_t width,
                                   uint16_t *stage) {
    const char *row = (const char *)term->a.data + (ptrdiff_t)k * term->a.stride;
    row += column * ltx2c_itemsize(term->a.dtype);
    if (k < term->rank && count == width && term->a.dtype == LTX2C_BF16) return (const uint16_t *)row;
    ltx2c_stage_row(stage, row, term->a.dtype, k < term->rank ? count : 0, width);
    return stage;
}

/* Packs a unit's panels of every term; `a` is where panel `origin` belongs. */
static void ltx2c_pack_unit(const ltx2c_kernel *kernel, ltx2c_slab *slab, uint32_t *a, size_t panel_count, size_t origin,
                            size_t unit) {
    uint16_t stage[2][LTX2C_UNIT];
    const size_t first = unit * ltx2c_unit(kernel), panels = ltx2c_min(ltx2c_unit(kernel), slab->panels - first);
    const size_t width = panels * kernel->panel, column = first * kernel->panel;
    const size_t count = ltx2c_min(width, slab->columns - column);
    for (size_t t = 0; t < slab->job->term_count; t++) {
        const ltx2c_term *term = &slab->job->terms[t];
        const size_t depth = ltx2c_depth(kernel, term), panel_words = depth * kernel->panel;
        uint32_t *to = a + (first - origin) * panel_words;
        ltx2c_bounds bounds;
        ltx2c_bounds_open(&bounds);
        for (size_t word = 0; word < depth; word++, to += kernel->panel) {
            const size_t k = word * kernel->pair;
            const uint16_t *row = ltx2c_a_row(term, k, slab->column + column, count, width, stage[0]);
            const uint16_t *next = NULL;
            if (kernel->pair == 2) next = ltx2c_a_row(term, k + 1, slab->column + column, count, width, stage[1]);
            kernel->pack_a(to, panel_words, row, next, panels, &bounds);
        }
        slab->a_range[t * ltx2c_units(slab) + unit] = ltx2c_bounds_close(&bounds);
        a += panel_count * panel_words;
    }
}

static void ltx2c_pack_b_row(const ltx2c_kernel *kernel, uint32_t *to, const ltx2c_term *term, size_t row,
                             const float *scale, ltx2c_bounds *bounds) {
    uint16_t stage[LTX2C_CHUNK];
    const char *from = (const char *)term->b.data + (ptrdiff_t)row * term->b.stride;
    for (size_t k = 0, count; k < term->rank; k += count) {
        count = ltx2c_min(term->rank - k, LTX2C_CHUNK);
        const char *values = from + k * ltx2c_itemsize(term->b.dtype);
        if (term->b.dtype == LTX2C_BF16 && count >= 32) {
            count -= count % 32;
            kernel->pack_b(to + k / kernel->pair, (const uint16_t *)values, count, scale, bounds);
        } else {
            const size_t width = ltx2c_ceil(count, 32) * 32;
            ltx2c_stage_row(stage, values, term->b.dtype, count, width);
            kernel->pack_b(to + k / kernel->pair, stage, width, scale, bounds);
        }
    }
}

/* Packs rows [first, first + rows) of every term's B, and keeps the range of each tile. */
static void ltx2c_pack_b(const ltx2c_kernel *kernel, const ltx2c_slab *slab, ltx2c_worker *worker, size_t first,
                         size_t rows) {
    const size_t terms = slab->job->term_count;
    uint32_t *to = worker->b;
    for (size_t t = 0; t < terms; t++) {
        const ltx2c_term *term = &slab->job->terms[t];
        const size_t stride = ltx2c_b_stride(kernel, term);
        for (size_t r = 0; r < rows; r += kernel->rows) {
            ltx2c_bounds bounds;
            ltx2c_bounds_open(&bounds);
            for (size_t i = r; i < ltx2c_min(r + kernel->rows, rows); i++)
                ltx2c_pack_b_row(kernel, to + i * stride, term, first + i, t ? NULL : &term->scale, &bounds);
            worker->b_range[r / kernel->rows * terms + t] = ltx2c_bounds_close(&bounds);
        }
        to += slab->block_rows * stride;
    }
}

/* ---- Waiting -------------------------------------------------------------------------------------------------------- */

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
        if (!__atomic_compare_exchange_n(&slab->unit_states[unit], &free, LTX2C_PACKING, 0, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            continue;
        ltx2c_pack_unit(kernel, slab, slab->buffer, ltx2c_room(kernel, slab), 0, unit);
        __atomic_store_n(&slab->unit_states[unit], LTX2C_READY, __ATOMIC_RELEASE);
    }
    for (size_t unit = first / ltx2c_unit(kernel); unit * ltx2c_unit(kernel) < last; unit++) {
        unsigned rounds = 0;
        while (__atomic_load_n(&slab->unit_states[unit], __ATOMIC_ACQUIRE) != LTX2C_READY) ltx2c_wait(&rounds);
    }
}

/* ---- Blocks --------------------------------------------------------------------------------------------------------- */

/* One block's place in its weight. */
typedef struct {
    const ltx2c_slab *slab;
    size_t row, rows, first_panel, last_panel;
} ltx2c_place;

/* A strip whose last panel sticks out over the weight's right edge, through a buffer of full width. The columns beyond
 * the edge hold NaN: they never count as values that stopped being finite. */
static uint64_t ltx2c_run_edge(const ltx2c_kernel *kernel, ltx2c_strip strip, size_t columns, char *stage) {
    const size_t width = kernel->panel * ltx2c_itemsize(strip.dtype), bytes = columns * ltx2c_itemsize(strip.dtype);
    for (size_t r = 0; r < strip.rows; r++) {
        memcpy(stage + r * width, strip.weight + (ptrdiff_t)r * strip.weight_stride, bytes);
        memset(stage + r * width + bytes, 0xff, width - bytes);
    }
    char *out = strip.out;
    strip.weight = strip.out = stage;
    strip.weight_stride = (ptrdiff_t)width;
    ptrdiff_t out_stride = strip.out_stride;
    strip.out_stride = (ptrdiff_t)width;
    uint64_t nonfinite = kernel->strip(&strip);
    for (size_t r = 0; r < strip.rows; r++) memcpy(out + (ptrdiff_t)r * out_stride, stage + r * width, bytes);
    return nonfinite;
}

/* The rows of one register tile by panels [first, last) of a block. */
static uint64_t ltx2c_run_strip(const ltx2c_kernel *kernel, ltx2c_worker *worker, const ltx2c_place *place, size_t tile,
                                size_t first, size_t last) {
    const ltx2c_job *job = place->slab->job;
    const size_t local = tile * kernel->rows, row = place->row + local, terms = job->term_count;
    const size_t itemsize = ltx2c_itemsize(job->weight.dtype);
    const uint32_t *b = worker->b;
    for (size_t t = 0; t < terms; t++) {
        ltx2c_factors *f = &worker->factors[t];
        f->b = b + local * f->b_stride;
        f->b_range = worker->b_range[tile * terms + t];
        b += place->slab->block_rows * f->b_stride;
    }
    const size_t at = (place->slab->column + first * kernel->panel) * itemsize;
    ltx2c_strip strip = {
        .terms = worker->factors,
        .term_count = terms,
        .rows = ltx2c_min(kernel->rows, place->rows - local),
        .first = first,
        .last = ltx2c_min(last, place->slab->columns / kernel->panel),
        .weight = (const char *)job->weight.data + (ptrdiff_t)row * job->weight.stride + at,
        .out = (char *)job->out + (ptrdiff_t)row * job->out_stride + at,
        .weight_stride = job->weight.stride,
        .out_stride = job->out_stride,
        .dtype = job->weight.dtype,
    };
    uint64_t nonfinite = first < strip.last ? kernel->strip(&strip) : 0;
    if (strip.last == last) return nonfinite;
    const size_t whole = (strip.last - first) * kernel->panel * itemsize;
    strip.weight += whole;
    strip.out += whole;
    strip.first = strip.last;
    strip.last = last;
    return nonfinite + ltx2c_run_edge(kernel, strip, place->slab->columns % kernel->panel, worker->stage);
}

static uint64_t ltx2c_run_tiles(const ltx2c_kernel *kernel, ltx2c_worker *worker, const ltx2c_place *place) {
    const size_t tiles = ltx2c_ceil(place->rows, kernel->rows);
    uint64_t nonfinite = 0;
    if (!place->slab->panel_outer) {
        for (size_t tile = 0; tile < tiles; tile++)
            nonfinite += ltx2c_run_strip(kernel, worker, place, tile, place->first_panel, place->last_panel);
        return nonfinite;
    }
    for (size_t panel = place->first_panel; panel < place->last_panel; panel++)
        for (size_t tile = 0; tile < tiles; tile++)
            nonfinite += ltx2c_run_strip(kernel, worker, place, tile, panel, panel + 1);
    return nonfinite;
}

/* Points the worker's factors at A, whose panel 0 would lie `origin` panels before `a`. */
static void ltx2c_point_at_a(const ltx2c_kernel *kernel, const ltx2c_slab *slab, ltx2c_worker *worker, const uint32_t *a,
                             size_t panel_count, size_t origin) {
    for (size_t t = 0; t < slab->job->term_count; t++) {
        const ltx2c_term *term = &slab->job->terms[t];
        const size_t depth = ltx2c_depth(kernel, term);
        worker->factors[t] = (ltx2c_factors){
            .a = a - origin * depth * kernel->panel,
            .a_range = slab->a_range + t * ltx2c_units(slab),
            .b_stride = ltx2c_b_stride(kernel, term),
            .depth = depth,
            .scale = term->scale,
        };
        a += panel_count * depth * kernel->panel;
    }
}

static void ltx2c_prepare_a(const ltx2c_kernel *kernel, ltx2c_slab *slab, ltx2c_worker *worker, const ltx2c_place *place) {
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
    ltx2c_place place = {
        .slab = slab,
        .row = row_block * slab->block_rows,
        .first_panel = first,
        .last_panel = ltx2c_min(first + slab->block_panels, slab->panels),
    };
    place.rows = ltx2c_min(slab->block_rows, slab->job->rows - place.row);
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

/* Takes and runs the next block. Call it batch->blocks times in all, from any threads with workers of their own. */
static void ltx2c_run_block(ltx2c_batch *batch, size_t worker) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const size_t ticket = __atomic_fetch_add(&batch->next_ticket, 1, __ATOMIC_RELAXED);
    const size_t index = ltx2c_find_slab(batch, ticket);
    ltx2c_run_place(batch, index, ticket - batch->slabs[index].first_ticket, &batch->workers[worker]);
    ltx2c_leave_environment(saved);
}

#endif
