/* ltx2c from C and C++: fuses adapters into weights, bit for bit as the Python package does.
 *
 *     #define LTX2C_IMPLEMENTATION         in one unit of the program, C or C++; the others get declarations alone
 *     #include <ltx2c.h>
 *
 *     ltx2c_term term = {0};               in C++: ltx2c_term term{};
 *     term.a = (ltx2c_matrix){a, in * 2, LTX2C_BF16};        [rank, in], bytes from row to row; bf16, f32 or f16
 *     term.b = (ltx2c_matrix){b, rank * 2, LTX2C_BF16};      [out, rank];  in C++: term.b = {b, rank * 2, LTX2C_BF16}
 *     term.rank = rank;
 *     term.strength = 0.8f;
 *     A term may instead be a full matrix [out, in]: term.full = {d, in * 2, LTX2C_BF16}, and no rank.
 *
 *     ltx2c_job job = {0};
 *     job.weight = (ltx2c_matrix){w, in * 2, LTX2C_BF16};
 *     job.arithmetic = LTX2C_ARITHMETIC_LTX;                 or LTX2C_ARITHMETIC_F32
 *     job.out = w;                                           the weight itself, or memory apart from all inputs
 *     job.out_stride = in * 2;
 *     job.rows = out;
 *     job.columns = in;
 *     job.terms = &term;                                     in fusion order; at least one
 *     job.term_count = 1;
 *     int status = ltx2c_fuse(&job, threads);                0, or what is wrong: ltx2c_status_text(status)
 *     job.nonfinite                                          values that became inf or NaN, and were finite
 *
 * ltx2c_fuse() is one thread unless the unit with the implementation is built with OpenMP (-fopenmp). A program with
 * threads of its own needs no OpenMP: it opens a batch of jobs, and each thread runs blocks until none is left.
 *
 *     ltx2c_batch batch;
 *     status = ltx2c_open_batch(&batch, ltx2c_best_kernel(), jobs, job_count, workers);
 *     in each thread:  while (ltx2c_run_block(&batch, worker)) continue;         worker < batch.worker_count, its own
 *     when all are back:  ltx2c_close_batch(&batch);
 *
 * Any optimisation level is right; kernels need none beyond -O2. -ffast-math is refused. A kernel that your compiler is
 * too old for is left out by -DLTX2C_WITHOUT_GENOA (or _SKYLAKE, _HASWELL, _NEON). Linux on x86-64 and aarch64.
 */
#ifndef LTX2C_H
#define LTX2C_H

#define LTX2C_VERSION "0.1.0"

/* The implementation asks the system for huge pages and thread numbers, which strict ISO C hides. */
#if defined(LTX2C_IMPLEMENTATION) && !defined(_DEFAULT_SOURCE) && !defined(_GNU_SOURCE)
#ifdef __GLIBC__
#error "ltx2c.h: with -std=c11, include it before any other header in the unit with LTX2C_IMPLEMENTATION"
#endif
#define _DEFAULT_SOURCE
#endif

#include "../kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One line in English for people to read; never NULL. */
const char *ltx2c_status_text(int status);

/* The fastest kernel that this CPU runs. */
const ltx2c_kernel *ltx2c_best_kernel(void);

/* Fuses one weight on up to `threads` threads, and sets job->nonfinite. No rows or no columns: LTX2C_OK. */
int ltx2c_fuse(ltx2c_job *job, unsigned threads);

/* Prepares the fusion of `jobs`, none of which writes what another reads, by up to `workers` threads: checks them, cuts
 * them into batch->blocks blocks and allocates. Jobs, terms and data must stay until the batch is closed. Where it is
 * not LTX2C_OK there is nothing to close. batch->worker_count says how many workers have work, at least one. */
int ltx2c_open_batch(ltx2c_batch *batch, const ltx2c_kernel *kernel, ltx2c_job *jobs, size_t job_count, size_t workers);

/* Takes the next block and runs it; returns 0 where none is left to take. Call it from as many threads as you like, each
 * as a worker of its own below batch->worker_count, in any order; a thread that comes late or never leaves its share to
 * the others. A block may wait for an older one that another thread is running: so run each to its end in a thread that
 * the system schedules, not in coroutines that share one. */
int ltx2c_run_block(ltx2c_batch *batch, size_t worker);

/* Frees the batch, after the last call of ltx2c_run_block() has returned in every thread. Before all blocks have run it
 * gives the fusion up: outs are then unfinished. Each job's `nonfinite` is complete now. */
void ltx2c_close_batch(ltx2c_batch *batch);

#ifdef __cplusplus
}
#endif

#ifdef LTX2C_IMPLEMENTATION
#include "../kernels/implementation.h"
#endif

#endif
