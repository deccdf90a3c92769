/* A batch: weights cut into slabs and blocks, and the memory that fusing them takes. */
#ifndef LTX2C_BATCH_H
#define LTX2C_BATCH_H

#include "core.h"
#include "made.h"
#include "workspace.h"
#ifdef LTX2C_SABOTAGE
#include "sabotage.h"
#endif

enum {
    LTX2C_RING = 3,                   /* weights whose packed A may be alive at once */
    LTX2C_SLAB_BYTES = 48 << 20       /* most packed A of one slab: a larger weight is cut by columns */
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
    int *unit_progress;     /* per unit: free, being packed, ready */
    ltx2c_range *a_range; /* [term][unit] */
    uint32_t *buffer;     /* of the ring, for packed A; none for a slab that is one block high */
    const struct ltx2c_slab *previous; /* the slab that had the buffer before */
    size_t done;                       /* blocks finished */
} ltx2c_slab;

typedef struct ltx2c_worker {
    size_t slab, row_block; /* whose B `b` holds */
    uint32_t *a;            /* packed A of slabs that are one block high: nobody shares it */
    uint32_t *b;            /* [term][row][b_stride] */
    ltx2c_range *b_range;   /* [tile][term] */
    ltx2c_factors *factors; /* [term] */
    char *edge;             /* a tile at the right edge: of the weight, and of each full term */
    float *made;            /* [term][row of a tile][LTX2C_MADE], of full terms that are made */
} ltx2c_worker;

LTX2C_INLINE size_t ltx2c_ceil(size_t count, size_t size) { return (count + size - 1) / size; }
LTX2C_INLINE size_t ltx2c_min(size_t a, size_t b) { return a < b ? a : b; }
LTX2C_INLINE size_t ltx2c_max(size_t a, size_t b) { return a > b ? a : b; }

/* Whether a term of low rank is packed as f32: under F32, factors that bf16 does not hold. */
LTX2C_INLINE int ltx2c_is_wide(const ltx2c_job *job, const ltx2c_term *term) {
    return !ltx2c_through_bf16(job->arithmetic) && !ltx2c_is_full(term) &&
           (term->a.dtype != LTX2C_BF16 || term->b.dtype != LTX2C_BF16);
}

LTX2C_INLINE size_t ltx2c_pair(const ltx2c_kernel *kernel, const ltx2c_job *job, const ltx2c_term *term) {
    return ltx2c_is_wide(job, term) ? 1 : kernel->pair;
}

/* Words of a column of A, none in a full term. */
LTX2C_INLINE size_t ltx2c_depth(const ltx2c_kernel *kernel, const ltx2c_job *job, const ltx2c_term *term) {
    return ltx2c_is_full(term) ? 0 : ltx2c_ceil(term->rank, ltx2c_pair(kernel, job, term));
}

LTX2C_INLINE size_t ltx2c_b_stride(const ltx2c_kernel *kernel, const ltx2c_job *job, const ltx2c_term *term) {
    return ltx2c_is_full(term) ? 0 : ltx2c_ceil(term->rank, 32) * 32 / ltx2c_pair(kernel, job, term);
}

/* Of a tile, whatever its dtype. */
LTX2C_INLINE size_t ltx2c_edge_bytes(const ltx2c_kernel *kernel) {
    return kernel->rows * kernel->panel * sizeof(float);
}

/* Whether some term's values are made strip by strip. */
LTX2C_INLINE int ltx2c_makes(const ltx2c_job *job) {
    for (size_t t = 0; t < job->term_count; t++)
        if (job->terms[t].kronecker.one) return 1;
    return 0;
}

/* Panels of a unit, which a thread packs at a time. */
LTX2C_INLINE size_t ltx2c_unit(const ltx2c_kernel *kernel) { return LTX2C_UNIT / kernel->panel; }

LTX2C_INLINE size_t ltx2c_units(const ltx2c_slab *slab) { return ltx2c_ceil(slab->columns, LTX2C_UNIT); }

/* Panels that a slab's packed A has room for: whole units. */
LTX2C_INLINE size_t ltx2c_room(const ltx2c_kernel *kernel, const ltx2c_slab *slab) {
    return ltx2c_units(slab) * ltx2c_unit(kernel);
}

/* ---- Planning ---------------------------------------------------------------------------------------------------- */

static void ltx2c_measure_slab(const ltx2c_kernel *kernel, ltx2c_job *job, ltx2c_slab *slab) {
    slab->job = job;
    slab->a_words = slab->b_words = 0;
    for (size_t t = 0; t < job->term_count; t++) {
        slab->a_words += ltx2c_depth(kernel, job, &job->terms[t]) * kernel->panel;
        slab->b_words += ltx2c_b_stride(kernel, job, &job->terms[t]);
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
    const ltx2c_blocking *blocking = &kernel->blocking;
    slab->panel_outer = slab->a_words * sizeof(uint32_t) > blocking->panel_bytes;
    size_t rows = slab->panel_outer ? blocking->b_bytes / (slab->b_words * sizeof(uint32_t)) : blocking->stream_rows;
    rows = ltx2c_max(ltx2c_min(rows, blocking->rows) / kernel->rows, 1) * kernel->rows;
    slab->row_blocks = ltx2c_ceil(slab->job->rows, rows);
    slab->block_rows = ltx2c_ceil(ltx2c_ceil(slab->job->rows, slab->row_blocks), kernel->rows) * kernel->rows;
    slab->row_blocks = ltx2c_ceil(slab->job->rows, slab->block_rows);
    int narrow = slab->panel_outer || slab->row_blocks < 16;
    slab->block_panels = narrow ? blocking->columns / kernel->panel : ltx2c_room(kernel, slab);
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

LTX2C_API void ltx2c_close_batch(ltx2c_batch *batch) {
    free(batch->slabs);
    free(batch->workers);
    ltx2c_return_workspace(batch->workspace);
}

/* The bookkeeping of every slab's units, all zero. */
static void ltx2c_carve_units(ltx2c_batch *batch, uintptr_t *at, int measure) {
    for (size_t i = 0; i < batch->slab_count; i++) {
        ltx2c_slab *slab = &batch->slabs[i];
        const size_t units = ltx2c_units(slab);
        slab->unit_progress = (int *)ltx2c_carve(at, units * sizeof(int));
        slab->a_range = (ltx2c_range *)ltx2c_carve(at, units * slab->job->term_count * sizeof(ltx2c_range));
        if (!measure) memset(slab->unit_progress, 0, units * sizeof(int));
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
        slab->buffer = last[turn] ? last[turn]->buffer : (uint32_t *)ltx2c_carve(at, words * sizeof(uint32_t));
        last[turn] = slab;
    }
}

static void ltx2c_carve_workers(ltx2c_batch *batch, uintptr_t *at) {
    size_t a = 0, b = 0, tiles = 0, terms = 0, made = 0;
    for (size_t i = 0; i < batch->slab_count; i++) {
        const ltx2c_slab *slab = &batch->slabs[i];
        if (slab->row_blocks == 1) a = ltx2c_max(a, slab->block_panels * slab->a_words);
        b = ltx2c_max(b, slab->block_rows * slab->b_words);
        tiles = ltx2c_max(tiles, slab->block_rows / batch->kernel->rows);
        terms = ltx2c_max(terms, slab->job->term_count);
        if (ltx2c_makes(slab->job)) made = ltx2c_max(made, slab->job->term_count);
    }
    for (size_t w = 0; w < batch->worker_count; w++) {
        ltx2c_worker *worker = &batch->workers[w];
        worker->slab = (size_t)-1;
        worker->a = (uint32_t *)ltx2c_carve(at, a * sizeof(uint32_t));
        worker->b = (uint32_t *)ltx2c_carve(at, b * sizeof(uint32_t));
        worker->b_range = (ltx2c_range *)ltx2c_carve(at, tiles * terms * sizeof(ltx2c_range));
        worker->factors = (ltx2c_factors *)ltx2c_carve(at, terms * sizeof(ltx2c_factors));
        worker->edge = (char *)ltx2c_carve(at, (terms + 1) * ltx2c_edge_bytes(batch->kernel));
        worker->made = (float *)ltx2c_carve(at, made * batch->kernel->rows * LTX2C_MADE * sizeof(float));
    }
}

static uintptr_t ltx2c_carve_batch(ltx2c_batch *batch, uintptr_t at, int measure) {
    ltx2c_carve(&at, sizeof(ltx2c_workspace));
    ltx2c_carve_units(batch, &at, measure);
    ltx2c_carve_ring(batch, &at);
    ltx2c_carve_workers(batch, &at);
    return at;
}

/* Prepares the fusion of `jobs`, which are sound and stay where they are, by up to `workers` threads. 0, or -1: no
 * memory. */
static int ltx2c_plan_batch(ltx2c_batch *batch, const ltx2c_kernel *kernel, ltx2c_job *jobs, size_t job_count,
                            size_t workers) {
#ifdef LTX2C_SABOTAGE
    workers = ltx2c_sabotage_batch(jobs, job_count, workers);
#endif
    memset(batch, 0, sizeof *batch);
    batch->kernel = kernel;
    batch->slab_count = ltx2c_count_slabs(kernel, jobs, job_count);
    batch->slabs = (ltx2c_slab *)calloc(batch->slab_count + 1, sizeof(ltx2c_slab));
    if (!batch->slabs) return -1;
    ltx2c_plan_slabs(batch, jobs, job_count);
    batch->worker_count = ltx2c_max(ltx2c_min(workers, batch->blocks), 1);
    batch->workers = (ltx2c_worker *)calloc(batch->worker_count, sizeof(ltx2c_worker));
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

#endif
