/* Packing: rows of A and B as bf16, staged where they cannot be used as they lie, through the kernel's own packing. */
#ifndef LTX2C_PACK_H
#define LTX2C_PACK_H

#include "batch.h"

/* `count` values as bf16, followed by zeros up to `width`. */
static void ltx2c_stage_row(uint16_t *to, const char *from, ltx2c_dtype dtype, size_t count, size_t width) {
    if (dtype == LTX2C_BF16)
        memcpy(to, from, count * sizeof *to);
    else if (dtype == LTX2C_F32)
        for (size_t i = 0; i < count; i++) to[i] = ltx2c_to_bf16(ltx2c_load(from, i, LTX2C_F32));
    else
        for (size_t i = 0; i < count; i++) to[i] = ltx2c_to_bf16(ltx2c_load(from, i, LTX2C_F16));
    memset(to + count, 0, (width - count) * sizeof *to);
}

/* A row of A as `width` bf16 values: where it lies if it can be used as it is, else staged. */
static const char *ltx2c_a_row(const ltx2c_term *term, size_t k, size_t column, size_t count, size_t width,
                               uint16_t *stage) {
    const char *row = (const char *)term->a.data + (ptrdiff_t)k * term->a.stride;
    row += column * ltx2c_itemsize(term->a.dtype);
    if (k < term->rank && count == width && term->a.dtype == LTX2C_BF16) return row;
    ltx2c_stage_row(stage, row, term->a.dtype, k < term->rank ? count : 0, width);
    return (const char *)stage;
}

/* Packs a unit's panels of every term; `a` is where panel `origin` belongs. */
static void ltx2c_pack_unit(const ltx2c_kernel *kernel, ltx2c_slab *slab, uint32_t *a, size_t panel_count,
                            size_t origin, size_t unit) {
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
            const char *row = ltx2c_a_row(term, k, slab->column + column, count, width, stage[0]);
            const char *next = NULL;
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
            kernel->pack_b(to + k / kernel->pair, values, count, scale, bounds);
        } else {
            const size_t width = ltx2c_ceil(count, 32) * 32;
            ltx2c_stage_row(stage, values, term->b.dtype, count, width);
            kernel->pack_b(to + k / kernel->pair, (const char *)stage, width, scale, bounds);
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

#endif
