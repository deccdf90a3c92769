/* Three ways to be slower with the same bytes, so that ci/sabotage.py can show that the performance gate sees them.
 *
 * A build has one where its CFLAGS say -DLTX2C_SABOTAGE=LTX2C_SCALAR_LOOP (or another of these), and none otherwise.
 */
#ifndef LTX2C_SABOTAGE_H
#define LTX2C_SABOTAGE_H

#include <stdlib.h>

#include "core.h"

enum { LTX2C_SCALAR_LOOP = 1, LTX2C_DROPPED_THREAD = 2, LTX2C_COPIED_WEIGHTS = 3 };

/* Keeps the compiler from leaving out a copy that nobody reads. */
#define LTX2C_IS_READ(pointer) __asm__ volatile("" : : "g"(pointer) : "memory")

/* The loop that ltx2c replaces, element by element and A down its columns. The gate's weights are bf16 with one term. */
static uint64_t ltx2c_scalar_loop(const ltx2c_job *job, size_t row, size_t rows, size_t column, size_t columns) {
    const ltx2c_term *term = job->terms;
    for (size_t o = row; o < row + rows; o++) {
        const char *b = (const char *)term->b.data + (ptrdiff_t)o * term->b.stride;
        const char *weight = (const char *)job->weight.data + (ptrdiff_t)o * job->weight.stride;
        char *out = (char *)job->out + (ptrdiff_t)o * job->out_stride;
        for (size_t i = column; i < column + columns; i++) {
            float sum = 0;
            for (size_t k = 0; k < term->rank; k++) {
                const char *a = (const char *)term->a.data + (ptrdiff_t)k * term->a.stride;
                const float scaled = ltx2c_load(b, k, LTX2C_BF16) * term->strength;
                sum += ltx2c_from_bf16(ltx2c_to_bf16(scaled)) * ltx2c_load(a, i, LTX2C_BF16);
            }
            const float delta = ltx2c_from_bf16(ltx2c_to_bf16(sum));
            const uint16_t fused = ltx2c_to_bf16(delta + ltx2c_load(weight, i, LTX2C_BF16));
            memcpy(out + i * sizeof fused, &fused, sizeof fused);
        }
    }
    return 0;
}

static void ltx2c_copy_weight(const ltx2c_job *job) {
    const size_t bytes = job->columns * ltx2c_itemsize(job->weight.dtype);
    char *copy = (char *)malloc(job->rows * bytes);
    for (size_t r = 0; copy && r < job->rows; r++)
        memcpy(copy + r * bytes, (const char *)job->weight.data + (ptrdiff_t)r * job->weight.stride, bytes);
    LTX2C_IS_READ(copy);
    free(copy);
}

/* What goes wrong before a batch begins. Returns how many workers are left. */
static size_t ltx2c_sabotage_batch(const ltx2c_job *jobs, size_t job_count, size_t workers) {
    for (size_t j = 0; LTX2C_SABOTAGE == LTX2C_COPIED_WEIGHTS && j < job_count; j++) ltx2c_copy_weight(&jobs[j]);
    return LTX2C_SABOTAGE == LTX2C_DROPPED_THREAD && workers > 1 ? workers - 1 : workers;
}

#endif
