/* Packing: rows of A and B, copied and padded where they cannot be used as they lie, through the kernel's packing. */
#ifndef LTX2C_PACK_H
#define LTX2C_PACK_H

#include "batch.h"

/* `count` values as bf16, followed by zeros up to `width`. */
static void ltx2c_pad_row(uint16_t *to, const char *from, ltx2c_dtype dtype, size_t count, size_t width) {
    if (dtype == LTX2C_BF16)
        memcpy(to, from, count * sizeof *to);
    else if (dtype == LTX2C_F32)
        for (size_t i = 0; i < count; i++) to[i] = ltx2c_to_bf16(ltx2c_load(from, i, LTX2C_F32));
    else
        for (size_t i = 0; i < count; i++) to[i] = ltx2c_to_bf16(ltx2c_load(from, i, LTX2C_F16));
    memset(to + count, 0, (width - count) * sizeof *to);
}

/* A row of A as `width` bf16 values: where it lies if it can be used as it is, else padded. */
static const char *ltx2c_a_row(const ltx2c_term *term, size_t k, size_t column, size_t count, size_t width,
                               uint16_t *padded) {
    const char *row = (const char *)term->a.data + (ptrdiff_t)k * term->a.stride;
    row += column * ltx2c_itemsize(term->a.dtype);
    if (k < term->rank && count == width && term->a.dtype == LTX2C_BF16) return row;
    ltx2c_pad_row(padded, row, term->a.dtype, k < term->rank ? count : 0, width);
    return (const char *)padded;
}

/* Packs `panels` panels of A from `column` on, of which `count` columns exist; returns the range of bf16 values. */
static ltx2c_range ltx2c_pack_a(const ltx2c_kernel *kernel, uint32_t *to, const ltx2c_term *term, size_t panel_words,
                                size_t column, size_t count, size_t panels) {
    uint16_t padded[2][LTX2C_UNIT];
    const size_t width = panels * kernel->panel;
    ltx2c_bounds bounds;
    ltx2c_bounds_open(&bounds);
    for (size_t k = 0; k < term->rank; k += kernel->pair, to += kernel->panel) {
        const char *row = ltx2c_a_row(term, k, column, count, width, padded[0]), *next = NULL;
        if (kernel->pair == 2) next = ltx2c_a_row(term, k + 1, column, count, width, padded[1]);
        kernel->pack_a(to, panel_words, row, next, panels, &bounds);
    }
    return ltx2c_bounds_close(&bounds);
}

/* The same with f32 words, from factors of any dtype. */
static void ltx2c_pack_a_wide(const ltx2c_kernel *kernel, uint32_t *to, const ltx2c_term *term, size_t panel_words,
                              size_t column, size_t count, size_t panels) {
    char padded[LTX2C_UNIT * sizeof(float)];
    const size_t itemsize = ltx2c_itemsize(term->a.dtype), bytes = count * itemsize;
    const int whole = count == panels * kernel->panel;
    memset(padded, 0, sizeof padded);
    for (size_t k = 0; k < term->rank; k++, to += kernel->panel) {
        const char *row = (const char *)term->a.data + (ptrdiff_t)k * term->a.stride + column * itemsize;
        kernel->pack_a_wide(to, panel_words, whole ? row : (const char *)memcpy(padded, row, bytes), term->a.dtype, panels);
    }
}

/* Packs a unit's panels of every term; `a` is where panel `origin` belongs. */
static void ltx2c_pack_unit(const ltx2c_kernel *kernel, ltx2c_slab *slab, uint32_t *a, size_t panel_count,
                            size_t origin, size_t unit) {
    const size_t first = unit * ltx2c_unit(kernel), panels = ltx2c_min(ltx2c_unit(kernel), slab->panels - first);
    const size_t column = first * kernel->panel, count = ltx2c_min(panels * kernel->panel, slab->columns - column);
    for (size_t t = 0; t < slab->job->term_count; t++) {
        const ltx2c_term *term = &slab->job->terms[t];
        const size_t panel_words = ltx2c_depth(kernel, slab->job, term) * kernel->panel;
        uint32_t *to = a + (first - origin) * panel_words;
        if (ltx2c_is_wide(slab->job, term))
            ltx2c_pack_a_wide(kernel, to, term, panel_words, slab->column + column, count, panels);
        else if (!ltx2c_is_full(term))
            slab->a_range[t * ltx2c_units(slab) + unit] =
                ltx2c_pack_a(kernel, to, term, panel_words, slab->column + column, count, panels);
        a += panel_count * panel_words;
    }
}

static void ltx2c_pack_b_row(const ltx2c_kernel *kernel, uint32_t *to, const char *from, const ltx2c_term *term,
                             const float *strength, ltx2c_bounds *bounds) {
    uint16_t padded[LTX2C_CHUNK];
    for (size_t k = 0, count; k < term->rank; k += count) {
        count = ltx2c_min(term->rank - k, LTX2C_CHUNK);
        const char *values = from + k * ltx2c_itemsize(term->b.dtype);
        if (term->b.dtype == LTX2C_BF16 && count >= 32) {
            count -= count % 32;
            kernel->pack_b(to + k / kernel->pair, values, count, strength, bounds);
        } else {
            const size_t width = ltx2c_ceil(count, 32) * 32;
            ltx2c_pad_row(padded, values, term->b.dtype, count, width);
            kernel->pack_b(to + k / kernel->pair, (const char *)padded, width, strength, bounds);
        }
    }
}

/* Packs a tile's rows [first, last) of one term's B; returns the range of bf16 values. */
static ltx2c_range ltx2c_pack_b_tile(const ltx2c_kernel *kernel, uint32_t *to, const ltx2c_job *job,
                                     const ltx2c_term *term, size_t first, size_t last) {
    const size_t stride = ltx2c_b_stride(kernel, job, term);
    const int scaled = term == job->terms && ltx2c_through_bf16(job->arithmetic);
    ltx2c_bounds bounds;
    ltx2c_bounds_open(&bounds);
    for (size_t row = first; row < last; row++, to += stride) {
        const char *from = (const char *)term->b.data + (ptrdiff_t)row * term->b.stride;
        if (ltx2c_is_wide(job, term))
            kernel->pack_b_wide(to, from, term->b.dtype, term->rank);
        else
            ltx2c_pack_b_row(kernel, to, from, term, scaled ? &term->strength : NULL, &bounds);
    }
    return ltx2c_bounds_close(&bounds);
}

/* Packs rows [first, first + rows) of every term's B, and keeps the range of each tile. */
static void ltx2c_pack_b(const ltx2c_kernel *kernel, const ltx2c_slab *slab, ltx2c_worker *worker, size_t first,
                         size_t rows) {
    const size_t terms = slab->job->term_count;
    uint32_t *to = worker->b;
    for (size_t t = 0; t < terms; t++) {
        const ltx2c_term *term = &slab->job->terms[t];
        const size_t stride = ltx2c_b_stride(kernel, slab->job, term);
        for (size_t r = 0; r < rows && !ltx2c_is_full(term); r += kernel->rows)
            worker->b_range[r / kernel->rows * terms + t] =
                ltx2c_pack_b_tile(kernel, to + r * stride, slab->job, term, first + r,
                                  first + ltx2c_min(r + kernel->rows, rows));
        to += slab->block_rows * stride;
    }
}

#endif
