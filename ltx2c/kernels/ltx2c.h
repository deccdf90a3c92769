/* ltx2c from C: one function that fuses adapters into one weight, bit for bit as the Python package does.
 *
 *     cc -O3 -ffp-contract=off -I"$(python -c 'import ltx2c; print(ltx2c.get_include())')" program.c
 *
 *     #include <ltx2c.h>
 *
 *     ltx2c_term term = {
 *         .a = {a, in * sizeof(uint16_t), LTX2C_BF16},           a [rank, in], b [out, rank], row-major;
 *         .b = {b, rank * sizeof(uint16_t), LTX2C_BF16},         bytes from row to row; bf16, f32 or f16
 *         .rank = rank,
 *         .strength = 0.8f,
 *     };
 *     A term may instead be a full matrix, .full = {d, in * sizeof(uint16_t), LTX2C_BF16}: it has no rank.
 *
 *     ltx2c_job job = {
 *         .weight = {w, in * sizeof(uint16_t), LTX2C_BF16},
 *         .out = w, .out_stride = in * sizeof(uint16_t),         the weight itself, or memory apart from all inputs
 *         .rows = out, .columns = in,
 *         .terms = &term, .term_count = 1,                       in fusion order; at least one
 *         .arithmetic = LTX2C_ARITHMETIC_LTX,                    or LTX2C_ARITHMETIC_F32
 *     };
 *     if (ltx2c_fuse(&job, threads)) ...                         no memory: nothing was written
 *     job.nonfinite                                              values that became inf or NaN, and were finite
 *
 * More than one thread needs -fopenmp. The compiler must not contract or relax floating-point arithmetic: GCC and Clang
 * need -ffp-contract=off, and neither -ffast-math nor anything it implies. A kernel that your compiler is too old for
 * is left out by -DLTX2C_WITHOUT_GENOA (or _SKYLAKE, _HASWELL, _NEON).
 */
#ifndef LTX2C_H
#define LTX2C_H

#ifdef _OPENMP
#include <omp.h>
#endif

#include "dispatch.h"
#include "driver.h"
#include "threads.h"

/* Fuses one weight with the fastest kernel of this CPU, on up to `threads` threads. Returns 0, or -1 without memory. */
static inline int ltx2c_fuse(ltx2c_job *job, unsigned threads) {
    ltx2c_batch batch;
    if (ltx2c_open_batch(&batch, ltx2c_best_kernel(), job, 1, threads)) return -1;
#ifdef _OPENMP
    const int workers = ltx2c_obtainable_threads((int)batch.worker_count);
#pragma omp parallel for schedule(static, 1) num_threads(workers)
    for (int worker = 0; worker < workers; worker++)
        while (ltx2c_run_block(&batch, (size_t)worker)) continue;
#else
    while (ltx2c_run_block(&batch, 0)) continue;
#endif
    ltx2c_close_batch(&batch);
    return 0;
}

#endif
